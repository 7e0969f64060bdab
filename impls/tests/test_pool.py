"""Worker processes: the effect of a job on its process is an answer, and the next job finds a fresh process."""

from __future__ import annotations

import importlib
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from attention_conformance.impls.loading import load
from attention_conformance.impls.process import limits, wire
from attention_conformance.impls.process.pool import Crashed, InProcess, Place, Pool, TimedOut, Worker, packages
from attention_conformance.impls.process.worker import CLOSED

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.fixture
def worker() -> Iterator[Worker]:
    """A worker that is closed at the end."""
    worker = Worker()
    yield worker
    worker.close()


def test_a_job_returns_its_result(worker: Worker) -> None:
    """A job's result comes back from the worker."""
    assert worker.call("math:sqrt", 9.0) == 3.0


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the system does not count it")
def test_waiting_for_a_core_is_counted() -> None:
    """Two processes that share a core each wait for about half of the time; a process that sleeps does not wait."""
    lines = (
        "import os, time",
        "from attention_conformance.impls.process.pool import core_wait_seconds",
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})",
        "before = core_wait_seconds()",
        "time.sleep(1)",
        "slept = core_wait_seconds() - before",
        "end = time.perf_counter() + 0.3",
        "child = os.fork()",
        "while time.perf_counter() < end:",
        "    pass",
        "if child:",
        "    print(slept, core_wait_seconds() - before - slept, core_wait_seconds(child))",
        "    os.waitpid(child, 0)",
    )
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    slept, mine, others = map(float, done.stdout.split())
    assert slept < 0.5  # of a second, as it would be if sleeping counted; a busy machine may wake up slowly
    assert mine > 0.05
    assert others > 0.05


def test_a_job_raises_its_exception(worker: Worker) -> None:
    """A job's exception is raised in the parent, with the worker's traceback as a note."""
    with pytest.raises(ZeroDivisionError) as caught:
        worker.call("operator:truediv", 1, 0)
    assert "in the worker process" in caught.value.__notes__[0]


def test_an_abort_is_a_crash_with_its_signal(worker: Worker) -> None:
    """A worker that aborts is reported by its signal, with its last output."""
    with pytest.raises(Crashed, match="SIGABRT") as caught:
        worker.call("os:abort")
    assert "Aborted" in caught.value.stderr


def test_an_exit_is_a_crash_with_its_code(worker: Worker) -> None:
    """A worker that exits is reported by its exit code."""
    with pytest.raises(Crashed, match="exit code 3"):
        worker.call("os:_exit", 3)


def test_a_hang_times_out(worker: Worker) -> None:
    """A job that does not answer in time is killed."""
    with pytest.raises(TimedOut, match=r"within 0\.2 s"):
        worker.call("time:sleep", 60, timeout=0.2)


def test_the_next_job_finds_a_fresh_process(worker: Worker) -> None:
    """After a crash the next job runs in a new process."""
    first = worker.call("os:getpid")
    with pytest.raises(Crashed):
        worker.call("os:abort")
    assert worker.call("os:getpid") != first
    assert worker.started == 2


def test_the_same_process_serves_many_jobs(worker: Worker) -> None:
    """Without a crash all jobs run in one process, so that a prepared call serves many."""
    assert worker.call("os:getpid") == worker.call("os:getpid")
    assert worker.started == 1


def test_printing_does_not_disturb_answers(worker: Worker) -> None:
    """Printed text is not mistaken for an answer."""
    assert worker.call("builtins:print", "garbage" * 100_000) is None
    assert worker.call("math:sqrt", 4.0) == 2.0


def test_an_answer_that_cannot_be_sent_is_an_error(worker: Worker) -> None:
    """A result that cannot be pickled is a TypeError, and the worker survives."""
    with pytest.raises(TypeError, match="cannot be sent"):
        worker.call("threading:Lock")
    assert worker.call("math:sqrt", 4.0) == 2.0


def test_a_worker_may_be_closed_by_two_threads(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C and the thread that waits for an answer may both close it: the second finds nothing to do."""
    worker.call("math:sqrt", 4.0)
    closing: list[int] = []
    found = limits.of_session

    def closed_meanwhile(pid: int) -> Any:
        if not closing:
            closing.append(pid)
            worker.close()
        return found(pid)

    monkeypatch.setattr(limits, "of_session", closed_meanwhile)
    worker.close()
    assert worker.call("math:sqrt", 9.0) == 3.0


def test_environment_reaches_the_worker() -> None:
    """Variables given to a worker are set in it."""
    worker = Worker({"ATTENTION_TEST": "7"})
    assert worker.call("os:getenv", "ATTENTION_TEST") == "7"
    worker.close()


@pytest.mark.parametrize(("said", "wanted"), [(None, "false"), ("true", "true")])
def test_a_worker_leaves_memory_of_a_gpu_to_others(
    said: str | None, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JAX preallocates three quarters of it unless a variable says no; the user's own setting is kept."""
    name = "XLA_PYTHON_CLIENT_PREALLOCATE"
    monkeypatch.delenv(name, raising=False)
    if said is not None:
        monkeypatch.setenv(name, said)
    worker = Worker()
    assert worker.call("os:getenv", name) == wanted
    worker.close()


def closes_its_connection(seconds: float) -> None:
    """Close what may be the connection, as daemons close all files that they inherit."""
    os.closerange(3, 1024)
    time.sleep(seconds)


@pytest.mark.parametrize("seconds", [0, 1000])
def test_a_closed_connection_is_told_as_such(worker: Worker, seconds: float) -> None:
    """A closed connection is not reported as a lack of memory, whether the job then ends or not."""
    with pytest.raises(Crashed) as caught:
        worker.call("attention_conformance.impls.tests.test_pool:closes_its_connection", seconds)
    assert str(caught.value) == CLOSED


def starts_one_of_another_group() -> int:
    """Start a program in another process group of this session."""
    return subprocess.Popen(["sleep", "1000"], process_group=0).pid


def test_what_left_the_process_group_ends_with_the_worker(worker: Worker) -> None:
    """The session of the worker counts, not its process group."""
    pid = worker.call("attention_conformance.impls.tests.test_pool:starts_one_of_another_group")
    assert alive(pid)
    worker.close()
    for _ in range(100):
        if not alive(pid):
            return
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    pytest.fail("the program outlived its worker")


def test_bytes_that_trickle_in_do_not_put_off_the_timeout(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that has begun in time gets a little more time, and no longer."""
    worker.call("math:sqrt", 4.0)
    monkeypatch.setattr(wire, "STALL", 0.2)
    ours, theirs = socket.socketpair()
    line = wire.Line(ours, 1 << 20)
    wait = worker._waiting(line, 0.1)

    def trickle() -> None:
        for _ in range(1000):
            theirs.send(b"a")
            assert wait(select.POLLIN) & select.POLLIN
            ours.recv(1)
            time.sleep(0.01)

    with theirs, pytest.raises(TimedOut):
        trickle()
    line.close()


class Fake(Worker):
    """A worker without a process."""

    def __init__(self, moves: bool = True) -> None:
        super().__init__()
        self.moves, self.closed = moves, threading.Event()

    fresh = False  # type: ignore[assignment]

    def move(self, place: int = 0) -> None:
        """Move nowhere, or raise."""
        if not self.moves:
            raise RuntimeError("cannot be moved")

    def close(self) -> None:
        """Record the call."""
        self.closed.set()


def test_a_place_is_free_again_whatever_happens_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next task gets the place even if the last one's process could not be moved off it."""
    monkeypatch.setattr(Pool, "_places", 1)
    ran: list[int] = []
    with pytest.raises(RuntimeError, match="cannot be moved"):
        Pool()._on_free_places([(Fake(moves=False), lambda: None), (Fake(), lambda: ran.append(1))])
    assert ran == [1]


def test_an_interrupt_ends_what_runs_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that waits for its place never runs, and the processes of running tasks are closed."""
    monkeypatch.setattr(Pool, "_places", 1)
    workers, ran = [Fake() for _ in range(3)], []

    def interrupted() -> None:
        raise KeyboardInterrupt

    def works() -> None:
        ran.append(workers[1].closed.wait(60))

    tasks = [(workers[0], interrupted), (workers[1], works), (workers[2], lambda: ran.append(False))]
    with pytest.raises(KeyboardInterrupt):
        Pool()._on_free_places(tasks)
    assert all(worker.closed.is_set() for worker in workers)
    time.sleep(0.2)
    assert False not in ran


def test_in_process_runs_here() -> None:
    """The runner for debuggers runs jobs in this very process."""
    assert InProcess().call("os:getpid") == os.getpid()


#: The suite's package and its rooms; a user's repository may have packages of the same names.
ROOMS = ("impls", "conformance", "bench", "reports")
OURS = ("attention_conformance", *(f"attention_conformance.{room}" for room in ROOMS))
THEIRS = ("attention_conformance", *ROOMS, "theirs")


@pytest.fixture(params=[False, True], ids=["working folder", "PYTHONPATH"])
def repository(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository, as the working folder or in PYTHONPATH too, with packages of the suite's names."""
    for name in THEIRS:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("OURS = False\n")
        (tmp_path / name / "contract.py").write_text("raise ImportError('this is the user\\'s')\n")
    # The rooms' names are free for the user's packages: the suite has its rooms only inside its package.
    listed = ", ".join(("theirs", *ROOMS))
    (tmp_path / "kernels.py").write_text(
        f"import {listed}\n\ndef attention(q, k, v):\n    return any(each.OURS for each in ({listed}))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if request.param:
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("name", OURS)
def test_a_user_s_folder_shadows_no_package_of_the_suite(repository: Path, worker: Worker, name: str) -> None:
    """Neither the working folder, nor PYTHONPATH, nor the folder of a plug-in that was imported before shadows one."""
    target = f"{repository / 'kernels.py'}:attention"
    here = list(importlib.import_module(name).__path__)
    assert worker.call("attention_conformance.impls.tests.test_pool:imported", target, str(repository), name) == here


def imported(target: str, folder: str, name: str) -> list[str]:
    """Import a plug-in and the packages next to it; the folders where a package is then found."""
    assert load(target, folder)(0, 0, 0) is False
    assert sys.path[0] == folder
    importlib.import_module("attention_conformance.impls.contract")
    return list(importlib.import_module(name).__path__)


def test_modules_of_the_working_folder_and_of_pythonpath_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module is found as module:function; the working folder is searched last."""
    for folder in ("here", "path"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"in_{folder}.py").write_text("def name(): return __name__\n")
        (tmp_path / folder / "in_both.py").write_text(f"def name(): return {folder!r}\n")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "path"))
    fresh = Worker()
    try:
        assert [fresh.call(f"in_{where}:name") for where in ("here", "path", "both")] == ["in_here", "in_path", "path"]
    finally:
        fresh.close()


def test_a_worker_of_another_checkout_runs_its_packages(tmp_path: Path) -> None:
    """The base of a paired comparison is such a worker; a checkout without the package is reported."""
    checkout = tmp_path / "checkout"
    for name in ("api", "impls"):
        shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("tests", "__pycache__"))
    other = Worker(place=Place(sys.executable, checkout, tmp_path))
    try:
        assert other.call("attention_conformance.impls.process.pool:packages") == packages(checkout)
        assert other.call("inspect:getfile", Crashed) == str(checkout / "impls" / "process" / "pool.py")
        shutil.rmtree(checkout / "api")
        other.close()
        with pytest.raises(Crashed) as caught:
            other.call("os:getpid")
        assert "no package attention_conformance in" in caught.value.stderr
    finally:
        other.close()


@pytest.mark.skipif(not Path("/proc").exists(), reason="processes are looked up in /proc")
def test_a_worker_ends_with_its_parent() -> None:
    """If the parent is killed, a worker that never returns ends soon after."""
    script = (
        "import sys; from attention_conformance.impls.process.pool import Worker; worker = Worker();"
        "print(worker.call('os:getpid'), flush=True); worker.call('time:sleep', 1000)"
    )
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
    for _ in range(200):
        if not alive(pid):
            return
        time.sleep(0.1)
    pytest.fail("the worker outlived its parent")


@pytest.mark.parametrize(
    "then", ["worker.call('time:sleep', 1000)", "import time; time.sleep(1000)"], ids=["busy", "idle"]
)
def test_the_folder_of_a_worker_goes_with_its_parent(then: str) -> None:
    """If the parent is killed, the folder of its worker is removed soon after, whatever the worker was doing."""
    script = (
        "from attention_conformance.impls.process.pool import Worker;"
        "from attention_conformance.impls.process.worker import SCRATCH; worker = Worker();"
        f"print(worker.call('os:getenv', SCRATCH), flush=True); {then}"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        folder = Path(parent.stdout.readline().strip())
        assert folder.is_dir()
        parent.kill()
    for _ in range(200):
        if not folder.exists():
            return
        time.sleep(0.1)
    pytest.fail("the worker's folder is left")


def alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
