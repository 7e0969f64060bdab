"""The overhead of the timing, as a table."""

from __future__ import annotations

import pytest

from attention_conformance.bench.analysis import overhead
from studies.overhead import STUDY


def test_the_overhead_is_printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Each run has both times, and the ratio with its interval."""
    found = {"call_seconds": 1.01e-4, "loop_seconds": 1e-4, "ratio": 1.01, "interval": [1.005, 1.015]}
    monkeypatch.setattr(overhead, "run", lambda pairs: {**found, "pairs": pairs})
    assert STUDY.main(["--pairs", "9", "--runs", "2"]) == 0
    assert capsys.readouterr().out.splitlines()[2:4] == ["| 100.0 | 101.0 | 1.0100 (1.0050 to 1.0150) | 9 |"] * 2
