"""The processes of a process run: equal threads and cores, idle while others work, and fresh after they die."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest

from attention_conformance.bench.processes import Processes, process_of
from attention_conformance.impls.contract import Framework, Implementation, ImplementationError
from attention_conformance.impls.process import threads
from attention_conformance.impls.process.pool import Crashed, Pool, continue_process, cpu_seconds, stop_process
from attention_conformance.impls.process.threads import usable_cores

#: This module, by the name that a worker finds it by.
MODULE = "attention_conformance.bench.tests.test_processes"

pytestmark = pytest.mark.slow

ONE, OTHER = (Implementation(name, "nowhere:function", worker=name) for name in ("one", "other"))


@pytest.fixture
def pool() -> Iterator[Processes]:
    """Processes with one thread each."""
    made = Processes(1)
    yield made
    made.close()


def spin(seconds: float) -> int:
    """Leave a thread running, as libraries' thread pools do."""

    def work() -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pass

    threading.Thread(target=work, daemon=True).start()
    return os.getpid()


def environment() -> tuple[list[str], int]:
    """The thread variables of this process, and its cores."""
    return [os.environ.get(name, "") for name in threads.VARIABLES], usable_cores()


_READY: list[int] = []


def ready_on_a_core(_: Implementation) -> None:
    """Take so long that another process gets ready meanwhile, and record the cores."""
    time.sleep(1)
    _READY[:] = sorted(threads.affinity())


def cores() -> tuple[list[int], list[int]]:
    """The cores on which this process got ready, and those of all its threads now."""
    now = {core for thread in os.listdir("/proc/self/task") for core in os.sched_getaffinity(int(thread))}
    return _READY, sorted(now)


def has_imported(module: str) -> bool:
    """Whether this process has imported a module."""
    return module in sys.modules


def abort() -> None:
    """Kill this process."""
    os.abort()


def library_threads(framework: str) -> int:
    """The number of threads that a library says it uses."""
    from attention_conformance.impls.backend import backend

    backend(Framework(framework))
    if framework == "torch":
        import torch

        return torch.get_num_threads()
    from attention_conformance.impls.onnx.sessions import options

    return int(options().intra_op_num_threads)


@pytest.mark.parametrize(("framework", "processes"), [(Framework.TORCH, 1), (Framework.ONNXRUNTIME, 2)])
def test_implementations_share_a_process_if_they_share_threads(framework: Framework, processes: int) -> None:
    """Sessions of ONNX Runtime have thread pools of their own, which spin while the next session works."""
    both = [Implementation(name, "nowhere:function", framework=framework, worker="library") for name in ("one", "two")]
    assert len({process_of(each) for each in both}) == processes


def test_every_worker_has_the_same_threads_and_cores(pool: Processes) -> None:
    """The variables that libraries read are set, and the number of cores is the same."""
    for implementation in (ONE, OTHER):
        variables, cores = pool.call(implementation, f"{MODULE}:environment", timeout=60)
        assert variables == ["1"] * len(threads.VARIABLES)
        assert cores == 1


@pytest.mark.parametrize("framework", ["torch", "onnxruntime"])
def test_libraries_that_read_no_variable_are_told(framework: str, pool: Processes) -> None:
    """Torch and ONNX Runtime report the number that they were given."""
    pytest.importorskip(framework)
    assert pool.call(ONE, f"{MODULE}:library_threads", framework, timeout=120) == 1


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux' prctl")
def test_a_process_that_spins_is_idle_while_others_work(pool: Processes) -> None:
    """A stopped process takes nothing; otherwise it would take a whole core."""
    for stops, most in ((True, 0.05), (False, 2.0)):
        using = Processes(1, stop_idle=stops)
        using.call(ONE, f"{MODULE}:spin", 30.0, timeout=60)
        time.sleep(0.3)
        using.call(ONE, "os:getpid", timeout=60)
        share = using.shares()["one"]
        using.close()
        assert share <= most
        assert stops or share > 0.05


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs the clock of another process")
def test_a_process_does_nothing_from_the_moment_it_is_stopped() -> None:
    """All its threads have stopped when the signal is delivered: its CPU time stands still, every time."""
    using = Processes(2, stop_idle=False)
    pid = using.call(ONE, f"{MODULE}:spin", 30.0, timeout=60)
    taken = []
    for _ in range(20):
        stop_process(pid)
        taken.append(cpu_seconds(pid))
        time.sleep(0.002)
        assert cpu_seconds(pid) == taken[-1]
        continue_process(pid)
        time.sleep(0.002)
    using.close()
    assert len(set(taken)) > 1  # it works between stops


def test_processes_are_started_together(pool: Processes) -> None:
    """Each is ready before its first job, with its threads and imports, and stays."""
    ready = [replace(each, target=f"{MODULE}:environment") for each in (ONE, OTHER)]
    pool.start(ready)
    pids = [pool.pid(each) for each in ready]
    pool.start(ready)
    assert [pool.call(each, "os:getpid", timeout=60) for each in ready] == pids
    assert pool.call(ONE, f"{MODULE}:environment", timeout=60)[1] == 1
    assert pool.call(ONE, f"{MODULE}:has_imported", MODULE, timeout=60)


@pytest.mark.skipif(len(threads.near()) < 2, reason="needs two cores")
def test_processes_of_one_core_get_ready_on_different_ones() -> None:
    """They get ready in parallel, and then all use the first core, where times are taken."""
    first, second = threads.places(1)[:2]
    using = Pool(cores=1, ready=f"{MODULE}:ready_on_a_core", process_of=process_of)
    try:
        using.start([ONE, OTHER])
        found = [using.call(each, f"{MODULE}:cores", timeout=60) for each in (ONE, OTHER)]
    finally:
        using.close()
    assert sorted(ready for ready, _ in found) == [[*first], [*second]]
    assert [now for _, now in found] == [[*first]] * 2


@pytest.mark.skipif(len(threads.near()) < 2, reason="needs two cores")
def test_tasks_have_a_process_and_a_core_each_and_times_are_taken_on_the_first() -> None:
    """Both tasks run at the same time, since each waits for the other.  Later all are on the first core."""
    first, second = threads.places(1)[:2]
    using = Pool(cores=1, process_of=process_of, always=False)
    both, found = threading.Barrier(2, timeout=60), {}

    def task(each: Implementation) -> None:
        both.wait()
        found[each.name] = using.call(each, f"{MODULE}:cores", timeout=60)[1]

    try:
        for each in (ONE, OTHER):
            using.call(each, "os:getpid", timeout=60)
        using.side_by_side([(each, partial(task, each)) for each in (ONE, OTHER)])
        now = [using.call(each, f"{MODULE}:cores", timeout=60)[1] for each in (ONE, OTHER)]
    finally:
        using.close()
    assert sorted(found.values()) == [[*first], [*second]]
    assert now == [[*first]] * 2


def test_a_task_whose_process_is_not_there_is_not_run_and_what_one_raises_is_raised(pool: Processes) -> None:
    """A process that a task started would end with the task's thread; the other tasks are completed."""
    pool.call(ONE, "os:getpid", timeout=60)
    pids: list[int] = []

    def fails() -> None:
        pids.append(pool.call(ONE, "os:getpid", timeout=60))
        raise KeyError("of the task")

    with pytest.raises(KeyError, match="of the task"):
        pool.side_by_side([(ONE, fails), (OTHER, lambda: pids.append(0))])
    assert pids == [pool.pid(ONE)]


def test_what_cannot_be_imported_is_left_to_the_first_job(pool: Processes) -> None:
    """Nothing is raised, and the other processes are ready for their next jobs."""
    pool.start([ONE, replace(OTHER, target=f"{MODULE}:environment")])
    assert pool.call(OTHER, "os:getpid", timeout=60) == pool.pid(OTHER)
    with pytest.raises(ImplementationError, match="No module named 'nowhere'"):
        pool.call(ONE, "nowhere:function", timeout=60)


def test_a_process_that_died_is_started_again(pool: Processes) -> None:
    """The next job runs in a fresh process, with its threads set again."""
    before = pool.call(ONE, "os:getpid", timeout=60)
    with pytest.raises(Crashed, match="SIGABRT"):
        pool.call(ONE, f"{MODULE}:abort", timeout=60)
    assert pool.call(ONE, "os:getpid", timeout=60) != before
    assert pool.call(ONE, f"{MODULE}:environment", timeout=60)[1] == 1


def test_a_process_run_begins_with_fresh_processes(pool: Processes) -> None:
    """After ``close`` another process answers."""
    before = pool.call(ONE, "os:getpid", timeout=60)
    pool.close()
    assert pool.call(ONE, "os:getpid", timeout=60) != before


def test_in_this_process_nothing_is_stopped() -> None:
    """The mode is for a debugger."""
    using = Processes(1, in_process=True)
    assert using.call(ONE, "os:getpid") == os.getpid()
    using.close()


@pytest.mark.parametrize("collected", [True, False])
def test_stopping_a_process_that_is_gone_is_no_error(collected: bool) -> None:
    """The process ended between two jobs: nothing is raised or waited for; its owner collects the exit status."""
    ended = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    if collected:
        ended.wait()
    stop_process(ended.pid)
    continue_process(ended.pid)
    assert ended.wait(timeout=10) == 3
