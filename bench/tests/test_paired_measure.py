"""The end of a paired comparison, and how often its rule is wrong about numbers with a known truth."""

from __future__ import annotations

import math

import numpy as np
import pytest

from attention_conformance.bench.analysis.statistics import Verdict
from attention_conformance.bench.paired.measure import BASE, NEW, Plan, Result, Task, _skip_what_is_missing
from attention_conformance.bench.workloads.workload import parse
from attention_conformance.impls.interpreters import NOT_TIMED

TASK = Task("mine", "cpu", "float32", parse("prefill-b1h2d16s128"))
PLAN = Plan()


def add(result: Result, ratios: list[float]) -> None:
    """Add a pair of processes, with a pair of rounds for each of these ratios."""
    result.rounds[BASE].append([[1.0] for _ in ratios])
    result.rounds[NEW].append([[ratio] for ratio in ratios])


def judged(rng: np.random.Generator, shift: float, by_pair: float, by_round: float) -> Result:
    """A finished paired comparison, whose pairs of processes and rounds scatter with long tails."""
    result = Result(TASK)
    while result.goes_on(PLAN):
        offset = shift + by_pair * rng.standard_t(4)
        add(result, [math.exp(offset + by_round * each) for each in rng.standard_t(3, PLAN.rounds)])
    return result


def test_pairs_that_agree_are_enough() -> None:
    """Six pairs are the least, and no more are run if their ratios are equal."""
    result = Result(TASK)
    for _ in range(PLAN.pairs):
        assert result.goes_on(PLAN)
        add(result, [1.2] * 3)
    assert not result.goes_on(PLAN)
    assert result.verdict() is Verdict.SLOWER


def test_pairs_that_differ_are_followed_by_others() -> None:
    """Pairs are added up to the most that are allowed."""
    result = Result(TASK)
    for number in range(PLAN.most_pairs):
        assert result.goes_on(PLAN)
        add(result, [1.2 if number % 2 else 0.9] * 3)
    assert not result.goes_on(PLAN)


def test_a_cell_whose_time_is_over_is_measured_no_more() -> None:
    """Time ends a cell however much its pairs differ, but never before the least number of pairs."""
    result = Result(TASK, seconds=PLAN.limit)
    for number in range(PLAN.pairs):
        assert result.goes_on(PLAN)
        add(result, [1.2 if number % 2 else 0.9] * 3)
    assert not result.goes_on(PLAN)


def test_interpreted_kernels_are_not_compared() -> None:
    """The reason says that an interpreter's time is not the kernel's."""
    one = Result(TASK)
    has = {"keywords": [], "interpreted": True}
    _skip_what_is_missing(one, {BASE: {"implementations": {"mine": has}, "not_installed": {}}})
    assert (one.outcome, one.reason) == ("skipped", NOT_TIMED)


def test_a_cell_that_is_invalid_is_measured_no_more() -> None:
    """More measurements would not help."""
    result = Result(TASK)
    result.fail("invalid", "wrong")
    assert not result.goes_on(PLAN)


#: Scatter of pairs of processes and of pairs of rounds: a quiet machine, and twice and ten times what was measured.
SCATTER = [(0.002, 0.01), (0.01, 0.05), (0.02, 0.10)]


@pytest.mark.slow(1)
@pytest.mark.parametrize(("by_pair", "by_round"), SCATTER)
def test_what_is_the_same_is_seldom_called_changed(by_pair: float, by_round: float) -> None:
    """At most 1 % of 200 paired comparisons are called changed, though they end when their intervals are narrow."""
    rng = np.random.default_rng(0)
    verdicts = [judged(rng, 0.0, by_pair, by_round).verdict() for _ in range(200)]
    assert sum(verdict in (Verdict.SLOWER, Verdict.FASTER) for verdict in verdicts) <= 2


@pytest.mark.slow(1)
@pytest.mark.parametrize(("shift", "share"), [(0.05, 0.80), (0.10, 0.95)])
@pytest.mark.parametrize(("by_pair", "by_round"), SCATTER)
def test_what_is_slower_is_mostly_called_so(by_pair: float, by_round: float, shift: float, share: float) -> None:
    """4 of 5 slowdowns of 5 % are found, and 19 of 20 of 10 %."""
    rng = np.random.default_rng(1)
    verdicts = [judged(rng, math.log1p(shift), by_pair, by_round).verdict() for _ in range(100)]
    assert verdicts.count(Verdict.SLOWER) >= share * 100
