"""Causes: the failures of a run grouped by what explains them, so that one cause is one message.

The smallest case of a cause is shown in full, the others have a line each.  A wrong adapter comes first, then
unexplained failures.
Nothing is decided here, and nothing is left out of a file.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeVar

from attention_conformance.conformance.judging.message import with_lines
from attention_conformance.conformance.judging.outcomes import Failure, Result
from attention_conformance.conformance.spec.clauses import clauses

#: Most messages in full: of unexplained failures by value, and of causes of one implementation.
UNEXPLAINED, MESSAGES = 3, 10

#: Most other failures of a cause that have a line, and most causes per implementation at the end of a run.
LISTED, TOLD = 20, 4

#: Most other clauses that are named with the one that most failures of a cause break.
NAMED = 6

#: Labels of the lines of a failure's message that explain it, the strongest first.
ADAPTER = "Adapter:"
LABELS = (ADAPTER, "Diagnosis:")

#: Advice on a wrong adapter: what the function computes of other inputs than were meant has no other cause to look for.
FIRST = "correct this first and run again: the other failures may come from it"

#: Beginnings of observations that say where a failure comes from and not what it is (diagnosis/explain.py).
OBSERVED = ("the case passes by itself in a fresh process", "run again by itself")

#: The parts that differ between two messages of one mistake: numbers, and text in brackets or parentheses.
_VARIES = re.compile(r"0x[0-9a-fA-F]+|\d+(\.\d+)?(e[+-]?\d+)?|\[[^\]]*\]|\([^)]*\)")


class Kind(IntEnum):
    """Kind of a cause by how much is known about it; the least known comes first."""

    UNKNOWN = 0  # wrong values that nothing explains
    ALIKE = 1  # failures that end in the same way
    EXPLAINED = 2


#: The key of a failure.
K = TypeVar("K")

#: Headings above the failures that have a line each.
HEADS = {
    Kind.UNKNOWN: "Also not explained:",
    Kind.ALIKE: "Failing the same way:",
    Kind.EXPLAINED: "Same cause:",
}

#: Words before the reason of a failure, where the reason is no sentence of its own.
BEGINNINGS = {
    Failure.ERROR: "an exception on a valid input: ",
    Failure.NO_ERROR: "an invalid input is ",
    Failure.STATE: "left changed in the process: ",
}

#: Failures whose own words say more about their cause than a known mistake that fails in the same way.
OWN_WORDS = (Failure.ERROR, Failure.CRASHED, Failure.TIMEOUT, Failure.MEMORY)


@dataclass(frozen=True)
class Told:
    """A failure with everything that its message says."""

    result: Result
    #: More lines of its message: stages, diagnosis, script.
    lines: tuple[str, ...] = ()
    #: Key that orders cases from small to large.
    size: tuple[int, str] = (0, "")

    @property
    def message(self) -> str:
        """The whole message."""
        return with_lines(self.result.message, self.lines)

    @property
    def script(self) -> str:
        """The path of its standalone script, "" without one."""
        return self._after("Script:")

    @property
    def explanation(self) -> str:
        """Explanation of the cause, "" where there is none."""
        texts = (self._after(label) for label in LABELS)
        return next((text for text in texts if text and not text.startswith(OBSERVED)), "")

    @property
    def way(self) -> str:
        """Way in which it failed, without its numbers, "" for wrong values."""
        result = self.result
        if result.failure in (Failure.VALUE, None):
            return ""
        return f"{result.failure}: {_VARIES.sub('…', result.reason)}"

    def has(self, label: str) -> bool:
        """Whether its message has a line with this label."""
        return bool(self._after(label))

    def _after(self, label: str) -> str:
        line = next((line for line in self.lines if line.startswith(label)), "")
        return line.removeprefix(label).strip()


@dataclass(frozen=True)
class Cause:
    """Failures of one implementation on one device with one explanation, the one to read first at their head."""

    kind: Kind
    text: str
    failures: tuple[Told, ...]

    @property
    def first(self) -> Told:
        """The smallest failure of the clause that most of them break."""
        return self.failures[0]

    @property
    def in_full(self) -> tuple[Told, ...]:
        """Failures whose message is shown in full."""
        return self.failures[: UNEXPLAINED if self.kind is Kind.UNKNOWN else 1]

    @property
    def is_adapter(self) -> bool:
        """Whether the function is called, or returns its results, in another way than the contract says."""
        return self.kind is Kind.EXPLAINED and self.first.has(ADAPTER)

    @property
    def name(self) -> str:
        """The implementation and device of the failures."""
        return f"{self.first.result.implementation} on {self.first.result.device}"

    @property
    def title(self) -> str:
        """Title: how many failures there are, and whether they are explained."""
        some = len(self.failures) > 1
        known = {Kind.UNKNOWN: ", not explained", Kind.ALIKE: " alike" * some, Kind.EXPLAINED: ", one cause" * some}
        return f"{_many(len(self.failures))}{known[self.kind]}"

    @property
    def sentence(self) -> str:
        """The cause in one sentence."""
        if self.kind is Kind.EXPLAINED:
            return self.text
        if self.kind is Kind.UNKNOWN:
            return f"{_many(len(self.failures))} by value not explained"
        result = self.first.result
        begins = BEGINNINGS.get(result.failure, "") if result.failure else ""
        return f"{_many(len(self.failures))}{' alike' * (len(self.failures) > 1)}: {begins}{result.reason}"

    def others(self, width: int | None = None, all_in: str = "-v shows all messages") -> list[str]:
        """A line for each failure that is not shown in full: case, dtypes, clause and reason.

        Lines are cut at ``width`` if it is given.  Cases beyond LISTED are counted, and ``all_in`` says where they are.
        """
        rest = _by_case(self.failures[len(self.in_full) :])
        if not rest:
            return []
        dtypes = len({told.result.dtype for told in self.failures}) > 1
        rows = []
        for same in rest[:LISTED]:
            result = same[0].result
            where = f"{result.case} ({', '.join(told.result.dtype for told in same)})" if dtypes else result.case
            rows.append((where, result.broken or "", result.reason))
        widths = [max(len(row[i]) for row in rows) for i in range(2)]
        lines = [f"  {a:<{widths[0]}}  {b:<{widths[1]}}  {c}".rstrip() for a, b, c in rows]
        lines = [line if not width or len(line) <= width else f"{line[: width - 1]}…" for line in lines]
        left = sum(map(len, rest[LISTED:]))
        return [HEADS[self.kind], *lines, *([f"  … and {left} more; {all_in}"] if left else [])]

    def ending(self) -> list[str]:
        """Lines at the end of a run: the cause, the clauses that are broken, and the script to read."""
        first = self.first
        count = Counter(told.result.broken for told in self.failures if told.result.broken)
        lines = [f"{self.name}: {self.sentence}"]
        if count:
            lines.append(f"  Clause:   {_clauses(count)}")
        if first.script.endswith(".py"):
            return [*lines, f"  Script:   {first.script}"]
        return [*lines, f"  Smallest: {first.result.case} in {first.result.dtype}: {first.result.reason}"]


def causes(failures: Iterable[Told]) -> list[Cause]:
    """The failures of a run by cause: a wrong adapter, then unexplained ones, then the causes that explain most.

    Parameters
    ----------
    failures
        Failures of one run, with what the diagnosis says about each.

    Returns
    -------
    list[Cause]
        Causes, each with its failures, the smallest case first.
    """
    by_name: dict[tuple[str, str], list[Told]] = defaultdict(list)
    for told in failures:
        by_name[told.result.implementation, told.result.device].append(told)
    found = []
    for group in by_name.values():
        by_cause: dict[tuple[Kind, str], list[Told]] = defaultdict(list)
        for told, cause in zip(group, _causes_of(group), strict=True):
            by_cause[cause].append(told)
        found += [Cause(kind, text, _in_order(some)) for (kind, text), some in by_cause.items()]
    return sorted(found, key=lambda cause: (not cause.is_adapter, cause.kind, -len(cause.failures)))


def _causes_of(group: Sequence[Told]) -> Iterator[tuple[Kind, str]]:
    """Cause of each failure of an implementation, and how well it is known."""
    explanations: dict[str, set[str]] = defaultdict(set)
    for told in group:
        explanations[told.way].add(told.explanation)
    unexplained = [told.result for told in group if not told.way and not told.explanation]
    by_profile = all(result.meets for result in unexplained)
    for told in group:
        result, way = told.result, told.way
        if told.explanation and not (result.failure in OWN_WORDS and len(explanations[way]) > 1):
            yield Kind.EXPLAINED, told.explanation
        elif way:
            yield Kind.ALIKE, way
        elif by_profile:
            text = f"profile {result.profile} is declared; the results keep the bound of {result.meets[0]}"
            yield Kind.EXPLAINED, text
        else:
            yield Kind.UNKNOWN, ""


def in_full(found: Sequence[Cause]) -> list[Cause]:
    """The causes whose messages are shown in full: up to MESSAGES of each implementation."""
    count: Counter[str] = Counter()
    kept = []
    for cause in found:
        count[cause.name] += 1
        if count[cause.name] <= MESSAGES:
            kept.append(cause)
    return kept


def to_read(failures: Sequence[tuple[Told, K]]) -> list[K]:
    """Keys of the failures of a run whose scripts to read, one of each cause that is shown in full.

    Parameters
    ----------
    failures
        Failures, each with its key.

    Returns
    -------
    list
        Some of the keys.
    """
    first = {id(cause.first) for cause in in_full(causes(told for told, _ in failures))}
    return [name for told, name in failures if id(told) in first]


def ending(found: Sequence[Cause]) -> list[str]:
    """Lines about the causes of a run's failures, in their order."""
    by_name: dict[str, list[Cause]] = defaultdict(list)
    for cause in found:
        by_name[cause.name].append(cause)
    lines = []
    for name, group in by_name.items():
        for cause in group[:TOLD]:
            lines += cause.ending()
            lines += [f"  First:    {FIRST}"] if cause.is_adapter and len(group) > 1 else []
        if len(group) > TOLD:
            lines.append(f"{name}: … and {len(group) - TOLD} more causes, above")
    return lines


def wrapped(text: str, width: int) -> str:
    """A message for a terminal of this width: sentences broken between words; paths and commands stay whole."""
    lines: list[str] = []
    for line in text.splitlines():
        if len(line) <= width or line.lstrip().startswith(("Rerun:", "Script:", "Paste:", "File ", "attention-")):
            lines.append(line)
            continue
        label = re.match(r"\s*[A-Z][a-z]+: +", line)
        indent = " " * len(label[0]) if label else " " * (len(line) - len(line.lstrip()))
        lines += textwrap.wrap(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines)


def _in_order(group: Sequence[Told]) -> tuple[Told, ...]:
    """The one to read first, then the others from small to large."""
    count = Counter(told.result.broken for told in group)
    most = max(count, key=lambda clause: count[clause])
    ordered = sorted(group, key=lambda told: told.size)

    def easy(told: Told) -> tuple[bool, bool, bool]:
        result = told.result
        return result.broken != most, result.failure is not Failure.VALUE, bool(result.error_pattern or result.sizes)

    first = min(ordered, key=easy)
    return (first, *(told for told in ordered if told is not first))


def _by_case(failures: Iterable[Told]) -> list[list[Told]]:
    found: dict[str, list[Told]] = defaultdict(list)
    for told in failures:
        found[told.result.case].append(told)
    return list(found.values())


def _clauses(count: Counter[str]) -> str:
    """The clauses in words: "SDPA-9 · Causal (MUST) in 13; SDPA-1, SDPA-4 in 6 others"."""
    (name, many), *others = count.most_common()
    clause = clauses().get(name)
    text = f"{name} · {clause.title} ({clause.level.value})" if clause else name
    if others:
        rest = sum(number for _, number in others)
        names = sorted((n for n, _ in others), key=_place)
        cut = names[:NAMED] + (["…"] if len(names) > NAMED else [])
        text += f" in {many}; {', '.join(cut)} in {rest} other{'s' * (rest > 1)}"
    return text


def _many(number: int) -> str:
    return f"{number} failure{'s' * (number > 1)}"


def _place(clause: str) -> tuple[str, int]:
    head, _, number = clause.partition("-")
    return head, int(number) if number.isdigit() else 0
