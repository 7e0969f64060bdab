"""The process of one side: it works while it has a job, and is stopped by a signal while the other side plays.

As in ``pytest bench`` (bench.processes), a library whose threads wait by spinning then takes nothing from the other
side.  Where a stopped process would not be certain to be killed with this one, it waits instead.
"""

from __future__ import annotations

from typing import Any

from bench import cpu
from bench.duet.sides import Side
from impls import allocator
from impls.isolation import Place, Worker

#: The module of a side whose functions are called.
PLAYER = "bench.duet.player"

#: Seconds after which a job is given up; a compilation takes up to 12 s on two cores.
TIMEOUT = 180.0


class Process:
    """A worker process of a side, started at the first job."""

    def __init__(self, side: Side) -> None:
        self.side = side
        self._worker = Worker(allocator.environment(), place=Place(side.python, side.suite, side.folder))
        self._stopped: int | None = None

    def call(self, function: str, *given: Any) -> Any:
        """Run a job of the player; raises as ``Worker.call`` does."""
        if self._stopped is not None:
            cpu.go_on(self._stopped)
            self._stopped = None
        return self._worker.call(f"{PLAYER}:{function}", *given, timeout=TIMEOUT)

    def play(self, function: str, *given: Any) -> Any:
        """Run a job, and stop until the next one."""
        if self._worker.fresh:  # it died at its last job, or has had none
            self._stopped = None
            self._pid = self.call("enter")
        answer = self.call(function, *given)
        if self._pid:
            cpu.stop(self._pid)
            self._stopped = self._pid
        return answer

    def close(self) -> None:
        """End the process."""
        self._stopped = None
        self._worker.close()
