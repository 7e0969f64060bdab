"""Overhead of the timing: a call timed by the protocol compared with the same call in a bare loop, in one process."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from attention_conformance.bench.analysis import statistics
from attention_conformance.bench.processes import Processes
from attention_conformance.bench.sampling import sampler
from attention_conformance.bench.workloads.workload import Workload
from attention_conformance.impls.contract import Implementation

#: Two matrix products of 8 MFLOP each, about 100 µs on a core: the shortest call for which the ratio is promised.
WORKLOAD = Workload(1, 1, 64, 256)

#: Measured in a process of its own.
IMPLEMENTATION = Implementation("overhead", f"{__name__}:busy", worker="overhead")

#: Pairs of batches, and seconds of each.
PAIRS, SECONDS = 15, 0.02

#: More calls than a batch can have.
MANY = 10**6

#: Seconds that the whole measurement may take.
TIMEOUT = 120.0


def run(in_process: bool = False, pairs: int = PAIRS) -> dict[str, Any]:
    """Overhead that ``measure`` finds in a worker of its own, with one thread: no call waits for a second one."""
    processes = Processes(1, in_process)
    try:
        answer: dict[str, Any] = processes.call(IMPLEMENTATION, f"{__name__}:measure", pairs, timeout=TIMEOUT)
    finally:
        processes.close()
    return answer


def busy(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Busy work: two matrix products."""
    return q @ k.swapaxes(-1, -2) @ v


def measure(pairs: int = PAIRS) -> dict[str, Any]:
    """Seconds a call by the protocol and by a bare loop, in turn, and the ratio of both with its interval.

    Runs in the worker.  The batches are run by the same code as every cell's.
    """
    key = IMPLEMENTATION.name
    sampler.open_cell(key, IMPLEMENTATION, WORKLOAD, "float32", "cpu")
    by_protocol, by_loop = [], []
    for number in range(pairs):
        seconds = sampler.batch(key, SECONDS, MANY, number).seconds[:-1]
        by_protocol.append([sum(seconds) / len(seconds)])
        by_loop.append([_loop(key, len(seconds))])
    sampler.close_cell(key)
    ratio = statistics.paired(by_loop, by_protocol)
    return {
        "call_seconds": float(np.median(by_protocol)),
        "loop_seconds": float(np.median(by_loop)),
        "ratio": ratio.value,
        "interval": [ratio.low, ratio.high],
        "pairs": pairs,
    }


def _loop(key: str, count: int) -> float:
    """Seconds a call of a loop that does nothing else, after one untimed call as in a batch."""
    run, inputs = sampler.bare(key)
    run(**inputs[0])
    started = time.perf_counter()
    for index in range(count):
        run(**inputs[index % len(inputs)])
    return (time.perf_counter() - started) / count
