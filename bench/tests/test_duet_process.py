"""The process of one side of a duet."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.duet.process import Process
from bench.duet.sides import ready
from impls.isolation import Crashed


@pytest.fixture
def process() -> Iterator[Process]:
    """A process of the working tree."""
    with ready(".", Path(__file__).parent) as side:
        found = Process(side)
        yield found
        found.close()


def number(process: Process) -> int:
    """Of the process that plays; asking for it is a job."""
    return int(process.play("enter"))


def stops(number: int) -> bool:
    """Whether a process is stopped, soon: a signal is seen when the process runs the next time."""
    deadline = time.monotonic() + 5
    while Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        if time.monotonic() > deadline:
            return False
    return True


def test_a_process_is_stopped_between_two_jobs(process: Process) -> None:
    """While the other side plays it does nothing, and the next job finds it again."""
    first = number(process)
    assert stops(first)
    assert number(process) == first


def test_a_process_that_died_is_followed_by_another(process: Process) -> None:
    """A job after that is played by a fresh process, which is stopped in turn."""
    first = number(process)
    os.kill(first, signal.SIGKILL)
    with contextlib.suppress(Crashed):  # unless it was seen to be gone before
        process.play("form")
    second = number(process)
    assert second != first
    assert stops(second)
