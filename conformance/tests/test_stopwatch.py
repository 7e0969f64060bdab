"""The stopwatch: seconds of a thread by part."""

from __future__ import annotations

import threading
import time

from attention_conformance.conformance.cases import stopwatch
from attention_conformance.conformance.cases.store import CaseStore


def test_what_is_within_counts_for_itself_alone() -> None:
    """So that a reference that is made while a bound is counts once."""
    before = stopwatch.seconds("outer"), stopwatch.seconds("inner")
    began = time.perf_counter()
    with stopwatch.measured("outer"), stopwatch.measured("inner"):
        time.sleep(0.02)
    whole = time.perf_counter() - began
    outer, inner = stopwatch.seconds("outer") - before[0], stopwatch.seconds("inner") - before[1]
    assert inner >= 0.02
    assert outer + inner <= whole


def test_threads_are_counted_apart() -> None:
    """Each that judges asks for its own."""
    with stopwatch.measured("apart"):
        time.sleep(0.01)
    found = []
    thread = threading.Thread(target=lambda: found.append(stopwatch.seconds("apart")))
    thread.start()
    thread.join()
    assert found == [0.0]
    assert stopwatch.seconds("apart") >= 0.01


def test_what_a_store_makes_is_references() -> None:
    """Once; what it has takes no time."""
    store, before = CaseStore(), stopwatch.seconds(stopwatch.REFERENCES)
    for _ in range(2):
        store.get("key", lambda: time.sleep(0.01))
    assert 0.01 <= stopwatch.seconds(stopwatch.REFERENCES) - before < 0.02 + 0.01
