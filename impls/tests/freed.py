"""What it costs that freed memory goes back to the system: ``python -m impls.tests.freed`` times the same calls in
turns, in fresh processes that keep it (impls.allocator) and in such as glibc leaves them.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import time
from collections.abc import Mapping
from contextlib import closing

import numpy as np

from impls import allocator
from impls.isolation import Worker
from impls.loading import opened
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


def table(processes: int, seconds: float) -> str:
    """A Markdown table: the median over the processes, and the least and the most of them."""
    lines = ["| | " + " | ".join(f"{way}: ms | page faults a call" for way in WAYS) + " |", "| --- |" + " ---: |" * 4]
    for name, length in CALLS:
        found: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
        for _ in range(processes):
            for way, variables in WAYS.items():
                with closing(Worker(variables)) as worker:
                    found[way].append(worker.call(f"{__spec__.name}:timed", name, length, seconds))
        cells = []
        for pairs in found.values():
            times, faults = zip(*pairs, strict=True)
            middle, least, most = statistics.median(times), min(times), max(times)
            cells.append(f"{middle:.3g} ({least:.3g} to {most:.3g}) | {statistics.median(faults):.0f}")
        lines.append(f"| {name}, S = {length} | {' | '.join(cells)} |")
    load = f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "not told"
    return "\n".join([*lines, "", f"{processes} processes each, load average at the end {load}."])


def _faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def main() -> None:
    """Measure and print; nothing else ought to run on the machine."""
    parser = argparse.ArgumentParser(prog="python -m impls.tests.freed", description=(__doc__ or "").split(":")[0])
    parser.add_argument("--processes", type=int, default=7, help="of each kind; default: %(default)s")
    parser.add_argument("--seconds", type=float, default=0.5, help="in each process; default: %(default)s")
    print(table(**vars(parser.parse_args())))


if __name__ == "__main__":
    main()
