"""The cost of measuring, as far as it can be tested without measuring time."""

from __future__ import annotations

from typing import Any

import pytest

from attention_conformance.bench.analysis import overhead
from attention_conformance.bench.sampling import sampler


def test_a_call_is_timed_by_the_protocol_and_by_a_loop() -> None:
    """Both take some time, and their ratio lies within its interval."""
    found = overhead.run(in_process=True, pairs=3)
    assert found["pairs"] == 3
    assert found["call_seconds"] > 1e-6
    assert found["loop_seconds"] > 1e-6
    assert found["interval"][0] <= found["ratio"] <= found["interval"][1]


def test_a_costly_overhead_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time between the readings of the clock that is not the call shows in the ratio."""
    wait = sampler._Cell.time_call

    def slowly(self: Any, native: Any, **how: bool) -> tuple[float, Any]:
        seconds, returned = wait(self, native, **how)
        return 10 * seconds, returned

    monkeypatch.setattr(sampler._Cell, "time_call", slowly)
    assert overhead.run(in_process=True, pairs=9)["ratio"] > 2
