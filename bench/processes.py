"""The worker processes of a visit: one per library, all with the same threads and cores, idle ones really idle.

A worker runs only while it has a job.  Before and after, it is stopped by a signal, where it is certain to be killed
if this process ends; its CPU time between two jobs is counted all the same, and shows whether it was idle.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bench import cpu
from bench.machine import usable_cores
from impls import allocator, threads
from impls.contract import Implementation
from impls.isolation import Crashed, InProcess, Runner, TimedOut, Worker

#: Seconds that starting a worker may take.
START_TIMEOUT = 60.0


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


@dataclass
class Processes:
    """Runs jobs in the processes of the implementations, as ``conformance.targets.Pool`` does; one works at a time."""

    threads: int = field(default_factory=usable_cores)
    in_process: bool = False
    #: Whether processes without a job are stopped; ``python -m bench turns`` shows what happens if not.
    stop_idle: bool = True
    #: How idle each process was, over all visits.
    idleness: dict[str, Idleness] = field(default_factory=dict)
    _started: dict[str, _Process] = field(default_factory=dict)

    def call(self, implementation: Implementation, function: str, *arguments: Any, timeout: float | None = None) -> Any:
        """Run a job; raises as ``Worker.call`` does.  A process that died is started anew for the next job."""
        name = implementation.process
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

    def close(self) -> None:
        """End all processes; the next job starts fresh ones."""
        for process in self._started.values():
            process.runner.close()
        self._started.clear()

    def _start(self, name: str) -> _Process:
        if self.in_process:
            process = _Process(InProcess())
        else:
            runner = Worker(threads.environment(self.threads) | allocator.environment())
            pid, stoppable = runner.call(f"{__name__}:begin", self.threads, timeout=START_TIMEOUT)
            process = _Process(runner, pid, stoppable and self.stop_idle)
        self._started[name] = process
        return process

    def _wake(self, name: str, process: _Process) -> None:
        now = cpu.cpu_seconds(process.pid) if process.pid else None
        if now is not None and process.rested is not None:
            idle = self.idleness.setdefault(name, Idleness())
            idle.waited_seconds += time.perf_counter() - process.rested[0]
            idle.cpu_seconds += now - process.rested[1]
        if process.stoppable:
            cpu.go_on(process.pid)

    def _rest(self, process: _Process) -> None:
        if process.stoppable:
            cpu.stop(process.pid)
        now = cpu.cpu_seconds(process.pid) if process.pid else None
        process.rested = None if now is None else (time.perf_counter(), now)
