"""Parallel judging: groups at the same time, the members of one in order, and a way to stop."""

from __future__ import annotations

import threading

import pytest

from attention_conformance.conformance.run.parallel import Parallel


def test_a_value_is_what_was_computed() -> None:
    """Each key has its own value, in whatever order they are requested."""
    parallel = Parallel(range(10), group=lambda n: n % 3, compute=lambda n: n * n, parallel=2)
    assert [parallel.get(n) for n in reversed(range(10))] == [n * n for n in reversed(range(10))]


def test_the_keys_of_a_group_run_in_order() -> None:
    """The keys of a group run in the given order."""
    seen: list[int] = []
    parallel = Parallel([3, 1, 2], group=lambda n: "one", compute=lambda n: seen.append(n), parallel=4)
    parallel.get(2)
    assert seen == [3, 1, 2]


def test_groups_run_at_the_same_time() -> None:
    """Two groups that wait for each other both end."""
    both = threading.Barrier(2, timeout=20)
    parallel = Parallel("ab", group=lambda key: key, compute=lambda key: both.wait() >= 0, parallel=2)
    assert parallel.get("a")
    assert parallel.get("b")


def test_an_exception_is_raised_where_it_is_asked_for() -> None:
    """A key whose computation fails raises on request, and the next one of its group runs."""
    parallel = Parallel([0, 2], group=lambda n: "one", compute=lambda n: 1 // n, parallel=1)
    assert parallel.get(2) == 0
    with pytest.raises(ZeroDivisionError):
        parallel.get(0)


def test_nothing_runs_before_it_is_asked_for() -> None:
    """Creating a Parallel starts nothing."""
    seen: list[int] = []
    Parallel([1], group=lambda n: n, compute=seen.append, parallel=1)
    assert seen == []


def test_without_parallel_it_computes_where_it_is_asked() -> None:
    """Without parallelism everything runs in the thread that requests it, for a debugger."""
    parallel = Parallel([1], group=lambda n: n, compute=lambda n: threading.current_thread(), parallel=0)
    assert parallel.get(1) is threading.current_thread()


def test_after_a_stop_nothing_more_begins() -> None:
    """Stopping leaves the rest undone."""
    seen: list[int] = []
    go = threading.Event()

    def compute(n: int) -> None:
        seen.append(n)
        go.wait(20)

    parallel = Parallel([1, 2, 3], group=lambda n: "one", compute=compute, parallel=1)
    waiting = threading.Thread(target=parallel.get, args=(1,))
    waiting.start()
    while not seen:
        pass
    parallel.stop()
    go.set()
    waiting.join()
    assert seen == [1]


def test_what_is_quick_begins_first() -> None:
    """Quick keys run before slow ones, within a group too, and of the slow ones the longest run first."""
    seen: list[str] = []
    times = {"slow": 1.0, "quick": 0.0, "slower": 2.0}
    groups = {"slow": "one", "quick": "one", "slower": "two"}
    parallel = Parallel(times, group=groups.__getitem__, compute=seen.append, parallel=1, seconds=times.__getitem__)
    parallel.get("slow")
    assert seen == ["quick", "slower", "slow"]


def test_one_group_is_never_computed_twice_at_a_time() -> None:
    """The quick and slow parts of a group wait for each other, however many threads are idle."""
    within, most = threading.Semaphore(1), []

    def compute(n: int) -> None:
        most.append(within.acquire(blocking=False))
        threading.Event().wait(0.02)
        within.release()

    parallel = Parallel(range(6), group=lambda n: "one", compute=compute, parallel=3, seconds=lambda n: float(n % 2))
    for n in range(6):
        parallel.get(n)
    assert most == [True] * 6


def test_waiting_ends_after_its_time() -> None:
    """Waiting for a key that is not computed yet ends after its time; keys computed meanwhile are available."""
    go = threading.Event()
    parallel = Parallel([1, 2], group=lambda n: n, compute=lambda n: n == 1 or go.wait(20), parallel=2)
    assert parallel.get(1)
    assert not parallel.wait(2, 0.05)
    assert parallel.computed() == {1: True}
    go.set()
    assert parallel.wait(2, 20)
