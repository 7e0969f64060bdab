"""Allocator retention: the cost of returning freed memory to the system.

The same calls run in turns, in fresh processes that keep what they free (impls.process.allocator) and in fresh
processes with glibc's defaults.
"""

from __future__ import annotations

import itertools
import resource
import statistics
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import numpy as np

from attention_conformance.impls.loading import load_function
from attention_conformance.impls.process import allocator
from attention_conformance.impls.process.pool import Worker
from attention_conformance.impls.select import builtin
from studies.common import Measured, Study, calls_for, markdown, sentence

#: Implementations and lengths; B = 1, H = 8, D = 64, float32.
CALLS = (("numpy-eager", 256), ("numpy-eager", 1024), ("numpy-tiled", 512))

#: Variables of the two kinds of processes.
WAYS: Mapping[str, Mapping[str, str]] = {"by glibc itself": {}, "kept": allocator.KEEPING}

#: Input sets, which calls use in turn.
SETS = 3


def timed(name: str, length: int, seconds: float) -> tuple[float, float]:
    """Job: median milliseconds of the calls within ``seconds``, and page faults per call."""
    function, generator = load_function(builtin()[name]), np.random.default_rng(0)
    inputs = [generator.standard_normal((3, 1, 8, length, 64), dtype=np.float32) for _ in range(SETS)]
    for given in inputs:
        function(*given)
    sets, faults = itertools.cycle(inputs), _faults()
    taken = calls_for(lambda: function(*next(sets)), seconds)
    return 1e3 * statistics.median(taken), (_faults() - faults) / len(taken)


def measure(processes: int, seconds: float) -> dict[str, Any]:
    """Median milliseconds and page faults per call in each process, by call and way."""
    calls = []
    for name, length in CALLS:
        found: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
        for _ in range(processes):
            for way, variables in WAYS.items():
                with closing(Worker(variables)) as worker:
                    found[way].append(worker.call("studies.allocator:timed", name, length, seconds))
        calls.append({"call": f"{name}, S = {length}", "ways": found})
    return {"processes": processes, "calls": calls, "versions": {"numpy": np.__version__}}


def table(found: Measured) -> str:
    """Markdown: the median over the processes, with the least and the most."""
    rows = []
    for call in found["calls"]:
        row = [call["call"]]
        for way in WAYS:
            times, faults = zip(*call["ways"][way], strict=True)
            row += [f"{statistics.median(times):.3g} ({min(times):.3g} to {max(times):.3g})"]
            row += [f"{statistics.median(faults):.0f}"]
        rows.append(row)
    lines = markdown(["", *(head for way in WAYS for head in (f"{way}: ms", "page faults a call"))], rows)
    return lines + "\n\n" + sentence(found, f"{found['processes']} processes each")


def _faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


STUDY = Study(
    "allocator",
    "what it costs that freed memory goes back to the system",
    measure,
    {"bench/README.md": table},
    {
        "--processes": {"type": int, "default": 7, "help": "of each kind (default: %(default)s)"},
        "--seconds": {"type": float, "default": 0.5, "help": "in each process (default: %(default)s)"},
    },
)
