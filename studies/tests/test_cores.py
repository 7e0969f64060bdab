"""Tests of the effect of the core that a batch begins on."""

from __future__ import annotations

import math

import pytest

from attention_conformance.bench.processes import Processes
from attention_conformance.bench.tests.measured import cell
from attention_conformance.bench.timing.plan import Plan
from attention_conformance.impls.process.threads import near, usable_cores
from studies import cores
from studies.common import measured
from studies.tests.test_interference import attention

#: Core 1 takes half as long again, in the first third of the time: two batches on each core in turn.
BATCHES = [[core, (1.5 if core and index < 4 else 1.0) * 1e-3] for index in range(12) for core in (0, 0, 1, 1)]


def test_a_slow_core_is_seen_between_two_batches() -> None:
    """Batches on one core do not differ; consecutive batches on two cores differ by half."""
    one, two = cores.differences(BATCHES[:16])
    assert one == 0
    assert two == pytest.approx(0.5)
    assert cores.slower(BATCHES) == pytest.approx(1.5)


def test_of_one_core_nothing_can_be_said_of_two() -> None:
    """The difference is NaN and not zero."""
    one, two = cores.differences([[0, 1e-3]] * 8)
    assert one == 0
    assert math.isnan(two)


def test_the_table_has_the_stretches_of_each_core() -> None:
    """Each core has six medians in order, in milliseconds."""
    found = measured(lambda: {"cells": [{"cell": "mine", "batches": BATCHES}]})
    lines = cores.table(found).splitlines()
    assert lines[2] == "| mine | 0 | 1 · 1 · 1 · 1 · 1 · 1 |"
    assert lines[3] == "| mine | 1 | 1.5 · 1.5 · 1 · 1 · 1 · 1 |"


def test_every_batch_has_its_core() -> None:
    """Two batches run on each core, and then on the next."""
    processes = Processes(usable_cores())
    try:
        found = cores.batches_of(cell(attention, "prefill-b1h2d8s16"), processes, Plan(seconds=0.01, limit=60), 8)
    finally:
        processes.close()
    usable = near()
    assert [core for core, _ in found["batches"]] == [usable[index // 2 % len(usable)] for index in range(8)]
    assert all(seconds > 0 for _, seconds in found["batches"])
