"""Allocator retention: freed memory stays with a process that timings are made in."""

from __future__ import annotations

import resource
from pathlib import Path

import numpy as np
import pytest

from attention_conformance.impls.process import allocator
from attention_conformance.impls.process.pool import Worker

#: Bytes of the arrays of a call: larger than glibc's largest threshold, from which on every block is mapped by itself.
SIZE = 2**26

#: Pages that the objects of Python may take meanwhile.  Huge ones count as one: 20 arrays of 64 MiB have 640 at least.
FEW = 300


def faults(size: int) -> int:
    """Pages that the system gave to ten rounds of making and freeing two arrays, after a first one."""

    def once() -> None:
        one = np.ones(size, np.uint8)
        (one + one).sum()

    once()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        once()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def given_back(size: int) -> int:
    """Bytes by which ``trim`` lessens what this process holds after an array was freed."""
    np.ones(size, np.uint8)
    before = held()
    allocator.trim()
    return before - held()


def held() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def counted(function: str, environment: dict[str, str]) -> int:
    """What one of them gives in a process with these variables."""
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
    """Ten rounds take hardly a new page; without the variables each takes its arrays again."""
    assert counted("faults", allocator.environment()) < FEW
    assert counted("faults", {}) > 2 * FEW


def test_what_the_user_has_set_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that is set is not set again, and the record of the run says so."""
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "1")
    assert "MALLOC_TRIM_THRESHOLD_" not in allocator.environment()
    assert allocator.description() != "stays with the process"


@KEEPS
def test_free_memory_can_be_given_back() -> None:
    """So that what a process holds is what it uses: of arrays that were freed, nothing."""
    assert counted("given_back", allocator.environment()) > SIZE * 0.9
