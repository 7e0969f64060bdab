"""The figures that the documents quote about taking turns, on a call of a few microseconds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bench import __main__ as command
from bench import interference
from bench.interference import ALONE, STOPPED, WAITING, Found
from bench.plan import Plan
from bench.tests.measured import cell

CELL = cell(lambda q, k, v: None, "prefill-b1h2d8s16")


def attention(q: Any, k: Any, v: Any) -> np.ndarray:
    """Attention."""
    s = q @ k.swapaxes(-1, -2) / np.sqrt(np.float32(q.shape[-1]))
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True) @ v


def wrong(q: Any, k: Any, v: Any) -> np.ndarray:
    """Not attention."""
    return v.copy()


def test_every_cell_is_measured_in_every_way() -> None:
    """Alone and in turns, as often as asked."""
    one, other = (cell(attention, name) for name in ("prefill-b1h2d8s16", "prefill-b1h2d8s32"))
    found = interference.measure([one, other], Plan(seconds=0.01, visits=1, limit=60), rounds=2)
    assert {way for way, _ in found.medians} == {ALONE, STOPPED, WAITING}
    assert all(len(medians) == 2 for medians in found.medians.values())
    assert len(found.medians) == 6


def test_a_wrong_cell_ends_the_measurement() -> None:
    """Its time says nothing."""
    with pytest.raises(SystemExit, match="struck out: SDPA-25"):
        interference.measure([cell(wrong, "prefill-b1h2d8s16")], Plan(seconds=0.01, visits=1, limit=60), rounds=1)


def test_the_table_has_ratios_to_the_time_alone() -> None:
    """Medians of pairs, with their intervals, and the worst share of a core."""
    times = {(ALONE, CELL): [1.0, 2.0, 4.0], (STOPPED, CELL): [1.1, 2.2, 4.4], (WAITING, CELL): [2.0, 4.0, 8.0]}
    found = Found(times, {(STOPPED, "numpy"): [0.0, 0.001], (WAITING, "numpy"): [0.5, 0.25]})
    lines = [line.split() for line in interference.table(found, [CELL]).splitlines()]
    assert lines[1][1:] == ["prefill-b1h2d8s16", "1.100", "(1.100", "to", "1.100)", "2.000", "(2.000", "to", "2.000)"]
    assert lines[-1] == ["numpy", "0.10%", "50.00%"]
    assert all(len(line) <= 100 for line in interference.table(found, [CELL]).splitlines())


def test_a_command_is_chosen_by_its_name(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    """It gets its options by name."""
    monkeypatch.setitem(
        command.COMMANDS, "turns", command.Command(lambda rounds, **rest: (str(rounds), 2), "", interference.options)
    )
    assert command.main(["turns", "--rounds", "3"]) == 2
    assert capsys.readouterr().out == "3\n"


def test_the_cost_of_the_harness_is_printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    """Both times, and the ratio with its interval."""
    found = {"call_seconds": 1.01e-4, "loop_seconds": 1e-4, "ratio": 1.01, "interval": [1.005, 1.015], "pairs": 7}
    monkeypatch.setattr("bench.harness.run", lambda pairs: {**found, "pairs": pairs})
    assert command.main(["harness", "--pairs", "9"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "bare loop 100.0 µs, by the protocol 101.0 µs",
        "ratio 1.0100 (1.0050 to 1.0150), 9 pairs of chunks",
    ]
