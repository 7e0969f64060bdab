"""Two runs, simulated: how often the model of runs made one after the other is wrong.

A run has a machine that is faster or slower as a whole, implementations and cells with luck of their own, and process
runs of each cell, which have something in common where they are measured in the same rounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attention_conformance.bench.analysis.statistics import Verdict
from attention_conformance.reports.compare.effects import CHANGED, Cell, effects
from studies.common import Measured, Study, markdown

#: Comparisons for each number, and cells of a comparison.
COMPARISONS = 200
IMPLEMENTATIONS, WORKLOADS = 8, 6

#: Standard deviations of logs: of a measured peak, and of an implementation relative to that of a cell.
PEAK = 0.02
WHOLE = 0.5

#: Process runs of a cell; five and three are tried on a shared machine.
PROCESS_RUNS = 5

#: Slowdowns of one implementation, and of one cell, that should be found.
SLOWDOWNS = (1.10, 1.15, 1.25)
OF_CELL = 1.25


@dataclass(frozen=True)
class Machine:
    """Standard deviations of logs: of the machine and of each cell from run to run, and of process runs."""

    name: str
    whole: float
    cell: float
    process_run: float
    #: Degrees of freedom of a cell's luck, None for normal: 3 has an outlier of four deviations in 40 cells.
    tails: int | None = None
    peaks: bool = True
    implementations: int = IMPLEMENTATIONS
    process_runs: int = PROCESS_RUNS


MACHINES = (
    Machine("quiet", 0.01, 0.005, 0.01),
    Machine("shared", 0.05, 0.015, 0.03),
    Machine("shared, three process runs", 0.05, 0.015, 0.03, process_runs=3),
    Machine("shared, cells with heavy tails (Student, 3 degrees of freedom)", 0.05, 0.015, 0.03, tails=3),
    Machine("busy", 0.10, 0.04, 0.10),
    Machine("shared, without peaks", 0.05, 0.015, 0.03, peaks=False),
    Machine("shared, without peaks, one implementation", 0.05, 0.015, 0.03, peaks=False, implementations=1),
)


def cells(machine: Machine, rng: np.random.Generator, slowdown: float = 1.0, of_cell: float = 1.0) -> list[Cell]:
    """The cells of two runs; the first implementation, or the first cell, is slower in the new one."""
    whole = machine.whole * rng.normal()
    rounds = machine.process_run * rng.normal(size=(2, WORKLOADS, machine.process_runs))
    found = []
    for who in range(machine.implementations):
        shift = whole + WHOLE * machine.cell * rng.normal() + math.log(slowdown) * (who == 0)
        for workload in range(WORKLOADS):
            luck = rng.normal()
            if machine.tails is not None:
                luck = rng.standard_t(machine.tails) / math.sqrt(machine.tails / (machine.tails - 2))
            base, new = rounds[:, workload] + machine.process_run * rng.normal(size=(2, machine.process_runs))
            change = shift + machine.cell * luck + math.log(of_cell) * (who == workload == 0)
            found.append(Cell((str(who), ""), base - 7, new - 7 + change, str(workload)))
    return found


def rates(machine: Machine, comparisons: int = COMPARISONS) -> list[str]:
    """A row of the table: false findings, cells called the same, changes found, and other cells called changed."""

    def results(**change: float) -> list[Any]:
        found = []
        for seed in range(comparisons):
            rng = np.random.default_rng(seed)
            yardsticks = {"peak": math.exp(machine.whole * rng.normal() + PEAK * rng.normal())} if machine.peaks else {}
            found.append(effects(cells(machine, np.random.default_rng(seed), **change), yardsticks))
        return found

    equal = results()
    false = [
        any(one.verdict in CHANGED for one in (*each.units.values(), *each.cells, *filter(None, [each.everything])))
        for each in equal
    ]
    same = [np.mean([one.verdict is Verdict.SAME for one in each.cells]) for each in equal]
    seen = np.median([(next(iter(each.units.values())).seen, each.cells[0].seen) for each in equal], axis=0) - 1
    scatter = ", ".join(f"{100 * each:g} %" for each in (machine.whole, machine.cell, machine.process_run))
    row = [f"{machine.name}: {scatter}", _share(false), _share(same), f"{seen[0]:.0%}, {seen[1]:.0%}"]
    for slowdown in SLOWDOWNS:
        slowed = results(slowdown=slowdown)
        row.append(_share([each.units["0", ""].verdict is Verdict.SLOWER for each in slowed]))
    others = [any(one.verdict in CHANGED for one in each.cells[WORKLOADS:]) for each in slowed]
    row.append(_share([each.cells[0].verdict is Verdict.SLOWER for each in results(of_cell=OF_CELL)]))
    return [*row, _share(others) if machine.implementations > 1 else "–"]


def _share(values: Sequence[object]) -> str:
    return f"{float(np.mean(np.array(values, dtype=float))):.1%}"


def measure(comparisons: int) -> dict[str, Any]:
    """The rows of all machines."""
    return {"rows": [rates(machine, comparisons) for machine in MACHINES], "threads": 1}


def table(found: Measured) -> str:
    """Markdown: a line for each machine."""
    heads = [
        "machine: scatter of the whole and of a cell from run to run, and from process run to process run",
        "runs with a false finding",
        "cells called the same",
        "would have seen in an implementation, in a cell",
    ]
    heads += [f"implementation {slowdown - 1:.0%} slower found" for slowdown in SLOWDOWNS]
    return markdown([*heads, f"cell {OF_CELL - 1:.0%} slower found", "then another is called changed"], found["rows"])


STUDY = Study(
    "two_runs",
    "how often the model of two runs is wrong, by simulation",
    measure,
    {"reports/README.md": table},
    {"--comparisons": {"type": int, "default": COMPARISONS, "help": "of each kind (default: %(default)s)"}},
)
