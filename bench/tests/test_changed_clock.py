"""A clock that foreign code replaced: its cell has no time."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any

import pytest

from attention_conformance.bench.workloads.workload import Workload
from attention_conformance.impls.contract import Implementation
from attention_conformance.impls.process.pool import Worker

pytestmark = pytest.mark.slow


def slows_the_clock(q: Any, k: Any, v: Any) -> Any:
    """Replaces the clock by one that goes a hundred times as slowly."""
    real = time.perf_counter
    time.perf_counter = lambda: real() / 100  # type: ignore[assignment]
    return v


@pytest.mark.parametrize(("function", "status"), [("slows_the_clock", "clock"), ("honest", "returned")])
def test_a_replaced_clock_is_seen(function: str, status: str) -> None:
    """And one that is left alone is not."""
    some = Implementation(function, f"{__name__}:{function}", worker="numpy")
    with closing(Worker()) as worker:
        given = ("one", some, Workload(1, 1, 8, 8), "float32", "cpu")
        opened = worker.call("attention_conformance.bench.timing.sampler:open_cell", *given, timeout=60)
    assert opened.status == status


def honest(q: Any, k: Any, v: Any) -> Any:
    """Leaves the clock alone."""
    return v
