"""The worker processes of a visit: one per pool of threads, all with the same threads and cores, idle ones really idle.

A library has one pool, so one process; of ONNX Runtime each session has its own, so each implementation has a process.
A worker runs only while it has a job.  Before and after, it is stopped by a signal, where it is certain to be killed
if this process ends; its CPU time between two jobs is counted all the same, and shows whether it was idle.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from bench import cpu
from bench.machine import usable_cores
from impls import allocator, threads
from impls.backend import backend
from impls.contract import Framework, Implementation
from impls.isolation import Crashed, InProcess, Runner, TimedOut, Worker
from impls.loading import opened

#: Frameworks whose sessions each have threads of their own.  Those of ONNX Runtime spin for 50 ms after a call, and go
#: on with it where they were after the process was stopped: on two cores a call of 2 ms took 15 ms while eight sessions
#: of one process took turns.
POOL_PER_SESSION = frozenset({Framework.ONNXRUNTIME})

#: Seconds that starting a worker may take.
START_TIMEOUT = 60.0


def process_of(implementation: Implementation) -> str:
    """Name of the process that an implementation is timed in."""
    own = implementation.framework in POOL_PER_SESSION
    return f"{implementation.process} {implementation.name}" if own else implementation.process


@dataclass
class Idleness:
    """How long a process waited for its turns, and the CPU time that it took meanwhile."""

    waited_seconds: float = 0.0
    cpu_seconds: float = 0.0

    @property
    def share(self) -> float:
        """Share of a core that it took while others worked."""
        return self.cpu_seconds / self.waited_seconds if self.waited_seconds else 0.0


@dataclass
class _Process:
    runner: Runner
    pid: int = 0
    stoppable: bool = False
    #: Clock and CPU time at the end of its last job.
    rested: tuple[float, float] | None = None


def begin(count: int) -> tuple[int, bool]:
    """First job of a worker: which process it is, and whether it may be stopped.  It gets the first usable cores."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])
    return os.getpid(), cpu.end_with_parent()


def imports(implementation: Implementation) -> None:
    """Job of a worker: import a library and the function, so that neither is left for the first cell."""
    backend(implementation.framework)
    opened(implementation)


def _begun(runner: Worker, count: int) -> _Process:
    pid, stoppable = runner.call(f"{__name__}:begin", count, timeout=START_TIMEOUT)
    return _Process(runner, pid, stoppable)


@dataclass
class Processes:
    """Runs jobs in the processes of the implementations, as ``conformance.targets.Pool`` does; one works at a time."""

    threads: int = field(default_factory=usable_cores)
    in_process: bool = False
    #: Whether a process is stopped when its job is done; ``python -m bench turns`` shows what happens if not.
    stop_idle: bool = True
    #: How idle each process was, over all visits.
    idleness: dict[str, Idleness] = field(default_factory=dict)
    _started: dict[str, _Process] = field(default_factory=dict)

    def start(self, implementations: Iterable[Implementation]) -> None:
        """Start the processes of these that are not there yet, all at once, and have them import what they need.

        What goes wrong here goes wrong again at the first job, which says so.
        """
        if self.in_process:
            return
        missing = {process_of(each): each for each in implementations if process_of(each) not in self._started}
        runners = {name: Worker(self._environment()) for name in missing}
        for runner in runners.values():
            runner.start()  # by this thread: they end with the one that started them
        with ThreadPoolExecutor(max(1, len(runners))) as pool:
            for name, process in zip(missing, pool.map(self._ready, runners.values(), missing.values()), strict=True):
                if process is not None:
                    self._started[name] = process
                    self._rest(process)

    def call(self, implementation: Implementation, function: str, *arguments: Any, timeout: float | None = None) -> Any:
        """Run a job; raises as ``Worker.call`` does.  A process that died is started anew for the next job."""
        name = process_of(implementation)
        process = self._started.get(name) or self._start(name)
        self._wake(name, process)
        try:
            answer = process.runner.call(function, *arguments, timeout=timeout)
        except (Crashed, TimedOut):
            process.runner.close()
            del self._started[name]
            raise
        except BaseException:
            self._rest(process)
            raise
        self._rest(process)
        return answer

    def shares(self) -> Mapping[str, float]:
        """Share of a core that each process took between its jobs."""
        return {name: idle.share for name, idle in self.idleness.items()}

    def pid(self, implementation: Implementation) -> int:
        """The number of a process that was started."""
        return self._started[process_of(implementation)].pid

    def rest(self) -> None:
        """Stop all processes, also those that were left to wait."""
        for process in self._started.values():
            if process.stoppable:
                cpu.stop(process.pid)

    def close(self) -> None:
        """End all processes; the next job starts fresh ones."""
        for process in self._started.values():
            process.runner.close()
        self._started.clear()

    def _start(self, name: str) -> _Process:
        process = _Process(InProcess()) if self.in_process else _begun(Worker(self._environment()), self.threads)
        self._started[name] = process
        return process

    def _ready(self, runner: Worker, implementation: Implementation) -> _Process | None:
        try:
            process = _begun(runner, self.threads)
            runner.call(f"{__name__}:imports", implementation, timeout=START_TIMEOUT)
        except Exception:  # of an import too, whatever it is
            runner.close()
            return None
        return process

    def _environment(self) -> dict[str, str]:
        return threads.environment(self.threads) | allocator.environment()

    def _wake(self, name: str, process: _Process) -> None:
        now = cpu.cpu_seconds(process.pid) if process.pid else None
        if now is not None and process.rested is not None:
            idle = self.idleness.setdefault(name, Idleness())
            idle.waited_seconds += time.perf_counter() - process.rested[0]
            idle.cpu_seconds += now - process.rested[1]
        if process.stoppable:
            cpu.go_on(process.pid)

    def _rest(self, process: _Process) -> None:
        if process.stoppable and self.stop_idle:
            cpu.stop(process.pid)
        now = cpu.cpu_seconds(process.pid) if process.pid else None
        process.rested = None if now is None else (time.perf_counter(), now)
