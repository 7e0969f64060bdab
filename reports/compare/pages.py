"""A comparison as a terminal's text, as a comment on a pull request, and as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import pandas as pd
from tabulate import tabulate

from bench.statistics import Interval, Verdict
from reports.compare import view
from reports.compare.changes import Comparison, Level, Status
from reports.text import fold, inert, printable, table

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


def terminal(found: Comparison) -> str:
    """The verdict, what changed, how it was judged, and the files."""
    parts = [printable(view.headline(found))]
    parts += [f"cannot tell: {printable(why)}" for why in found.unfit]
    parts += [_rows(title, frame) for title, frame in _tables(found) if not frame.empty]
    said = [view.told(found), *view.rules(found), *view.rule(found), *found.notes]
    parts += map(printable, said)
    return "\n\n".join([*parts, _rows("", view.files(found))]) + "\n"


def _rows(title: str, frame: pd.DataFrame) -> str:
    shown = frame.head(LINES).map(printable)
    text = tabulate(shown.values.tolist(), list(shown.columns), disable_numparse=True)
    more = f"\n… and {len(frame) - LINES} more, which --json and --markdown have" if len(frame) > LINES else ""
    return (f"{title}\n\n" if title else "") + text + more


def _tables(found: Comparison) -> Iterator[tuple[str, pd.DataFrame]]:
    yield "", view.changes(found.changes, [Level.WORSE])
    yield "", view.speeds(found, _CHANGED)
    yield "Better:", view.changes(found.changes, [Level.BETTER])
    yield "Changed, and counted neither way:", view.changes(found.changes, [Level.NOTE, Level.IGNORED])
    yield "Unclear:", view.speeds(found, [Verdict.UNCLEAR])


def comment(found: Comparison) -> str:
    """Short: the verdict, then what is worse; everything else folded, and left out where it is too long."""
    sections = [f"### {_SIGNS[found.status]} Attention: {inert(view.headline(found))}"]
    sections += [f"**Cannot tell**: {inert(why)}." for why in found.unfit]
    rest: list[str] = []
    worse, changed = view.changes(found.changes, [Level.WORSE]), view.speeds(found, [Verdict.SLOWER])
    for frame in (worse, changed.drop(columns="why unclear")):
        if not frame.empty:
            sections.append(table(frame.head(SHOWN).map(inert)))
        if len(frame) > SHOWN:
            rest.append(fold(f"All {len(frame)}", table(frame.map(inert))))
    for title, frame in (
        ("Faster", view.speeds(found, [Verdict.FASTER]).drop(columns="why unclear")),
        ("Better", view.changes(found.changes, [Level.BETTER])),
        ("Changed, and counted neither way", view.changes(found.changes, [Level.NOTE, Level.IGNORED])),
        ("Unclear", view.speeds(found, [Verdict.UNCLEAR])),
        ("The same", view.speeds(found, [Verdict.SAME]).drop(columns="why unclear")),
    ):
        if not frame.empty:
            rest.append(fold(f"{title}: {len(frame)}", table(frame.map(inert))))
    said = [view.told(found), *view.rules(found), *view.rule(found), *found.notes]
    how = [*map(inert, said), table(view.files(found).map(inert))]
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
        "headline": view.headline(found),
        "unfit": list(found.unfit),
        "notes": list(found.notes),
        "yardstick": found.yardstick,
        "results": found.results,
        "rules": found.rules,
        "ignored": sum(found.ignored),
        "allowances": [_plain(one) for one in found.allowances],
        "speeds": [_plain(one) for one in found.speeds],
        "changes": [_plain(one) for one in found.changes],
        "files": view.files(found).to_dict("records"),
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Interval):
        return [value.low, value.value, value.high]
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return [_plain(one) for one in value] if isinstance(value, tuple) else value


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
