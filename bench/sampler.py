"""What the worker process does for the bench: open a cell, measure it chunk by chunk, close it.

A cell is one implementation with a few input sets on its device, prepared to be called.  It stays here between the
jobs, so that arrays are made once, and nothing but the call itself lies between two readings of the clock.
"""

from __future__ import annotations

import contextlib
import gc
import time
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from bench import arguments
from bench.growth import beyond, growth
from bench.stopwatch import WALL, Stopwatch, stopwatch
from bench.workloads import Workload
from impls import calls
from impls.backend import Backend, backend
from impls.calls import TRACEBACK_LINES, Request, collect, prepared, same_bits
from impls.contract import Call, Function, Implementation
from impls.loading import opened

#: What libraries say that have no exception of their own for it: XLA, PyTorch's CPU allocator, ONNX Runtime.
OUT_OF_MEMORY = ("RESOURCE_EXHAUSTED", "DefaultCPUAllocator: can't allocate memory", "Failed to allocate memory")

#: Share of a call, and seconds, by which reading results may take longer than reading plain arrays.
LATE_SHARE, LATE_SECONDS = 0.5, 1e-4

#: Bytes of results whose reading takes less than the code that reads them takes to come back into caches.
SMALL = 2**20

#: Seconds after which results are read again, to see whether they are still being written.
SETTLES = 0.05


@dataclass(frozen=True)
class Opened:
    """The first call of a cell, on its first input set.  ``status`` as in impls.calls.Reply, or "memory" if it ran out.

    ``results`` are by name, in layout (B, H, S, D); ``peak_bytes`` is what the process grew by during the first call.
    ``held_bytes`` is what it held at most since this cell was opened beyond what it held before the first cell of all,
    without the inputs of the cells that are open: a library may keep what an earlier call or its preparation took, and
    then takes it from there, so that growth alone would tell too little.  Both are None where the system does not tell
    and on other devices than the CPU.  ``clock`` times its calls, and ``emptied_bytes`` are copied before each.
    """

    status: str
    text: str = ""
    trace: str = ""
    results: dict[str, np.ndarray] = field(default_factory=dict)
    prepare_seconds: float = 0.0
    first_call_seconds: float = 0.0
    peak_bytes: int | None = None
    held_bytes: int | None = None
    clock: str = WALL
    emptied_bytes: int = 0


@dataclass(frozen=True)
class Chunk:
    """A turn of calls: seconds of each, in order.  ``status`` is one of Opened's, or "lost" if no such cell is open.

    The last call was on inputs that the implementation had never seen.  Reading its results back took
    ``readback_seconds``, and of plain copies ``plain_seconds`` (0 where the first is short); ``cores`` is CPU time ÷
    time, of all threads.  Of the last chunk of a visit there are the results, copied right after the call, and which of
    them (``unsettled``) had changed later.  ``host_seconds`` is the median of the calls by the host's clock, where
    ``seconds`` are by another.
    """

    status: str
    text: str = ""
    seconds: tuple[float, ...] = ()
    readback_seconds: float = 0.0
    plain_seconds: float = 0.0
    cores: float = 0.0
    results: dict[str, np.ndarray] = field(default_factory=dict)
    unsettled: tuple[str, ...] = ()
    host_seconds: float | None = None


@dataclass
class _Cell:
    run: Function
    inputs: list[dict[str, Any]]
    specification: Call
    implementation: Implementation
    arrays: Backend
    workload: Workload
    watch: Stopwatch
    #: Arguments and keywords of the first input set, of which fresh ones are made.
    first: tuple[dict[str, np.ndarray], dict[str, Any]]
    calls: int = 0
    result_bytes: int = 0

    def time_call(self, native: dict[str, Any]) -> tuple[float, Any]:
        """Seconds of one call on a set of inputs, and what it returned."""
        return self.watch.time(self.run, native)

    def next_inputs(self) -> dict[str, Any]:
        """The input sets in turn, over all chunks."""
        self.calls += 1
        return self.inputs[self.calls % len(self.inputs)]

    def fresh_inputs(self, number: int) -> dict[str, Any]:
        """Inputs that were never seen, in arrays that were never seen."""
        request = Request(self.specification.device, *arguments.fresh(self.workload, *self.first, number))
        return calls.arguments(self.implementation, request)[1]

    def copied(self, returned: Any) -> tuple[float, dict[str, np.ndarray]]:
        """Results as arrays of their own, and the seconds that reading them took."""
        started = time.perf_counter()
        collected = collect(
            returned, self.specification, self.implementation.layout, self.arrays, self.implementation.layout_of_past
        )
        copies = {name: np.array(array) for name, array in collected.items()}
        return time.perf_counter() - started, copies

    def read_plain(self, returned: Any) -> float:
        """Seconds that reading results takes whose arrays were made anew from the numbers of these.

        Everything that is made on the way stays until it is read: memory that was just freed is quicker to get.
        """
        values = returned if isinstance(returned, tuple) else (returned,)
        numbers = [self.arrays.get(value) for value in values]
        copies = [np.array(array) for array in numbers]
        plain = tuple(self.arrays.put(array, self.specification.device) for array in copies)
        return self.copied(plain)[0]

    @property
    def nbytes(self) -> int:
        """Bytes of its input sets, and of the one that fresh ones are made of."""
        found = (value for given in self.first for value in given.values() if isinstance(value, np.ndarray))
        return (len(self.inputs) + 1) * sum(value.nbytes for value in found)


_CELLS: dict[str, _Cell] = {}


def open_cell(
    key: str, implementation: Implementation, workload: Workload, dtype: str, device: str, cold: bool = False
) -> Opened:
    """Make the input sets, prepare, and call once.  Never raises for what the implementation does.

    With ``cold`` all calls find empty caches.
    """
    try:
        with _quiet():
            return _open(key, implementation, workload, dtype, device, cold)
    except NotImplementedError as error:
        return Opened("unsupported", _text(error))
    except Exception as error:
        trace = "".join(traceback.format_exception(error)[-TRACEBACK_LINES:])
        return Opened(_kind(error), _text(error), trace)


def _open(key: str, implementation: Implementation, workload: Workload, dtype: str, device: str, cold: bool) -> Opened:
    arrays = backend(implementation.framework)
    function = opened(implementation)
    watch = stopwatch(arrays, implementation.framework, device, cold)
    held = growth(device, since_start=True)
    first = arguments.make(workload, dtype, 0)
    native, specification = [], None
    for seed in range(arguments.SETS):
        request = Request(device, *arguments.make(workload, dtype, seed))
        _, given, specification = calls.arguments(implementation, request)
        native.append(given)
    assert specification is not None
    started = time.perf_counter()
    run = prepared(implementation, function, specification)
    prepare_seconds = time.perf_counter() - started
    cell = _Cell(run, native, specification, implementation, arrays, workload, watch, first)
    prepared_bytes = held()
    grown = growth(device)
    first_call_seconds, returned = cell.time_call(native[0])
    peak_bytes, called_bytes = grown(), held()
    _, results = cell.copied(returned)
    cell.result_bytes = sum(array.nbytes for array in results.values())
    _CELLS[key] = cell
    held_bytes = beyond(prepared_bytes, called_bytes, sum(each.nbytes for each in _CELLS.values()))
    paid = (prepare_seconds, first_call_seconds, peak_bytes, held_bytes)
    return Opened("returned", "", "", results, *paid, watch.clock, watch.empty.size)


def warm(key: str, enough: float) -> Chunk:
    """A call on each input set, or fewer once they took ``enough`` seconds; none of them is a sample."""
    return _attempt(key, lambda cell: _warm(cell, enough))


def _warm(cell: _Cell, enough: float) -> Chunk:
    seconds: list[float] = []
    for native in cell.inputs:
        if sum(seconds) < enough:
            seconds.append(cell.time_call(native)[0])
    return Chunk("returned", seconds=tuple(seconds))


def chunk(key: str, seconds: float, most: int, number: int, last: bool = False) -> Chunk:
    """A turn: calls on the input sets until ``seconds`` are over, and one on the fresh set with this number.

    With ``most`` 1 there is that one alone.  ``last`` sends the results of the fresh call back.
    """
    return _attempt(key, lambda cell: _chunk(cell, seconds, most, number, last))


def _chunk(cell: _Cell, seconds: float, most: int, number: int, last: bool) -> Chunk:
    fresh = cell.fresh_inputs(number)  # before the others, as memory that is taken and freed in between shows in a call
    times: list[float] = []
    returned = None
    if most > 1:
        cell.time_call(cell.next_inputs())  # wakes the library's threads, and finds its data in nearer caches again
    worked, started = cell.watch.empty.now()
    cell.watch.host()
    while len(times) < most - 1 and sum(times) < seconds:
        del returned  # so that its memory is free for the next call, as in a loop that uses it up
        elapsed, returned = cell.time_call(cell.next_inputs())
        times.append(elapsed)
    if times and cell.result_bytes < SMALL:
        cell.copied(returned)  # the first reading in a turn is slow, and the next one is judged
        cell.time_call(cell.next_inputs())  # as is the first call after anything else
    del returned
    elapsed, returned = cell.time_call(fresh)
    ended = cell.watch.empty.now()
    cores, host = (ended[0] - worked) / (ended[1] - started), cell.watch.host()
    readback, results = cell.copied(returned)  # at once: a call that returns before it is done is wrong here
    late = readback > max(LATE_SHARE * min([*times, elapsed]), LATE_SECONDS)
    plain = cell.read_plain(returned) if late else 0.0
    by_host = float(np.median(host)) if host else None
    found = Chunk("returned", "", (*times, elapsed), readback, plain, cores, host_seconds=by_host)
    if not last:
        return found
    time.sleep(SETTLES)
    later = cell.copied(returned)[1]
    unsettled = tuple(name for name in results if not same_bits(results[name], later[name]))
    return replace(found, results=results, unsettled=unsettled)


def bare(key: str) -> tuple[Function, list[dict[str, Any]]]:
    """The prepared function of a cell and its input sets, for a loop of one's own."""
    return _CELLS[key].run, _CELLS[key].inputs


def close_cell(key: str) -> None:
    """Forget a cell and its arrays."""
    _CELLS.pop(key, None)
    gc.collect()


def _attempt(key: str, job: Any) -> Chunk:
    """What a job says of an open cell; never raises for what the implementation does."""
    if key not in _CELLS:
        return Chunk("lost", "the process died between two calls")
    try:
        with _quiet(), _without_gc():
            return job(_CELLS[key])
    except NotImplementedError as error:
        return Chunk("unsupported", _text(error))
    except Exception as error:
        return Chunk(_kind(error), _text(error))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a library's remarks are not results
        yield


@contextlib.contextmanager
def _without_gc() -> Iterator[None]:
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _kind(error: BaseException) -> str:
    """The status "memory" for what libraries raise when an array does not fit, else "raised"."""
    short = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    short = short or any(text in str(error) for text in OUT_OF_MEMORY)
    return "memory" if short else "raised"


def _text(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [""]
    kind = "" if isinstance(error, NotImplementedError) else f"{type(error).__name__}: "
    return f"{kind}{lines[0][:300]}"
