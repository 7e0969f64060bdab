"""What taking turns does to timings: each cell alone, in turns with stopped others, and in turns with waiting others.

The three ways are tried in turn, several times, so that drift of the machine hits all alike.  A ratio is of medians of
paired visits, with its interval.  How idle the others were is the CPU time that they took between their turns.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from bench import statistics
from bench.campaign import Campaign
from bench.machine import usable_cores
from bench.outcomes import TIMED, Cell
from bench.plan import Plan
from bench.processes import Processes
from bench.progress import Progress
from bench.protocol import Protocol
from bench.statistics import Interval
from bench.workloads import parse
from conformance.targets import Pool, choose
from impls.contract import Implementation

#: One implementation of every library.
IMPLEMENTATIONS = ("numpy-tiled", "torch-sdpa", "jax-jit", "onnx-attention23")
WORKLOADS = ("prefill-b1h8d64s256", "prefill-b1h8d64s1024")

ALONE, STOPPED, WAITING = "alone", "in turns, others stopped", "in turns, others waiting"


#: The keywords that an implementation accepts.
Features = Callable[[Implementation], frozenset[str]]


def _none(implementation: Implementation) -> frozenset[str]:
    """Enough for workloads without keywords."""
    return frozenset()


@dataclass
class Found:
    """Median seconds of each cell, by way and in order, and how idle waiting processes were."""

    medians: dict[tuple[str, Cell], list[float]] = field(default_factory=dict)
    idle: dict[tuple[str, str], list[float]] = field(default_factory=dict)

    def ratio(self, way: str, cell: Cell) -> Interval:
        """The way's time ÷ the time alone."""
        alone, other = ([[value] for value in self.medians[each, cell]] for each in (ALONE, way))
        return statistics.paired(alone, other)


def measure(cells: Sequence[Cell], plan: Plan, rounds: int, features: Features = _none) -> Found:
    """Every cell in every way, ``rounds`` times."""
    found = Found()
    for _ in range(rounds):
        for cell in cells:
            _add(found, ALONE, [cell], plan, features)
        for way in (STOPPED, WAITING):
            _add(found, way, cells, plan, features)
    return found


def _add(found: Found, way: str, cells: Sequence[Cell], plan: Plan, features: Features) -> None:
    processes = Processes(plan.threads, stop_idle=way != WAITING)
    campaign = Campaign(cells, Protocol(processes, plan, features), processes, Progress(None, False))
    campaign.run()
    for cell, outcome in campaign.outcomes.items():
        if outcome.kind != TIMED:
            raise SystemExit(f"{cell.id}: {outcome.kind}: {outcome.clause} {outcome.reason}")
        found.medians.setdefault((way, cell), []).append(outcome.interval.value)
    if way != ALONE:
        for name, share in processes.shares().items():
            found.idle.setdefault((way, name), []).append(share)


def table(found: Found, cells: Iterable[Cell]) -> str:
    """The ratios by cell, and the shares of a core by process, for the two ways of taking turns."""
    ways = (STOPPED, WAITING)
    lines = [_line("time in turns ÷ time alone", ("others stopped", "others waiting"))]
    for cell in cells:
        ratios = [found.ratio(way, cell) for way in ways]
        texts = [f"{ratio.value:.3f} ({ratio.low:.3f} to {ratio.high:.3f})" for ratio in ratios]
        lines.append(_line(f"{cell.target.implementation.name} {cell.workload.name}", texts))
    lines += ["", _line("share of a core while others work, at most", ("stopped", "waiting"))]
    for name in dict.fromkeys(process for _, process in found.idle):
        lines.append(_line(name, [f"{max(found.idle[way, name]):.2%}" for way in ways]))
    return "\n".join(lines)


def _line(name: str, values: Sequence[str]) -> str:
    return f"{name:48}" + "".join(f"{value:>26}" for value in values)


def options(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    option = parser.add_argument
    option("--impl", action="append", default=[], metavar="WHAT", help=f"default: {' '.join(IMPLEMENTATIONS)}")
    option("--workload", action="append", default=[], metavar="NAME", help=f"default: {' '.join(WORKLOADS)}")
    option("--rounds", type=int, default=9, help="times that each way is tried (default: %(default)s)")
    option("--seconds", type=float, default=1.0, help="of calls of a cell, each time (default: %(default)s)")
    option("--threads", type=int, default=usable_cores(), help="(default: %(default)s)")


def run(impl: list[str], workload: list[str], rounds: int, seconds: float, threads: int) -> tuple[str, int]:
    """Measure, and give the table."""
    pool = Pool(in_process=False)
    try:
        chosen = choose(impl or IMPLEMENTATIONS, ("cpu",), ("float32",), pool)
    finally:
        pool.close()
    workloads = [parse(name) for name in workload or WORKLOADS]
    cells = [Cell(target, one) for one in workloads for target in chosen.targets]
    plan = Plan(seconds, noise=0.0, visits=1, limit=60.0, threads=threads, most=10**5)

    def features(implementation: Implementation) -> frozenset[str]:
        return chosen.keywords[implementation.name]

    return table(measure(cells, plan, rounds, features), cells), 0
