"""What measuring costs, as far as it can be tested without measuring time."""

from __future__ import annotations

from typing import Any

import pytest

from bench import harness, sampler
from bench.__main__ import main


def test_a_call_is_timed_by_the_protocol_and_by_a_loop() -> None:
    """Both took some time, and the ratio is that of both, within its interval."""
    found = harness.run(in_process=True, pairs=3)
    assert found["pairs"] == 3
    assert found["call_seconds"] > 1e-6
    assert found["loop_seconds"] > 1e-6
    assert found["interval"][0] <= found["ratio"] <= found["interval"][1]


def test_a_costly_harness_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes between the readings of the clock and is not the call is in the ratio."""
    wait = sampler._Cell.time_call

    def slowly(self: Any, native: Any) -> tuple[float, Any]:
        seconds, returned = wait(self, native)
        return 10 * seconds, returned

    monkeypatch.setattr(sampler._Cell, "time_call", slowly)
    assert harness.run(in_process=True, pairs=3)["ratio"] > 2


def test_the_cost_of_the_harness_is_printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    """Both times, and the ratio with its interval, of each run."""
    found = {"call_seconds": 1.01e-4, "loop_seconds": 1e-4, "ratio": 1.01, "interval": [1.005, 1.015]}
    monkeypatch.setattr("bench.harness.run", lambda pairs: {**found, "pairs": pairs})
    assert main(["harness", "--pairs", "9", "--runs", "2"]) == 0
    assert capsys.readouterr().out.splitlines()[2:4] == ["| 100.0 | 101.0 | 1.0100 (1.0050 to 1.0150) | 9 |"] * 2
