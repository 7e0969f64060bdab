"""Worker processes: a crash, a hang or too much memory is an answer about one job; the next one finds a fresh process.

POSIX (Linux, macOS): a worker inherits one end of a socket pair.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

from impls import limits
from impls.loading import load

#: Lines of a dead worker's stderr that are kept for the message, and characters of each.
STDERR_LINES, STDERR_WIDTH = 8, 1000

#: Bytes at its end in which they are looked for.
STDERR_BYTES = 1 << 16

#: Bytes of what was printed that are left in the file for the next job.
PRINTED_KEPT = 1 << 20

#: Variable that names a folder of the worker's own.  What a job that was killed left there goes when the worker does.
SCRATCH = "ATTENTION_CONFORMANCE_SCRATCH"

#: Seconds that a worker has to end by itself when it is closed.
GRACE = 2.0


class Crashed(Exception):
    """The worker, or a program that it ran, died during a job; the text says by what, ``stderr`` has its last words."""

    def __init__(self, text: str, stderr: str) -> None:
        super().__init__(text)
        self.stderr = stderr

    def __reduce__(self) -> tuple[type[Crashed], tuple[str, str]]:
        return type(self), (str(self), self.stderr)


class OutOfMemory(Crashed):
    """The job took more memory than it was given, or than there was; the worker was killed."""


class TimedOut(Exception):
    """The job took longer than it was given; the worker was killed."""


class Runner(Protocol):
    """Runs jobs: a function by its name, in some process."""

    @property
    def fresh(self) -> bool:
        """Whether the next job is the first one of a process."""

    def call(self, function: str, *arguments: Any, timeout: float | None = None) -> Any:
        """The function's result; raises what it raises, Crashed, or TimedOut."""

    def close(self) -> None:
        """End the process, if there is one."""


class InProcess:
    """Runs jobs in this process, for a debugger: nothing is caught, nothing is bounded."""

    @property
    def fresh(self) -> bool:
        """No: it did something before."""
        return False

    def call(self, function: str, *arguments: Any, timeout: float | None = None) -> Any:
        """The function's result, computed here; ``timeout`` cannot be kept."""
        return load(function)(*arguments)

    def close(self) -> None:
        """Nothing to end."""


@dataclass(frozen=True)
class Place:
    """Which interpreter a worker runs, the folder of its packages, and its working folder (None: this process's)."""

    python: str
    packages: Path
    folder: Path | None
    #: A command that runs the interpreter, with its arguments (setarch, numactl).
    through: tuple[str, ...] = ()


class Worker:
    """A worker process that is started at the first job and started again after it died.

    ``environment`` adds variables.  With ``place`` it runs another interpreter, the packages of another checkout, and
    in another folder than this process.
    """

    def __init__(
        self, environment: Mapping[str, str] | None = None, memory: int | None = None, place: Place | None = None
    ) -> None:
        #: Bytes that a job may take; None for as many as there are.
        self.memory = memory
        self._place = place or Place(sys.executable, Path(__file__).resolve().parents[1], None)
        path = _python_path(self._place.packages)
        self._environment = {**os.environ, **(environment or {}), "PYTHONPATH": path}
        self._process: subprocess.Popen | None = None
        self._connection: Connection | None = None
        self._stderr: Any = None
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._kills = 0
        #: Processes started so far; more than one means that a job killed one.
        self.started = 0

    @property
    def fresh(self) -> bool:
        """Whether there is no process yet, or no longer one."""
        return self._process is None or self._process.poll() is not None

    def start(self) -> None:
        """Start the process if there is none, and do not wait for it."""
        self._connect()

    def call(self, function: str, *arguments: Any, timeout: float | None = None) -> Any:
        """Run one job.  ``timeout`` is in seconds; None waits for ever.

        Raises what the function raises, Crashed if the process died, TimedOut or OutOfMemory if it was killed.
        """
        connection = self._connect()
        try:
            connection.send((function, arguments))
            self._wait(connection, timeout)
            succeeded, answer = connection.recv()
        except (EOFError, OSError) as error:
            raise self._obituary() from error
        except KeyboardInterrupt:
            self._end()  # the answer to this job would be taken for the next one's
            raise
        self._forget_printed()
        if succeeded:
            return answer
        raised, trace = answer
        raised.add_note(f"in the worker process:\n{trace}")
        raise raised

    def close(self) -> None:
        """End the process."""
        self._end()

    def _connect(self) -> Connection:
        if self._process is not None and self.fresh:
            self._end()  # it died between two jobs
        if self._connection is None:
            ours, theirs = socket.socketpair()
            self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  (lives as long as the process)
            self._scratch = tempfile.TemporaryDirectory(prefix="attention-worker-", ignore_cleanup_errors=True)
            self._process = subprocess.Popen(  # noqa: S603  (our own module)
                [*self._place.through, self._place.python, "-m", "impls.worker", str(theirs.fileno())],
                cwd=self._place.folder,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._stderr,
                stderr=self._stderr,
                env={**self._environment, SCRATCH: self._scratch.name},
                start_new_session=True,  # Ctrl-C reaches the parent alone, which then ends the worker
            )
            theirs.close()
            self._kills = limits.kills()
            self._connection = Connection(ours.detach())
            self.started += 1
        return self._connection

    def _wait(self, connection: Connection, timeout: float | None) -> None:
        """Return when there is an answer, or the process has ended."""
        assert self._process is not None
        held = limits.Held(self._process.pid)
        end = float("inf") if timeout is None else time.monotonic() + timeout
        pause = limits.SELDOM if self.memory is None else limits.LOOK
        while not connection.poll(max(0.0, min(pause, end - time.monotonic()))):
            if time.monotonic() >= end:
                self._end()
                raise TimedOut(f"no answer within {timeout:g} s")
            if self.memory is not None and held.now() > self.memory:
                self._end()
                raise OutOfMemory(f"took more than {limits.size_text(self.memory)}", "")
            if os.fstat(self._stderr.fileno()).st_size > limits.PRINTED:
                last = self._last_words()
                self._end()
                raise Crashed(f"it was ended: it printed more than {limits.size_text(limits.PRINTED)}", last)

    def _forget_printed(self) -> None:
        """Let the file begin anew where it is long; the worker writes to it by the same position."""
        if os.fstat(self._stderr.fileno()).st_size > PRINTED_KEPT:
            self._stderr.seek(0)
            self._stderr.truncate()

    def _last_words(self) -> str:
        """The last lines that were printed, read without moving the position at which the worker may still print."""
        file = self._stderr.fileno()
        last = os.pread(file, STDERR_BYTES, max(0, os.fstat(file).st_size - STDERR_BYTES))
        lines = last.decode(errors="replace").splitlines()[-STDERR_LINES:]
        return "\n".join(line[-STDERR_WIDTH:] for line in lines)

    def _obituary(self) -> Crashed:
        assert self._process is not None
        try:
            code = self._process.wait(GRACE)
        except subprocess.TimeoutExpired:
            code = -signal.SIGKILL
        last = self._last_words()
        self._end()
        if code == -signal.SIGKILL and limits.kills() > self._kills:
            return OutOfMemory("the system ended the process (SIGKILL): memory ran out", last)
        return Crashed(cause(code), last)

    def _end(self) -> None:
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            _kill(self._process)
        if self._stderr is not None:
            self._stderr.close()
        if self._scratch is not None:
            self._scratch.cleanup()
        self._process = self._connection = self._stderr = self._scratch = None


def _kill(process: subprocess.Popen) -> None:
    """End a worker and whatever it started: they are one process session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def cause(code: int) -> str:
    """What an exit status says of how a process ended; a negative one is a signal's."""
    if code >= 0:
        return f"the process ended itself with exit code {code}"
    if code == -signal.SIGKILL:
        return "the process was killed by SIGKILL, as the system does where memory runs out"
    try:
        return f"the process was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"the process was killed by signal {-code}"


def _python_path(packages: Path) -> str:
    """So that a worker finds this package wherever the parent found it."""
    return os.pathsep.join(filter(None, [str(packages), os.environ.get("PYTHONPATH", "")]))
