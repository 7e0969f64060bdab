"""What the worker process does for the bench: open a cell, sample it in chunks, close it.

A cell is one implementation with a few input sets on its device, prepared to be called.  It stays here
between the jobs, so that arrays are sent once, and nothing but the call itself lies between two readings
of the clock.
"""

from __future__ import annotations

import contextlib
import gc
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from impls.backend import Backend, backend
from impls.calls import TRACEBACK_LINES, Request, arguments, collect, prepared
from impls.contract import Call, Function, Implementation
from impls.loading import opened

#: What libraries say that have no exception of their own for it: XLA, PyTorch's CPU allocator, ONNX Runtime.
OUT_OF_MEMORY = ("RESOURCE_EXHAUSTED", "DefaultCPUAllocator: can't allocate memory", "Failed to allocate memory")


@dataclass(frozen=True)
class Plan:
    """When to stop: after ``rounds`` calls and ``seconds`` of them, or after ``most`` calls."""

    rounds: int = 5
    seconds: float = 0.5
    most: int = 500
    #: Seconds that ``rounds`` calls may be predicted to take; a cell above it is not sampled.
    limit: float = 5.0


@dataclass(frozen=True)
class Opened:
    """The first call of a cell, on its first input set.  ``status`` as in impls.calls.Reply, or "memory" if it ran out.

    ``results`` are by name, in layout (B, H, S, D); ``peak_bytes`` is what the process grew by during the first call.
    ``held_bytes`` is what it held at most since this cell was opened beyond what it held before the first cell of all,
    without this cell's inputs: a library may keep what an earlier call or its preparation took, and then takes it
    from there, so that growth alone would tell too little.  Both are None where the system does not tell and on other
    devices than the CPU.
    """

    status: str
    text: str = ""
    trace: str = ""
    results: dict[str, np.ndarray] = field(default_factory=dict)
    prepare_seconds: float = 0.0
    first_call_seconds: float = 0.0
    peak_bytes: int | None = None
    held_bytes: int | None = None


@dataclass(frozen=True)
class Samples:
    """Seconds of each call, in order.  ``status`` is one of Opened's, or "over" if the plan's limit forbids sampling.

    ``results`` are what the last call returned, on input set ``last``; ``predicted`` are the seconds of the plan's
    least number of rounds, by the warm calls.
    """

    status: str
    text: str = ""
    seconds: tuple[float, ...] = ()
    predicted: float = 0.0
    last: int = 0
    results: dict[str, np.ndarray] = field(default_factory=dict)


@dataclass
class _Cell:
    run: Function
    inputs: list[dict[str, Any]]
    specification: Call
    implementation: Implementation
    arrays: Backend

    def time_call(self, index: int) -> tuple[float, Any]:
        """Seconds of one call on an input set, and what it returned."""
        native, device = self.inputs[index], self.specification.device
        self.arrays.synchronize(device)
        started = time.perf_counter()
        returned = self.run(**native)
        self.arrays.synchronize(device)
        return time.perf_counter() - started, returned

    def results(self, returned: Any) -> dict[str, np.ndarray]:
        return collect(returned, self.specification, self.implementation.layout, self.arrays)


_CELLS: dict[str, _Cell] = {}

#: What the process held before its first cell.
_START: list[int] = []


def open_cell(key: str, implementation: Implementation, requests: tuple[Request, ...]) -> Opened:
    """Put the input sets on the device, prepare, and call once.  Never raises for what the implementation does.

    ``requests`` differ in the values of their arrays alone.
    """
    try:
        with _quiet():
            return _open(key, implementation, requests)
    except NotImplementedError as error:
        return Opened("unsupported", _text(error))
    except Exception as error:
        trace = "".join(traceback.format_exception(error)[-TRACEBACK_LINES:])
        return Opened(_kind(error), _text(error), trace)


def _open(key: str, implementation: Implementation, requests: tuple[Request, ...]) -> Opened:
    arrays = backend(implementation.framework)
    function = opened(implementation)
    held = _growth(requests[0].device, since_start=True)
    given = [arguments(implementation, request) for request in requests]
    specification = given[0][2]
    started = time.perf_counter()
    run = prepared(implementation, function, specification)
    prepare_seconds = time.perf_counter() - started
    cell = _Cell(run, [native for _, native, _ in given], specification, implementation, arrays)
    prepared_bytes = held()
    grown = _growth(specification.device)
    first_call_seconds, returned = cell.time_call(0)
    peak_bytes, called_bytes = grown(), held()
    results = cell.results(returned)
    _CELLS[key] = cell
    held_bytes = _beyond(prepared_bytes, called_bytes, sum(a.nbytes for native, _, _ in given for a in native.values()))
    return Opened("returned", "", "", results, prepare_seconds, first_call_seconds, peak_bytes, held_bytes)


def sample(key: str, plan: Plan) -> Samples:
    """One chunk of samples of an open cell, taken in turn over its input sets after one warm call of each.

    The last sample is of another set than the first one, whose output was seen when the cell was opened:
    a function that returns what it computed before is caught.  Never raises for what the implementation does.
    """
    cell = _CELLS[key]
    try:
        with _quiet(), _without_gc():
            return _sample(cell, plan)
    except NotImplementedError as error:
        return Samples("unsupported", _text(error))
    except Exception as error:
        return Samples(_kind(error), _text(error))


def _sample(cell: _Cell, plan: Plan) -> Samples:
    sets = len(cell.inputs)
    predicted = min(cell.time_call(index)[0] for index in range(sets)) * plan.rounds
    if predicted > plan.limit:
        return Samples("over", predicted=predicted)
    seconds, last, returned = rounds(cell.time_call, sets, plan)
    return Samples("returned", "", tuple(seconds), predicted, last, cell.results(returned))


def rounds(time_call: Callable[[int], tuple[float, Any]], sets: int, plan: Plan) -> tuple[list[float], int, Any]:
    """Seconds of each call, the input set of the last one, and what that returned."""
    seconds: list[float] = []
    total = 0.0
    while True:
        index = len(seconds) % sets
        elapsed, returned = time_call(index)
        seconds.append(elapsed)
        total += elapsed
        enough = len(seconds) >= plan.rounds and (total >= plan.seconds or len(seconds) >= plan.most)
        if enough and (index or sets == 1):
            return seconds, index, returned
        del returned  # so that its memory is free for the next call, as in a loop that uses it up


def close_cell(key: str) -> None:
    """Forget a cell and its arrays."""
    _CELLS.pop(key, None)
    gc.collect()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a library's remarks are not results
        yield


@contextlib.contextmanager
def _without_gc() -> Iterator[None]:
    gc.collect()
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _beyond(prepared: int | None, called: int | None, inputs: int) -> int | None:
    """The larger of two peaks without the inputs, which are counted by their sizes."""
    return None if prepared is None or called is None else max(max(prepared, called) - inputs, 0)


def _growth(device: str, since_start: bool = False) -> Callable[[], int | None]:
    """A function that says how many bytes this process has held, at most, since now, beyond what it holds now.

    With ``since_start`` beyond what it held before its first cell.  Linux keeps the peak of the resident set and lets
    a process reset its own; the function tells of the time since the last reset.
    """
    if device != "cpu":
        return lambda: None
    try:
        Path("/proc/self/clear_refs").write_text("5")
        before = _status("VmRSS")
        if since_start:
            _START[:] = _START or [before]
            before = _START[0]
    except (OSError, KeyError):
        return lambda: None
    return lambda: max(_status("VmHWM") - before, 0)


def _status(field: str) -> int:
    """A field of /proc/self/status that is given in kB, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int({line.split(":")[0]: line.split()[1] for line in lines if line.endswith(" kB")}[field]) * 1024


def _kind(error: BaseException) -> str:
    """The status "memory" for what libraries raise when an array does not fit, else "raised"."""
    short = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    short = short or any(text in str(error) for text in OUT_OF_MEMORY)
    return "memory" if short else "raised"


def _text(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [""]
    kind = "" if isinstance(error, NotImplementedError) else f"{type(error).__name__}: "
    return f"{kind}{lines[0][:300]}"
