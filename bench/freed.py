"""What it costs that freed memory goes back to the system: the same calls in turns, in fresh processes that keep what
they free (impls.process.allocator) and in such as glibc leaves them.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import numpy as np

from bench import figures
from bench.figures import Circumstances, Measured
from impls.loading import opened
from impls.process import allocator
from impls.process.pool import Worker
from impls.process.threads import usable_cores
from impls.select import builtin

#: Implementations and lengths; B = 1, H = 8, D = 64, float32.
CALLS = (("numpy-eager", 256), ("numpy-eager", 1024), ("numpy-tiled", 512))

#: Variables of the two kinds of processes.
WAYS: Mapping[str, Mapping[str, str]] = {"by glibc itself": {}, "kept": allocator.KEEPING}

#: Input sets, which calls take in turn.
SETS = 3


def timed(name: str, length: int, seconds: float) -> tuple[float, float]:
    """Median milliseconds of the calls of so many seconds in this process, and page faults of a call."""
    function = opened(builtin()[name])
    generator = np.random.default_rng(0)
    shape = (3, 1, 8, length, 64)
    inputs = [generator.standard_normal(shape, dtype=np.float32) for _ in range(SETS)]
    for given in inputs:
        function(*given)
    taken: list[float] = []
    faults, end = _faults(), time.perf_counter() + seconds
    while time.perf_counter() < end:
        started = time.perf_counter()
        function(*inputs[len(taken) % SETS])
        taken.append(time.perf_counter() - started)
    return 1e3 * statistics.median(taken), (_faults() - faults) / len(taken)


def measure(processes: int, seconds: float) -> dict[str, Any]:
    """By call and way the median milliseconds and the page faults of a call in each process."""
    calls = []
    for name, length in CALLS:
        found: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
        for _ in range(processes):
            for way, variables in WAYS.items():
                with closing(Worker(variables)) as worker:
                    found[way].append(worker.call(f"{__name__}:timed", name, length, seconds))
        calls.append({"call": f"{name}, S = {length}", "ways": found})
    return {"processes": processes, "calls": calls}


def table(found: Measured) -> str:
    """Markdown: the median over the processes, and the least and the most of them."""
    lines = ["| | " + " | ".join(f"{way}: ms | page faults a call" for way in WAYS) + " |", "| --- |" + " ---: |" * 4]
    for call in found["calls"]:
        cells = []
        for way in WAYS:
            times, faults = zip(*call["ways"][way], strict=True)
            middle, least, most = statistics.median(times), min(times), max(times)
            cells.append(f"{middle:.3g} ({least:.3g} to {most:.3g}) | {statistics.median(faults):.0f}")
        lines.append(f"| {call['call']} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"{found['processes']} processes each; {figures.sentence(found)}"])


FIGURES = figures.figures("freed --page", table)


def _faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def options(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("--processes", type=int, default=7, help="of each kind (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=0.5, help="in each process (default: %(default)s)")
    figures.option(parser)


def run(processes: int, seconds: float, page: bool) -> tuple[str, int]:
    """Measure, and give the table."""
    began = Circumstances()
    found = measure(processes, seconds)
    return figures.give(found | began.record({"numpy": np.__version__}, usable_cores()), FIGURES, page)
