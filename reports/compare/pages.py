"""A comparison as text: sentences and tables, for the terminal, a comment on a pull request, JSON and the pages."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd
from tabulate import tabulate

from attention_conformance.bench.analysis.statistics import Interval, Verdict
from attention_conformance.reports.compare.changes import SLOWER, Allowance, Change, Comparison, Kind, Level, Status
from attention_conformance.reports.compare.drift import FALSE_ALARMS
from attention_conformance.reports.markdown.text import NONE, digits, fold, inert, printable, shortened, table
from attention_conformance.reports.model import tables as model

#: The first words.
WORDS = {Status.NOTHING_WORSE: "NOTHING WORSE", Status.WORSE: "WORSE", Status.CANNOT_TELL: "CANNOT TELL"}

#: Names of cases or workloads that a row of grouped changes shows.
NAMED = 3

#: What the JSON calls itself, and its version.
KIND = "attention-conformance comparison"

VERSION = 2

#: Characters of a comment: GitHub takes 2¹⁶ bytes.
LONGEST = 60_000

#: Rows of a table in a terminal, and of one in a comment that is not folded.
LINES = 30

SHOWN = 10

_CHANGED = (Verdict.SLOWER, Verdict.FASTER)

_SIGNS = {Status.NOTHING_WORSE: "✅", Status.WORSE: "❌", Status.CANNOT_TELL: "❔"}


def headline(found: Comparison) -> str:
    """The verdict with what it rests on, as one line."""
    counts = Counter({SLOWER: len(found.slower)} if found.slower else {})
    counts.update(change.kind.value for change in found.worse)
    parts = [f"{count} × {what}" for what, count in counts.items()] or [told(found)]
    return f"{WORDS[found.status]}: {', '.join(parts)}"


def told(found: Comparison) -> str:
    """What was compared."""
    verdicts = Counter(cell.verdict for cell in found.speeds)
    cells = ", ".join(f"{verdicts[one]} {one.value}" for one in Verdict if verdicts[one])
    kinds = Counter(change.kind for change in found.changes)
    alone = {"base": kinds[Kind.CELL] + kinds[Kind.UNTIMED], "new run": kinds[Kind.NEW_CELL]}
    parts = [f"{found.results} results compared"] if found.results else []
    parts += [f"{len(found.speeds)} cells compared ({cells})"] if found.speeds else []
    parts += [f"{count} timed in the {run} alone" for run, count in alone.items() if count and parts]
    return "; ".join(parts) or "nothing was compared"


def changes(found: Iterable[Change], levels: Iterable[Level]) -> pd.DataFrame:
    """One row per kind of change, implementation, device and dtype, with the first cases and what became of one."""
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
    columns = ["change", "implementation", "device", "dtype", "number", "where", "the first: base → new"]
    return pd.DataFrame(rows, columns=columns)


def speeds(found: Comparison, verdicts: Iterable[Verdict]) -> pd.DataFrame:
    """One row per cell with one of these verdicts, the largest change first."""
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
            "new ÷ base": [digits(cell.ratio.value) for cell in chosen],
            "95 %": [_ends(cell.ratio) for cell in chosen],
            "of all cells": [_ends(cell.among_all) for cell in chosen],
            "why unclear": [cell.why or NONE for cell in chosen],
        }
    )


def rules(found: Comparison) -> list[str]:
    """Which file of rules it was judged by, and how much they ignore."""
    if not found.rules:
        return []
    cells, others = found.ignored
    return [f"judged by {found.rules}: slower cells ignored {cells}, other changes ignored {others}"]


def rule(found: Comparison) -> list[str]:
    """How the times were judged."""
    if not found.speeds:
        return []
    unit = f"times of {found.yardstick}, as measured in the same run" if found.yardstick else "milliseconds"
    first = (
        f"Times are {unit}. A cell is faster or slower if its ratio is beyond 5 % and an interval that holds for all"
        f" {len(found.speeds)} cells at once ({FALSE_ALARMS:.0%} chance of any false alarm) lies beyond 2 %; the same"
        " if its own 95 % interval lies within 5 %; else unclear. A file of rules may set other thresholds."
    )
    return [first, *(_allowance(one) for one in found.allowances)]


def _allowance(one: Allowance) -> str:
    by = ", ".join(f"{name} {factor:.3f}" for name, factor in one.yardsticks)
    source = f"by {by}" if by else "no yardstick was measured in both runs" if one.low < one.high else "none allowed"
    return (
        f"{one.device}: the machine may have been {one.low:.3f} to {one.high:.3f} times as slow ({source}); from run to"
        f" run a cell is taken to scatter by {one.scatter:.1%} at least ({one.cells} cells)."
    )


def files(found: Comparison) -> pd.DataFrame:
    """One row per file of each run, with the counts of records."""
    frame = model.files([*found.base, *found.new])
    frame.insert(0, "run", ["base"] * len(found.base) + ["new"] * len(found.new))
    return frame


def _time(one: Interval, yardstick: str) -> str:
    return digits(one.value if yardstick else one.value * 1e3)


def _ends(one: Interval) -> str:
    return f"{digits(one.low)} to {digits(one.high)}"


def terminal(found: Comparison) -> str:
    """The verdict, what changed, how it was judged, and the files."""
    parts = [printable(headline(found))]
    parts += [f"cannot tell: {printable(why)}" for why in found.unfit]
    parts += [_rows(title, frame) for title, frame in _tables(found) if not frame.empty]
    said = [told(found), *rules(found), *rule(found), *found.notes]
    parts += map(printable, said)
    return "\n\n".join([*parts, _rows("", files(found))]) + "\n"


def _rows(title: str, frame: pd.DataFrame) -> str:
    shown = frame.head(LINES).map(printable)
    text = tabulate(shown.values.tolist(), list(shown.columns), disable_numparse=True)
    more = f"\n… and {len(frame) - LINES} more, which --json and --markdown have" if len(frame) > LINES else ""
    return (f"{title}\n\n" if title else "") + text + more


def _tables(found: Comparison) -> Iterator[tuple[str, pd.DataFrame]]:
    yield "", changes(found.changes, [Level.WORSE])
    yield "", speeds(found, _CHANGED)
    yield "Better:", changes(found.changes, [Level.BETTER])
    yield "Changed, and counted neither way:", changes(found.changes, [Level.NOTE, Level.IGNORED])
    yield "Unclear:", speeds(found, [Verdict.UNCLEAR])


def comment(found: Comparison) -> str:
    """Short: the verdict, then what is worse; everything else folded, and left out where it is too long."""
    sections = [f"### {_SIGNS[found.status]} Attention: {inert(headline(found))}"]
    sections += [f"**Cannot tell**: {inert(why)}." for why in found.unfit]
    rest: list[str] = []
    worse, changed = changes(found.changes, [Level.WORSE]), speeds(found, [Verdict.SLOWER])
    for frame in (worse, changed.drop(columns="why unclear")):
        if not frame.empty:
            sections.append(table(frame.head(SHOWN).map(inert)))
        if len(frame) > SHOWN:
            rest.append(fold(f"All {len(frame)}", table(frame.map(inert))))
    for title, frame in (
        ("Faster", speeds(found, [Verdict.FASTER]).drop(columns="why unclear")),
        ("Better", changes(found.changes, [Level.BETTER])),
        ("Changed, and counted neither way", changes(found.changes, [Level.NOTE, Level.IGNORED])),
        ("Unclear", speeds(found, [Verdict.UNCLEAR])),
        ("The same", speeds(found, [Verdict.SAME]).drop(columns="why unclear")),
    ):
        if not frame.empty:
            rest.append(fold(f"{title}: {len(frame)}", table(frame.map(inert))))
    said = [told(found), *rules(found), *rule(found), *found.notes]
    how = [*map(inert, said), table(files(found).map(inert))]
    ending = fold("How it was judged, and what was read", "\n\n".join(how))
    for part in rest:
        too_long = sum(len(one.encode()) for one in (*sections, part, ending)) > LONGEST
        sections.append("A table is left out, as this comment would be too long." if too_long else part)
    return "\n\n".join([*dict.fromkeys(sections), ending]) + "\n"


def document(found: Comparison) -> dict[str, Any]:
    """Everything as plain data."""
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
        "allowances": msgspec.to_builtins(found.allowances),
        "speeds": [{name: _plain(value) for name, value in vars(one).items()} for one in found.speeds],
        "changes": msgspec.to_builtins(found.changes),
        "files": files(found).to_dict("records"),
    }


def _plain(value: Any) -> Any:
    return [value.low, value.value, value.high] if isinstance(value, Interval) else msgspec.to_builtins(value)


def write(found: Comparison, markdown: Path | None, as_json: Path | None) -> None:
    """Write the files that were asked for."""
    views: list[tuple[Path | None, Callable[[Comparison], str]]] = [
        (markdown, comment),
        (as_json, lambda one: json.dumps(document(one), indent=1, allow_nan=False) + "\n"),
    ]
    for path, text in views:
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text(found), encoding="utf-8")
