"""The stopwatch: seconds of a thread by part."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from attention_conformance.conformance.cases import stopwatch
from attention_conformance.conformance.cases.store import CaseStore


class Clock:
    """A clock that advances only on request, so that no test depends on how busy the machine is."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        """The time."""
        return self.now

    def go_on(self, seconds: float) -> None:
        """Advance the clock."""
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock that the stopwatch reads."""
    clock = Clock()
    monkeypatch.setattr(stopwatch, "time", SimpleNamespace(perf_counter=clock.perf_counter))
    return clock


def test_what_is_within_counts_for_itself_alone(clock: Clock) -> None:
    """Time within an inner part counts only for it, so that a reference made during a bound counts once."""
    before = stopwatch.seconds("outer"), stopwatch.seconds("inner")
    with stopwatch.measured("outer"):
        clock.go_on(1.0)
        with stopwatch.measured("inner"):
            clock.go_on(2.0)
    assert (stopwatch.seconds("outer") - before[0], stopwatch.seconds("inner") - before[1]) == (1.0, 2.0)


def test_threads_are_counted_apart(clock: Clock) -> None:
    """Each judging thread reads only its own time."""
    with stopwatch.measured("apart"):
        clock.go_on(1.0)
    found = []
    thread = threading.Thread(target=lambda: found.append(stopwatch.seconds("apart")))
    thread.start()
    thread.join()
    assert found == [0.0]
    assert stopwatch.seconds("apart") == 1.0


def test_what_a_store_makes_is_references(clock: Clock) -> None:
    """Making a value counts as references once; a stored value takes no time."""
    store, before = CaseStore(), stopwatch.seconds(stopwatch.REFERENCES)
    for _ in range(2):
        store.get("key", lambda: clock.go_on(1.0))
    assert stopwatch.seconds(stopwatch.REFERENCES) - before == pytest.approx(1.0)
