"""Sampler: the jobs of a worker process, which open a cell, measure it batch by batch, and close it."""

from __future__ import annotations

import contextlib
import functools
import gc
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attention_conformance.bench.clocks import WALL
from attention_conformance.bench.sampling import device_clock
from attention_conformance.bench.sampling.cold_cache import buffer
from attention_conformance.bench.sampling.stopwatch import Stopwatch, stopwatch
from attention_conformance.bench.workloads import arguments
from attention_conformance.bench.workloads.workload import Workload
from attention_conformance.impls import calls
from attention_conformance.impls.backend import Backend, backend
from attention_conformance.impls.calls import Request, collect, same_bits
from attention_conformance.impls.contract import Call, Function, Implementation
from attention_conformance.impls.loading import load, load_function
from attention_conformance.impls.process import allocator, clocks, limits, threads
from attention_conformance.impls.process.clocks import perf_counter

#: The arguments and keywords of an input set, by its number.
Make = Callable[[int], tuple[dict[str, np.ndarray], dict[str, Any]]]

#: Share of a call, and seconds, by which reading results may take longer than reading plain arrays.
LATE_SHARE, LATE_SECONDS = 0.5, 1e-4

#: Bytes of results below which reading them takes less time than loading the reading code into caches.
SMALL = 2**20

#: Bytes of inputs below which calls with cold caches are slow because of their code, and show nothing.  A step of
#: decoding of 50 µs over 512 KiB took 2.1 times as long on inputs that no cache had, next to another busy core.
TELLING = 2**18

#: Seconds after which results are read again, to see whether they are still being written.
SETTLES = 0.05

#: Messages of libraries that have no exception of their own for it: XLA, PyTorch's CPU allocator, ONNX Runtime.
OUT_OF_MEMORY = ("RESOURCE_EXHAUSTED", "DefaultCPUAllocator: can't allocate memory", "Failed to allocate memory")

#: The open cells of this process, by key.
_CELLS: dict[str, _Cell] = {}

#: Bytes that the process held before its first cell.
_START: list[int] = []


@dataclass(frozen=True)
class Opened:
    """The first call of a cell, on its first input set.  ``status`` as in impls.calls.Reply, or "memory" if it ran out.

    ``results`` are by name, in layout (B, H, S, D); ``peak_rss_bytes`` is the growth of the process during the first
    call.  ``held_rss_bytes`` is the most that it held since this cell was opened, beyond what it held before its very
    first cell, without the inputs of the open cells: a library may serve the call from memory that an earlier call or
    the preparation took, so that the first call alone would show too little.  Both are None where the system does not
    report them, and on devices other than the CPU.  ``clock`` times its calls, and ``evicted_bytes`` are copied before
    each.
    """

    status: str
    text: str = ""
    results: dict[str, np.ndarray] = field(default_factory=dict)
    prepare_seconds: float = 0.0
    first_call_seconds: float = 0.0
    peak_rss_bytes: int | None = None
    held_rss_bytes: int | None = None
    clock: str = WALL
    evicted_bytes: int = 0


@dataclass(frozen=True)
class Batch:
    """A batch of calls: seconds of each, in order.  ``status`` is one of Opened's, or "lost" if no such cell is open.

    The last call was on inputs that the implementation had never seen.  Reading its results back took
    ``readback_seconds``, and reading plain copies ``plain_seconds`` (0 where the first is short); ``cores`` is CPU time
    ÷ time, of all threads.  The last batch of a process run has the results, copied right after the call, and the names
    of those (``unsettled``) that changed later.  ``host_seconds`` is the median of calls on an idle device by the
    host's clock, where ``seconds`` are by another; ``held`` says for each call whether it was behind a held queue.  In
    total ``made`` calls were made, in ``call_seconds``; everything else took ``other_seconds``: making inputs, reading
    results, clearing caches.
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
    held: tuple[bool, ...] = ()
    made: int = 0
    call_seconds: float = 0.0
    other_seconds: float = 0.0


def kind(error: BaseException) -> str:
    """The status "memory" for exceptions that libraries raise when an array does not fit, else "raised".

    Parameters
    ----------
    error
        Exception that an implementation raised.

    Returns
    -------
    str
        "memory" or "raised".
    """
    short = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    short = short or any(said in str(error) for said in OUT_OF_MEMORY)
    return "memory" if short else "raised"


def text(error: BaseException) -> str:
    """Text of an exception, in one line; with its type, unless the status "unsupported" implies it.

    Parameters
    ----------
    error
        Exception that an implementation raised.

    Returns
    -------
    str
        One line.
    """
    said = calls.text(error)
    return said.partition(": ")[2] if isinstance(error, NotImplementedError) else said


@dataclass
class _Cell:
    run: Function
    inputs: list[dict[str, Any]]
    specification: Call
    implementation: Implementation
    arrays: Backend
    workload: Workload
    watch: Stopwatch
    #: Arguments and keywords of the first input set, from which fresh ones are made.
    first: tuple[dict[str, np.ndarray], dict[str, Any]]
    calls: int = 0
    result_bytes: int = 0
    #: Calls so far, their seconds, and the seconds of other work.
    made: int = 0
    call_seconds: float = 0.0
    other_seconds: float = 0.0

    def time_call(self, native: dict[str, Any], *, idle: bool = False, late: bool = False) -> tuple[float, Any]:
        """Seconds of one call on a set of inputs, and what it returned; ``idle`` and ``late`` as of Stopwatch."""
        if idle:
            elapsed, returned = self.watch.time_idle(self.run, native)
        else:
            elapsed, returned = self.watch.time(self.run, native, late=late)
        self.made += 1
        self.call_seconds += elapsed
        return elapsed, returned

    def next_inputs(self) -> dict[str, Any]:
        """The input sets in turn, over all batches."""
        self.calls += 1
        return self.inputs[self.calls % len(self.inputs)]

    def fresh_inputs(self, number: int) -> dict[str, Any]:
        """New inputs in new arrays; a layer keeps its parameters."""
        with self.uncounted():
            request = Request(self.specification.device, *arguments.fresh(self.workload, *self.first, number))
            known = {name: array for name, array in self.inputs[0].items() if name in arguments.PARAMETERS}
            return calls.arguments(self.implementation, request)[1] | known

    @contextlib.contextmanager
    def uncounted(self) -> Iterator[None]:
        """Count the seconds of work other than calls."""
        started = perf_counter()
        yield
        self.other_seconds += perf_counter() - started

    def copied(self, returned: Any) -> tuple[float, dict[str, np.ndarray]]:
        """Results as arrays of their own, and the seconds that reading them took."""
        started = perf_counter()
        collected = collect(
            returned, self.specification, self.implementation.layout, self.arrays, self.implementation.layout_of_past
        )
        copies = {name: np.array(array) for name, array in collected.items()}
        return perf_counter() - started, copies

    def read_plain(self, returned: Any) -> float:
        """Seconds for reading results whose arrays were rebuilt from the numbers of these.

        Everything made on the way is kept until it is read: memory that was just freed is quicker to get.
        """
        values = returned if isinstance(returned, tuple) else (returned,)
        numbers = [self.arrays.get(value) for value in values]
        copies = [np.array(array) for array in numbers]
        plain = tuple(self.arrays.put(array, self.specification.device) for array in copies)
        return self.copied(plain)[0]

    @property
    def nbytes(self) -> int:
        """Bytes of its input sets, and of the one that fresh ones are made from."""
        found = (value for given in self.first for value in given.values() if isinstance(value, np.ndarray))
        return (len(self.inputs) + 1) * sum(value.nbytes for value in found)


def open_cell(
    key: str,
    implementation: Implementation,
    workload: Workload,
    dtype: str,
    device: str,
    cold: bool = False,
    seed: int = 0,
    make: Make | None = None,
) -> Opened:
    """Make the input sets, prepare, and call once.  Never raises for what the implementation does.

    With ``cold`` all calls find cold caches.  ``make`` gives the input set with a number; else ``seed`` draws it.

    Parameters
    ----------
    key
        The name of the cell until it is closed.
    implementation
        Implementation that is timed.
    workload
        Workload, which says shapes and keywords.
    dtype
        Dtype of the inputs.
    device
        "cpu" or "cuda".
    cold
        Whether all calls find cold caches.
    seed
        The seed that the first input set is drawn from, where ``make`` does not give it.
    make
        Function that gives the input set with a number.

    Returns
    -------
    Opened
        Time, memory and results of the first call, or the status and text of an exception.
    """
    make = make or _drawn_once(workload, dtype, seed)
    try:
        with _quiet():
            found = _open(key, implementation, workload, device, cold, make)
        if changed := clocks.replaced() or device_clock.replaced():
            close_cell(key)
            return Opened("clock", changed)
        return found
    except NotImplementedError as error:
        return Opened("unsupported", text(error))
    except Exception as error:
        return Opened(kind(error), text(error))


def _drawn_once(workload: Workload, dtype: str, seed: int) -> Make:
    """Input sets: the first is drawn, the others have its numbers at other places, which takes less time."""
    first = functools.cache(functools.partial(arguments.make, workload, dtype, seed))
    # Number −1 moves nothing, and the sets that a batch ends with have numbers from 0 on.
    return lambda number: arguments.fresh(workload, *first(), -1 - number)


def _open(key: str, implementation: Implementation, workload: Workload, device: str, cold: bool, make: Make) -> Opened:
    arrays = backend(implementation.framework)
    device_clock.bind()
    function = load_function(implementation)
    if not _CELLS:
        gc.freeze()  # libraries' objects stay; searching them at every end of a cell took 0.3 s with torch
    watch = stopwatch(arrays, implementation.framework, device, cold)
    allocator.trim()  # what other cells freed is not this one's
    held = peak_rss(device, since_start=True)
    first = make(0)
    native, specification = [], None
    for seed in range(arguments.SETS):
        request = Request(device, *(make(seed) if seed else first))
        _, given, specification = calls.arguments(implementation, request)
        native.append(given)
    assert specification is not None
    started = perf_counter()
    run: Function = load(implementation.prepare)(function, specification)  # not kept for later calls: close_cell
    prepare_seconds = perf_counter() - started
    cell = _Cell(run, native, specification, implementation, arrays, workload, watch, first)
    prepared_bytes = held()
    added = peak_rss(device)
    first_call_seconds, returned = cell.time_call(native[0])
    peak_rss_bytes, called_bytes = added(), held()
    _, results = cell.copied(returned)
    cell.result_bytes = sum(array.nbytes for array in results.values())
    _CELLS[key] = cell
    held_rss_bytes = None
    if prepared_bytes is not None and called_bytes is not None:  # inputs are counted by their sizes
        held_rss_bytes = max(max(prepared_bytes, called_bytes) - sum(each.nbytes for each in _CELLS.values()), 0)
    paid = (prepare_seconds, first_call_seconds, peak_rss_bytes, held_rss_bytes)
    return Opened("returned", "", results, *paid, watch.clock, watch.eviction.size)


def peak_rss(device: str, since_start: bool = False) -> Callable[[], int | None]:
    """A function that gives the most bytes that this process has held from now on, beyond what it holds now.

    With ``since_start`` beyond what it held before its first cell.  None where the system has no peak that can be
    reset; the function covers the time since the last reset.

    Parameters
    ----------
    device
        Device of the cell; on an accelerator the function gives None.
    since_start
        Beyond what the process held before its first cell.

    Returns
    -------
    Callable[[], int | None]
        A function that gives bytes, or None where they are unknown.
    """
    if device != "cpu":
        return lambda: None
    try:
        limits.restart_peak()
        before = limits.resident()
        if since_start:
            _START[:] = _START or [before]
            before = _START[0]
    except OSError:
        return lambda: None
    return lambda: max(limits.peak() - before, 0)


def warm(key: str, enough: float) -> Batch:
    """A call on each input set, or fewer once they took ``enough`` seconds; none of them is a sample.

    Parameters
    ----------
    key
        The name of a cell that this worker has opened.
    enough
        Seconds after which no further call is made.

    Returns
    -------
    Batch
        Seconds of the calls, none of them samples.
    """
    return _attempt(key, lambda cell: _warm(cell, enough))


def _warm(cell: _Cell, enough: float) -> Batch:
    seconds: list[float] = []
    for native in cell.inputs:
        if sum(seconds) < enough:
            seconds.append(cell.time_call(native, idle=True)[0])
    return Batch("returned", seconds=tuple(seconds))


def again(key: str, number: int) -> Batch:
    """One more call on the input set with this number, and its results; no sample.  FIRST is the first set.

    Parameters
    ----------
    key
        The name of a cell that this worker has opened.
    number
        Number of the input set; FIRST is the first.

    Returns
    -------
    Batch
        Results of the call, and no sample.
    """
    return _attempt(key, lambda cell: _again(cell, number))


def _again(cell: _Cell, number: int) -> Batch:
    elapsed, returned = cell.time_call(cell.inputs[0] if number < 0 else cell.fresh_inputs(number))
    return Batch("returned", seconds=(elapsed,), results=cell.copied(returned)[1])


def cold_calls(key: str, count: int) -> Batch:
    """Calls on inputs that the implementation knows, each with cold caches.

    No calls if caches cannot be cleared, or if inputs are small: there the code comes from memory.

    Parameters
    ----------
    key
        The name of a cell that this worker has opened.
    count
        Number of calls.

    Returns
    -------
    Batch
        Seconds of the calls.
    """
    return _attempt(key, lambda cell: _cold_calls(cell, count))


def _cold_calls(cell: _Cell, count: int) -> Batch:
    if cell.nbytes < TELLING * (len(cell.inputs) + 1):
        return Batch("returned")
    try:
        evict = buffer(cell.implementation.framework, cell.specification.device)
    except NotImplementedError:
        return Batch("returned")
    seconds = []
    for _ in range(count):
        evict()
        seconds.append(cell.time_call(cell.next_inputs())[0])
    return Batch("returned", seconds=tuple(seconds))


def batch(key: str, seconds: float, most: int, number: int, last: bool = False, lead: float | None = None) -> Batch:
    """A batch: calls on the input sets until ``seconds`` are over, and one on the fresh set with this number.

    The number also decides on which core it begins (threads.begin_on).  Calls of ``lead`` seconds, at least one, come
    before and are not samples.  With ``most`` 1 the fresh call is the only sample, and if ``lead`` is None the only
    call.  ``last`` sends its results back.

    Parameters
    ----------
    key
        The name of a cell that this worker has opened.
    seconds
        Seconds for which calls are made.
    most
        Largest number of samples.
    number
        Number of the fresh input set, and of the core that the batch begins on.
    last
        Whether the results are sent back.
    lead
        Seconds of calls before the samples; None for one call, and for none where ``most`` is 1.

    Returns
    -------
    Batch
        Seconds of each call, and the observations.
    """
    return _attempt(key, lambda cell: _batch(cell, seconds, most, number, last, lead))


def _batch(cell: _Cell, seconds: float, most: int, number: int, last: bool, lead: float | None) -> Batch:
    cell.made, cell.call_seconds, cell.other_seconds, evicted = 0, 0.0, 0.0, cell.watch.eviction.seconds
    fresh = cell.fresh_inputs(number)  # before the others, as taking and freeing memory in between would slow a call
    times: list[float] = []
    returned = None
    threads.begin_on(number)
    cell.watch.host()
    if most > 1 or lead is not None:
        _lead(cell, lead or 0.0)
    worked, started = cell.watch.eviction.now()
    cell.watch.held()
    while len(times) < most - 1 and sum(times) < seconds:
        del returned  # so that its memory is free for the next call, as in a loop that consumes it
        elapsed, returned = cell.time_call(cell.next_inputs())
        times.append(elapsed)
    if times and cell.result_bytes < SMALL:
        with cell.uncounted():
            cell.copied(returned)  # the first reading in a batch is slow, and the next one is judged
        cell.time_call(cell.next_inputs())  # the first call after anything else is slow too
    del returned
    held = cell.watch.held()[: len(times)]
    elapsed, returned = cell.time_call(fresh, late=last)
    ended, host = cell.watch.eviction.now(), cell.watch.host()
    lasted = ended[1] - started
    working = (ended[0] - worked) / lasted if lasted > 0 else 0.0  # behind a held queue a call may take no time
    with cell.uncounted():
        readback, results = cell.copied(returned)  # at once: a call that returns before it is done is wrong here
        late = readback > max(LATE_SHARE * min([*times, elapsed]), LATE_SECONDS)
        plain = cell.read_plain(returned) if late else 0.0
    by_host = float(np.median(host)) if host else None
    unsettled: tuple[str, ...] = ()
    if last:
        with cell.uncounted():
            time.sleep(SETTLES)
            later = cell.copied(returned)[1]
        unsettled = tuple(name for name in results if not same_bits(results[name], later[name]))
    return Batch(
        "returned",
        seconds=(*times, elapsed),
        readback_seconds=readback,
        plain_seconds=plain,
        cores=working,
        results=results if last else {},
        unsettled=unsettled,
        host_seconds=by_host,
        held=(*held, *cell.watch.held()),
        made=cell.made,
        call_seconds=cell.call_seconds,
        other_seconds=cell.other_seconds + cell.watch.eviction.seconds - evicted,
    )


def _lead(cell: _Cell, enough: float) -> None:
    """Wake the threads of the library, and bring its data into near caches; on a GPU each call finds it idle."""
    seconds = cell.time_call(cell.next_inputs(), idle=True)[0]
    while seconds < enough:
        seconds += cell.time_call(cell.next_inputs(), idle=True)[0]


def change(key: str, changed: Callable[[Function], Function]) -> None:
    """Call another function from now on, which is made from the prepared one.

    Parameters
    ----------
    key
        The name of a cell that this worker has opened.
    changed
        Makes the new function from the prepared one.
    """
    _CELLS[key].run = changed(_CELLS[key].run)


def bare(key: str) -> tuple[Function, list[dict[str, Any]]]:
    """The prepared function of a cell and its input sets, for a loop of one's own.

    Parameters
    ----------
    key
        The name of a cell that this worker has opened.

    Returns
    -------
    tuple[Function, list[dict[str, Any]]]
        The prepared function, and the arguments of each input set by name.
    """
    return _CELLS[key].run, _CELLS[key].inputs


def close_cell(key: str) -> None:
    """Forget a cell, its arrays, and what its library keeps for it.

    A session of ONNX Runtime keeps the memory of its calls, and a run has many: they filled a machine of 24 GiB.

    Parameters
    ----------
    key
        The name of a cell that this worker has opened.
    """
    cell = _CELLS.pop(key, None)
    arrays = cell.arrays if cell else None
    del cell
    if arrays is not None:
        arrays.release()
    gc.collect()
    allocator.trim()


def _attempt(key: str, job: Any) -> Batch:
    """Answer of a job on an open cell; never raises for what the implementation does."""
    if key not in _CELLS:
        return Batch("lost", "the process died between two calls")
    try:
        with _quiet(), allocator.without_gc():
            found: Batch = job(_CELLS[key])
        changed = clocks.replaced() or device_clock.replaced()
        return Batch("clock", changed) if changed else found
    except NotImplementedError as error:
        return Batch("unsupported", text(error))
    except Exception as error:
        return Batch(kind(error), text(error))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a library's warnings are not results
        yield
