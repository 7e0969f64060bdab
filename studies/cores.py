"""Cores: the effect of the core that a batch begins on, by batches of one cell on each core in turn.

A virtual machine's cores are threads of processors that others use too, and each has another neighbour.  Two
consecutive batches differ by more if they are on different cores; impls.process.threads.begin_on removes that from
comparisons.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_conformance.bench.options import Renamed
from attention_conformance.bench.processes import Processes
from attention_conformance.bench.timing.plan import Plan
from attention_conformance.bench.timing.protocol import TIMEOUT, Protocol
from attention_conformance.bench.validity.outcomes import Cell
from attention_conformance.bench.workloads.workload import parse
from attention_conformance.impls.process import threads
from attention_conformance.impls.process.threads import usable_cores
from studies.common import Measured, Study, chosen, markdown, sentence

#: Cells that depend on one core, and cells that work on all of them.
CELLS = (
    ("numpy-eager", "prefill-b1h8d64s256"),
    ("numpy-tiled", "prefill-b1h8d64s512"),
    ("torch-sdpa-flash", "prefill-b1h8d64s512"),
    ("onnx-attention23", "prefill-b1h8d64s512"),
)

#: Consecutive batches on one core: they make one pair on it, and one pair with the next core.
AT_A_TIME = 2

#: Stretches of time, for which each core's median is shown.
STRETCHES = 6


def batches_of(cell: Cell, processes: Processes, plan: Plan, batches: int) -> dict[str, Any]:
    """Median seconds of the batches, with the core that each began on.  Raises Invalid for a wrong cell."""
    usable = threads.near()
    Protocol(processes, plan, lambda one: frozenset()).open(cell)
    found = []
    for index in range(batches):
        number = index // AT_A_TIME
        given = (cell.id, plan.round_seconds, plan.batch_calls, number, False, plan.lead_seconds(0.0))
        batch = processes.call(
            cell.target.implementation, "attention_conformance.bench.sampling.sampler:batch", *given, timeout=TIMEOUT
        )
        found.append([usable[number % len(usable)], round(float(np.median(batch.seconds)), 9)])
    processes.call(cell.target.implementation, "attention_conformance.bench.sampling.sampler:close_cell", cell.id)
    return {"cell": cell.id, "batches": found}


def differences(batches: list[list[float]]) -> tuple[float, float]:
    """Difference of two consecutive batches: median of |log ratio|, on one core and on two."""
    logs = np.abs(np.diff(np.log([seconds for _, seconds in batches])))
    moved = np.diff([core for core, _ in batches]) != 0
    one, two = (np.median(logs[which]) if which.any() else np.nan for which in (~moved, moved))
    return float(np.expm1(one)), float(np.expm1(two))


def slower(batches: list[list[float]]) -> float:
    """Time on the slowest core ÷ time on the fastest, in the stretch where they differ most."""
    return max(max(each) / min(each) for each in zip(*_stretches(batches).values(), strict=True))


def _stretches(batches: list[list[float]]) -> dict[float, list[float]]:
    """Median seconds by core in each stretch of time in which every core had a batch."""
    parts = [
        batches[part[0] : part[-1] + 1] for part in np.array_split(np.arange(len(batches)), STRETCHES) if len(part)
    ]
    cores = sorted({core for core, _ in batches})
    whole = [part for part in parts if {core for core, _ in part} == set(cores)]
    return {core: [float(np.median([s for c, s in part if c == core])) for part in whole] for core in cores}


def measure(batches: int) -> dict[str, Any]:
    """The batches of every cell that is installed."""
    count, selected = usable_cores(), chosen(name for name, _ in CELLS)
    by_name = {target.implementation.name: target for target in selected.targets}
    cells = [Cell(by_name[name], parse(workload)) for name, workload in CELLS if name in by_name]
    processes, plan = Processes(count), Plan(1.0, limit=60.0, threads=count)
    try:
        return {"cells": [batches_of(cell, processes, plan, batches) for cell in cells], "versions": selected.versions}
    finally:
        processes.close()


def table(found: Measured) -> str:
    """Markdown: the times of each stretch by cell and core, and the difference of consecutive batches."""
    times, apart = [], []
    for cell in found["cells"]:
        for core, medians in _stretches(cell["batches"]).items():
            times.append([cell["cell"], core, " · ".join(f"{1e3 * each:.3g}" for each in medians)])
        one, two = differences(cell["batches"])
        apart.append([cell["cell"], f"{one:.1%}", f"{two:.1%}", f"{slower(cell['batches']):.2f}"])
    heads = ["two batches that follow each other", "on one core", "on two", "slowest ÷ fastest core, at most"]
    parts = [
        markdown(["", "core", "ms, one stretch of time after the other"], times, left=(0, 2)),
        markdown(heads, apart),
        sentence(found, f"{len(found['cells'][0]['batches'])} batches of each"),
    ]
    return "\n\n".join(parts)


STUDY = Study(
    "cores",
    "by how much the core that a batch begins on decides",
    measure,
    {"bench/README.md": table},
    {
        "--batches": {"type": int, "default": 600, "help": "of each cell (default: %(default)s)"},
        "--turns": {"action": Renamed, "now": "--batches"},
    },
)
