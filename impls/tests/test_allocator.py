"""Allocator retention: freed memory stays with a process whose calls are timed."""

from __future__ import annotations

import resource
from pathlib import Path

import numpy as np
import pytest

from attention_conformance.impls.process import allocator
from attention_conformance.impls.process.pool import Worker

#: Bytes of the arrays of a call: above glibc's largest threshold, from which every block is mapped separately.
SIZE = 2**26

#: Pages that Python's objects may take meanwhile.  Huge pages count as one: 20 arrays of 64 MiB have at least 640.
FEW = 300


def faults(size: int) -> int:
    """Page faults of ten rounds of making and freeing two arrays, after a first round."""

    def once() -> None:
        one = np.ones(size, np.uint8)
        (one + one).sum()

    once()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        once()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def given_back(size: int) -> int:
    """Bytes by which ``trim`` reduces what this process holds after an array was freed."""
    np.ones(size, np.uint8)
    before = held()
    allocator.trim()
    return before - held()


def held() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def counted(function: str, environment: dict[str, str]) -> int:
    """The result of one of these functions in a process with these variables."""
    worker = Worker(environment)
    try:
        return int(worker.call(f"{__name__}:{function}", SIZE))
    finally:
        worker.close()


KEEPS = pytest.mark.skipif(
    allocator.description() != "stays with the process", reason="another C library, or variables that are set"
)


@pytest.mark.slow(2)
@KEEPS
def test_memory_that_was_freed_is_not_asked_for_again() -> None:
    """Ten rounds take hardly any new pages; without the variables each round takes its arrays again."""
    assert counted("faults", allocator.environment()) < FEW
    assert counted("faults", {}) > 2 * FEW


def test_what_the_user_has_set_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that the user has set is not set again, and the record of the run says so."""
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "1")
    assert "MALLOC_TRIM_THRESHOLD_" not in allocator.environment()
    assert allocator.description() != "stays with the process"


@KEEPS
def test_free_memory_can_be_given_back() -> None:
    """After ``trim`` a process holds only what it uses, and nothing of freed arrays."""
    assert counted("given_back", allocator.environment()) > SIZE * 0.9
