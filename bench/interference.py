"""What taking turns does to timings: turns alone, after a process that is stopped, and after one that waits.

A turn of a cell follows either one of its own, or one of another library's cell whose process is then stopped, or one
whose process is left to wait as it likes.  The three follow each other in random order, in the same process and on the
same core, so that nothing but what came before differs.  How idle the others were is the CPU time that they took
meanwhile.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from bench import figures, statistics
from bench.checks import StruckOut
from bench.figures import Circumstances, Measured
from bench.outcomes import Cell, NotTimed
from bench.plan import Plan
from bench.processes import Processes, process_of
from bench.protocol import TIMEOUT, Protocol
from bench.workloads import parse
from conformance.targets import choose
from impls.contract import Implementation
from impls.process.pool import Pool, cpu_seconds
from impls.process.threads import usable_cores

#: One implementation of every library, and one of NumPy that leaves threads to BLAS.
IMPLEMENTATIONS = ("numpy-eager", "numpy-tiled", "torch-sdpa", "jax-jit", "onnx-attention23")
WORKLOADS = ("prefill-b1h8d64s256", "prefill-b1h8d64s1024")

ALONE, STOPPED, WAITING = WAYS = ("alone", "others stopped", "others waiting")

#: The keywords that an implementation accepts.
Features = Callable[[Implementation], frozenset[str]]


def _none(implementation: Implementation) -> frozenset[str]:
    """Enough for workloads without keywords."""
    return frozenset()


@dataclass
class Experiment:
    """Cells of several libraries, each open in the process of its library."""

    cells: Sequence[Cell]
    plan: Plan
    features: Features = _none
    order: random.Random = field(default_factory=lambda: random.Random(0))  # noqa: S311  (an order of turns)

    def run(self, rounds: int) -> dict[str, Any]:
        """By cell the median seconds of its turns in each way, and by process the share of a core that it took.

        Raises StruckOut or NotTimed for a cell that has no time.
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
                self._turn(before, number)
                self._processes.stop_idle = True
                worked, started = self._worked(before), time.perf_counter()
                seconds = self._turn(cell, number)
                if before is not cell:
                    total = took.setdefault((process_of(before.target.implementation), way), [0.0, 0.0])
                    total[0] += self._worked(before) - worked
                    total[1] += time.perf_counter() - started
                self._processes.rest()
                found[way].append(round(median(seconds), 9))
        for key, (worked, passed) in took.items():
            self._idle.setdefault(key, []).append(worked / passed)
        return found

    def _turn(self, cell: Cell, number: int) -> tuple[float, ...]:
        plan, takes = self.plan, self._takes[cell]
        given = (cell.id, plan.turn_seconds, plan.calls(takes), number, False, plan.lead_seconds(takes))
        chunk = self._processes.call(cell.target.implementation, "bench.sampler:chunk", *given, timeout=TIMEOUT)
        if chunk.status != "returned":
            raise StruckOut(chunk.status, chunk.text)
        self._takes[cell] = min(takes, *chunk.seconds)
        return chunk.seconds

    def _worked(self, cell: Cell) -> float:
        return cpu_seconds(self._processes.pid(cell.target.implementation)) or 0.0


def ratio(cell: Measured, way: str) -> statistics.Interval:
    """Turns in a way ÷ turns alone, of a cell of the figures."""
    return statistics.paired(*([[seconds] for seconds in cell[each]] for each in (ALONE, way)))


def table(found: Measured) -> str:
    """Markdown: the ratios by cell, and the shares of a core by process."""
    lines = [f"| | ms alone | {' | '.join(f'{way} ÷ alone' for way in WAYS[1:])} |", "| --- | ---: | ---: | ---: |"]
    for cell in found["cells"]:
        ratios = [ratio(cell, way) for way in WAYS[1:]]
        texts = [f"{one.value:.3f} ({one.low:.3f} to {one.high:.3f})" for one in ratios]
        lines.append(f"| {cell['cell']} | {1e3 * median(cell[ALONE]):.3g} | {' | '.join(texts)} |")
    lines += ["", "| share of a core while others work, at most | stopped | waiting |", "| --- | ---: | ---: |"]
    lines += [f"| {name} | {each[STOPPED]:.1%} | {each[WAITING]:.1%} |" for name, each in found["idle"].items()]
    return "\n".join([*lines, "", f"{found['rounds']} turns in each way; {figures.sentence(found)}"])


FIGURES = figures.figures("turns --page", table)


def options(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    option = parser.add_argument
    option("--impl", action="append", default=[], metavar="WHAT", help=f"default: {' '.join(IMPLEMENTATIONS)}")
    option("--workload", action="append", default=[], metavar="NAME", help=f"default: {' '.join(WORKLOADS)}")
    option("--rounds", type=int, default=200, help="turns of each cell in each way (default: %(default)s)")
    option("--threads", type=int, default=usable_cores(), help="(default: %(default)s)")
    figures.option(parser)


def run(impl: list[str], workload: list[str], rounds: int, threads: int, page: bool) -> tuple[str, int]:
    """Measure, and give the table."""
    began = Circumstances()
    pool = Pool(in_process=False)
    try:
        chosen = choose(impl or IMPLEMENTATIONS, ("cpu",), ("float32",), pool)
    finally:
        pool.close()
    workloads = [parse(name) for name in workload or WORKLOADS]
    cells = [Cell(target, one) for one in workloads for target in chosen.targets]
    experiment = Experiment(cells, Plan(1.0, limit=60.0, threads=threads), lambda one: chosen.keywords[one.name])
    try:
        found = experiment.run(rounds)
    except (StruckOut, NotTimed) as error:
        raise SystemExit(f"not measured: {error}") from error
    return figures.give(found | began.record(chosen.versions, threads), FIGURES, page)
