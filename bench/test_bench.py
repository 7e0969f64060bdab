"""``pytest bench``: every workload on every selected implementation, device and dtype.

pytest-benchmark owns the statistics and the JSON; the samples come from the worker process (see bench/clock.py).
"""

from __future__ import annotations

import statistics
from typing import Any

import pytest

from bench.checks import StruckOut
from bench.clock import CLOCK, play
from bench.flops import FORMULAS, flops
from bench.protocol import Cell, Measured, NotTimed


@pytest.mark.benchmark(timer=CLOCK.read)
def test_forward(benchmark: Any, cell: Cell, bench: Any, versions: dict[str, str]) -> None:
    """The results are right before and after the call is timed; a wrong one has no timing.

    Not only forward passes; the name stays, as pytest-benchmark compares runs by it.
    """
    try:
        measured = bench.protocol.measure(cell)
    except StruckOut as error:
        bench.record(cell, "struck out", error.clause, error.text)
        benchmark.skipped = True  # or pytest-benchmark warns that its fixture was not used
        pytest.fail(str(error), pytrace=False)
    except NotTimed as error:
        bench.record(cell, "not timed", reason=str(error))
        pytest.skip(str(error))
    bench.record(cell, "timed")
    benchmark.group = cell.workload.name
    benchmark.extra_info.update(extra_info(cell, measured), versions=versions)
    play(benchmark, measured.seconds)


def extra_info(cell: Cell, measured: Measured) -> dict[str, Any]:
    """What a benchmark's record says of its cell; gflops and tokens per second by the median sample."""
    target, workload = cell.target, cell.workload
    count, median = flops(workload), statistics.median(measured.seconds)
    return {
        "implementation": target.implementation.name,
        "device": target.device,
        "dtype": target.dtype,
        "workload": workload.name,
        "operator": workload.operator,
        "B": workload.batch,
        "H": workload.heads,
        "Hkv": workload.kv_heads,
        "S": workload.length,
        "Sk": workload.keys,
        "D": workload.width,
        "Dv": workload.value_width,
        "is_causal": workload.is_causal,
        "flops": count,
        "formula": FORMULAS[workload.operator],
        "gflops": count / median / 1e9,
        "tokens_per_second": workload.tokens / median,
        "prepare_seconds": measured.prepare_seconds,
        "first_call_seconds": measured.first_call_seconds,
        "peak_bytes": measured.peak_bytes,
        "share": measured.share,
        "profile": target.implementation.profile(target.dtype).value,
    }
