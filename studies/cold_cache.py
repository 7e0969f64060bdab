"""Cold caches: arrays are read again with the caches as left by earlier calls, and after the caches were cleared."""

from __future__ import annotations

import statistics
from contextlib import closing
from typing import Any

import numpy as np

from attention_conformance.bench.analysis.statistics import Interval, paired
from attention_conformance.bench.sampling.cold_cache import last_bytes
from attention_conformance.bench.sampling.stopwatch import stopwatch
from attention_conformance.impls.backend import backend
from attention_conformance.impls.contract import Framework
from attention_conformance.impls.process import allocator
from attention_conformance.impls.process.pool import Worker
from studies.common import Measured, Study, markdown, ratio_with_interval, sentence

#: Bytes that a call reads: they fit a core's nearest cache, its next one, the last one, and none.
READ = (2**14, 2**18, 2**22, 2**28)

#: Cold calls, and warm ones after them, make a batch; the medians of both are compared.
BATCH = 10


def timed(batches: int) -> list[dict[str, Any]]:
    """Job: by bytes read, the median seconds of every batch, and the seconds to clear the caches before each call."""
    arrays = backend(Framework.NUMPY)
    warm, cold = (stopwatch(arrays, Framework.NUMPY, "cpu", is_cold) for is_cold in (False, True))
    found = []
    for size in READ:
        read = np.ones(size // 4, np.float32).sum
        taken: dict[str, list[float]] = {"warm": [], "cold": []}
        before = cold.eviction.seconds
        for _ in range(batches):
            colds = [cold.time(read, {})[0] for _ in range(BATCH)]
            warm.time(read, {})  # the cache is still empty
            warms = [warm.time(read, {})[0] for _ in range(BATCH)]
            taken["warm"].append(statistics.median(warms))
            taken["cold"].append(statistics.median(colds))
        eviction = (cold.eviction.seconds - before) / (batches * BATCH)
        found.append({"bytes": size, "seconds": taken, "eviction_seconds": eviction, "evicted": cold.eviction.size})
    return found


def measure(batches: int) -> dict[str, Any]:
    """Measure in a process like the bench's."""
    with closing(Worker(allocator.KEEPING)) as worker:
        sizes = worker.call("studies.cold_cache:timed", batches)
    return {"sizes": sizes, "told": last_bytes() is not None, "versions": {"numpy": np.__version__}}


def ratio(one: Measured) -> Interval:
    """Cold ÷ warm of one size, with its interval."""
    warm, cold = ([[value] for value in one["seconds"][name]] for name in ("warm", "cold"))
    return paired(warm, cold)


def table(found: Measured) -> str:
    """Markdown: a line for each size."""
    rows = []
    for one in found["sizes"]:
        warm, cold = (f"{1e6 * statistics.median(one['seconds'][name]):.3g}" for name in ("warm", "cold"))
        rows.append(
            [one["bytes"] // 1024, warm, cold, ratio_with_interval(ratio(one)), f"{1e3 * one['eviction_seconds']:.3g}"]
        )
    copied = found["sizes"][0]["evicted"] / 2**20
    told = "as this system tells of the last caches" if found["told"] else "as this system tells of no cache"
    lines = markdown(["read, KiB", "warm, µs", "cold, µs", "cold ÷ warm", "emptying, ms"], rows, left=(3,))
    return f"{lines}\n\n{sentence(found, f'Copied before each cold call: {copied:.0f} MiB, {told}')}"


STUDY = Study(
    "cold_cache",
    "what cold caches do to a call",
    measure,
    {"bench/README.md": table},
    {"--batches": {"type": int, "default": 21, "help": f"of {BATCH} calls each (default: %(default)s)"}},
)
