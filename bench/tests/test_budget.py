"""Predictions of time and memory."""

from __future__ import annotations

import pytest

from attention_conformance.bench.timing.budget import Cost, Costs
from attention_conformance.bench.workloads.workload import Workload
from attention_conformance.conformance.targets import Target
from attention_conformance.impls.contract import Implementation
from attention_conformance.impls.process import limits

pytestmark = pytest.mark.slow

TARGET = Target(Implementation("it", "nowhere:function"), "cpu", "float32")
SHORT, LONG = Workload(1, 8, 64, 512), Workload(1, 8, 64, 1024)


@pytest.fixture(autouse=True)
def _memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "available", lambda: 2**30)


def test_time_grows_fourfold_per_doubling() -> None:
    """A call of twice the length is predicted to take four times as long."""
    costs = Costs()
    costs.add(TARGET, SHORT, Cost(0.5, None))
    assert costs.seconds(TARGET, LONG) == 2.0


def test_a_cell_over_the_time_budget_is_refused_with_the_prediction() -> None:
    """The reason has the predicted seconds."""
    costs = Costs()
    costs.add(TARGET, SHORT, Cost(0.5, 0))
    assert costs.refusal(TARGET, LONG, calls=5, limit=9.9) == (
        "over the time budget: predicted 10.0 s for 5 calls, allowed 9.9 s"
    )
    assert costs.refusal(TARGET, LONG, calls=5, limit=10.1) == ""


def test_another_family_predicts_nothing() -> None:
    """A causal workload does not predict one that is not causal."""
    costs = Costs()
    costs.add(TARGET, Workload(1, 8, 64, 512, is_causal=True), Cost(100.0, 0))
    assert costs.refusal(TARGET, LONG, calls=5, limit=1.0) == ""


def test_a_window_does_not_shrink_predicted_memory() -> None:
    """Time is predicted from the allowed pairs, memory from all scores, which may be computed and masked."""
    costs = Costs()
    short, long = (Workload(1, 8, 64, length, window=64) for length in (512, 1024))
    costs.add(TARGET, short, Cost(1.0, 2**22))
    assert costs.bytes(TARGET, long) == 2**24
    assert costs.seconds(TARGET, long) == pytest.approx(2, rel=0.1)


def test_without_a_measurement_five_square_arrays_are_assumed() -> None:
    """S = 4096 with 8 heads in float32 may take 2.5 GiB in addition to inputs and results, over 80 % of 1 GiB."""
    workload = Workload(1, 8, 64, 4096)
    output = 8 * 4096 * 64 * 4
    assert Costs().bytes(TARGET, workload) == 5 * 8 * 4096**2 * 4 + output
    refusal = Costs().refusal(TARGET, workload, 5, 1.0)
    assert refusal.startswith("over the memory guard: needs 3.0 GiB")
    assert refusal.endswith(" GiB, 1.0 GiB are free, of which 80% may be used")


def test_a_measured_footprint_replaces_the_assumption() -> None:
    """An implementation that keeps smaller arrays than the plainest one is predicted by its own footprint."""
    costs = Costs()
    costs.add(TARGET, SHORT, Cost(0.001, 2**21))
    assert costs.bytes(TARGET, LONG) == 2**23
    assert costs.refusal(TARGET, LONG, 5, 1.0) == ""


def test_what_is_held_for_other_reasons_does_not_grow_for_ever() -> None:
    """Other memory, such as a compiler's, is not predicted to grow beyond what square arrays take."""
    costs = Costs()
    costs.add(TARGET, Workload(1, 8, 64, 128), Cost(0.001, 2**28))
    long = Workload(1, 8, 64, 4096)
    assert costs.bytes(TARGET, long) == 2**28 + Costs().bytes(TARGET, long)


def test_a_call_that_takes_less_than_a_byte_a_score_is_predicted_linearly() -> None:
    """Inputs and results of twice the length are twice as large."""
    costs = Costs()
    costs.add(TARGET, Workload(1, 8, 64, 2048), Cost(0.001, 2**22))
    assert costs.bytes(TARGET, Workload(1, 8, 64, 4096)) == 2**23


def test_a_small_call_proves_nothing_of_a_long_one() -> None:
    """Arrays of a few MiB may fit in memory that the process already had, so growth is taken to be quadratic."""
    costs = Costs()
    costs.add(TARGET, Workload(1, 8, 64, 1024), Cost(0.001, 2**20))
    assert costs.bytes(TARGET, Workload(1, 8, 64, 4096)) == 2**24


def test_a_mask_of_booleans_is_a_square_array() -> None:
    """A call that takes a byte per score is predicted quadratically at any length."""
    costs = Costs()
    costs.add(TARGET, Workload(1, 8, 64, 2048), Cost(0.001, 8 * 2048**2))
    assert costs.bytes(TARGET, Workload(1, 8, 64, 4096)) == 8 * 4096**2
