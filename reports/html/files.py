"""What the page was made from: records read, used and refused by file, and the machine and settings of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attention_conformance.reports.html.views import Cell, Table, columns
from attention_conformance.reports.input.records import Source
from attention_conformance.reports.markdown.text import digits


def table(sources: Sequence[Source]) -> Table:
    """One row per file."""
    rows = []
    for source in sources:
        refused = sum(source.refused.values())
        rows.append(
            (
                Cell(source.path.name),
                Cell(source.kind),
                Cell("yes" if source.complete else "✗ no: cut off", look="" if source.complete else "failed"),
                Cell(str(source.read), source.read),
                Cell(str(source.used), source.used),
                Cell(str(refused), refused, look="failed" if refused else ""),
                Cell("; ".join(f"{count} {why}" for why, count in source.refused.items())),
            )
        )
    numbers = ("read", "used", "refused")
    heads = columns("file", "kind", "complete", *numbers, "why refused", numbers=numbers)
    return Table("sources", "Records by file", heads, tuple(rows))


def environments(sources: Sequence[Source]) -> list[tuple[str, list[str]]]:
    """What each file says of where it was made, a line for each setting."""
    return [(source.path.name, _settings(source.environment)) for source in sources]


def _settings(environment: Mapping[str, Any]) -> list[str]:
    known = {name: value for name, value in environment.items() if value not in ("", {}, None)}
    return [f"{name.replace('_', ' ')}: {_text(value)}" for name, value in known.items()]


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {one}" for key, one in value.items())
    return digits(value) if isinstance(value, float) else str(value)
