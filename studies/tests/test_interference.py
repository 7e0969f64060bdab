"""The figures that the documents quote about taking turns, tested on a call of a few microseconds."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attention_conformance.bench.tests.measured import cell
from attention_conformance.bench.timing.plan import Plan
from attention_conformance.bench.validity.checks import Invalid
from attention_conformance.bench.validity.outcomes import Cell
from studies import interference
from studies.common import measured
from studies.interference import ALONE, STOPPED, WAITING, WAYS, Experiment

WORKLOAD = "prefill-b1h2d8s16"


def attention(q: Any, k: Any, v: Any) -> np.ndarray:
    """Attention."""
    s = q @ k.swapaxes(-1, -2) / np.sqrt(np.float32(q.shape[-1]))
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True) @ v


def spins(q: Any, k: Any, v: Any) -> np.ndarray:
    """Attention that leaves a working thread behind, as libraries' pools do."""
    if not SPINNING:
        SPINNING.append(threading.Thread(target=work, daemon=True))
        SPINNING[0].start()
    return attention(q, k, v)


SPINNING: list[threading.Thread] = []


def work() -> None:
    """Work forever."""
    while True:
        sum(range(1000))


def wrong(q: Any, k: Any, v: Any) -> np.ndarray:
    """Not attention."""
    return v.copy()


def in_process(function: Any, process: str) -> Cell:
    """A cell of a function of this module, in a process of this name."""
    made = cell(function, WORKLOAD)
    named = replace(made.target.implementation, name=process, worker=process)
    return replace(made, target=replace(made.target, implementation=named))


@pytest.mark.slow(1)
def test_every_cell_has_batches_in_every_way() -> None:
    """There are as many as requested, for cells with processes of their own, and the others' share of a core."""
    one, other = (in_process(attention, name) for name in ("one", "other"))
    found = Experiment([one, other], Plan(seconds=0.01, limit=60)).run(rounds=3)
    assert [cell["cell"] for cell in found["cells"]] == [one.id, other.id]
    assert all(len(cell[way]) == 3 for cell in found["cells"] for way in WAYS)
    assert set(found["idle"]) == {"one", "other"}


def test_a_cell_without_another_library_is_always_alone() -> None:
    """Nothing could disturb it."""
    found = Experiment([in_process(attention, "one")], Plan(seconds=0.01, limit=60)).run(rounds=2)
    assert all(len(found["cells"][0][way]) == 2 for way in WAYS)
    assert found["idle"] == {}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux' prctl")
@pytest.mark.slow
def test_a_process_that_spins_disturbs_only_while_it_waits() -> None:
    """The CPU time of a process between its turns is seen while it waits; a stopped process takes none."""
    cells = [in_process(spins, "one"), in_process(attention, "other")]
    idle = Experiment(cells, Plan(seconds=1.0, limit=60)).run(rounds=30)["idle"]["one"]
    assert idle[WAITING] > 0.3
    assert idle[STOPPED] < 0.3


def test_a_wrong_cell_ends_the_measurement() -> None:
    """The time of a wrong result would mean nothing."""
    with pytest.raises(Invalid, match="SDPA-25"):
        Experiment([in_process(wrong, "one")], Plan(seconds=0.01, limit=60)).run(rounds=1)


def test_the_table_has_ratios_to_the_time_alone() -> None:
    """It has medians of pairs, with their intervals, and the worst share of a core."""
    cell = {"cell": "mine", ALONE: [1e-3, 2e-3, 4e-3], STOPPED: [1.1e-3, 2.2e-3, 4.4e-3], WAITING: [2e-3, 4e-3, 8e-3]}
    found = {"rounds": 3, "cells": [cell], "idle": {"numpy": {STOPPED: 0.001, WAITING: 0.5}}}
    lines = interference.table(measured(lambda: found)).splitlines()
    assert lines[2] == "| mine | 2 | 1.100 (1.100 to 1.100) | 2.000 (2.000 to 2.000) |"
    assert "| numpy | 0.1% | 50.0% |" in lines
    assert lines[-1].startswith("3 batches in each way; ")
