"""Predictions of time and memory."""

from __future__ import annotations

import pytest

from bench import budget
from bench.budget import Cost, Costs
from bench.workloads import Workload
from conformance.targets import Target
from impls.contract import Implementation

TARGET = Target(Implementation("it", "nowhere:function"), "cpu", "float32")
SHORT, LONG = Workload(1, 8, 64, 512), Workload(1, 8, 64, 1024)


@pytest.fixture(autouse=True)
def _memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "available_bytes", lambda: 2**30)


def test_time_grows_fourfold_per_doubling() -> None:
    """A call of twice the length is predicted to take four times as long."""
    costs = Costs()
    costs.add(TARGET, SHORT, Cost(0.5, None))
    assert costs.seconds(TARGET, LONG) == 2.0


def test_a_cell_over_the_time_budget_is_refused_with_the_prediction() -> None:
    """The reason has the predicted seconds."""
    costs = Costs()
    costs.add(TARGET, SHORT, Cost(0.5, 0))
    assert costs.refusal(TARGET, LONG, rounds=5, limit=9.9) == (
        "over the time budget: predicted 10.0 s for 5 calls, allowed 9.9 s"
    )
    assert costs.refusal(TARGET, LONG, rounds=5, limit=10.1) == ""


def test_another_family_predicts_nothing() -> None:
    """A causal workload says nothing of one that is not."""
    costs = Costs()
    costs.add(TARGET, Workload(1, 8, 64, 512, is_causal=True), Cost(100.0, 0))
    assert costs.refusal(TARGET, LONG, rounds=5, limit=1.0) == ""


def test_without_a_measurement_three_square_arrays_are_assumed() -> None:
    """S = 4096 with 8 heads in float32 may take 1.5 GiB, which is over 80 % of 1 GiB."""
    workload = Workload(1, 8, 64, 4096)
    assert Costs().bytes(TARGET, workload) == 3 * 8 * 4096**2 * 4
    assert Costs().refusal(TARGET, workload, 5, 1.0) == "over the memory guard: predicted 1.5 GiB of 1.0 GiB available"


def test_a_measured_footprint_replaces_the_assumption() -> None:
    """An implementation that keeps no square array is not refused for one."""
    costs = Costs()
    costs.add(TARGET, Workload(1, 8, 64, 2048), Cost(0.001, 2**20))
    assert costs.bytes(TARGET, Workload(1, 8, 64, 4096)) == 2**22
    assert costs.refusal(TARGET, Workload(1, 8, 64, 4096), 5, 1.0) == ""
