"""Who is fastest where, every cell of the bench, and what is bound by memory."""

from __future__ import annotations

from typing import Any

import pandas as pd

from attention_conformance.reports.html.cells import GROUP, timed
from attention_conformance.reports.html.views import Cell, Table, columns, link, milliseconds, missing, number, size
from attention_conformance.reports.markdown.text import digits, shortened

#: What a cell's outcome is marked with.
MARKS = {"timed": "", "invalid": "✗ invalid", "skipped": "– skipped"}
SPEED_LOOKS = {"timed": "", "invalid": "failed", "skipped": "unsupported"}


def _records(rows: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(name): value for name, value in row.items()} for row in rows.to_dict("records")]


def interval(row: Any) -> str:
    """The 95 % interval of a time; of files without one, the range of its samples."""
    if not missing(row["interval_low"]):
        return f"95 % interval {digits(row['interval_low'] * 1e3)} to {milliseconds(row['interval_high'])}"
    if not missing(row["min"]):
        return f"samples from {digits(row['min'] * 1e3)} to {milliseconds(row['max'])}; no interval in this file"
    return ""


def overlap(first: Any, second: Any) -> bool:
    """Whether two times have intervals that overlap, so that none is known to be the shorter one."""
    ends = first["interval_high"], second["interval_low"]
    return not any(map(missing, ends)) and ends[0] >= ends[1]


def counts(cells: pd.DataFrame) -> str:
    """How many cells have a time, and what became of the others."""
    found = cells["outcome"].value_counts()
    struck = ", ".join(cells.loc[cells["outcome"] == "invalid", "implementation"].unique())
    text = f"{found.get('timed', 0)} cells timed, {found.get('skipped', 0)} skipped,"
    text += f" {found.get('invalid', 0)} invalid"
    return text + (f" ({struck})." if struck else ".")


def ranked(cells: pd.DataFrame, family: str, length: int, dtype: str, device: str) -> list[dict[str, Any]]:
    """The timed cells of one workload, fastest first."""
    at = (cells["family"] == family) & (cells["S"] == length) & (cells["dtype"] == dtype) & (cells["device"] == device)
    return _records(timed(cells[at]).sort_values("median"))


def fastest(cells: pd.DataFrame) -> Table:
    """One row per workload, device and dtype: the fastest, its time, and by how much it leads."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in _records(timed(cells).sort_values("median", kind="stable")):
        groups.setdefault((row["workload"], row["device"], row["dtype"]), []).append(row)
    rows = []
    for key in timed(cells)[["workload", "device", "dtype"]].drop_duplicates().itertuples(index=False, name=None):
        first, *others = groups[key]
        second = others[0] if others else None
        lead = second["median"] / first["median"] if second else float("nan")
        tied = [row["implementation"] for row in others if overlap(first, row)]
        rows.append(
            (
                Cell(first["workload"], look="name"),
                Cell(str(first["S"]), first["S"]),
                Cell(first["device"]),
                Cell(first["dtype"]),
                Cell(first["implementation"], look="name", link=cell_link(first)),
                number(first["median"], milliseconds(first["median"]), tip=interval(first)),
                Cell(second["implementation"] if second else "alone", look="name"),
                number(lead, f"{digits(lead)}×" if second else "–"),
                Cell(", ".join(tied)),
            )
        )
    numbers = ("S", "median", "lead")
    heads = columns(
        "workload", "S", "device", "dtype", "fastest", "median", "next", "lead", "not told apart", numbers=numbers
    )
    note = (
        "Lead: the next one's median over the fastest one's. Not told apart: those whose 95 % interval overlaps that of"
        " the fastest; empty where a file has no intervals."
    )
    return Table("fastest", "Fastest where", heads, tuple(rows), note)


def every_cell(cells: pd.DataFrame) -> Table:
    """One row per cell, timed or not, the fastest of each workload marked."""
    best = timed(cells).groupby([*GROUP, "S"])["median"].idxmin()
    winners, alone = set(best), timed(cells).groupby([*GROUP, "S"])["median"].transform("size") == 1
    winners -= set(alone.index[alone])
    limits = bool((cells["bound_by"] != "").any() or cells["share_of_limit"].notna().any())
    rows = tuple(_cell(row, at in winners, limits=limits) for at, row in zip(cells.index, _records(cells), strict=True))
    titles = ["implementation", "workload", "S", "device", "dtype", "median", "GFLOP/s", "memory", "share of bound"]
    note = (
        "★ the fastest of its workload. Memory: the most bytes that one call held beyond its inputs. Share of bound:"
        " the worst error of the timed result."
    )
    if limits:
        titles += ["share of limit", "limited by"]
        note += " Share of limit: of the measured peak or bandwidth, whichever is the lower limit of this call."
    numbers = ("S", "median", "GFLOP/s", "memory", "share of bound", "share of limit")
    return Table("bench", "Every cell", columns(*titles, "remark", numbers=numbers), rows, note)


def _cell(row: dict[str, Any], best: bool, *, limits: bool) -> tuple[Cell, ...]:
    mark = MARKS.get(row["outcome"], row["outcome"])
    reason = ": ".join(part for part in (f"{mark} {row['clause']}".strip(), row["reason"]) if part)
    time = milliseconds(row["median"]) if not missing(row["median"]) else "–"
    return (
        Cell(row["implementation"], look="name", link=cell_link(row)),
        Cell(row["workload"], look="name"),
        Cell(str(row["S"]), row["S"]),
        Cell(row["device"]),
        Cell(row["dtype"]),
        number(row["median"], f"★ {time}" if best else time, tip=interval(row), look="best" if best else ""),
        number(row["gflops"]),
        number(row["memory"], size(row["memory"])),
        number(row["share"]),
        *(_limits(row) if limits else ()),
        Cell(shortened(reason), reason, look=SPEED_LOOKS.get(row["outcome"], "")),
    )


def _limits(row: dict[str, Any]) -> tuple[Cell, ...]:
    share = row["share_of_limit"]
    return number(share, None if missing(share) else f"{share:.0%}"), Cell(row["bound_by"])


def cell_link(row: Any) -> str:
    """The fragment that opens a cell's details."""
    return link("cell", row["implementation"], row["device"], row["dtype"], row["workload"])
