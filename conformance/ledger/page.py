"""DEVIATIONS.md: how today's libraries deviate, from the ledger and the published results."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Mapping, Sequence
from fnmatch import filter as matching
from pathlib import Path

from attention_conformance.conformance.judging.outcomes import IN_WORDS
from attention_conformance.conformance.ledger.divergence import answers, escaped, markdown
from attention_conformance.conformance.ledger.issues import issue_of, issues
from attention_conformance.conformance.ledger.load import Deviation, Ledger, LedgerError, cases_meeting, dtypes
from attention_conformance.conformance.ledger.questions import DTYPE
from attention_conformance.conformance.ledger.stale import Standing, Verdict, stale
from attention_conformance.conformance.results import Run
from attention_conformance.conformance.spec.clauses import Clause, clauses
from attention_conformance.impls.select import builtin

PAGE = Path(__file__).parents[1] / "DEVIATIONS.md"
TAIL = Path(__file__).with_name("page.md")
PUBLISHED = Path(__file__).parents[2] / "reports" / "published" / "conformance.jsonl.zst"
#: The same for a machine with a GPU, with results on the GPU only.
PUBLISHED_GPU = PUBLISHED.parent / "h200" / PUBLISHED.name
#: And for kernels of packages on that machine.
PUBLISHED_KERNELS = PUBLISHED_GPU.with_name("kernels.jsonl.zst")

#: Width of a line of the page.
WIDTH = 120

_HEAD = """\
# How today's libraries deviate

Made from the [ledger](deviations.toml) and the [published results](../reports/published/README.md) by
`attention-conformance ledger page`; change those, not this page.

The first part asks of each library the questions on which libraries disagree, right or wrong. The second has a section
for each record of the ledger: where a library is known not to follow the [spec](SPEC.md), and a command that writes the
text of an issue to report it: a script of a few lines in the library's own terms and without this suite, what comes of
it here, what the documentation promises, and the versions. A record is strict: a run in which it no longer holds fails,
and names it.
"""


def render(ledger: Ledger, runs: Sequence[Run], plugged: Sequence[Run] = ()) -> str:
    """The page from the published runs, on the CPU and on a GPU; ``plugged`` runs show records but answer nothing."""
    verdicts = {each.record.id: each for each in stale([*runs, *plugged], ledger)}
    parts = [
        _HEAD.rstrip(),
        "## Divergence: where libraries disagree",
        *(part for run in runs for part in _answers(run)),
        "## The records",
        _count(list(verdicts.values())),
    ]
    for clause in clauses().values():
        records = [record for record in ledger.deviations if record.clause == clause.id]
        if records:
            parts += [_heading(clause), *(_section(record, verdicts[record.id]) for record in records)]
    parts.append(_unasked())
    parts.append(TAIL.read_text(encoding="utf-8").rstrip())
    return "\n\n".join(parts) + "\n"


def _unasked() -> str:
    """Known deviations that no case tests."""
    lines = [
        f"- `attention-conformance ledger issue {each.name}`: {each.title}." for each in issues() if not each.records
    ]
    head = """\
## Outside of the cases

Known, with a script of its own, and asked by no case: another function, a form that is not built in, a dtype that is
left out, or what the spec leaves open."""
    return "\n".join([head, "", *(_filled(line, "  ") for line in lines)])


def _answers(run: Run) -> tuple[str, ...]:
    versions = run.header.versions
    devices = {result.device for result in run.results}
    where = escaped(", ".join(f"{name} {version}" for name, version in versions.items()))
    used = {name: _versions(name, versions) for name in dict.fromkeys(r.implementation for r in run.results)}
    table = markdown(answers(run.results), used) or "None of the questions was asked."
    machine = escaped(run.header.machine or "an unknown machine")
    day = escaped(run.header.started[:10])
    note = (
        f"In {DTYPE}, on {machine}, {day}: {where}. One case asks each question"
        " ([`questions.py`](ledger/questions.py)). Bold: differs from the spec; empty: not run."
    )
    head = () if devices <= {"cpu"} else ("## Divergence on a GPU",)
    return *head, table, _filled(note)


def _versions(name: str, versions: Mapping[str, str]) -> str:
    """The versions of what an implementation needs, one per line, without local parts such as +cpu."""
    known = builtin().get(name)
    needed = [package for package in known.requires if package in versions] if known else []
    if len(needed) > 1 and "ml_dtypes" in needed:  # it only gives NumPy the dtype bfloat16
        needed.remove("ml_dtypes")
    return "<br>".join(f"{package} {escaped(versions[package].partition('+')[0])}" for package in needed)


def _count(verdicts: Sequence[Verdict]) -> str:
    held = sum(each.standing is Standing.HOLDS for each in verdicts)
    unreported = sum(each.record.upstream == "unreported" for each in verdicts)
    text = (
        f"{len(verdicts)} records, {unreported} of them not reported upstream. The published runs show {held} of them"
    )
    kinds = [(s, [v.record.id for v in verdicts if v.standing is s]) for s in Standing if s is not Standing.HOLDS]
    others = "; ".join(f"{kind.value}: {', '.join(f'`{one}`' for one in ids)}" for kind, ids in kinds if ids)
    return _filled(f"{text}; {others}." if others else f"{text}.")


def _heading(clause: Clause) -> str:
    quoted = textwrap.fill(clause.sentence, WIDTH, initial_indent="> ", subsequent_indent="> ", break_on_hyphens=False)
    return f"### {clause.id} · {clause.title} ({clause.level.value})\n\n{quoted}"


def _section(record: Deviation, verdict: Verdict) -> str:
    versions = f"{record.package} {_code(record.versions)}" if record.versions else f"every version of {record.package}"
    upstream = record.upstream if record.upstream == "unreported" else f"<{record.upstream}>"
    restricted = [("in", record.dtypes), ("on", record.devices), ("on processors with", record.processors)]
    where = "".join(f" {word} {', '.join(some)}" for word, some in restricted if some)
    at_times = f" (at times: {record.seen} results)" if record.seen else ""
    lines = [
        f"{', '.join(map(_code, record.implementations))} with {versions}{where}: {record.instead}.",
        f"- Fails by {record.failure.value}{at_times}: {IN_WORDS[record.failure]}.",
        f"- Upstream: {upstream}.",
        f"- Cases: {', '.join(map(_code, record.cases))}.",
    ]
    if verdict.standing is not Standing.HOLDS:
        lines.append(f"- In the published runs: {verdict.standing.value} ({escaped('; '.join(verdict.notes))}).")
    first, *rest = lines
    shown = "\n".join(_filled(line, "  ") for line in rest)
    return f"#### {record.id}\n\n{_filled(first)}\n\n{shown}\n\n```\n{command(record)}\n```"


def _code(text: str) -> str:
    return f"`{text}`"


def _filled(text: str, indent: str = "") -> str:
    """The text wrapped to full width; code is not broken."""
    glued = re.sub(r"`[^`]*`", lambda code: code[0].replace(" ", "\0"), text)
    filled = textwrap.fill(glued, WIDTH, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)
    return filled.replace("\0", " ")


def command(record: Deviation) -> str:
    """The command that shows a record: the text of its issue, or the script of its first case."""
    if issue_of(record) is not None:
        return f"attention-conformance ledger issue {record.id}"
    return script_command(record)


def script_command(record: Deviation) -> str:
    """The command that prints the script of a record's first case."""
    name, device, dtype, case = example(record)
    where = "" if device == "cpu" else f" --device {device}"
    return f"attention-conformance script --impl {shlex.quote(name)} --case {case} --dtype {dtype}{where}"


def example(record: Deviation) -> tuple[str, str, str, str]:
    """An implementation, device, dtype and case of a record, whatever is installed.

    It is not an export if there is another, as exports take seconds, and has the dtype of the questions if possible.
    Raises LedgerError for a record whose implementations are judged on none of its cases in its dtypes.
    """
    implementations = [name for pattern in record.implementations for name in matching(builtin(), pattern) or [pattern]]
    found = [
        (name, record.devices[0] if record.devices else "cpu", dtype, case)
        for name in sorted(implementations, key=lambda name: "export" in name)
        for pattern in record.cases
        for case in cases_meeting(pattern)
        for dtype in dtypes(name, case)
        if not record.dtypes or dtype in record.dtypes
    ]
    if not found:
        raise LedgerError(f"record {record.name}: none of its implementations is judged on its cases in its dtypes")
    return min(found, key=lambda each: ("export" in each[0], each[2] != DTYPE))
