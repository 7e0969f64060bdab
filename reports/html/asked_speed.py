"""The questions at the top that the bench answers: who is fastest, whose memory is quadratic, what bandwidth limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from attention_conformance.bench.analysis.fits import Growth, Memory
from attention_conformance.reports.html.cells import timed
from attention_conformance.reports.html.memory import exponent_interval as exponent_interval
from attention_conformance.reports.html.speed import cell_link, interval, overlap, ranked
from attention_conformance.reports.html.views import Answer, Cell, Group, link, milliseconds, missing, size
from attention_conformance.reports.markdown.text import digits

#: The cell that is asked of; where nobody timed it, the nearest by the order of FAMILIES.
LENGTH, DTYPE = 4096, "float32"
FAMILIES = ("prefill-b1h8d64s*-causal", "prefill-b1h8d64s*")

#: How many of the fastest are named.
NAMED = 5

LOOKS = {Growth.QUADRATIC: "known-deviation", Growth.LESS: "passed", Growth.UNCLEAR: "unsupported"}


@dataclass(frozen=True)
class Asked:
    """A workload of every device."""

    family: str
    length: int
    dtype: str

    @property
    def exact(self) -> bool:
        """Whether it is the one that the page is about."""
        return (self.family, self.length, self.dtype) == (FAMILIES[0], LENGTH, DTYPE)

    @property
    def workload(self) -> str:
        """Its name."""
        return self.family.replace("*", str(self.length))


def asked(cells: pd.DataFrame) -> Asked | None:
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
    return Asked(str(first["family"]), int(first["S"]), str(first["dtype"]))


def fastest_answer(cells: pd.DataFrame, at: Asked | None) -> Answer:
    """The fastest at that workload, on each device."""
    question = f"Which is fastest at {LENGTH} causal {DTYPE} here?"
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
        leads[-1] += f" (not told apart from {', '.join(tied)})" if tied else ""
        items = [
            Cell(
                f"{row['implementation']} {milliseconds(row['median'])}"
                + (f", {digits(row['median'] / first['median'])}×" if row is not first else ""),
                tip=interval(row),
                link=cell_link(row),
            )
            for row in rows[:NAMED]
        ]
        label = f"{at.workload}, {at.dtype}, {device}: first {len(items)} of {len(rows)}"
        groups.append(Group(label, "ranked", tuple(items)))
    lead = "; ".join(leads) + "."
    if not at.exact:
        lead = f"Not timed in these files. Of {at.workload} in {at.dtype}: {lead}"
    return Answer("fastest-here", question, lead, tuple(groups), more="speed")


def quadratic(found: Sequence[Memory], at: Asked | None) -> Answer:
    """Whose memory grows with S², in the family of that workload."""
    here = [one for one in found if at is not None and (one.family, one.dtype) == (at.family, at.dtype)]
    question = "Which uses quadratic memory?"
    if at is None or not here:
        return Answer("quadratic", question, "Memory was not measured at two lengths in these files.", more="memory-of")
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
            groups.append(Group(f"{label} ({len(items)}), bytes at S = {longest}", LOOKS[growth], items))
    count = {growth: sum(one.growth is growth for one in here) for growth in Growth}
    unclear = f" Of {count[Growth.UNCLEAR]} it cannot be told." if count[Growth.UNCLEAR] else ""
    lead = f"{count[Growth.QUADRATIC]} of {len(here)}, in {at.family}, {at.dtype}.{unclear}"
    return Answer("quadratic", question, lead, tuple(groups), more="memory-of")


def memory_bound(cells: pd.DataFrame) -> Answer:
    """The workloads whose lower limit is memory bandwidth, by the measured peaks of the machine."""
    question = "What is memory-bound here?"
    known = timed(cells)[["family", "device", "dtype", "S", "bound_by", "intensity"]].drop_duplicates()
    known = known[known["bound_by"].isin(["bandwidth", "compute"])]
    if known.empty:
        return Answer(
            "memory-bound", question, "Not known: these files have no measured limits of the machine.", more="bench"
        )
    groups = []
    for bound, look in (("bandwidth", "known-deviation"), ("compute", "passed")):
        rows = known[known["bound_by"] == bound].groupby(["family", "device", "dtype"], sort=False)
        items = tuple(
            Cell(f"{' '.join(map(str, key))}: {_lengths(group)}", tip=_intensity(group), link="#bench")
            for key, group in rows
        )
        if items:
            groups.append(Group(f"Limited by {bound} ({len(items)})", look, items))
    count = int((known["bound_by"] == "bandwidth").sum())
    lead = f"{count} of {len(known)} workloads: bandwidth limits them before arithmetic does."
    return Answer("memory-bound", question, lead, tuple(groups), more="bench")


def _lengths(rows: pd.DataFrame) -> str:
    lengths = sorted(rows["S"].unique())
    return f"S {lengths[0]}" if len(lengths) == 1 else f"S {lengths[0]} to {lengths[-1]}"


def _intensity(rows: pd.DataFrame) -> str:
    known = [value for value in rows["intensity"] if not missing(value)]
    return f"{digits(min(known))} to {digits(max(known))} operations a byte" if known else ""
