"""One side of a duet, in its own process: opens cells, plays a few milliseconds of one, and hands back results.

Everything that crosses the process border is plain (strings, numbers, NumPy arrays), and its form has a number, so
that a revision can play against an older one whose own classes differ.
"""

from __future__ import annotations

import functools
import gc
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from conformance.targets import Pool, Selection, Target, choose
from impls.backend import Backend, backend
from impls.calls import Request, arguments, collect, prepared
from impls.contract import Call
from impls.loading import opened

#: Raised by one when what crosses the process border changes.
FORM = 1

#: Keyword arguments of one call, as NumPy arrays and plain values: those with a position, and the others.
Inputs = tuple[dict[str, np.ndarray], dict[str, Any]]


@dataclass
class _Cell:
    run: Callable[..., Any]
    inputs: list[dict[str, Any]]
    specification: Call
    target: Target
    arrays: Backend
    #: Share of each call that is spent once more, waiting: an injected slowdown.
    slowdown: float
    calls: int = 0
    returned: Any = None
    last: int = 0

    def call(self) -> float:
        """Seconds of one call, on the next input set."""
        device = self.specification.device
        self.last = self.calls % len(self.inputs)
        native = self.inputs[self.last]
        self.returned = None  # so that its memory is free, as in a loop that uses it up
        self.arrays.synchronize(device)
        started = time.perf_counter()
        self.returned = self.run(**native)
        self.arrays.synchronize(device)
        elapsed = time.perf_counter() - started
        if self.slowdown:
            while time.perf_counter() - started < elapsed * (1 + self.slowdown):
                pass
            elapsed = time.perf_counter() - started
        self.calls += 1
        return elapsed

    def results(self) -> dict[str, np.ndarray]:
        """What the last call returned, by name."""
        implementation = self.target.implementation
        layouts = (implementation.layout, self.arrays, implementation.layout_of_past)
        return collect(self.returned, self.specification, *layouts)


@dataclass
class _Stage:
    cells: dict[str, _Cell] = field(default_factory=dict)


_STAGE = _Stage()


def form() -> int:
    """The number of the form that this side speaks."""
    return FORM


def cast(patterns: list[str], device: str, dtype: str) -> dict[str, Any]:
    """What this side can play: ``versions`` and, by implementation, operator, keywords, process and profile."""
    found = _chosen(tuple(patterns), device, dtype)
    players = {
        target.implementation.name: {
            "operator": target.implementation.operator,
            "keywords": sorted(found.keywords[target.implementation.name]),
            "process": target.implementation.process,
            "profile": target.implementation.profile(dtype).value,
        }
        for target in found.targets
    }
    missing = {name: list(packages) for name, packages in found.not_installed.items()}
    return {"players": players, "versions": found.versions, "not_installed": missing}


def begin(key: str, what: str, device: str, dtype: str, inputs: list[Inputs], slowdown: float = 0.0) -> dict[str, Any]:
    """Open a cell: prepare the implementation named ``what`` and call it once on each input set.

    Returns ``status`` ("returned", "unsupported", "raised"), ``text``, ``results`` of the first set, and ``seconds``
    of the fastest of the calls, which are warm but for the first.
    """
    target = next(t for t in _chosen((what,), device, dtype).targets if t.implementation.name == what)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a library's remarks are not results
            cell = _opened(target, inputs, slowdown)
            cell.call()
            results = cell.results()
            seconds = min(cell.call() for _ in inputs)
    except NotImplementedError as error:
        return {"status": "unsupported", "text": str(error)}
    except Exception as error:
        return {"status": "raised", "text": f"{type(error).__name__}: {str(error)[:300]}"}
    _STAGE.cells[key] = cell
    return {"status": "returned", "text": "", "results": results, "seconds": seconds}


def turn(key: str, seconds: float) -> list[float]:
    """Seconds of each of the calls of one turn: one at least, and until ``seconds`` are used up."""
    cell = _STAGE.cells[key]
    collecting = gc.isenabled()
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            times = [cell.call()]
            while sum(times) < seconds:
                times.append(cell.call())
            return times
    finally:
        if collecting:
            gc.enable()


def end(key: str) -> dict[str, Any]:
    """Close a cell.  Returns the ``results`` of its last call and the number of the ``set`` that they are of."""
    cell = _STAGE.cells.pop(key)
    found = {"results": cell.results(), "set": cell.last}
    del cell
    gc.collect()
    return found


def _opened(target: Target, inputs: list[Inputs], slowdown: float) -> _Cell:
    implementation = target.implementation
    requests = [Request(target.device, arrays, keywords) for arrays, keywords in inputs]
    given = [arguments(implementation, request) for request in requests]
    specification = given[0][2]
    run = prepared(implementation, opened(implementation), specification)
    native = [arrays for _, arrays, _ in given]
    return _Cell(run, native, specification, target, backend(implementation.framework), slowdown)


@functools.cache
def _chosen(patterns: tuple[str, ...], device: str, dtype: str) -> Selection:
    return choose(patterns, [device], [dtype], Pool(in_process=True))
