"""Stopwatch of one call: the host's clock, or events in the device's own queue where a framework has them.

Before it everything that was submitted is done, and with cold caches a buffer is copied; neither is in the time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from attention_conformance.bench.sampling.cold_cache import Buffer, buffer
from attention_conformance.impls.backend import Backend, Events
from attention_conformance.impls.contract import Framework, Function
from attention_conformance.impls.process.clocks import perf_counter, process_time

#: Clocks that a time may be by.
WALL, DEVICE = "wall", "device events"

#: Waiting for a device takes this many times as long as for an idle one if it still works, as far as can be told.
BUSY = 3

#: Times that waiting for an idle device is tried; the least counts.
TRIES = 5


class Stopwatch(Protocol):
    """Times the calls of a cell one by one."""

    clock: str
    eviction: Eviction

    def time(self, run: Function, native: Mapping[str, Any]) -> tuple[float, Any]:
        """Seconds of a call, and what it returned."""

    def host(self) -> list[float]:
        """Seconds of the calls since this was last asked, by the host's clock where that is another; else none."""


@dataclass
class Eviction:
    """Clears the caches, if it has a buffer, and counts what comes before calls of time and of CPU time."""

    copied: Buffer | None = None
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    def __call__(self) -> None:
        """Copy, if there is a buffer."""
        if self.copied is not None:
            self._count(self.copied)

    def begin(self, arrays: Backend, device: str) -> None:
        """Copy, if there is a buffer, and wait until the device is idle; on a GPU that is counted.

        Calls of 0.1 ms on an H200 had a quarter of their time between them, of which the worker did not tell.
        """
        self()
        if device == "cpu":
            arrays.synchronize(device)
        else:
            self._count(lambda: arrays.synchronize(device))

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

    def time(self, run: Function, native: Mapping[str, Any]) -> tuple[float, Any]:
        """Seconds of a call, and what it returned."""
        self.eviction.begin(self.arrays, self.device)
        started = perf_counter()
        returned = run(**native)
        self.arrays.wait(returned)
        return perf_counter() - started, returned

    def host(self) -> list[float]:
        """No seconds beside the times themselves."""
        return []


@dataclass
class ByEvents:
    """The device's clock: from a mark before what the call submits to one behind it.

    A call may submit to another queue, which the second mark does not wait for.  What the device still works after it
    is added, by the host's clock, so that work is nowhere hidden.  Nothing waits between the marks.
    """

    arrays: Backend
    device: str
    eviction: Eviction
    events: Events
    clock: str = DEVICE
    _host: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Learn what waiting for the idle device takes."""
        self._wait()
        self._idle = min(self._wait() for _ in range(TRIES))

    def time(self, run: Function, native: Mapping[str, Any]) -> tuple[float, Any]:
        """Seconds of a call, and what it returned."""
        self.eviction.begin(self.arrays, self.device)
        started = perf_counter()
        self.events.begin()
        returned = run(**native)
        self.events.end()
        seconds = self.events.seconds()
        left = self._wait()
        self._host.append(perf_counter() - started)
        return seconds + (left if left > BUSY * self._idle else 0.0), returned

    def host(self) -> list[float]:
        """Seconds of the calls since this was last asked, until the device was idle again."""
        taken, self._host = self._host, []
        return taken

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
