"""Worker processes and pools of them: a crash, a hang or too much memory is an answer about one job.

The next job finds a fresh process.  A pool has one process per library and one per plug-in, so that libraries do not
disturb each other.  While timing, a process runs only while it has a job: libraries keep threads that wait for work by
spinning (ONNX Runtime's pool, OpenMP with an active wait policy), and some run timers.  A process that is stopped by a
signal does nothing, whatever its libraries do; ``python -m studies interference`` measures what they would take.

POSIX (Linux, macOS): a worker inherits one end of a socket pair.  Requests are pickles, as the worker trusts its
parent.  Answers are records of the type that the job's function declares (``wire.py``), as the parent does not trust a
process that runs foreign code: anything else that it sends is Garbage, and ends it.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import pickle
import queue
import secrets
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import attention_conformance
from attention_conformance.impls.contract import Implementation, ImplementationError, InputError
from attention_conformance.impls.loading import load
from attention_conformance.impls.process import limits, threads, wire
from attention_conformance.impls.process.threads import usable_cores
from attention_conformance.impls.process.worker import CLOSED, SCRATCH, STOPPABLE

#: Lines of a dead worker's stderr that are kept for the message, and characters of each.
STDERR_LINES, STDERR_WIDTH = 8, 1000

#: Bytes at the end of stderr in which they are looked for.
STDERR_BYTES = 1 << 16

#: Bytes of output that are left in the file for the next job.
PRINTED_KEPT = 1 << 20

#: Seconds that a worker has to end by itself when it is closed.
GRACE = 2.0

#: Seconds that the start of a worker may take, and that importing an implementation and finding its devices may.
START_TIMEOUT, IMPORT_TIMEOUT = 60.0, 300.0

#: Linux's number of a process's CPU clock (include/linux/posix-timers_types.h): its inverted number and a kind.
CLOCK_SHIFT, CLOCK_OF_THE_SCHEDULER = 3, 2


class Crashed(Exception):
    """The worker, or a program that it ran, died during a job; the text says why, ``stderr`` has its last lines."""

    def __init__(self, text: str, stderr: str) -> None:
        super().__init__(text)
        self.stderr = stderr

    def __reduce__(self) -> tuple[type[Crashed], tuple[str, str]]:
        return type(self), (str(self), self.stderr)


class OutOfMemory(Crashed):
    """The job took more memory than it may, or than there was; the worker was killed."""


class Garbage(Crashed):
    """The worker sent something that is not an answer to its job, as only foreign code makes it do; it was killed."""


class TimedOut(Exception):
    """The job took longer than it may; the worker was killed."""


#: Types as which a job's exceptions are raised, by name: our own, and those of Python that are made from a text.
_OWN = (InputError, ImplementationError, TimedOut, Crashed, OutOfMemory, Garbage)
_RAISED: dict[str, type[Exception]] = {f"{each.__module__}.{each.__qualname__}": each for each in _OWN} | {
    f"builtins.{each.__name__}": each
    for each in (
        *(Exception, RuntimeError, NotImplementedError, RecursionError, TypeError, ValueError, AssertionError),
        *(AttributeError, NameError, ImportError, ModuleNotFoundError, LookupError, IndexError, EOFError, MemoryError),
        *(OSError, FileNotFoundError, PermissionError, TimeoutError),
        *(ArithmeticError, ZeroDivisionError, OverflowError, FloatingPointError),
    )
}

#: Functions whose jobs raise only Crashed for what an implementation does: any other exception was sent by foreign
#: code, or is a mistake of ours, and in either case is the job's outcome.
NEVER_RAISE = frozenset(
    {
        "attention_conformance.impls.calls:call",
        "attention_conformance.impls.probe:probe",
        "attention_conformance.impls.envelope_probe:probe",
        "attention_conformance.bench.sampling.sampler:open_cell",
        "attention_conformance.bench.sampling.sampler:warm",
        "attention_conformance.bench.sampling.sampler:batch",
        "attention_conformance.bench.sampling.sampler:cold_calls",
        "attention_conformance.bench.memory.peak:measure",
        "attention_conformance.bench.roofline.peaks:product",
        "attention_conformance.bench.roofline.peaks:bandwidth",
    }
)


def packages(checkout: Path | None = None) -> dict[str, list[str]]:
    """The suite's import package with the folders of its modules: this process's own, or those of a checkout of it.

    A worker imports the package from these folders, the first of which has the ``__init__.py``.  Only this function
    knows how the suite is laid out.

    Parameters
    ----------
    checkout
        The root of a checkout; None for this process's own.

    Returns
    -------
    dict[str, list[str]]
        Folders by the name of the package, in the order of search.
    """
    if checkout is not None:
        return {"attention_conformance": [str(checkout / "api"), str(checkout)]}
    return {"attention_conformance": list(attention_conformance.__path__)}


@functools.cache
def answer_type(function: str) -> Any:
    """The type of a job's answer, as its function declares; Any, for plain values and arrays, outside the suite."""
    if not function.startswith("attention_conformance."):
        return Any
    try:
        found = load(function)
    except Exception:  # the worker reports it, and another revision may have the function
        return Any
    said = getattr(found, "__annotations__", {}).get("return", Any)
    return eval(said, found.__globals__) if isinstance(said, str) else said  # noqa: S307  (our own annotation)


@functools.cache
def most_bytes() -> int:
    """Most bytes of arrays in an answer: a larger one does not fit into the machine with its inputs and copies."""
    return max(limits.default() // 4, 1 << 28)


@dataclass(frozen=True)
class Place:
    """Place of a worker: its interpreter, the checkout of its suite, and its folder; None: this process's."""

    python: str
    checkout: Path | None
    folder: Path | None
    #: A command that runs the interpreter, with its arguments (setarch, numactl).
    through: tuple[str, ...] = ()


@dataclass
class Idleness:
    """Idleness of a process: seconds that it waited for its jobs, and CPU seconds that it took meanwhile."""

    waited_seconds: float = 0.0
    cpu_seconds: float = 0.0

    @property
    def share(self) -> float:
        """Share of a core that it took while others worked."""
        return self.cpu_seconds / self.waited_seconds if self.waited_seconds else 0.0


@dataclass(frozen=True)
class Spent:
    """Seconds of a job: by the worker's clock, and by two that no code of its process can change.

    ``waited`` is by this process's clock, with the way there and back; ``cpu`` is the processor time of all threads of
    the worker as the system counts it, None where it does not.  For ``queued`` seconds of ``waited`` the worker or this
    thread could have run and had no core, as the system counts it; 0 where it does not.
    """

    told: float
    waited: float
    cpu: float | None
    queued: float = 0.0


class InProcess:
    """Runs jobs in this process, for a debugger: nothing is caught, nothing is bounded."""

    fresh = stop_idle = False
    pid = 0
    spent = None
    cpu = 0.0

    def __init__(self) -> None:
        self.idle = Idleness()

    def call(self, function: str, *arguments: Any, timeout: float | None = None) -> Any:
        """The function's result, computed here; ``timeout`` cannot be kept."""
        return load(function)(*arguments)

    def rest(self) -> None:
        """Nothing to stop."""

    def close(self) -> None:
        """Nothing to end."""


#: Variables of every worker, unless the user has set them: JAX takes memory of a GPU as it needs it, instead of three
#: quarters at its start, which would leave none for the worker next to it.
#: Source: https://docs.jax.dev/en/latest/gpu_memory_allocation.html.
SHARED_GPU = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


class Worker:
    """A worker process that is started at the first job and started again after it died.

    Parameters
    ----------
    environment
        Variables that are added to this process's.
    memory
        Bytes that a job may take; None for as many as there are.
    place
        Another interpreter, checkout of the suite, or folder than this process's.
    cores
        Number of the usable cores that it may use, the first ones; 0 for all.
    stop_idle
        Stop it by a signal between its jobs, where it is certain to be killed if this process ends.  Then it also ends
        with the *thread* that started it.
    """

    def __init__(
        self,
        environment: Mapping[str, str] | None = None,
        memory: int | None = None,
        place: Place | None = None,
        cores: int = 0,
        stop_idle: bool = False,
        own_session: bool = True,
    ) -> None:
        self.memory = memory
        self._own_session = own_session
        self.stop_idle = stop_idle
        self.idle = Idleness()
        #: Processes started so far; more than one means that a job killed one.
        self.started = 0
        self._where = place or Place(sys.executable, None, None)
        #: The places that it may be on, sets of cores, and the number of its place: the first one between its jobs.
        self.places = threads.places(cores)
        self._place = 0
        self._environment = {**SHARED_GPU, **os.environ, **(environment or {})}
        self._settings: dict[str, Any] = {
            "packages": packages(self._where.checkout),
            "stoppable": stop_idle,
            "largest": most_bytes(),
        }
        self._process: subprocess.Popen | None = None
        self._connection: wire.Line | None = None
        #: Time of the last job; None before the first.
        self.spent: Spent | None = None
        #: Processor seconds of all jobs that ended, as far as the system counts them.
        self.cpu = 0.0
        self._printed: Any = None
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._kills = 0
        #: Whether the process may be stopped; None until it has answered.
        self._stoppable: bool | None = None
        #: Clock and CPU time at the end of its last job.
        self._rested: tuple[float, float] | None = None

    @property
    def fresh(self) -> bool:
        """Whether there is no process yet, or no longer."""
        return self._process is None or self._process.poll() is not None

    @property
    def pid(self) -> int:
        """The process's number, 0 without one."""
        return 0 if self._process is None else self._process.pid

    def start(self, place: int = 0) -> None:
        """Start the process if there is none, and do not wait for it.

        Parameters
        ----------
        place
            Place to start on, one of as many as there are cores, by number (threads.places).
        """
        self._place = place % len(self.places)
        self._connect()

    def move(self, place: int = 0) -> None:
        """Bind all threads of the process to the cores of another place."""
        if place != self._place:
            self._place = place
            self.call("attention_conformance.impls.process.threads:move", self.places[place], timeout=START_TIMEOUT)

    def call(self, function: str, *arguments: Any, timeout: float | None = None) -> Any:
        """Run one job, ``module:function``.  ``timeout`` is in seconds; None waits forever.

        Parameters
        ----------
        function
            ``module:function``.
        timeout
            Seconds; None waits forever.
        arguments
            Arguments, which can be pickled.

        Returns
        -------
        Any
            Answer, of the type that the function declares.

        Raises
        ------
        Crashed
            If the process died; OutOfMemory and Garbage are such.
        TimedOut
            If it was killed after ``timeout``.
        Exception
            As the function raises.
        """
        connection = self._connect()
        if self._stoppable is None:
            self._stoppable = self._settings["stoppable"] and self._answer(
                connection, START_TIMEOUT, STOPPABLE, (), bool
            )
        self._wake()
        try:
            return self._answer(connection, timeout, function, arguments, answer_type(function))
        finally:
            if self._process is not None:
                self.rest(self.stop_idle)

    def rest(self, stop: bool = True) -> None:
        """Stop the process until its next job, if it may be stopped, and note when it began to be idle.

        Parameters
        ----------
        stop
            Whether it is stopped by a signal.
        """
        if stop and self._stoppable and not self.fresh:
            stop_process(self.pid)
        now = cpu_seconds(self.pid)
        self._rested = None if now is None else (time.perf_counter(), now)

    def close(self) -> None:
        """End the process, and the programs that it started."""
        # Ctrl-C and the thread that waits for the answer may both close it: each ends what it found.
        connection, process, printed, scratch = self._connection, self._process, self._printed, self._scratch
        if connection is not None:
            connection.close()
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                # With its own session it is one process group with the programs that it started.
                (os.killpg if self._own_session else os.kill)(process.pid, signal.SIGKILL)
            # Processes that left the group are still in the session.
            for pid in limits.of_session(process.pid) if self._own_session else ():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()
        if printed is not None:
            printed.close()
        if scratch is not None:
            scratch.cleanup()
        self._process = self._connection = self._printed = self._scratch = self._rested = self._stoppable = None
        self._place = 0

    def _connect(self) -> wire.Line:
        if self._process is not None and self.fresh:
            self.close()  # it died between two jobs
        if self._connection is None:
            ours, theirs = socket.socketpair()
            self._printed = tempfile.TemporaryFile()  # noqa: SIM115  (lives as long as the process)
            self._scratch = tempfile.TemporaryDirectory(
                prefix="worker-", dir=os.environ.get(SCRATCH), ignore_cleanup_errors=True
            )
            file = Path(__file__).with_name("worker.py")
            given = (str(file), str(theirs.fileno()), json.dumps({**self._settings, "cores": self.places[self._place]}))
            self._process = subprocess.Popen(  # noqa: S603  (our own module)
                [*self._where.through, self._where.python, "-P", *given],
                cwd=self._where.folder,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._printed,
                stderr=self._printed,
                env={**self._environment, SCRATCH: self._scratch.name},
                start_new_session=self._own_session,  # Ctrl-C reaches only the parent, which then ends the worker
            )
            theirs.close()
            self._kills = limits.kills()
            self._connection = wire.Line(ours, self._settings["largest"])
            self.started += 1
        return self._connection

    def _answer(
        self, connection: wire.Line, timeout: float | None, function: str, arguments: tuple[Any, ...], kind: Any
    ) -> Any:
        """The process's answer to a job, of type ``kind``, once it is sealed."""
        job = pickle.dumps((function, arguments), pickle.HIGHEST_PROTOCOL)
        number, seal = secrets.token_bytes(wire.NUMBER), secrets.token_bytes(wire.NUMBER)
        wait = self._waiting(connection, timeout)
        before, queued = cpu_seconds(self.pid), -self._queued()
        started = time.perf_counter()
        try:
            connection.unasked()
            connection.send(number, job, seal, wait)
            answer = connection.receive(wait, followed=True)
            if answer.number != number or answer.kind == wire.SEALED:
                raise wire.Malformed("an answer to another job")
            waited, worked = time.perf_counter() - started, cpu_seconds(self.pid)
            cpu = None if before is None or worked is None else worked - before
            self.spent = Spent(answer.seconds, waited, cpu, max(0.0, queued + self._queued()))
            self.cpu += cpu or 0.0
            value = answer.read(kind)
            closing = connection.receive(wait)
            if closing.number != seal or closing.kind != wire.SEALED:
                raise wire.Malformed("two answers to one job")
        except wire.Malformed as error:
            last = self._last_words()
            self.close()
            raise Garbage(f"sent garbage: {error}", last) from None
        except (EOFError, OSError) as error:
            raise self._obituary() from error
        except BaseException:
            self.close()  # the answer to this job would be taken for the next one's
            raise
        if os.fstat(self._printed.fileno()).st_size > PRINTED_KEPT:
            self._printed.seek(0)  # the worker writes to it at the same position
            self._printed.truncate()
        if isinstance(value, wire.Raised):
            raise _exception(value, function)
        return value

    def _queued(self) -> float:
        """Seconds for which the worker's first thread, which makes the calls, and this one had no core so far."""
        return core_wait_seconds(self.pid) + core_wait_seconds()

    def _waiting(self, connection: wire.Line, timeout: float | None) -> wire.Wait:
        """A function that waits until the connection has one of some events, or raises what ends the job."""
        held = limits.Held(self.pid)
        end = float("inf") if timeout is None else time.monotonic() + timeout
        pause = limits.SELDOM if self.memory is None else limits.LOOK

        def wait(events: int) -> int:
            found = connection.ready(events, max(0.0, min(pause, end - time.monotonic())))
            # An answer that has begun is waited for, but not for as long as bytes come one by one.
            if time.monotonic() >= end + (wire.STALL if found else 0.0):
                self.close()
                raise TimedOut(f"no answer within {timeout:g} s")
            if found & select.POLLIN and time.monotonic() < end:
                return found
            if self.memory is not None and held.now() > self.memory:
                self.close()
                raise OutOfMemory(f"took more than {limits.size_text(self.memory)}", "")
            if os.fstat(self._printed.fileno()).st_size > limits.PRINTED:
                last = self._last_words()
                self.close()
                raise Crashed(f"it was stopped: it printed more than {limits.size_text(limits.PRINTED)}", last)
            return found

        return wait

    def _wake(self) -> None:
        """Let the process continue, and count what it did since its last job."""
        now = cpu_seconds(self.pid)
        if now is not None and self._rested is not None:
            self.idle.waited_seconds += time.perf_counter() - self._rested[0]
            self.idle.cpu_seconds += now - self._rested[1]
        if self._stoppable:
            continue_process(self.pid)

    def _last_words(self) -> str:
        """The last printed lines, read without moving the position at which the worker may still print."""
        file = self._printed.fileno()
        last = os.pread(file, STDERR_BYTES, max(0, os.fstat(file).st_size - STDERR_BYTES))
        lines = last.decode(errors="replace").splitlines()[-STDERR_LINES:]
        return "\n".join(line[-STDERR_WIDTH:] for line in lines)

    def _obituary(self) -> Crashed:
        assert self._process is not None
        code = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(GRACE)
        last = self._last_words()
        self.close()
        if code is None or CLOSED in last:  # it lives, or has found the connection closed
            return Crashed(CLOSED, last)
        if code == -signal.SIGKILL and limits.kills() > self._kills:
            return OutOfMemory("the system ended the process (SIGKILL): memory ran out", last)
        return Crashed(cause(code), last)


class Pool:
    """Worker pool: one process per library and one per plug-in, started when they are first needed.

    Parameters
    ----------
    in_process
        Run all jobs in this process, for a debugger.
    memory, environment, cores, stop_idle
        As of every Worker.
    process_of
        Name of the process that an implementation runs in.
    ready
        A job with the implementation for new processes, so that what it imports is not part of a job's time.
    always
        Whether each new process does it before its first job; else those that ``start`` starts do it, and leave
        failures to the first job.
    """

    def __init__(
        self,
        in_process: bool = False,
        memory: int | None = None,
        environment: Mapping[str, str] | None = None,
        cores: int = 0,
        stop_idle: bool = False,
        process_of: Callable[[Implementation], str] = lambda implementation: implementation.process,
        ready: str = "attention_conformance.impls.calls:ready",
        always: bool = True,
    ) -> None:
        self.in_process = in_process
        self.memory = None if in_process else memory
        self.stop_idle = stop_idle
        self._environment, self._cores = environment, cores
        self._process_of, self._ready, self._always = process_of, ready, always
        self._runners: dict[str, Worker | InProcess] = {}

    def start(self, implementations: Iterable[Implementation]) -> None:
        """Start the missing processes of these implementations, and have each do the ``ready`` job, one on each core.

        A process that may use fewer cores than there are does it on any that are free, and is then moved to the first
        ones, like all processes.

        Parameters
        ----------
        implementations
            Implementations whose processes are wanted.
        """
        if self.in_process:
            return
        missing = {self._process_of(each): each for each in implementations if self._runner(each).fresh}
        workers = [worker for name in missing if isinstance(worker := self._runners[name], Worker)]
        for number, worker in enumerate(workers):
            worker.start(number)  # by this thread: they end with the one that started them

        def ready(worker: Worker, implementation: Implementation) -> None:
            try:
                worker.call(self._ready, implementation, timeout=IMPORT_TIMEOUT)
            except Exception:  # any exception, also of an import
                worker.close()

        self._on_free_places(
            [
                (worker, functools.partial(ready, worker, each))
                for worker, each in zip(workers, missing.values(), strict=True)
            ]
        )

    def side_by_side(self, tasks: Sequence[tuple[Implementation, Callable[[], None]]]) -> None:
        """Run tasks at the same time, each with the process of an implementation to itself, and a place.

        As many run as there are places; none where there is only one place, as a process may use all cores there.
        Tasks whose process is not running are left out, as it would end with the thread that starts it.

        Parameters
        ----------
        tasks
            Tasks, each with the implementation whose process it uses.

        Raises
        ------
        Exception
            The exception of the first task that raises one, once all have ended.
        """
        found = [(self._runner(implementation), task) for implementation, task in tasks]
        if self._places > 1:
            self._on_free_places(
                [(runner, task) for runner, task in found if isinstance(runner, Worker) and not runner.fresh]
            )

    @property
    def _places(self) -> int:
        """Number of processes that may work at the same time without sharing a core."""
        return len(threads.places(self._cores)) if self._cores else usable_cores()

    def _on_free_places(self, tasks: Sequence[tuple[Worker, Callable[[], None]]]) -> None:
        """Run each task while its worker is on a free place; then all are on the first one, as for timing."""
        free: queue.SimpleQueue[int] = queue.SimpleQueue()
        for place in range(self._places):
            free.put(place)

        def run(worker: Worker, task: Callable[[], None]) -> None:
            place, started = free.get(), worker.started
            try:
                if self._cores:
                    worker.move(place)
                task()
            finally:
                try:
                    if worker.started != started:  # by this thread, with which it ends
                        worker.close()
                    elif not worker.fresh:
                        worker.move()
                finally:
                    free.put(place)

        executor = ThreadPoolExecutor(self._places)
        try:
            for ran in [executor.submit(run, *each) for each in tasks]:
                ran.result()
        except Exception:
            executor.shutdown()
            raise
        except BaseException:  # Ctrl-C: tasks that have not begun never do, and those that have are ended
            executor.shutdown(wait=False, cancel_futures=True)
            for worker, _ in tasks:
                with contextlib.suppress(Exception):  # its thread may be closing it, too
                    worker.close()
            raise
        executor.shutdown()

    def call(self, implementation: Implementation, function: str, *arguments: Any, timeout: float | None = None) -> Any:
        """Run a job (``module:function``) in the implementation's process.

        Starting a process, where the last job ended it, is not part of this job's time.

        Parameters
        ----------
        implementation
            Implementation whose process it is.
        function
            ``module:function``.
        timeout
            Seconds; None waits forever.
        arguments
            Arguments, which can be pickled.

        Returns
        -------
        Any
            Answer, of the type that the function declares.

        Raises
        ------
        Exception
            As ``Worker.call`` raises.
        """
        runner = self._runner(implementation)
        if runner.fresh and self._always:
            runner.call(self._ready, implementation, timeout=IMPORT_TIMEOUT)
        runner.stop_idle = self.stop_idle
        return runner.call(function, *arguments, timeout=timeout)

    def spent(self, implementation: Implementation) -> Spent | None:
        """Time of the last job; None for one that ran in this process.

        Parameters
        ----------
        implementation
            Implementation whose process it is.

        Returns
        -------
        Spent | None
            Seconds of the process.
        """
        return self._runner(implementation).spent

    def cpu(self, implementation: Implementation) -> float:
        """Processor seconds of all jobs of the implementation's process so far; 0 for those that ran in this one.

        Parameters
        ----------
        implementation
            Implementation whose process it is.

        Returns
        -------
        float
            Seconds.
        """
        return self._runner(implementation).cpu

    def pid(self, implementation: Implementation) -> int:
        """The number of the implementation's process; 0 without one.

        Parameters
        ----------
        implementation
            Implementation whose process it is.

        Returns
        -------
        int
            A process number.
        """
        return self._runner(implementation).pid

    def shares(self) -> dict[str, float]:
        """Share of a core that each process took between its jobs, by its name."""
        return {name: runner.idle.share for name, runner in self._runners.items() if runner.idle.waited_seconds}

    def rest(self) -> None:
        """Stop all processes, including those that were left waiting."""
        for runner in self._runners.values():
            runner.rest()

    def end(self, implementation: Implementation) -> None:
        """End the implementation's process: its next job finds a fresh one.

        Parameters
        ----------
        implementation
            Implementation whose process it is.
        """
        self._runner(implementation).close()

    def close(self) -> None:
        """End all processes; the next job starts fresh ones."""
        for runner in self._runners.values():
            runner.close()

    def _runner(self, implementation: Implementation) -> Worker | InProcess:
        name = self._process_of(implementation)
        if name not in self._runners:
            worker = (self._environment, self.memory, None, self._cores, self.stop_idle)
            self._runners[name] = InProcess() if self.in_process else Worker(*worker)
        return self._runners[name]


def _exception(raised: wire.Raised, function: str) -> Exception:
    """The exception as which a job's is raised, of the first of its types that is in the table."""
    note = f"in the worker process:\n{raised.trace}"
    kind = next((_RAISED[name] for name in raised.kinds if name in _RAISED), Exception)
    if function in NEVER_RAISE and not issubclass(kind, (Crashed, TimedOut)):
        return Crashed(
            f"the job raised {raised.kinds[0] if raised.kinds else 'something'}: {raised.text}", raised.trace
        )
    if issubclass(kind, Crashed):
        error: Exception = kind(raised.text, raised.stderr)
    elif kind is Exception and raised.kinds:
        error = kind(f"{raised.kinds[0]}: {raised.text}")
    else:
        error = kind(raised.text)
    error.add_note(note)
    return error


def cause(code: int) -> str:
    """Cause of a process's end by its exit status; a negative one is a signal's."""
    if code >= 0:
        return f"the process ended itself with exit code {code}"
    if code == -signal.SIGKILL:
        return "the process was killed by SIGKILL, as the system does where memory runs out"
    try:
        return f"the process was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"the process was killed by signal {-code}"


def cpu_seconds(pid: int) -> float | None:
    """CPU time that all threads of a process have taken; None where the system has no count, or the process is gone.

    The clock of a process has the number that clock_getcpuclockid(3) gives it.  Files of /proc count ticks of 10 ms.
    """
    if not pid or not sys.platform.startswith("linux"):
        return None
    try:
        return time.clock_gettime(~pid << CLOCK_SHIFT | CLOCK_OF_THE_SCHEDULER)
    except OSError:
        return None


def core_wait_seconds(pid: int = 0) -> float:
    """Seconds for which a process's first thread could have run and had no core; 0 where the system has no count.

    Without a number it is about the calling thread.  Source: https://docs.kernel.org/scheduler/sched-stats.html.
    """
    try:
        text = Path(f"/proc/{pid or 'thread-self'}/schedstat").read_text(encoding="ascii")
        return int(text.split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def tells_core_wait() -> bool:
    """Whether the system counts for how long a thread had no core.

    Returns
    -------
    bool
        False where ``core_wait_seconds`` is 0 whatever happens.
    """
    try:
        return int(Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()[2]) > 0
    except (OSError, IndexError, ValueError):
        return False


def stop_process(pid: int) -> None:
    """Stop a child process, and wait until all of its threads are stopped; it does nothing until ``continue_process``.

    The signal alone takes 0.1 ms, and up to 8 ms were seen: the thread that gets it must be scheduled first, on a core
    where another one may spin.
    """
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(pid, signal.SIGSTOP)
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)  # its owner collects how it ended


def continue_process(pid: int) -> None:
    """Let a stopped process continue."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)
