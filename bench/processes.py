"""Processes of a round: one per pool of threads, all with the same threads and cores, idle ones really idle.

A library has one pool, so one process; in ONNX Runtime each session has one, so each implementation has a process.
"""

from __future__ import annotations

from typing import Any, Protocol

from attention_conformance.bench.sampling import device_clock
from attention_conformance.impls.backend import backend
from attention_conformance.impls.contract import Framework, Implementation
from attention_conformance.impls.loading import load_function
from attention_conformance.impls.process import allocator, threads
from attention_conformance.impls.process.pool import Pool, Spent

#: Frameworks whose sessions each have threads of their own.  ONNX Runtime's threads spin for 50 ms after a call, and
#: continue that after their process was stopped: on two cores a call of 2 ms took 15 ms while eight sessions of one
#: process took turns.
POOL_PER_SESSION = frozenset({Framework.ONNXRUNTIME})


class Jobs(Protocol):
    """Runner of jobs in the processes of implementations."""

    def call(self, implementation: Implementation, function: str, *arguments: Any, timeout: float | None = None) -> Any:
        """The result of ``module:function``; raises as ``impls.process.pool.Worker.call`` does."""

    def end(self, implementation: Implementation) -> None:
        """End the implementation's process: its next job finds a fresh one."""

    def spent(self, implementation: Implementation) -> Spent | None:
        """Time of the last job; None for one that ran in this process."""


def process_of(implementation: Implementation) -> str:
    """Name of the process that an implementation is timed in."""
    own = implementation.framework in POOL_PER_SESSION
    return f"{implementation.process} {implementation.name}" if own else implementation.process


class Processes(Pool):
    """The pool of a round: ``count`` threads and cores for each process, where freed memory stays."""

    def __init__(self, count: int, in_process: bool = False, stop_idle: bool = True) -> None:
        environment = threads.environment(count) | allocator.environment()
        super().__init__(in_process, None, environment, count, stop_idle, process_of, f"{__name__}:imports", False)


def imports(implementation: Implementation) -> None:
    """Job of a worker: import a library and the function, so that the first cell need not."""
    backend(implementation.framework)
    device_clock.bind()
    load_function(implementation)
