"""Interference: batches alone, after a process that is stopped, and after one that waits.

A batch of a cell follows either one of its own, or one of another library's cell whose process is then stopped, or one
whose process is left waiting.  The three follow each other in random order, in the same process and on the same core,
so that only the batch before differs.  The CPU time that the other processes took meanwhile shows how idle they were.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from attention_conformance.bench.analysis import statistics
from attention_conformance.bench.processes import Processes, process_of
from attention_conformance.bench.timing.plan import Plan
from attention_conformance.bench.timing.protocol import TIMEOUT, Protocol
from attention_conformance.bench.validity.checks import Invalid
from attention_conformance.bench.validity.outcomes import Cell
from attention_conformance.bench.workloads.workload import parse
from attention_conformance.impls.contract import Implementation
from attention_conformance.impls.process.pool import cpu_seconds
from attention_conformance.impls.process.threads import usable_cores
from studies.common import Measured, Study, chosen, markdown, ratio_with_interval, sentence

#: One implementation of every library, and one of NumPy that leaves threads to BLAS.
IMPLEMENTATIONS = ("numpy-eager", "numpy-tiled", "torch-sdpa", "jax-jit", "onnx-attention23")
WORKLOADS = ("prefill-b1h8d64s256", "prefill-b1h8d64s1024")

ALONE, STOPPED, WAITING = WAYS = ("alone", "others stopped", "others waiting")

#: The keywords that an implementation accepts.
Features = Callable[[Implementation], frozenset[str]]


def _none(implementation: Implementation) -> frozenset[str]:
    """No keywords, enough for workloads without any."""
    return frozenset()


@dataclass
class Experiment:
    """Cells of several libraries, each open in the process of its library."""

    cells: Sequence[Cell]
    plan: Plan
    features: Features = _none
    order: random.Random = field(default_factory=lambda: random.Random(0))  # noqa: S311  (an order of batches)

    def run(self, rounds: int) -> dict[str, Any]:
        """Median seconds of each cell's turns in each way, and the share of a core that each process took.

        Raises Invalid or Skipped for a cell that has no time.
        """
        self._processes = Processes(self.plan.threads)
        self._idle: dict[tuple[str, str], list[float]] = {}
        try:
            protocol = Protocol(self._processes, self.plan, self.features)
            self._takes = {cell: protocol.open(cell).call_seconds for cell in self.cells}
            found = [{"cell": cell.id} | self._cell(cell, rounds) for cell in self.cells]
        finally:
            self._processes.close()
        names = dict.fromkeys(name for name, _ in self._idle)
        idle = {name: {way: max(self._idle.get((name, way), [0.0])) for way in (STOPPED, WAITING)} for name in names}
        return {"rounds": rounds, "cells": found, "idle": idle}

    def _cell(self, cell: Cell, rounds: int) -> dict[str, list[float]]:
        mine = process_of(cell.target.implementation)
        others = [other for other in self.cells if process_of(other.target.implementation) != mine]
        found: dict[str, list[float]] = {way: [] for way in WAYS}
        took: dict[tuple[str, str], list[float]] = {}
        for number in range(rounds):
            for way in self.order.sample(WAYS, len(WAYS)):
                before = self.order.choice(others) if others and way != ALONE else cell
                self._processes.stop_idle = way == STOPPED
                self._batch(before, number)
                self._processes.stop_idle = True
                worked, started = self._worked(before), time.perf_counter()
                seconds = self._batch(cell, number)
                if before is not cell:
                    total = took.setdefault((process_of(before.target.implementation), way), [0.0, 0.0])
                    total[0] += self._worked(before) - worked
                    total[1] += time.perf_counter() - started
                self._processes.rest()
                found[way].append(round(median(seconds), 9))
        for key, (worked, passed) in took.items():
            self._idle.setdefault(key, []).append(worked / passed)
        return found

    def _batch(self, cell: Cell, number: int) -> tuple[float, ...]:
        plan, takes = self.plan, self._takes[cell]
        given = (cell.id, plan.round_seconds, plan.calls(takes), number, False, plan.lead_seconds(takes))
        batch = self._processes.call(
            cell.target.implementation, "attention_conformance.bench.sampling.sampler:batch", *given, timeout=TIMEOUT
        )
        if batch.status != "returned":
            raise Invalid(batch.status, batch.text)
        self._takes[cell] = min(takes, *batch.seconds)
        return batch.seconds

    def _worked(self, cell: Cell) -> float:
        return cpu_seconds(self._processes.pid(cell.target.implementation)) or 0.0


def ratio(cell: Measured, way: str) -> statistics.Interval:
    """Batches in a way ÷ batches alone, for a cell."""
    return statistics.paired(*([[seconds] for seconds in cell[each]] for each in (ALONE, way)))


def table(found: Measured) -> str:
    """Markdown: the ratios by cell, and the shares of a core by process."""
    rows = [
        [
            cell["cell"],
            f"{1e3 * median(cell[ALONE]):.3g}",
            *(ratio_with_interval(ratio(cell, way), 3) for way in WAYS[1:]),
        ]
        for cell in found["cells"]
    ]
    shares = [[name, f"{each[STOPPED]:.1%}", f"{each[WAITING]:.1%}"] for name, each in found["idle"].items()]
    parts = [
        markdown(["", "ms alone", *(f"{way} ÷ alone" for way in WAYS[1:])], rows),
        markdown(["share of a core while others work, at most", "stopped", "waiting"], shares),
        sentence(found, f"{found['rounds']} batches in each way"),
    ]
    return "\n\n".join(parts)


def measure(impl: list[str] | None, workload: list[str] | None, rounds: int, threads: int) -> dict[str, Any]:
    """The experiment with every workload on every implementation.  Raises Invalid or Skipped."""
    selected = chosen(impl or IMPLEMENTATIONS)
    cells = [Cell(target, parse(name)) for name in workload or WORKLOADS for target in selected.targets]
    plan = Plan(1.0, limit=60.0, threads=threads)
    found = Experiment(cells, plan, lambda one: selected.keywords[one.name]).run(rounds)
    return found | {"versions": selected.versions, "threads": threads}


STUDY = Study(
    "interference",
    "what taking turns does to timings",
    measure,
    {"bench/README.md": table},
    {
        "--impl": {"action": "append", "metavar": "WHAT", "help": f"default: {' '.join(IMPLEMENTATIONS)}"},
        "--workload": {"action": "append", "metavar": "NAME", "help": f"default: {' '.join(WORKLOADS)}"},
        "--rounds": {"type": int, "default": 200, "help": "batches of a cell in each way (default: %(default)s)"},
        "--threads": {"type": int, "default": usable_cores(), "help": "(default: %(default)s)"},
    },
)
