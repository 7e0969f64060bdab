"""The process of base or new: it works while it has a job, and is stopped by a signal while the other one works.

Where memory lies decides some percent of a kernel's time (Mytkowicz et al. 2009, "Producing wrong data without doing
anything obviously wrong!", https://doi.org/10.1145/1508244.1508275), and is drawn by lot for every process: addresses
by the system, the order of allocations by Python's hashes.  Base and new draw the same lot, and every pair another one.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
from typing import Any

from attention_conformance.bench.paired.revisions import Revision
from attention_conformance.impls.process import allocator
from attention_conformance.impls.process.pool import Place, Worker

#: The module of the other suite whose functions are called.
MODULE = "attention_conformance.bench.paired.worker"

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


class Process(Worker):
    """A worker that is stopped between its jobs.  Those of the same ``lot`` lay out their memory alike."""

    def __init__(self, revision: Revision, lot: int = 0) -> None:
        environment = {**allocator.environment(), "PYTHONHASHSEED": str(lot)}
        place = Place(revision.python, revision.suite, revision.folder, unrandomized())
        super().__init__(environment, place=place, stop_idle=True)

    def job(self, function: str, *given: Any) -> Any:
        """Run a function of MODULE; raises as ``call`` does."""
        return self.call(f"{MODULE}:{function}", *given, timeout=TIMEOUT)
