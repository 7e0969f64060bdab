"""Files that the page was made from: records read, used and refused, and the machine and settings of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from attention_conformance.reports.html.views import Cell, Table, columns
from attention_conformance.reports.input.records import Source, by_file, labels
from attention_conformance.reports.text import settings


def table(sources: Sequence[Source]) -> Table:
    """One row per file."""
    numbers = ("read", "used", "refused")
    frame = by_file(sources)
    rows = []
    for source, row in zip(sources, frame.to_dict("records"), strict=True):
        cells = [Cell(str(row[name]), row[name] if name in numbers else None) for name in frame.columns]
        cells[2] = cells[2] if source.complete else Cell(f"✗ {row['complete']}", look="failed")
        cells[5] = replace(cells[5], look="failed" if row["refused"] else "")
        rows.append(tuple(cells))
    return Table("sources", "Records by file", columns(*frame.columns, numbers=numbers), tuple(rows))


def environments(sources: Sequence[Source]) -> list[tuple[str, list[str]]]:
    """Machine and settings of each file, a line for each setting."""
    lines = [[f"{name}: {text}" for name, text in settings(one.environment)] for one in sources]
    return list(zip(labels(sources), lines, strict=True))
