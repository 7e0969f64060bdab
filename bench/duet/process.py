"""The process of one side: it works while it has a job, and is stopped by a signal while the other side plays.

As in ``pytest bench`` (bench.processes), a library whose threads wait by spinning then takes nothing from the other
side.  Where a stopped process would not be certain to be killed with this one, it waits instead.

Where memory lies decides some percent of a kernel's time (Mytkowicz et al. 2009, "Producing wrong data without doing
anything obviously wrong!", https://doi.org/10.1145/1508244.1508275), and is drawn by lot for every process: addresses
by the system, the order of allocations by Python's hashes.  Two sides draw the same lot, and every pair another one.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
from typing import Any

from bench import cpu
from bench.duet.sides import Side
from impls import allocator
from impls.isolation import Place, Worker

#: The module of a side whose functions are called.
PLAYER = "bench.duet.player"

#: Seconds after which a job is given up; a compilation takes up to 12 s on two cores.
TIMEOUT = 180.0


@functools.cache
def unrandomized() -> tuple[str, ...]:
    """The command that runs another without random addresses; empty where there is none, or the system refuses."""
    setarch = shutil.which("setarch")
    if setarch is None:
        return ()
    command = (setarch, "--addr-no-randomize")
    tried = subprocess.run([*command, "true"], capture_output=True, check=False)  # noqa: S603
    return command if tried.returncode == 0 else ()


class Process:
    """A worker process of a side, started at the first job.  Those of the same ``lot`` lay out their memory alike."""

    def __init__(self, side: Side, lot: int = 0) -> None:
        self.side = side
        environment = {**allocator.environment(), "PYTHONHASHSEED": str(lot)}
        self._worker = Worker(environment, place=Place(side.python, side.suite, side.folder, unrandomized()))
        self._stopped: int | None = None
        self._entered = False

    def start(self) -> None:
        """Start it and do not wait.  The thread that calls this has to live as long: the process ends with it."""
        self._worker.start()
        self._entered = False

    def call(self, function: str, *given: Any) -> Any:
        """Run a job of the player; raises as ``Worker.call`` does."""
        if self._stopped is not None:
            cpu.go_on(self._stopped)
            self._stopped = None
        return self._worker.call(f"{PLAYER}:{function}", *given, timeout=TIMEOUT)

    def play(self, function: str, *given: Any) -> Any:
        """Run a job, and stop until the next one."""
        if self._worker.fresh or not self._entered:  # it died at its last job, or has had none
            self._stopped = None
            self._pid = self.call("enter")
            self._entered = True
        answer = self.call(function, *given)
        if self._pid:
            cpu.stop(self._pid)
            self._stopped = self._pid
        return answer

    def close(self) -> None:
        """End the process."""
        self._stopped = None
        self._worker.close()
