"""Two runs, simulated: how often the rule for runs one after the other is wrong.

A run is a machine that is faster or slower as a whole, cells with luck of their own, and three process runs of each
cell, of which the intervals are made.  Only the first two are hidden from the rule, and what three process runs happen
not to show.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attention_conformance.bench.analysis.statistics import Interval, Verdict, Z, judge, ratio, student
from attention_conformance.reports.compare.drift import allowance, allowed, among, verdict
from studies.common import Measured, Study, markdown

#: Comparisons of each row, and cells of a comparison.
COMPARISONS = 1000
IMPLEMENTATIONS, WORKLOADS = 5, 12

#: Standard deviations, of the log: of a median within its process run, which batches show, and of a measured peak.
WITHIN = 0.005
PEAK = 0.02

#: Process runs of a cell.
PROCESS_RUNS = 3

#: Slowdowns of one implementation of five that are looked for.
SLOWDOWNS = (1.10, 1.20, 1.50)


@dataclass(frozen=True)
class Machine:
    """Standard deviations, of the log: of the machine and of each cell from run to run, and of process runs."""

    name: str
    whole: float
    cell: float
    process_run: float
    #: Degrees of freedom of a cell's luck, None for normal: 3 has an outlier of four deviations in 40 cells.
    tails: int | None = None
    peaks: bool = True
    implementations: int = IMPLEMENTATIONS


MACHINES = (
    Machine("quiet", 0.01, 0.005, 0.005),
    Machine("shared", 0.05, 0.02, 0.02),
    Machine("shared, cells with heavy tails (Student, 3 degrees of freedom)", 0.05, 0.02, 0.02, tails=3),
    Machine("busy", 0.10, 0.05, 0.08),
    Machine("shared, without peaks", 0.05, 0.02, 0.02, peaks=False),
    Machine("shared, without peaks, one implementation", 0.05, 0.02, 0.02, peaks=False, implementations=1),
)


def comparison(
    machine: Machine, rng: np.random.Generator, slowdown: float = 1.0
) -> Iterator[tuple[bool, Verdict, Verdict]]:
    """For every cell whether it was slowed down, the verdict, and that on the plain ratio; one implementation is."""
    count = machine.implementations * WORKLOADS
    whole = machine.whole * rng.normal()
    luck = rng.normal(size=count)
    if machine.tails is not None:
        luck = rng.standard_t(machine.tails, size=count) / math.sqrt(machine.tails / (machine.tails - 2))
    slowed = np.arange(count) < (WORKLOADS if slowdown > 1 else 0)
    shift = whole + machine.cell * luck + math.log(slowdown) * slowed
    pairs = zip(_medians(machine, rng, np.zeros(count)), _medians(machine, rng, shift), strict=True)
    ratios = [(str(at // WORKLOADS), ratio(base, new)) for at, (base, new) in enumerate(pairs)]
    limits = {"peak": math.exp(whole + PEAK * rng.normal())} if machine.peaks else {}
    given, width = allowance("cpu", ratios, limits), among(count)
    for changed, (_, one) in zip(slowed.tolist(), ratios, strict=True):
        yield changed, verdict(allowed(one, given), allowed(one, given, width)), judge(one)


def _medians(machine: Machine, rng: np.random.Generator, shift: np.ndarray) -> Iterator[Interval]:
    """The medians of a run with their intervals: the wider of that by batches and that by process runs."""
    process_runs = machine.process_run * rng.normal(size=(PROCESS_RUNS, len(shift))) + shift
    halves = np.maximum(
        Z * WITHIN, student(PROCESS_RUNS - 1) * process_runs.std(axis=0, ddof=1) / math.sqrt(PROCESS_RUNS)
    )
    values = np.median(process_runs, axis=0) + WITHIN * rng.normal(size=len(shift))
    for value, half in zip(np.exp(values).tolist(), np.exp(halves).tolist(), strict=True):
        yield Interval(value, value / half, value * half)


def rates(machine: Machine, comparisons: int = COMPARISONS) -> list[str]:
    """A row of the table: false alarms of the rule and of the plain ratio, sameness said, slowdowns found."""
    alarm, plain, same = [], [], []
    for seed in range(comparisons):
        found = list(comparison(machine, np.random.default_rng(seed)))
        alarm.append(any(_changed(one) for _, one, _ in found))
        plain.append(any(_changed(one) for _, _, one in found))
        same.append(np.mean([one is Verdict.SAME for _, one, _ in found]))
    scatter = ", ".join(f"{100 * each:g} %" for each in (machine.whole, machine.cell, machine.process_run))
    row = [f"{machine.name}: {scatter}", _share(alarm), _share(plain), _share(same)]
    for slowdown in SLOWDOWNS:
        runs = [list(comparison(machine, np.random.default_rng(seed), slowdown)) for seed in range(comparisons // 5)]
        row.append(_share([one is Verdict.SLOWER for run in runs for changed, one, _ in run if changed]))
    others = [any(_changed(one) for changed, one, _ in run if not changed) for run in runs]
    return [*row, _share(others) if machine.implementations > 1 else "–"]


def _changed(one: Verdict) -> bool:
    return one in (Verdict.FASTER, Verdict.SLOWER)


def _share(values: Sequence[object]) -> str:
    return f"{float(np.mean(np.array(values, dtype=float))):.1%}"


def measure(comparisons: int) -> dict[str, Any]:
    """The rows of all machines."""
    return {"rows": [rates(machine, comparisons) for machine in MACHINES], "threads": 1}


def table(found: Measured) -> str:
    """Markdown: a line for each machine."""
    heads = [
        "machine: scatter of the whole and of a cell from run to run, and from process run to process run",
        "runs with a false alarm",
        "without steps 2 to 4",
        "cells called the same",
    ]
    heads += [f"{slowdown - 1:.0%} slower found" for slowdown in SLOWDOWNS]
    return markdown([*heads, "then another is called changed"], found["rows"])


STUDY = Study(
    "two_runs",
    "how often the rule for two runs is wrong, by simulation",
    measure,
    {"reports/README.md": table},
    {"--comparisons": {"type": int, "default": COMPARISONS, "help": "of each machine (default: %(default)s)"}},
)
