"""A comparison as text: sentences and tables, for the terminal, a comment on a pull request, JSON and the pages."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd
from tabulate import tabulate

from attention_conformance.bench.analysis.statistics import Interval, Verdict
from attention_conformance.reports.compare.changes import (
    Change,
    Comparison,
    Finding,
    Kind,
    Level,
    Machine,
    Speed,
    Status,
)
from attention_conformance.reports.compare.effects import FALSE, IMPLEMENTATIONS, POWER, QUANTILE, SAME
from attention_conformance.reports.input.records import by_file, labels
from attention_conformance.reports.text import NONE, digits, fold, inert, percent, printable, shortened, table

#: First words of the headline.
WORDS = {Status.NOTHING_WORSE: "NOTHING WORSE", Status.WORSE: "WORSE", Status.CANNOT_TELL: "CANNOT TELL"}

#: Names of cases or workloads that a row of grouped changes shows.
NAMED = 3

#: Kind and version that the JSON names.
KIND = "attention-conformance comparison"

VERSION = 3

#: A comparison that could have seen this slowdown of an implementation needs no other comparison.
ENOUGH = 1.10

#: Bytes of a comment: GitHub takes 2¹⁶.
LONGEST = 60_000

#: Rows of a table in a terminal, and of one in a comment that is not folded.
LINES = 30

SHOWN = 10

#: Characters of a sentence of a comment: names and paths in it may have any length.
LONG = 1000

#: Text instead of the parts of a comment that do not fit.
LEFT_OUT = "A part is left out to keep this comment short enough; the JSON has everything."

_CHANGED = (Verdict.SLOWER, Verdict.FASTER)

_SIGNS = {Status.NOTHING_WORSE: "✅", Status.WORSE: "❌", Status.CANNOT_TELL: "❔"}


def headline(found: Comparison) -> str:
    """The verdict with what it rests on, as one line.

    Parameters
    ----------
    found
        The comparison.

    Returns
    -------
    str
        One line.
    """
    return f"{WORDS[found.status]}: {', '.join(worse_counts(found)) or summary_sentences(found)}"


def worse_counts(found: Comparison) -> list[str]:
    """Clauses about what is worse: what is slower, then how many there are of each other kind of change.

    A count follows its kind: "3 × more memory" would be read as three times the memory.

    Parameters
    ----------
    found
        The comparison.

    Returns
    -------
    list[str]
        Clauses, such as "more memory (3)"; none where nothing is worse.
    """
    count = _alone(found)
    cells = [f"{count} {'cell is' if count == 1 else 'cells are'} slower"] if count else []
    kinds = Counter(change.kind.value for change in found.worse)
    return [
        *_slower(found),
        *cells,
        *(f"{kind} ({number})" for kind, number in kinds.items()),
    ]


def _slower(found: Comparison) -> list[str]:
    """Clauses about what is slower as a whole and counts: the first, and how many others."""
    parts = [whole(one) for one in found.slower_as_a_whole]
    more = len(parts) - NAMED
    return [*parts[:NAMED], *([f"{more} more implementations slower"] if more > 0 else [])]


def _alone(found: Comparison) -> int:
    """Number of cells that are slower and not part of something that is slower as a whole."""
    wholes = {(one.implementation, one.device, one.dtype) for one in found.slower_as_a_whole}
    places = [{(one.implementation, one.device, one.dtype), ("", one.device, "")} for one in found.slower]
    return sum(not wholes & place for place in places)


def whole(one: Finding) -> str:
    """Clause about a change as a whole: "torch-sdpa float32 is 12 % slower (all 9 cells, up to 40 %)".

    Parameters
    ----------
    one
        A change as a whole.

    Returns
    -------
    str
        A clause.
    """
    name = f"{one.implementation} {one.dtype}" if one.implementation else f"everything on {one.device}"
    by, most = (abs(ratio - 1) for ratio in (one.ratio.value, one.most))
    beyond = abs(math.log(one.most / one.ratio.value)) > math.log(SAME) and most > by
    all_of = f"all {one.cells}" if one.changed == one.cells else f"{one.changed} of {one.cells}"
    where = f"{all_of} cells" + (f", up to {percent(most)}" if beyond else "") + (", ignored" if one.ignored else "")
    return f"{name} is {percent(by)} {one.verdict.value} ({where})"


def summary_sentences(found: Comparison) -> str:
    """Sentences about what was compared.

    Parameters
    ----------
    found
        The comparison.

    Returns
    -------
    str
        One line.
    """
    verdicts = Counter(cell.verdict for cell in found.speeds)
    cells = ", ".join(f"{verdicts[one]} {one.value}" for one in Verdict if verdicts[one])
    kinds = Counter(change.kind for change in found.changes)
    alone = {"base": kinds[Kind.CELL] + kinds[Kind.UNTIMED], "new run": kinds[Kind.NEW_CELL]}
    parts = [f"{found.results} results compared"] if found.results else []
    parts += [f"{len(found.speeds)} cells compared ({cells})"] if found.speeds else []
    parts += [f"{count} timed only in the {run}" for run, count in alone.items() if count and parts]
    return "; ".join([*parts, *seen(found)]) or "nothing was compared"


def unclear(found: Comparison) -> str:
    """A sentence about the unclear cells: how many of how many, and what would have been seen."""
    some = sum(cell.verdict is Verdict.UNCLEAR for cell in found.speeds)
    if not some:
        return ""
    return (
        "; ".join([f"{some} of {len(found.speeds)} cells {'is' if some == 1 else 'are'} unclear", *seen(found)]) + "."
    )


def seen(found: Comparison) -> list[str]:
    """Sentences about the smallest change that a comparison of times could have seen, by device.

    Parameters
    ----------
    found
        The comparison.

    Returns
    -------
    list[str]
        A sentence for each device.
    """
    several = len(found.machines) > 1
    return [_seen(one) + (f" on {one.device}" if several else "") for one in found.machines]


def _seen(one: Machine) -> str:
    limits = ((one.seen_implementation, "an implementation"), (one.seen_cell, "one cell"))
    told = [f"{percent(limit - 1)} in {what}" for limit, what in limits if limit is not None]
    return f"a change of {' or '.join(told)} would have been seen"


def changes(found: Iterable[Change], levels: Iterable[Level]) -> pd.DataFrame:
    """One row per kind of change, implementation, device and dtype, with the first cases and the change of the first.

    Parameters
    ----------
    found
        Changes of conformance, accuracy, memory and cells.
    levels
        Levels that are shown.

    Returns
    -------
    pd.DataFrame
        Empty where there is none.
    """
    groups: dict[tuple[str, ...], list[Change]] = {}
    wanted = tuple(levels)
    for one in sorted(found, key=lambda change: tuple(Kind).index(change.kind)):
        if one.level in wanted:
            groups.setdefault((one.kind.value, one.implementation, one.device, one.dtype), []).append(one)
    rows = []
    for key, group in groups.items():
        names = ", ".join(one.name for one in group[:NAMED])
        more = f" and {len(group) - NAMED} more" if len(group) > NAMED else ""
        rows.append((*key, len(group), names + more, f"{shortened(group[0].base)} → {shortened(group[0].new)}"))
    columns = ["change", "implementation", "device", "dtype", "count", "where", "first: base → new"]
    return pd.DataFrame(rows, columns=columns)


def speeds(found: Comparison, verdicts: Iterable[Verdict]) -> pd.DataFrame:
    """One row per cell with one of these verdicts, the largest change first.

    Parameters
    ----------
    found
        The comparison.
    verdicts
        Verdicts that are shown.

    Returns
    -------
    pd.DataFrame
        Times in milliseconds or in times of the yardstick, and ratios with their 95 % intervals.
    """
    wanted = tuple(verdicts)
    chosen = [cell for cell in found.speeds if cell.verdict in wanted]
    chosen.sort(key=lambda cell: max(cell.ratio.value, 1 / cell.ratio.value), reverse=True)
    return pd.DataFrame(
        {
            "verdict": [cell.verdict.name + (" (ignored)" if cell.ignored else "") for cell in chosen],
            "implementation": [cell.implementation for cell in chosen],
            "device": [cell.device for cell in chosen],
            "dtype": [cell.dtype for cell in chosen],
            "workload": [cell.workload for cell in chosen],
            "base": [_time(cell.base, found.yardstick) for cell in chosen],
            "new": [_time(cell.new, found.yardstick) for cell in chosen],
            "ratio": [digits(cell.ratio.value) for cell in chosen],
            "95 % interval": [_ends(cell.ratio) for cell in chosen],
            "adjusted interval": [_ends(cell.among_all) for cell in chosen],
            "why unclear": [cell.why or NONE for cell in chosen],
        }
    )


def wholes(found: Comparison) -> pd.DataFrame:
    """One row for everything or each implementation that changed as a whole.

    Parameters
    ----------
    found
        The comparison.

    Returns
    -------
    pd.DataFrame
        Ratios with their 95 % intervals.
    """
    rows = [
        (
            one.verdict.name + " (ignored)" * one.ignored,
            one.implementation or "everything",
            one.device,
            one.dtype or NONE,
            digits(one.ratio.value),
            _ends(one.ratio),
            f"{one.changed} of {one.cells}",
        )
        for one in found.findings
    ]
    columns = ["verdict", "implementation", "device", "dtype", "ratio", "95 % interval", "cells changed"]
    return pd.DataFrame(rows, columns=columns)


def rules(found: Comparison) -> list[str]:
    """Sentences about the file of rules that a comparison was judged by, and how much they ignore.

    Parameters
    ----------
    found
        The comparison.

    Returns
    -------
    list[str]
        One sentence or none.
    """
    if not found.rules:
        return []
    cells, others = found.ignored
    slower = f"{cells} slower {'cell' if cells == 1 else 'cells'}"
    other = f"{others} other {'change' if others == 1 else 'changes'}"
    return [f"judged by {found.rules}: {slower} and {other} ignored"]


def rule(found: Comparison) -> list[str]:
    """Sentence about how the times were judged.

    Parameters
    ----------
    found
        The comparison.

    Returns
    -------
    list[str]
        The thresholds and the rate of false alarms.
    """
    if not found.speeds:
        return []
    unit = f"multiples of those of {found.yardstick} in the same run" if found.yardstick else "in milliseconds"
    first = (
        f"Times are {unit}: the {percent(QUANTILE)} quantile of the calls of a process run, averaged over the process"
        " runs of the cell. Ratios are new ÷ base, corrected for the change of the machine. An implementation or a cell"
        " is faster or slower if its ratio is beyond 5 % and its adjusted interval, which allows for the number of"
        f" comparisons, lies beyond 2 % ({percent(FALSE)} of such findings are false); a cell is the same if its own"
        f" 95 % interval lies within {percent(SAME - 1)}; otherwise it is unclear. A file of rules may set other"
        " thresholds."
    )
    return [first, *(_machine(one) for one in found.machines), *_offer(found)]


def _machine(one: Machine) -> str:
    by = ", ".join(f"{name} {factor:.3f}" for name, factor in one.yardsticks) or "none measured in both runs"
    scatter, cell, implementation = (percent(each, 1) for each in (one.scatter, *one.luck))
    return (
        f"{one.device}: the machine accounts for a factor of {one.factor.value:.3f} in time, new ÷ base"
        f" ({one.factor.low:.3f} to {one.factor.high:.3f}); yardsticks: {by}. Over {one.cells} cells, process runs"
        f" scatter by {scatter}; from run to run a cell scatters by another {cell} and an implementation by"
        f" {implementation}."
    )


def _offer(found: Comparison) -> list[str]:
    """Advice on what sees more, where this comparison could not have seen a change that counts."""
    limits = {_seen(one): one.seen_implementation or one.seen_cell or 1.0 for one in found.machines}
    told = "; ".join(text for text, limit in limits.items() if limit > ENOUGH)
    if not told:
        return []
    said = f"In this comparison, {told} ({percent(POWER)} of the time, in the median implementation and cell). "
    if len({one.implementation for one in found.speeds}) < IMPLEMENTATIONS and not found.yardstick:
        said += (
            f"With fewer than {IMPLEMENTATIONS} implementations, a slower machine cannot be distinguished from slower"
            " code: also time an implementation that did not change, and compare with its times (--across-machines"
            " NAME). "
        )
    if found.threads > 1 and any(one.device == "cpu" for one in found.machines):
        said += f"Calls on one core (--threads 1) may scatter much less than on {found.threads}. "
    offer = "to find smaller changes, time both revisions side by side: "
    offer += "attention-conformance compare-revisions --base REVISION"
    return [said + offer[:1].upper() + offer[1:]]


def files(found: Comparison) -> pd.DataFrame:
    """One row per file of each run, with the counts of records.

    Parameters
    ----------
    found
        The comparison.

    Returns
    -------
    pd.DataFrame
        One row for each file.
    """
    frame = by_file([*found.base, *found.new])
    frame.insert(0, "run", ["base"] * len(found.base) + ["new"] * len(found.new))
    # The run distinguishes files of the same name, which two folders mostly have.
    return frame.assign(file=[*labels(found.base), *labels(found.new)])


def _time(one: float, yardstick: str) -> str:
    return digits(one if yardstick else one * 1e3)


def _ends(one: Interval) -> str:
    return f"{digits(one.low)} to {digits(one.high)}"


def terminal(found: Comparison) -> str:
    """The verdict, what changed, how it was judged, and the files.

    Parameters
    ----------
    found
        The comparison.

    Returns
    -------
    str
        Plain text.
    """
    parts = [printable(headline(found))]
    parts += [f"cannot tell: {printable(why)}" for why in found.unfit]
    parts += [_rows(title, frame) for title, frame in _tables(found) if not frame.empty]
    said = [summary_sentences(found), *filter(None, [unclear(found)]), *rules(found), *rule(found), *found.notes]
    parts += map(printable, said)
    return "\n\n".join([*parts, _rows("", files(found))]) + "\n"


def _rows(title: str, frame: pd.DataFrame) -> str:
    shown = frame.head(LINES).map(printable)
    text = tabulate(shown.values.tolist(), list(shown.columns), disable_numparse=True)
    more = f"\n… and {len(frame) - LINES} more (all are in --json)" if len(frame) > LINES else ""
    return (f"{title}\n\n" if title else "") + text + more


def _tables(found: Comparison) -> Iterator[tuple[str, pd.DataFrame]]:
    yield "", changes(found.changes, [Level.WORSE])
    yield "By implementation:", wholes(found)
    yield "", speeds(found, _CHANGED)
    yield "Better:", changes(found.changes, [Level.BETTER])
    yield "Neither better nor worse, or ignored:", changes(found.changes, [Level.NOTE, Level.IGNORED])


def comment(found: Comparison) -> str:
    """A short comment: the verdict, then what is worse; everything else folded, and left out where it is too long.

    Parameters
    ----------
    found
        The comparison.

    Returns
    -------
    str
        Markdown, short enough for a comment.
    """
    sections = [f"### {_SIGNS[found.status]} Attention: {inert(shortened(headline(found), LONG))}"]
    sections += [f"**Cannot tell**: {inert(why)}." for why in _first(found.unfit)]
    rest = [inert(unclear(found))] if unclear(found) else []
    worse, changed = changes(found.changes, [Level.WORSE]), speeds(found, [Verdict.SLOWER])
    for frame in (worse, wholes(found), changed.drop(columns="why unclear")):
        if not frame.empty:
            sections.append(table(frame.head(SHOWN)))
        if len(frame) > SHOWN:
            rest.append(fold(f"All {len(frame)}", table(frame)))
    for title, frame in (
        ("Faster", speeds(found, [Verdict.FASTER]).drop(columns="why unclear")),
        ("Better", changes(found.changes, [Level.BETTER])),
        ("Neither better nor worse, or ignored", changes(found.changes, [Level.NOTE, Level.IGNORED])),
        ("The same", speeds(found, [Verdict.SAME]).drop(columns="why unclear")),
    ):
        if not frame.empty:
            rest.append(fold(f"{title}: {len(frame)}", table(frame)))
    said = [summary_sentences(found), *rules(found), *rule(found), *_first(found.notes)]
    read = files(found)
    more = [f"{len(read) - LINES} more files are in the JSON."] if len(read) > LINES else []
    how = [*map(inert, said), table(read.head(LINES)), *more]
    ending = fold("Method and files", "\n\n".join(how))
    return _fitted(sections, rest, ending)


def _first(texts: Sequence[str]) -> list[str]:
    """The first SHOWN of some sentences, each of LONG characters at most, and how many others there are."""
    more = len(texts) - SHOWN
    return [*(shortened(text, LONG) for text in texts[:SHOWN]), *([f"{more} more"] if more > 0 else [])]


def _fitted(sections: Sequence[str], rest: Sequence[str], ending: str) -> str:
    """The parts of a comment within LONGEST bytes; the sections have precedence, then the ending."""
    parts = [*sections, *rest, ending]
    last = len(parts) - 1
    room = LONGEST - len(LEFT_OUT.encode()) - 2
    for at in (*range(len(sections)), last, *range(len(sections), last)):
        size = len(parts[at].encode()) + 2  # with the empty line after it
        if size > room:
            parts[at] = LEFT_OUT
        else:
            room -= size
    return "\n\n".join(dict.fromkeys(parts)) + "\n"


def document(found: Comparison) -> dict[str, Any]:
    """Everything as plain data.

    Parameters
    ----------
    found
        The comparison.

    Returns
    -------
    dict[str, Any]
        JSON values, as the schema of a comparison has them.
    """
    return {
        "kind": KIND,
        "version": VERSION,
        "status": found.status.name.lower().replace("_", " "),
        "exit_status": found.status.value,
        "headline": headline(found),
        "unfit": list(found.unfit),
        "notes": list(found.notes),
        "yardstick": found.yardstick,
        "results": found.results,
        "rules": found.rules,
        "ignored": sum(found.ignored),
        "machines": [_record(one) for one in found.machines],
        "findings": [_record(one) for one in found.findings],
        "speeds": [_record(one) for one in found.speeds],
        "changes": msgspec.to_builtins(found.changes),
        "files": files(found).to_dict("records"),
    }


def _record(one: Machine | Finding | Speed) -> dict[str, Any]:
    return {name: _plain(value) for name, value in vars(one).items()}


def _plain(value: Any) -> Any:
    return [value.low, value.value, value.high] if isinstance(value, Interval) else msgspec.to_builtins(value)


def write(found: Comparison, markdown: Path | None, as_json: Path | None) -> None:
    """Write the files that were asked for.

    Parameters
    ----------
    found
        The comparison.
    markdown
        Path of the comment; None for none.
    as_json
        Path of the JSON file, which has everything; None for none.
    """
    views: list[tuple[Path | None, Callable[[Comparison], str]]] = [
        (markdown, comment),
        (as_json, lambda one: json.dumps(document(one), indent=1, allow_nan=False) + "\n"),
    ]
    for path, text in views:
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text(found), encoding="utf-8")
