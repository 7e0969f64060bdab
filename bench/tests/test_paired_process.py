"""The process of one side of a paired comparison."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from attention_conformance.bench.paired.measure import Process, unrandomized
from attention_conformance.bench.paired.revisions import ready
from attention_conformance.impls.process.pool import Crashed, Worker

pytestmark = pytest.mark.slow

#: The job below, by the name that a worker finds it by.
LAYOUT = "attention_conformance.bench.tests.test_paired_process:layout"


@pytest.fixture
def process() -> Iterator[Process]:
    """A process of the working tree."""
    with ready(".", Path(__file__).parent) as side:
        found = Process(side)
        yield found
        found.close()


def number(process: Process) -> int:
    """The process id of the side; asking for it is a job."""
    return int(process.call("os:getpid", timeout=60))


def stops(number: int) -> bool:
    """Whether a process is stopped soon: it sees a signal when it runs the next time."""
    deadline = time.monotonic() + 5
    while Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        if time.monotonic() > deadline:
            return False
    return True


def test_a_process_is_stopped_between_two_jobs(process: Process) -> None:
    """It does nothing while the other side runs, and the next job finds the same process."""
    first = number(process)
    assert stops(first)
    assert number(process) == first


def test_a_process_that_died_is_followed_by_another(process: Process) -> None:
    """The next job runs in a fresh process, which is stopped in turn."""
    first = number(process)
    os.kill(first, signal.SIGKILL)
    with contextlib.suppress(Crashed):  # unless its end was noticed before
        process.job("form")
    second = number(process)
    assert second != first
    assert stops(second)


def layout() -> tuple[int, int | None]:
    """The hash of a text, and the address of the C library in this process: both are random by default."""
    return hash("lot"), ctypes.cast(ctypes.CDLL(None).malloc, ctypes.c_void_p).value


def test_processes_of_one_lot_lay_out_their_memory_alike() -> None:
    """Hashes are equal, and differ from those of another lot; addresses are equal where the system allows it."""
    found = []
    with ready(".", Path(__file__).parent) as side:
        for lot in (1, 1, 2):
            process = Process(side, lot)
            found.append(process.call(LAYOUT, timeout=60))
            process.close()
    one, same, other = found
    assert one[0] == same[0] != other[0]
    assert not unrandomized() or one[1] == same[1]


@pytest.mark.skipif(not unrandomized(), reason="needs setarch, and a system that lets it")
def test_by_themselves_processes_lay_out_their_memory_by_chance() -> None:
    """So equality within a lot is due to the command that is put before its processes."""
    found = set()
    for _ in range(3):
        worker = Worker()
        found.add(worker.call(LAYOUT, timeout=60)[1])
        worker.close()
    randomized = Path("/proc/sys/kernel/randomize_va_space").read_text().strip() != "0"
    assert len(found) > 1 or not randomized


def test_where_addresses_cannot_be_fixed_nothing_is_put_before(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """There is no setarch, or the system refuses it, as in many containers."""
    refused = tmp_path / "setarch"
    refused.write_text("#!/bin/sh\nexit 1\n")
    refused.chmod(0o755)
    for path, folder in (("", tmp_path / "none"), (str(refused), tmp_path)):
        monkeypatch.setenv("PATH", str(folder))
        assert shutil.which("setarch") == (path or None)
        assert unrandomized.__wrapped__() == ()
