"""The rule for two runs made one after the other: what it allows the machine."""

from __future__ import annotations

import math

import numpy as np
import pytest

from attention_conformance.bench.analysis.statistics import Interval, Verdict
from attention_conformance.reports.compare.drift import SCATTER, allowance, allowed, among, common, verdict


def cells(value: float, names: str = "abc", each: int = 4, spread: float = 0.0) -> list[tuple[str, Interval]]:
    """Ratios around a value, of some implementations."""
    luck = np.random.default_rng(0).normal(size=len(names) * each)
    values = [value * math.exp(spread * one) for one in luck]
    return [(names[at // each], Interval(one, one * 0.999, one * 1.001)) for at, one in enumerate(values)]


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
