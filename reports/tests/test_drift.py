"""The rule for two runs made one after the other: what it allows the machine, and how often it is wrong."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bench.statistics import Interval, Verdict
from reports.compare.drift import SCATTER, allowance, allowed, among, common, verdict
from reports.compare.simulation import MACHINES, Machine, comparison

SHARED = next(machine for machine in MACHINES if machine.name == "shared")


def cells(value: float, names: str = "abc", each: int = 4, spread: float = 0.0) -> list[tuple[str, Interval]]:
    """Ratios around a value, of some implementations."""
    luck = np.random.default_rng(0).normal(size=len(names) * each)
    values = [value * math.exp(spread * one) for one in luck]
    return [(names[at // each], Interval(one, one * 0.999, one * 1.001)) for at, one in enumerate(values)]


def alarms(machine: Machine, runs: int = 200) -> tuple[int, int]:
    """In how many runs any cell that did not change is called changed: by the rule, and by the plain ratio."""
    moved = (Verdict.FASTER, Verdict.SLOWER)
    found = [list(comparison(machine, np.random.default_rng(10_000 + seed))) for seed in range(runs)]
    rule = sum(any(one in moved for _, one, _ in run) for run in found)
    return rule, sum(any(plain in moved for _, _, plain in run) for run in found)


@pytest.mark.parametrize("machine", [one for one in MACHINES if one.tails is None], ids=lambda one: one.name)
def test_false_alarms_are_as_rare_as_promised(machine: Machine) -> None:
    """At most 2 % of 200 runs have one, where 1 % is the bound: two standard errors more would be 2.4 %."""
    assert alarms(machine)[0] <= 4


def test_the_plain_ratio_would_alarm_in_most_runs() -> None:
    """What the rule is for: on a shared machine most runs would have an alarm without it."""
    assert alarms(SHARED)[1] > 150


def test_a_slowdown_of_half_is_found_on_a_shared_machine() -> None:
    """Nothing is bought with blindness: of the cells of 50 slowed-down implementations 95 % are found."""
    found = [
        one is Verdict.SLOWER
        for seed in range(50)
        for changed, one, _ in comparison(SHARED, np.random.default_rng(seed), slowdown=1.5)
        if changed
    ]
    assert np.mean(found) > 0.95


def test_without_a_yardstick_ten_per_cent_are_allowed() -> None:
    """Two implementations have no common factor that one of them could not be."""
    given = allowance("cpu", cells(1.0, "ab"), {})
    assert (given.low, given.high) == pytest.approx((1 / 1.1, 1.1))


def test_yardsticks_are_what_is_allowed() -> None:
    """Where the peak and bandwidth moved, the machine may have moved by any of them, or not at all."""
    given = allowance("cpu", cells(1.0, "ab"), {"peak": 1.04, "bandwidth": 1.01})
    assert (given.low, given.high) == (1.0, 1.04)


def test_one_implementation_does_not_move_the_common_factor() -> None:
    """Of three implementations one that is three times as slow leaves the common factor at 1."""
    assert common([*cells(3.0, "a"), *cells(1.0, "bc")]) == pytest.approx(1.0)


def test_an_implementation_that_changed_is_no_scatter() -> None:
    """A step that all its cells made tells nothing of luck; cells that went different ways do."""
    calm = allowance("cpu", [*cells(1.5, "a"), *cells(1.0, "bc")], {}).scatter
    wild = allowance("cpu", cells(1.0, spread=0.2), {}).scatter
    assert calm == pytest.approx(0.01)
    assert wild > 0.1


def test_few_cells_have_the_scatter_of_a_shared_machine() -> None:
    """Three cells cannot show how far cells scatter."""
    assert allowance("cpu", cells(1.0, "a", each=3), {}).scatter == SCATTER


def test_a_cell_that_happens_to_show_no_scatter_is_not_trusted() -> None:
    """Its interval is as wide as the scatter among the cells; one that is wider keeps its own."""
    given = allowance("cpu", cells(1.0, "ab", spread=0.05), {"peak": 1.0})
    calm, wild = (allowed(Interval(1.2, 1.2 / half, 1.2 * half), given) for half in (1.001, 2.0))
    assert math.log(calm.high / calm.value) == pytest.approx(1.96 * given.scatter, rel=1e-3)
    assert wild.high == pytest.approx(2.4)


def test_an_interval_widens_with_the_machine_and_with_the_number_of_cells() -> None:
    """And its value stays what was measured."""
    given = allowance("cpu", cells(1.0, "ab"), {"peak": 1.05})
    single, many = (allowed(Interval(1.2, 1.19, 1.21), given, width) for width in (1.96, among(1000)))
    assert single.value == many.value == 1.2
    assert many.low < single.low < 1.19 / 1.05 < 1.21 < single.high < many.high


@pytest.mark.parametrize(
    ("single", "many", "found"),
    [
        (Interval(1.2, 1.1, 1.3), Interval(1.2, 1.05, 1.4), Verdict.SLOWER),
        (Interval(1.2, 1.1, 1.3), Interval(1.2, 0.9, 1.5), Verdict.UNCLEAR),
        (Interval(1.0, 0.97, 1.03), Interval(1.0, 0.9, 1.1), Verdict.SAME),
        (Interval(1.0, 0.9, 1.1), Interval(1.0, 0.8, 1.2), Verdict.UNCLEAR),
    ],
)
def test_a_change_is_judged_among_all_and_sameness_alone(single: Interval, many: Interval, found: Verdict) -> None:
    """What is certain of one cell is not, of a thousand, that one of them changed."""
    assert verdict(single, many) is found
