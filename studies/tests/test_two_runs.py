"""The model of two runs made one after the other, simulated: how often it is wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from attention_conformance.bench.analysis.statistics import Verdict
from attention_conformance.reports.compare.effects import CHANGED, Effects, effects
from studies.two_runs import MACHINES, Machine, cells

SHARED = next(machine for machine in MACHINES if machine.name == "shared")


def results(machine: Machine, count: int, **change: float) -> list[Effects]:
    """Comparisons without yardsticks, with other seeds than the page's."""
    return [effects(cells(machine, np.random.default_rng(10_000 + seed), **change), {}) for seed in range(count)]


@pytest.mark.slow(3)
@pytest.mark.parametrize("machine", [one for one in MACHINES if one.tails is None], ids=lambda one: one.name)
def test_false_findings_are_as_rare_as_promised(machine: Machine) -> None:
    """At most 3 of 60 comparisons have one, where 1 % is promised: the chance of more is 0.3 %."""
    found = results(machine, 60)
    assert sum(any(one.verdict in CHANGED for one in (*each.units.values(), *each.cells)) for each in found) <= 3


def test_without_the_machine_taken_off_most_runs_would_be_changed() -> None:
    """On a shared machine nearly all runs have a plain ratio beyond 5 %, which is why the model exists."""
    found = [cells(SHARED, np.random.default_rng(seed)) for seed in range(50)]
    wrong = [any(abs(np.mean(cell.new) - np.mean(cell.base)) > 0.05 for cell in run) for run in found]
    assert np.mean(wrong) > 0.8


def test_a_slowdown_is_found_on_a_shared_machine() -> None:
    """The model is not blind: it finds an implementation that is a sixth slower, and a cell by two fifths."""
    wholes = results(SHARED, 40, slowdown=1.18)
    assert np.mean([each.units["0", ""].verdict is Verdict.SLOWER for each in wholes]) > 0.9
    assert np.mean([each.cells[0].verdict is Verdict.SLOWER for each in results(SHARED, 40, of_cell=1.4)]) > 0.9


def test_five_process_runs_see_more_than_three() -> None:
    """The same slowdown of a cell is found more often."""
    three, five = (
        np.mean([each.cells[0].verdict is Verdict.SLOWER for each in results(machine, 40, of_cell=1.2)])
        for machine in (replace(SHARED, process_runs=3), SHARED)
    )
    assert five >= three
