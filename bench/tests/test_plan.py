"""When a cell has been measured enough, and why."""

from __future__ import annotations

import pytest

from attention_conformance.bench.analysis import statistics
from attention_conformance.bench.timing.plan import CALLS, NOISE, TIME, Plan

#: Batches of ten calls of 2 ms, equal or not.
EVEN = [[0.002] * 10] * 5
UNEVEN = [[0.001 * factor] * 10 for factor in (1, 2, 3, 2, 1)]


def test_equal_batches_are_enough_at_once() -> None:
    """The interval of the median has no spread."""
    assert Plan(seconds=60, process_runs=1).stopped([], EVEN) == NOISE


def test_too_few_batches_say_nothing_of_the_noise() -> None:
    """Four equal batches may be chance."""
    assert Plan(seconds=60, process_runs=1).stopped([], EVEN[:4]) == ""


def test_unequal_batches_go_on_until_the_time_is_spent() -> None:
    """Calls of 0.09 s are less than 0.1 s and more than 0.08 s."""
    assert Plan(seconds=0.1, process_runs=1).stopped([], UNEVEN) == ""
    assert Plan(seconds=0.08, process_runs=1).stopped([], UNEVEN) == TIME


def test_unequal_batches_go_on_until_the_calls_are_made() -> None:
    """The limit is reached at 50 of 50 calls."""
    assert Plan(seconds=60, process_runs=1, most_calls=51).stopped([], UNEVEN) == ""
    assert Plan(seconds=60, process_runs=1, most_calls=50).stopped([], UNEVEN) == CALLS


def test_every_process_run_has_its_share_and_what_the_earlier_ones_left() -> None:
    """With 0.3 s in three process runs the first has 0.1 s, and the first two together have 0.2 s."""
    plan = Plan(seconds=0.3, process_runs=3)
    assert plan.stopped([], UNEVEN) == ""
    assert plan.stopped([], [*UNEVEN, [0.01]]) == TIME
    assert plan.stopped([UNEVEN], [*UNEVEN, [0.01]]) == ""
    assert plan.stopped([UNEVEN], [*UNEVEN, [0.02]]) == TIME


def test_the_last_process_run_has_to_agree_with_the_others() -> None:
    """Process runs without noise that differ from each other do not meet the noise target."""
    plan = Plan(seconds=60, process_runs=3)
    slower = [[0.003] * 10] * 5
    assert plan.stopped([EVEN], slower) == NOISE
    assert plan.stopped([EVEN, slower], EVEN) == ""
    assert plan.stopped([EVEN, EVEN], EVEN) == NOISE


@pytest.mark.parametrize("process_runs", [1, 3, 20])
def test_a_slow_call_is_made_as_often_as_it_has_to_be(process_runs: int) -> None:
    """A slow call is made three times in every process run, however many there are; the last batch is extra."""
    plan = Plan(seconds=0.1, process_runs=process_runs)
    assert plan.least_calls == 3 * process_runs
    slow = [[9.0], [10.0]]
    assert plan.stopped([], slow[1:]) == ""
    assert plan.stopped([], slow) == TIME


def test_batches_are_short_enough_for_five_in_every_process_run() -> None:
    """Batches are shorter if a cell has few seconds."""
    assert Plan(seconds=3, process_runs=3).round_seconds == 0.02
    assert Plan(seconds=0.15, process_runs=3).round_seconds == pytest.approx(0.01)


def test_long_calls_need_none_before_them() -> None:
    """Shorter calls have half a batch of calls before their samples, also if a single call is a batch."""
    plan = Plan(seconds=3, process_runs=3)
    assert [plan.calls(seconds) for seconds in (0.001, 0.03, 0.2)] == [100, 1, 1]
    assert [plan.lead_seconds(seconds) for seconds in (0.001, 0.03, 0.2)] == [0.01, 0.01, None]


def test_every_process_run_begins_with_a_call_that_is_no_sample() -> None:
    """The process may have released its free memory since the last call, so a long call needs one too."""
    plan = Plan(seconds=3, process_runs=3)
    assert [plan.lead_seconds(seconds, first=True) for seconds in (0.03, 0.2)] == [0.01, 0.0]


def test_one_disturbed_batch_of_a_slow_cell_does_not_decide_its_interval() -> None:
    """Among a slow cell's fewest batches one of twice the time widens the interval little; among two it did."""
    plan = Plan()
    batches = plan.least_calls // plan.process_runs
    even, disturbed = [[0.5]] * batches, [*[[0.5]] * (batches - 1), [1.0]]
    assert statistics.median([disturbed, even, even]).spread < 0.01
    assert statistics.median([disturbed[-2:], even[-2:], even[-2:]]).spread > 0.5
