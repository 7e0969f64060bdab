"""Speed and memory on the page: the answers at the top, and the tables of times, bytes and exponents."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from attention_conformance.bench.analysis.fits import Growth, Memory
from attention_conformance.bench.clocks import clocks
from attention_conformance.bench.workloads.titles import title
from attention_conformance.reports.html.views import (
    Answer,
    Cell,
    Group,
    Table,
    columns,
    link,
    milliseconds,
    number,
    rows_of,
    size,
)
from attention_conformance.reports.input.records import Records
from attention_conformance.reports.model.memory import RULE
from attention_conformance.reports.model.model import Model
from attention_conformance.reports.text import digits, percent, shortened

#: Numbers that not every cell has.  Seconds, bytes, shares.
NUMBERS = (
    "B",
    "H",
    "interval_low",
    "interval_high",
    "min",
    "max",
    "rounds",
    "process_runs",
    "memory_bytes",
    "peak_rss_bytes",
    "flops",
    "gflops",
    "tokens_per_second",
    "intensity",
    "share_of_peak",
    "share_of_limit",
    "share",
    "prepare_seconds",
    "first_call_seconds",
)

#: Columns of a cell that a page does not use.
UNUSED = ("mean", "stddev", "median_ms", "memory_bytes", "peak_rss_bytes", "clock", "host_seconds", "evicted_bytes")

TEXTS = ("bound_by", "profile", "memory_method", "stopped")

#: Fields that the cells in one column of times or rates share.
GROUP = ["family", "device", "dtype"]

#: Marks of a cell's outcome.
MARKS = {
    "timed": "",
    "unstable": "✗ unstable",
    "known-deviation": "≠ known deviation",
    "invalid": "✗ invalid",
    "skipped": "– skipped",
}

LOOKS = {
    "timed": "",
    "unstable": "failed",
    "known-deviation": "known-deviation",
    "invalid": "failed",
    "skipped": "unsupported",
}

#: The cell that the questions are about; where it was not timed, the nearest by the order of FAMILIES.
LENGTH, DTYPE = 4096, "float32"

FAMILIES = ("prefill-b1h8d64s*-causal", "prefill-b1h8d64s*")

#: Number of the fastest that are named, and of those whose times overlap the first one's.
NAMED, TIED = 5, 2

#: A reference line is this factor beyond the outermost measured point, so that it covers none.
APART = 1.6

#: Name of the line above the measured ones, and the columns of such lines.
STEEP = "slope of S²"
GUIDES = [*GROUP, "quantity", "name", "S", "value"]

GROWTHS = {Growth.QUADRATIC: "known-deviation", Growth.LESS: "passed", Growth.UNCLEAR: "unsupported"}


def frame(model: Model) -> pd.DataFrame:
    """One row per cell.  ``memory`` is what a call held beyond its inputs, by the newest measure that the file has."""
    cells = model.cells
    if cells.empty:
        return cells
    later = {name: float("nan") for name in NUMBERS if name not in cells}
    cells = cells.assign(**later, **{name: "" for name in TEXTS if name not in cells})
    for name in (*NUMBERS, "median"):
        cells[name] = pd.to_numeric(cells[name], errors="coerce")
    for name in (*TEXTS, "clause", "reason"):
        cells[name] = cells[name].astype(object).where(cells[name].notna(), "")
    cells["memory"] = cells["memory_bytes"].fillna(cells["peak_rss_bytes"])
    return cells.assign(optimal=_optimal(cells))


def timed(cells: pd.DataFrame) -> pd.DataFrame:
    """Cells with a time."""
    return cells[(cells["outcome"] == "timed") & cells["median"].notna()] if not cells.empty else cells


def peaks(records: Records) -> dict[tuple[str, str], float]:
    """The highest measured peak of each device and dtype, in FLOP/s."""
    found: dict[tuple[str, str], float] = {}
    for peak in (peak for run in records.runs for peak in run.peaks if peak.flops_per_second is not None):
        key = (peak.device, peak.dtype)
        found[key] = max(found.get(key, 0.0), peak.flops_per_second or 0.0)
    return found


def _optimal(cells: pd.DataFrame) -> pd.Series:
    """Whether no other cell of the same workload, device and dtype is both faster and more accurate."""
    best = pd.Series(data=False, index=cells.index)
    what = ["workload", "device", "dtype"]
    ordered = timed(cells).dropna(subset=["share"]).sort_values([*what, "median", "share"])
    least = ordered.groupby(what, sort=False)["share"].cummin()
    best[ordered.index[(ordered["share"] == least) & ~ordered.duplicated([*what, "share"])]] = True
    return best


def interval(row: Any) -> str:
    """The 95 % interval of a time; for files without one, the range of its samples."""
    if not pd.isna(row["interval_low"]):
        return f"95 % interval {digits(row['interval_low'] * 1e3)} to {milliseconds(row['interval_high'])}"
    if not pd.isna(row["min"]):
        return f"samples from {digits(row['min'] * 1e3)} to {milliseconds(row['max'])}; no interval in this file"
    return ""


def overlap(first: Any, second: Any) -> bool:
    """Whether the intervals of two times overlap, so that neither is known to be shorter."""
    ends = first["interval_high"], second["interval_low"]
    return not any(map(pd.isna, ends)) and ends[0] >= ends[1]


def ranked(cells: pd.DataFrame, family: str, length: int, dtype: str, device: str) -> list[dict[str, Any]]:
    """The timed cells of one workload, fastest first."""
    at = (cells["family"] == family) & (cells["S"] == length) & (cells["dtype"] == dtype) & (cells["device"] == device)
    return rows_of(timed(cells[at]).sort_values("median"))


def clock_note(cells: pd.DataFrame) -> str:
    """Sentences about the clocks that measured the times, each after a space; "" where a device has only one."""
    return "".join(f" {text}" for text in clocks(rows_of(timed(cells))))


def fastest(cells: pd.DataFrame) -> Table:
    """One row per workload, device and dtype: the fastest, its time, and by how much it leads."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in rows_of(timed(cells).sort_values("median", kind="stable")):
        groups.setdefault((row["workload"], row["device"], row["dtype"]), []).append(row)
    rows = []
    for key in timed(cells)[["workload", "device", "dtype"]].drop_duplicates().itertuples(index=False, name=None):
        first, *others = groups[key]
        second = others[0] if others else None
        lead = second["median"] / first["median"] if second else float("nan")
        tied = [row["implementation"] for row in others if overlap(first, row)]
        rows.append(
            (
                Cell(title(first["workload"]), tip=first["workload"]),
                Cell(first["workload"], look="name"),
                Cell(first["implementation"], look="name", link=cell_link(first)),
                number(first["median"], milliseconds(first["median"]), tip=interval(first)),
                Cell(", ".join(tied), look="several"),
                Cell(second["implementation"] if second else "none", look="name"),
                number(lead, f"{digits(lead)}×" if second else "–"),
                Cell(str(first["S"]), first["S"]),
                Cell(first["device"]),
                Cell(first["dtype"]),
            )
        )
    numbers = ("S", "median", "lead")
    heads = columns(
        "description",
        "workload",
        "fastest",
        "median",
        "tied (95 % intervals overlap)",
        "next fastest",
        "lead",
        "S",
        "device",
        "dtype",
        numbers=numbers,
    )
    note = (
        "Lead: median of the next fastest ÷ median of the fastest. Tied: implementations whose 95 % interval overlaps"
        " that of the fastest; empty where a file has no intervals."
    )
    note += clock_note(cells)
    return Table("fastest", "Fastest by workload", heads, tuple(rows), note)


def every_cell(cells: pd.DataFrame) -> Table:
    """One row per cell, timed or not, the fastest of each workload marked."""
    best = timed(cells).groupby([*GROUP, "S"])["median"].idxmin()
    winners, alone = set(best), timed(cells).groupby([*GROUP, "S"])["median"].transform("size") == 1
    winners -= set(alone.index[alone])
    limits = bool((cells["bound_by"] != "").any() or cells["share_of_limit"].notna().any())
    rows = tuple(_cell(row, at in winners, limits=limits) for at, row in zip(cells.index, rows_of(cells), strict=True))
    titles = ["implementation", "workload", "S", "device", "dtype", "median", "GFLOP/s", "memory", "share of bound"]
    note = (
        "★ fastest of its workload. Memory: peak bytes of one call beyond its inputs. Share of bound: worst error of"
        " the timed result as a share of its bound."
    )
    if limits:
        titles += ["share of limit", "limited by"]
        note += " Share of limit: share of the measured peak or bandwidth that the call reaches, whichever limits it."
    numbers = ("S", "median", "GFLOP/s", "memory", "share of bound", "share of limit")
    return Table("bench", "Every cell", columns(*titles, "note", numbers=numbers), rows, note)


def _cell(row: dict[str, Any], best: bool, *, limits: bool) -> tuple[Cell, ...]:
    mark = MARKS.get(row["outcome"], row["outcome"])
    reason = ": ".join(part for part in (f"{mark} {row['clause']}".strip(), row["reason"]) if part)
    time = milliseconds(row["median"]) if not pd.isna(row["median"]) else "–"
    return (
        Cell(row["implementation"], look="name", link=cell_link(row)),
        Cell(row["workload"], look="name", tip=title(row["workload"])),
        Cell(str(row["S"]), row["S"]),
        Cell(row["device"]),
        Cell(row["dtype"]),
        number(row["median"], f"★ {time}" if best else time, tip=interval(row), look="best" if best else ""),
        number(row["gflops"]),
        number(row["memory"], size(row["memory"])),
        number(row["share"]),
        *(_limits(row) if limits else ()),
        Cell(shortened(reason), reason, look=LOOKS.get(row["outcome"], "")),
    )


def _limits(row: dict[str, Any]) -> tuple[Cell, ...]:
    share = row["share_of_limit"]
    return number(share, None if pd.isna(share) else percent(share)), Cell(row["bound_by"])


def cell_link(row: Any) -> str:
    """The fragment that opens a cell's details."""
    return link("cell", row["implementation"], row["device"], row["dtype"], row["workload"])


def memory_table(found: Sequence[Memory]) -> Table:
    """One row for each measurement of memory over the length."""
    rows = tuple(
        (
            Cell(one.implementation, look="name"),
            Cell(one.family, look="name", tip=title(one.family)),
            Cell(one.device),
            Cell(one.dtype),
            Cell(one.growth.value, look="known-deviation" if one.growth is Growth.QUADRATIC else ""),
            number(one.line.exponent if one.line else math.nan, tip=exponent_interval(one)),
            number(one.bytes, size(one.bytes)),
            number(one.bytes / one.scores),
            Cell(str(one.longest), one.longest),
        )
        for one in found
    )
    numbers = ("exponent", "memory", "bytes per score", "at S")
    heads = columns("implementation", "family", "device", "dtype", "growth", *numbers, numbers=numbers)
    return Table("memory", "Memory against sequence length", heads, rows, RULE)


def exponent_interval(one: Memory) -> str:
    """Interval of the exponent, or why there is none."""
    if one.line is None:
        return "no exponent: fewer than three lengths take 1 MiB or more"
    parts = f"95 % interval {one.line.low:.2f} to {one.line.high:.2f}, S {one.line.shortest} to {one.line.longest}"
    share = max(0.0, one.squared / one.bytes) if one.bytes else math.nan
    return parts if math.isnan(share) else f"{parts}; {100 * share:.0f} % of the bytes grow as S²"


@dataclass(frozen=True)
class Timing:
    """A workload on every device."""

    family: str
    length: int
    dtype: str

    @property
    def exact(self) -> bool:
        """Whether it is the workload that the page asks about."""
        return (self.family, self.length, self.dtype) == (FAMILIES[0], LENGTH, DTYPE)

    @property
    def workload(self) -> str:
        """Name of the workload."""
        return self.family.replace("*", str(self.length))


def nearest_timing(cells: pd.DataFrame) -> Timing | None:
    """The workload that the questions are about: causal at 4096 in float32, or the nearest that was timed."""
    rows = timed(cells)
    if rows.empty:
        return None
    rows = rows.assign(
        by_family=[FAMILIES.index(family) if family in FAMILIES else len(FAMILIES) for family in rows["family"]],
        by_dtype=rows["dtype"] != DTYPE,
        by_length=(rows["S"] - LENGTH).abs(),
    )
    first = rows.sort_values(["by_family", "by_dtype", "by_length"], kind="stable").iloc[0]
    return Timing(str(first["family"]), int(first["S"]), str(first["dtype"]))


def fastest_answer(cells: pd.DataFrame, at: Timing | None) -> Answer:
    """The fastest at that workload, on each device."""
    question = f"Which is fastest at S = {LENGTH}, causal, {DTYPE}?"
    if at is None:
        return Answer("fastest-here", question, "Nothing was timed in these files.", more="speed")
    groups, leads = [], []
    for device in timed(cells)["device"].unique():
        rows = ranked(cells, at.family, at.length, at.dtype, device)
        if not rows:
            continue
        first = rows[0]
        tied = [row["implementation"] for row in rows[1:] if overlap(first, row)]
        leads.append(f"{first['implementation']}, {milliseconds(first['median'])} on {device}")
        more = [f"{len(tied) - TIED} more"] if len(tied) > TIED else []
        leads[-1] += f" (tied with {', '.join([*tied[:TIED], *more])}: 95 % intervals overlap)" if tied else ""
        items = [
            Cell(
                f"{row['implementation']} {milliseconds(row['median'])}"
                + (f", {digits(row['median'] / first['median'])}×" if row is not first else ""),
                tip=interval(row),
                link=cell_link(row),
            )
            for row in rows[:NAMED]
        ]
        label = f"{title(at.workload)}, {at.dtype}, {device}: first {len(items)} of {len(rows)}"
        groups.append(Group(label, "ranked", tuple(items)))
    lead = "; ".join(leads) + "."
    if not at.exact:
        lead = f"Not timed in these files. For {title(at.workload)} in {at.dtype}: {lead}"
    return Answer("fastest-here", question, lead, tuple(groups), more="speed")


def quadratic(found: Sequence[Memory], at: Timing | None) -> Answer:
    """Implementations whose memory grows with S², in the family of that workload."""
    here = [one for one in found if at is not None and (one.family, one.dtype) == (at.family, at.dtype)]
    question = "Which implementations use quadratic memory?"
    if at is None or not here:
        return Answer("quadratic", question, "These files do not have memory at two lengths.", more="memory-of")
    several = len({one.device for one in here}) > 1
    longest = max(one.longest for one in here)
    groups = []
    for growth in Growth:
        some = sorted((one for one in here if one.growth is growth), key=lambda one: -one.bytes)
        items = tuple(
            Cell(
                " ".join([one.implementation, *[one.device] * several, size(one.bytes)])
                + f" at {one.longest}" * (one.longest < longest),
                tip=f"exponent {one.line.exponent:.2f}, {exponent_interval(one)}"
                if one.line
                else exponent_interval(one),
                link=link("cell", one.implementation, one.device, one.dtype, one.family.replace("*", str(one.longest))),
            )
            for one in some
        )
        if items:
            label = growth.value.capitalize()
            groups.append(Group(f"{label} ({len(items)}), bytes at S = {longest}", GROWTHS[growth], items))
    count = {growth: sum(one.growth is growth for one in here) for growth in Growth}
    unclear = f" {count[Growth.UNCLEAR]} unclear." if count[Growth.UNCLEAR] else ""
    lead = f"{count[Growth.QUADRATIC]} of {len(here)}, for {title(at.family)}, {at.dtype}.{unclear}"
    return Answer("quadratic", question, lead, tuple(groups), more="memory-of")


def memory_bound(cells: pd.DataFrame) -> Answer:
    """The workloads whose lower limit is memory bandwidth, by the measured peaks of the machine."""
    question = "What is memory-bound?"
    known = timed(cells)[["family", "device", "dtype", "S", "bound_by", "intensity"]].drop_duplicates()
    known = known[known["bound_by"].isin(["bandwidth", "compute"])]
    if known.empty:
        return Answer(
            "memory-bound", question, "Unknown: these files have no measured limits of the machine.", more="bench"
        )
    groups = []
    for bound, look in (("bandwidth", "known-deviation"), ("compute", "passed")):
        rows = known[known["bound_by"] == bound].groupby(["family", "device", "dtype"], sort=False)
        items = tuple(
            Cell(f"{title(str(key[0]))}, {key[2]}, {key[1]}: {_lengths(group)}", tip=_intensity(group), link="#bench")
            for key, group in rows
        )
        if items:
            groups.append(Group(f"Limited by {bound} ({len(items)})", look, items))
    count = int((known["bound_by"] == "bandwidth").sum())
    lead = f"{count} of {len(known)} workloads are limited by memory bandwidth rather than compute."
    return Answer("memory-bound", question, lead, tuple(groups), more="bench")


def _lengths(rows: pd.DataFrame) -> str:
    lengths = sorted(rows["S"].unique())
    return f"S {lengths[0]}" if len(lengths) == 1 else f"S {lengths[0]} to {lengths[-1]}"


def _intensity(rows: pd.DataFrame) -> str:
    known = [value for value in rows["intensity"] if not pd.isna(value)]
    return f"{digits(min(known))} to {digits(max(known))} operations per byte" if known else ""


def guides(cells: pd.DataFrame, peaks: Mapping[tuple[str, str], float]) -> pd.DataFrame:
    """The lines that are drawn next to the measured ones: S², S, and the time at the measured peak."""
    rows: list[tuple[Any, ...]] = []
    for key, group in timed(cells).groupby(GROUP, sort=False) if not cells.empty else ():
        lengths = sorted(group["S"].unique())
        ends = (lengths[0], lengths[-1])
        for quantity, values in (("milliseconds", group["median"] * 1e3), ("memory", group["memory"])):
            last = values[(group["S"] == ends[1]) & (values > 0)]
            if len(lengths) > 1 and len(last):
                top = last.max() * APART
                rows += [(*key, quantity, STEEP, S, top * (S / ends[1]) ** 2) for S in ends]
                if quantity == "memory":
                    rows += [(*key, quantity, "slope of S", S, last.min() / APART * S / ends[1]) for S in ends]
        peak = peaks.get((str(key[1]), str(key[2])))
        if peak is not None:
            work = group.dropna(subset=["flops"]).drop_duplicates("S").sort_values("S")
            times = work["flops"] / peak * 1e3
            rows += [
                (*key, "milliseconds", "at the measured peak", S, time)
                for S, time in zip(work["S"], times, strict=True)
            ]
    found = pd.DataFrame(rows, columns=GUIDES)
    by_line = found.groupby([*GROUP, "quantity", "name"])["S"]
    steep, left, right = found["name"] == STEEP, by_line.transform("min"), by_line.transform("max")
    label = pd.Series("", index=found.index)
    label[steep & (found["S"] == right)] = "right"
    label[~steep & (found["S"] == left)] = "left"
    return found.assign(label=label)
