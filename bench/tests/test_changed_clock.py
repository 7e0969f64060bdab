"""Clocks that foreign code replaced, for good or during a call: their cells have no time."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from attention_conformance.bench.sampling import stopwatch as watched
from attention_conformance.bench.tests.measured import cell, outcomes
from attention_conformance.bench.tests.test_cheating import NAME, honest
from attention_conformance.bench.timing.plan import Plan
from attention_conformance.bench.validity.outcomes import INVALID, TIMED
from attention_conformance.bench.workloads.workload import Workload
from attention_conformance.impls.contract import Implementation
from attention_conformance.impls.process import clocks
from attention_conformance.impls.process.pool import Worker

pytestmark = pytest.mark.slow

#: The module whose clock is changed.
stopwatch: Any = watched


def slows_the_clock(q: Any, k: Any, v: Any) -> Any:
    """Replaces the clock with one that runs a hundred times slower."""
    real = time.perf_counter
    time.perf_counter = lambda: real() / 100  # type: ignore[assignment]
    return v


def hides(seconds: float, wait: Any, q: Any, k: Any, v: Any) -> np.ndarray:
    """Takes longer by ``seconds``, and sets the stopwatch's clock back by that; the next reading restores the clock."""
    real = clocks.perf_counter

    def fake() -> float:
        stopwatch.perf_counter = real
        return real() - hidden

    output = honest(q, k, v)
    started = real()
    wait(started + seconds)
    hidden = real() - started
    stopwatch.perf_counter = fake
    return output


def hides_work(q: Any, k: Any, v: Any) -> np.ndarray:
    """Computes during the hidden time."""

    def work(until: float) -> None:
        while clocks.perf_counter() < until:
            pass

    return hides(0.0005, work, q, k, v)


def hides_waiting(q: Any, k: Any, v: Any) -> np.ndarray:
    """Waits during the hidden time, as for another process that works for it."""
    return hides(0.0005, lambda until: time.sleep(max(0.0, until - clocks.perf_counter())), q, k, v)


@pytest.mark.parametrize(("function", "status"), [("slows_the_clock", "clock"), ("leaves_it", "returned")])
def test_a_replaced_clock_is_seen(function: str, status: str) -> None:
    """A replaced clock is seen, and an unchanged one is not reported."""
    some = Implementation(function, f"{__name__}:{function}", worker="numpy")
    with closing(Worker()) as worker:
        given = ("one", some, Workload(1, 1, 8, 8), "float32", "cpu")
        opened = worker.call("attention_conformance.bench.sampling.sampler:open_cell", *given, timeout=60)
    assert opened.status == status


def leaves_it(q: Any, k: Any, v: Any) -> Any:
    """Leaves the clock alone."""
    return v


@pytest.mark.parametrize(
    ("kernel", "kind", "reason"),
    [(hides_work, INVALID, "processor"), (hides_waiting, INVALID, "parent"), (honest, TIMED, "")],
)
def test_a_clock_that_is_put_back_is_seen(kernel: Any, kind: str, reason: str) -> None:
    """The parent's waiting time, and the processor time that the system counts, expose it."""
    plan = Plan(seconds=0.05, process_runs=1, noise=0.0, limit=60.0)
    (found,) = outcomes(cell(kernel, NAME), plan=plan, in_process=False).values()
    assert (found.kind, found.clause) == (kind, "clock" if reason else "")
    assert reason in found.reason or "by its parent's" in found.reason
