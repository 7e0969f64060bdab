"""Peak memory of one call beyond its inputs, measured apart from its time, in processes used only for that.

Such a process makes a small call of the same family, so that the library loads and starts what it needs; then it makes
the inputs, prepares the call, and makes it twice.

    bytes = most held during the second call − held before the first

Memory that the first call takes only for a while (to compile) is not counted.  Memory that it takes and keeps (an
arena, as in ONNX Runtime) is: it serves the second call, so growth over the second call alone would be zero.  The
result is counted; memory that a library takes once, whatever the call's length, is not.  Before the next cell the
library releases what it kept for this one; a plug-in may keep anything, so each of its cells has its own process.

*On the CPU* memory is the resident set, whatever allocates it: arrays, BLAS buffers, arenas.  Linux keeps its peak
(VmHWM) and lets a process reset it.  Freed memory must leave the set, or it would serve a call unseen: glibc maps every
block of at least MAPPED bytes by itself, huge pages are off, and malloc_trim is called.  Memory that is never written
is never counted, as it takes no pages.  *On another device* it is the framework's own count, whose peak only restarts
after an array has filled the gap between the bytes held and the peak so far.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import gc
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from attention_conformance.bench.workloads import arguments
from attention_conformance.bench.workloads.workload import Workload
from attention_conformance.impls import calls
from attention_conformance.impls.backend import Backend, backend
from attention_conformance.impls.contract import Implementation
from attention_conformance.impls.loading import load, load_function
from attention_conformance.impls.process import allocator, limits, threads
from attention_conformance.impls.process.pool import Crashed, Pool, TimedOut

#: Least bytes of a block of memory that is mapped by itself, and returned to the system when it is freed.
MAPPED = 2**16

#: Environment of the measuring process.
ENVIRONMENT = {
    "MALLOC_MMAP_THRESHOLD_": str(MAPPED),
    "MALLOC_TRIM_THRESHOLD_": str(MAPPED),
    "NUMPY_MADVISE_HUGEPAGE": "0",
}

#: prctl's number for "no huge pages in this process"; a huge page is 2 MiB resident from its first byte.
NO_HUGE_PAGES = 41

#: The length of the small call.
SMALL = 8

#: The target of implementations that run in a process of their own, whose memory is not seen here.
PROGRAM = "attention_conformance.impls.foreign.program:program"

#: Ways to find the bytes, as named in records.
RESIDENT, COUNTED = "resident set", "framework's count"


@dataclass(frozen=True)
class Peak:
    """Bytes of a call and the method; without bytes, ``reason`` says why."""

    bytes: int | None
    method: str = ""
    reason: str = ""


class Meter(Protocol):
    """Bytes that are held now, and the most since ``restart``."""

    method: str

    def held(self) -> int:
        """Bytes held now, once everything that can be freed is."""

    def restart(self) -> None:
        """Let ``most`` begin at the bytes held now."""

    def most(self) -> int:
        """The most since ``restart``."""


class ResidentSet:
    """The resident set of this process.  Raises OSError where the system does not keep or restart its peak."""

    method = RESIDENT

    def __init__(self) -> None:
        self.restart()
        if self.most() > limits.resident() + resolution() + MAPPED:
            raise OSError("the peak was not restarted")

    def held(self) -> int:
        """Bytes that are resident once freed memory is given back."""
        gc.collect()
        allocator.trim()
        return limits.resident()

    def restart(self) -> None:
        """Reset the peak to the current size."""
        limits.restart_peak()

    def most(self) -> int:
        """The peak of the set."""
        return limits.peak()


class DeviceCount:
    """A framework's own count of its arrays' bytes on a device; its peak only ever grows."""

    method = COUNTED

    def __init__(self, arrays: Backend, device: str) -> None:
        self._arrays, self._device = arrays, device
        self._filled = 0
        self._filler: Any = None

    def held(self) -> int:
        """Bytes held now, without the filler."""
        gc.collect()
        return self._count()[0] - self._filled

    def restart(self) -> None:
        """Fill up to the peak, so that any further allocation raises it."""
        now, most = self._count()
        self._filler = self._arrays.put(np.zeros(most - now, np.uint8), self._device)
        self._arrays.synchronize(self._device)
        self._filled += self._count()[0] - now

    def most(self) -> int:
        """The peak, without the filler."""
        return self._count()[1] - self._filled

    def _count(self) -> tuple[int, int]:
        count = self._arrays.memory(self._device)
        assert count is not None
        return count


class Gauge(Pool):
    """The measuring processes: one per library, which stays, and one per cell of a plug-in.

    Each library has ``count`` threads, on as many cores: a call may hold a block for each thread.
    """

    def __init__(self, count: int | None = None) -> None:
        count = count or threads.usable_cores()
        super().__init__(environment=ENVIRONMENT | threads.environment(count), cores=count, always=False)

    def peak(self, implementation: Implementation, workload: Workload, device: str, dtype: str, seconds: float) -> Peak:
        """The peak of one cell, given up after ``seconds``.  Never raises for what the implementation does."""
        given = (implementation, workload, device, dtype)
        try:
            found: Peak = self.call(implementation, f"{__name__}:measure", *given, timeout=seconds)
        except (Crashed, TimedOut) as error:
            return Peak(None, reason=str(error))
        finally:
            if implementation.folder:
                self.end(implementation)
        return found


def measure(implementation: Implementation, workload: Workload, device: str, dtype: str) -> Peak:
    """The peak of one cell in this process, which should have the ENVIRONMENT, and no other cell meanwhile."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a library's warnings are not results
            return _measure(implementation, workload, device, dtype)
    except Exception as error:
        return Peak(None, reason=calls.text(error))
    finally:
        backend(implementation.framework).release()


def _measure(implementation: Implementation, workload: Workload, device: str, dtype: str) -> Peak:
    if implementation.target == PROGRAM:
        return Peak(None, reason="the memory of a program cannot be measured from outside")
    _libc("prctl", NO_HUGE_PAGES, 1, 0, 0, 0)
    arrays = backend(implementation.framework)
    with contextlib.suppress(Exception):  # it only warms up; the real call is tried below
        call_of(implementation, shortened(workload), device, dtype)()
    meter = _meter(arrays, device)
    if meter is None:
        return Peak(None, reason=f"nothing counts {implementation.framework}'s memory on {device} here")
    call = call_of(implementation, workload, device, dtype)
    before = meter.held()
    call()
    meter.held()  # releases freed memory
    meter.restart()
    returned = call()  # stays until the peak is read
    bytes_ = meter.most() - before
    del returned
    return Peak(max(bytes_, 0), meter.method)


def _meter(arrays: Backend, device: str) -> Meter | None:
    """The meter of a device's memory here, None if there is none."""
    if device != "cpu":
        return None if arrays.memory(device) is None else DeviceCount(arrays, device)
    try:
        return ResidentSet()
    except OSError:
        return None


def call_of(implementation: Implementation, workload: Workload, device: str, dtype: str) -> Callable[[], Any]:
    """A function that makes the call on inputs that already exist, and waits for its end."""
    arrays, function = backend(implementation.framework), load_function(implementation)
    request = calls.Request(device, *arguments.make(workload, dtype, seed=0))
    _, native, specification = calls.arguments(implementation, request)
    run = load(implementation.prepare)(function, specification)  # not kept for later calls

    def call() -> Any:
        returned = run(**native)
        arrays.synchronize(device)
        return returned

    return call


def shortened(workload: Workload) -> Workload:
    """The workload of the same family with the length SMALL, or the next one where that is no workload."""
    if workload.kind == "decode":
        return dataclasses.replace(workload, other=SMALL)
    taken = workload.kind == "cross" and workload.other == SMALL
    return dataclasses.replace(workload, length=SMALL + taken)


def resolution() -> int:
    """Bytes by which the resident set may be wrong: Linux counts pages per core and adds them up in batches.

    A batch is 32 pages or twice the cores if that is more (lib/percpu_counter.c); a block below MAPPED may also come
    from memory that the process has.
    """
    cores = os.cpu_count() or 1
    return max(32, 2 * cores) * cores * os.sysconf("SC_PAGE_SIZE")


def _libc(name: str, *numbers: int) -> None:
    """Call a function of the C library, where there is one of this name."""
    if sys.platform == "linux":
        function = getattr(ctypes.CDLL(None), name, None)
        if function is not None:
            function(*numbers)
