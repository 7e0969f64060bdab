"""Stopwatch of one call: the host's clock, or events in the device's own queue where a framework has them.

Before the call all submitted work is finished, and with cold caches a buffer is copied; neither is in the time.  Events
time a call behind work that holds the queue until all of the call is submitted: the time is then the device's, without
the host's launching.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from attention_conformance.bench.clocks import DEVICE, WALL
from attention_conformance.bench.sampling.cold_cache import Buffer, buffer
from attention_conformance.impls.backend import Backend, Events
from attention_conformance.impls.contract import Framework, Function
from attention_conformance.impls.process.clocks import perf_counter, process_time

#: A device counts as still working if waiting for it takes this many times as long as for an idle one, and longer than
#: submitting the call took: on a virtual machine's core that was slow for a while, both took up to five times as long,
#: and waits of 20 to 100 µs were added to calls of 15 µs.
BUSY = 3

#: Number of trial waits for an idle device; the shortest counts.
TRIES = 5

#: The queue is held for this many times as long as the last call took to submit, plus these seconds; a call that the
#: system interrupted takes longer, and is then one of many.
HELD_TIMES, HELD_SECONDS = 2.0, 5e-5

#: Most seconds for which the queue is held.  A call that takes longer to submit compiles.
HELD_MOST = 0.02

#: Calls in a row, each held twice as long as the one before, that the device began before they were submitted in full;
#: after that many, the calls are taken to wait for the device themselves, and no queue is held for them.
MISSES = 6

#: Fewest calls on an idle device after which the host's wait is known: a cell's first and its warm ones, some of which
#: load kernels, or raise the clock.
LEAST_IDLE = 4

#: A call that takes this many times as long as its submission gains nothing from a held queue.
LONG_CALL = 500.0

#: Share of the host's wait for a call on an idle device, and seconds, by which that wait may exceed the call's time
#: behind a held queue.  Any more is work that was done while the queue was held.
HIDDEN_SHARE, HIDDEN_SECONDS = 0.25, 5e-5


class Stopwatch(Protocol):
    """Times the calls of a cell one by one."""

    clock: str
    eviction: Eviction

    def time(self, run: Function, native: Mapping[str, Any], *, late: bool = False) -> tuple[float, Any]:
        """Seconds of a call, and what it returned.

        With ``late`` its inputs are copied into place only behind the work that holds the queue, where it is held.
        """

    def time_idle(self, run: Function, native: Mapping[str, Any]) -> tuple[float, Any]:
        """Seconds of a call on an idle device, its launch included, and what it returned."""

    def host(self) -> list[float]:
        """Host-clock seconds of calls on an idle device since the last request; none if that clock times all calls."""

    def held(self) -> list[bool]:
        """Whether each call since the last request was behind a held queue; none where there is no queue."""


@dataclass
class Eviction:
    """Clears the caches, if it has a buffer, and counts the time and the CPU time of what comes before calls."""

    copied: Buffer | None = None
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    def __call__(self) -> None:
        """Copy, if there is a buffer."""
        if self.copied is not None:
            self._count(self.copied)

    def begin(self, arrays: Backend, device: str) -> None:
        """Copy, if there is a buffer, and wait until the device is idle; on a GPU the wait is counted.

        With calls of 0.1 ms on an H200 a quarter of the time was between calls, and the worker did not report it.
        """
        self()
        if device == "cpu":
            arrays.synchronize(device)
        else:
            self._count(lambda: arrays.synchronize(device))

    def but(self, seconds: float, since: tuple[float, float]) -> None:
        """Count all time since ``since``, a pair from ``now``, except these seconds, which are a call's."""
        worked, elapsed = (one - other for one, other in zip(self.now(), since, strict=True))
        self.cpu_seconds += worked
        self.seconds += max(0.0, elapsed - seconds)

    def _count(self, work: Callable[[], Any]) -> None:
        worked, started = self.now()
        work()
        ended = self.now()
        self.cpu_seconds += ended[0] - worked
        self.seconds += ended[1] - started

    @property
    def size(self) -> int:
        """Bytes of the buffer, 0 without one."""
        return 0 if self.copied is None else self.copied.size

    def now(self) -> tuple[float, float]:
        """CPU time and time of the process so far, without what came before calls."""
        return process_time() - self.cpu_seconds, perf_counter() - self.seconds


@dataclass
class Wall:
    """The host's clock: the call, and waiting for its results."""

    arrays: Backend
    device: str
    eviction: Eviction
    clock: str = WALL

    def time(self, run: Function, native: Mapping[str, Any], *, late: bool = False) -> tuple[float, Any]:
        """Seconds of a call, and what it returned."""
        self.eviction.begin(self.arrays, self.device)
        started = perf_counter()
        returned = run(**native)
        self.arrays.wait(returned)
        return perf_counter() - started, returned

    def time_idle(self, run: Function, native: Mapping[str, Any]) -> tuple[float, Any]:
        """Same as ``time``: nothing is held."""
        return self.time(run, native)

    def host(self) -> list[float]:
        """No seconds: the times themselves are by the host's clock."""
        return []

    def held(self) -> list[bool]:
        """Nothing is held."""
        return []


@dataclass
class ByEvents:
    """The device's clock: from a mark before the work of the call to one behind it.

    Before the first mark, work that does nothing holds the queue until all of the call is submitted.  If the device
    passes the mark earlier, the next call is held longer; a call that waits for the device itself is never submitted in
    time, and is timed on an idle device, with its launch.  So are the first call, and long ones.

    A call may submit to another queue, which the second mark does not wait for.  Work that the device still does after
    it is added, by the host's clock.  Work in another queue before the marks, while this one is held, shows on an idle
    device: after submitting such a call the host waits longer for it than the call takes between the marks.  No queue
    is held for such a call either, so only work that takes less time than its launch can hide; ``late`` inputs reveal
    that in its results.
    """

    arrays: Backend
    device: str
    eviction: Eviction
    events: Events
    clock: str = DEVICE
    _host: list[float] = field(default_factory=list)
    _held: list[bool] = field(default_factory=list)
    #: Whether calls can be held, number in a row that began too early, and seconds that the last took to submit.
    _holds: bool = True
    _missed: int = 0
    _launch: float | None = None
    #: Calls on an idle device; least seconds that the host waited for one after submitting it; least seconds of a call.
    _idle_calls: int = 0
    _waited: float = math.inf
    _least: float = math.inf

    def __post_init__(self) -> None:
        """Measure the wait for the idle device."""
        self._wait()
        self._idle = min(self._wait() for _ in range(TRIES))

    def time(self, run: Function, native: Mapping[str, Any], *, late: bool = False) -> tuple[float, Any]:
        """Seconds of a call, and what it returned; behind a held queue where that can be."""
        if not self._holds or self._launch is None or self._least > LONG_CALL * self._launch:
            return self.time_idle(run, native)
        copied, copy = self.events.late(native) if late else (native, None)
        self.eviction.begin(self.arrays, self.device)
        began = self.eviction.now()
        wanted = (HELD_TIMES * self._launch + HELD_SECONDS) * 2.0**self._missed
        self._holds = self.events.hold(min(wanted, HELD_MOST))
        if copy is not None:
            copy()
        seconds, returned, early = self._submit(run, copied)
        self._missed = self._missed + 1 if early else 0
        self._holds = self._holds and self._missed < MISSES
        self._held.append(not early)
        hidden = 0.0 if early or self._idle_calls < LEAST_IDLE else self._waited - seconds
        if hidden > max(HIDDEN_SHARE * self._waited, HIDDEN_SECONDS, 2 * BUSY * self._idle):
            self._holds, seconds = False, seconds + hidden
        self.eviction.but(seconds, began)
        return seconds, returned

    def time_idle(self, run: Function, native: Mapping[str, Any]) -> tuple[float, Any]:
        """Seconds of a call on an idle device, its launch included, and what it returned."""
        self.eviction.begin(self.arrays, self.device)
        began = self.eviction.now()
        seconds, returned, _ = self._submit(run, native)
        host = self.eviction.now()[1] - began[1]
        self._host.append(host)
        self._held.append(False)
        assert self._launch is not None
        self._idle_calls += 1
        self._waited = min(self._waited, host - self._launch)
        self.eviction.but(seconds, began)
        return seconds, returned

    def host(self) -> list[float]:
        """Host-clock seconds of calls on an idle device since the last request, until it was idle again."""
        taken, self._host = self._host, []
        return taken

    def held(self) -> list[bool]:
        """Whether each call since the last request was behind a held queue."""
        taken, self._held = self._held, []
        return taken

    def _submit(self, run: Function, native: Mapping[str, Any]) -> tuple[float, Any, bool]:
        """Seconds of a call, what it returned, and whether the device began before all of it was submitted."""
        self.events.begin()
        started = perf_counter()
        returned = run(**native)
        self.events.end()
        self._launch = perf_counter() - started
        early = self.events.begun()
        seconds = self.events.seconds()
        left = self._wait()
        if left > max(BUSY * self._idle, self._launch):
            seconds += left
        self._least = min(self._least, seconds)
        return seconds, returned, early

    def _wait(self) -> float:
        """Wait for all queues of the device; the seconds that this took."""
        started = perf_counter()
        self.arrays.synchronize(self.device)
        return perf_counter() - started


def stopwatch(arrays: Backend, framework: Framework, device: str, cold: bool) -> Stopwatch:
    """The stopwatch for a framework's calls on a device."""
    eviction = Eviction(buffer(framework, device) if cold else None)
    events = arrays.events(device)
    return Wall(arrays, device, eviction) if events is None else ByEvents(arrays, device, eviction, events)
