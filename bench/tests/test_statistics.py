"""The intervals of a median and of a ratio, and the verdict, on numbers with a known truth."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats

from attention_conformance.bench.analysis.statistics import (
    Interval,
    ProcessRuns,
    Verdict,
    judge,
    median,
    paired,
    paired_process_runs,
    ratio,
)


def process_runs(seed: int, shift: float = 0.0, by_run: float = 0.0, by_batch: float = 0.02) -> list[list[list[float]]]:
    """Three process runs of eight batches of five calls around exp(shift), with scatter at all three levels."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(3):
        process_run = shift + by_run * rng.normal()
        batches = process_run + by_batch * rng.normal(size=8)
        made.append([[math.exp(batch + 0.01 * rng.normal()) for _ in range(5)] for batch in batches])
    return made


def test_the_value_is_the_median_of_all_samples() -> None:
    """The printed median is that of the samples, however they are grouped."""
    assert median([[[1.0, 2.0], [9.0]], [[3.0, 4.0]]]).value == 3.0


@pytest.mark.parametrize("by_run", [0.0, 0.05])
def test_intervals_cover_the_truth_as_often_as_they_say(by_run: float) -> None:
    """At least 92 % of 300 cells with the true median 1 have it in their interval, with and without drift."""
    found = [median(process_runs(seed, by_run=by_run)) for seed in range(300)]
    assert sum(one.low <= 1 <= one.high for one in found) >= 0.92 * 300


def test_the_scatter_of_single_calls_would_not_cover_it() -> None:
    """With drifting process runs the interval of a single one is too narrow: it covers the truth in less than 70 %."""
    found = [median(process_runs(seed, by_run=0.05)[:1]) for seed in range(300)]
    assert sum(one.low <= 1 <= one.high for one in found) < 0.7 * 300


def test_one_batch_gives_its_range() -> None:
    """Without repetition the interval is the whole range."""
    assert median([[[2.0, 1.0, 3.0]]]) == Interval(2.0, 1.0, 3.0)


def test_no_samples_are_refused() -> None:
    """A median of nothing is an error."""
    with pytest.raises(ValueError, match="no samples"):
        median([[[]]])


def test_equal_runs_are_never_called_slower() -> None:
    """In 200 comparisons of runs that differ only by chance, at most 1 % are called faster or slower."""
    verdicts = [judge(ratio(median(process_runs(2 * s)), median(process_runs(2 * s + 1)))) for s in range(200)]
    assert sum(verdict in (Verdict.FASTER, Verdict.SLOWER) for verdict in verdicts) <= 2


def test_a_slowdown_is_found() -> None:
    """A change of 20 % is found in at least 95 % of 200 comparisons, in either direction."""
    pairs = [(median(process_runs(2 * s)), median(process_runs(2 * s + 1, shift=math.log(1.2)))) for s in range(200)]
    assert sum(judge(ratio(base, new)) is Verdict.SLOWER for base, new in pairs) >= 190
    assert sum(judge(ratio(new, base)) is Verdict.FASTER for base, new in pairs) >= 190


def test_paired_batches_cancel_the_machine() -> None:
    """Drift by half between batches hides nothing if batches are taken in pairs."""
    drift = np.exp(0.5 * np.sin(np.arange(40)))
    base, new = [[d, d, d] for d in drift], [[1.1 * d] * 3 for d in drift]
    assert judge(paired(base, new)) is Verdict.SLOWER
    assert paired(base, base) == Interval(1.0, 1.0, 1.0)


def test_batches_that_are_no_pairs_are_refused() -> None:
    """Both sides need the same number of batches."""
    with pytest.raises(ValueError, match="2 and 1 batches"):
        paired([[1.0], [1.0]], [[1.0]])


@pytest.mark.parametrize("count", range(2, 13))
def test_the_interval_of_few_pairs_covers_the_truth(count: int) -> None:
    """At least 90 % of 500 medians of few values have the truth in their interval; a bootstrap of two has in 50 %."""
    rng = np.random.default_rng(count)
    found = [paired([[1.0]] * count, [[math.exp(0.02 * each)] for each in rng.normal(size=count)]) for _ in range(500)]
    assert sum(one.low <= 1 <= one.high for one in found) >= 450


@pytest.mark.parametrize("count", range(2, 7))
def test_the_interval_of_few_batches_covers_the_truth(count: int) -> None:
    """At least 90 % of 500 cells of one process run with few batches have the true median in their interval."""
    rng = np.random.default_rng(count)
    found = [median([[[math.exp(0.02 * each)] for each in rng.normal(size=count)]]) for _ in range(500)]
    assert sum(one.low <= 1 <= one.high for one in found) >= 450


def test_one_pair_of_batches_has_no_interval() -> None:
    """Nothing is known about how far a single ratio is from the truth."""
    found = paired([[1.0]], [[2.0]])
    assert (found.value, found.low, found.high, found.spread) == (2.0, 0.0, math.inf, math.inf)
    assert not found.known


@pytest.mark.parametrize("count", [9, 12, 24])
def test_the_interval_of_pairs_is_the_bootstrap_of_scipy(count: int) -> None:
    """The ends are equal to the last bit, resample for resample."""
    found = paired([[1.0]] * count, [[value] for value in np.random.default_rng(count).lognormal(size=count)])
    logs = np.array([math.log(value) for value in np.random.default_rng(count).lognormal(size=count)])
    ends = stats.bootstrap(
        (logs,), np.median, n_resamples=1000, method="percentile", rng=np.random.default_rng(0)
    ).confidence_interval
    assert (found.low, found.high) == (math.exp(ends.low), math.exp(ends.high))


def pairs(rng: np.random.Generator, count: int, shift: float, by_pair: float, by_round: float) -> list[ProcessRuns]:
    """Both sides of pairs of processes, with twelve rounds each that scatter as usual; new is slower by ``shift``."""
    base, new = [], []
    for _ in range(count):
        offset = shift + by_pair * rng.standard_t(4)
        base.append([[math.exp(each)] for each in by_round * rng.standard_t(3, 12)])
        new.append([[math.exp(offset + each)] for each in by_round * rng.standard_t(3, 12)])
    return [base, new]


def flat(process_runs: ProcessRuns) -> list[Sequence[float]]:
    """All rounds, regardless of their process."""
    return [each for process_run in process_runs for each in process_run]


@pytest.mark.parametrize(("by_pair", "by_round"), [(0.0, 0.05), (0.01, 0.02), (0.03, 0.03)])
def test_intervals_of_a_paired_comparison_know_how_much_pairs_differ(by_pair: float, by_round: float) -> None:
    """At least 92 % of 400 comparisons of six pairs have the truth in their interval, however much processes differ."""
    rng = np.random.default_rng(0)
    found = [paired_process_runs(*pairs(rng, 6, 0.0, by_pair, by_round)) for _ in range(400)]
    assert sum(one.low <= 1 <= one.high for one in found) >= 368


def test_rounds_alone_do_not_know_how_much_pairs_differ() -> None:
    """The interval of all rounds, treated as one process, misses the truth in a fifth of cases or more."""
    rng = np.random.default_rng(0)
    found = [paired(*(flat(side) for side in pairs(rng, 6, 0.0, 0.03, 0.03))) for _ in range(400)]
    assert sum(one.low <= 1 <= one.high for one in found) < 320


@pytest.mark.parametrize("count", [1, 2])
def test_a_paired_comparison_of_too_few_pairs_has_no_verdict(count: int) -> None:
    """One or two pairs do not show how much processes differ, so even twice the time is unclear."""
    found = paired_process_runs(*pairs(np.random.default_rng(0), count, math.log(2), 0.0, 0.001))
    assert found.value == pytest.approx(2.0, rel=0.01)
    assert not found.known
    assert judge(found) is Verdict.UNCLEAR


@pytest.mark.parametrize(("base", "new"), [([], []), ([[[1.0]]], [[[1.0]], [[1.0]]]), ([[[1.0]]], [[[1.0], [1.0]]])])
def test_process_runs_that_are_no_pairs_are_refused(base: ProcessRuns, new: ProcessRuns) -> None:
    """Both sides need as many process runs, and each of them as many batches."""
    with pytest.raises(ValueError, match="are not pairs"):
        paired_process_runs(base, new)


@pytest.mark.parametrize(
    ("interval", "verdict"),
    [
        (Interval(1.10, 1.06, 1.14), Verdict.SLOWER),
        (Interval(1.10, 1.01, 1.20), Verdict.UNCLEAR),
        (Interval(1.04, 1.03, 1.045), Verdict.SAME),
        (Interval(1.04, 1.03, 1.06), Verdict.UNCLEAR),
        (Interval(1.00, 0.80, 1.25), Verdict.UNCLEAR),
        (Interval(0.90, 0.85, 0.95), Verdict.FASTER),
        (Interval(0.90, 0.85, 0.99), Verdict.UNCLEAR),
    ],
)
def test_verdicts(interval: Interval, verdict: Verdict) -> None:
    """A change must be large and certain, sameness certain; the rest is unclear."""
    assert judge(interval) is verdict
