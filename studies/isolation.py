"""Isolation: the cost, for a small case, of running implementations in a worker.

The same call is made in a worker and in this process, in turns; *worker* is the difference of the medians: sending
the inputs and the results, and waking the other process.  *watching* is the time to check the process's state, printing
and warnings around a call that does nothing.  *isolation* is the sum.

On a busy machine a process that is woken waits for a core; *computed* is the processor time of both processes for
isolation, which contains no waiting.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from attention_conformance.impls import calls
from attention_conformance.impls.backend import backend
from attention_conformance.impls.contract import Implementation
from attention_conformance.impls.process import state
from attention_conformance.impls.process.limits import default
from attention_conformance.impls.process.noise import Noise
from attention_conformance.impls.process.pool import Worker
from attention_conformance.impls.process.state import Watch
from attention_conformance.impls.select import select
from studies.common import Measured, Study, markdown

#: Calls of each kind, and uncounted calls before them: frameworks compile at the first, and settle.
CALLS, FIRST = 500, 50

#: A small case: the shapes of "plain".
SHAPES = ((2, 2, 5, 8), (2, 2, 7, 8), (2, 2, 7, 8))

#: The quickest implementation of each framework that needs nothing else.
NAMES = ("numpy-eager", "torch-sdpa", "jax-jit", "onnx-attention23")


def measure() -> dict[str, Any]:
    """The costs by implementation, in seconds."""
    selected = [one for name in NAMES for one in select([name]) if not one.missing()]
    return {"costs": {one.name: _costs(one) for one in selected}, "threads": 1}


def table(found: Measured) -> str:
    """Markdown: a line for each implementation."""
    rows = [[name, *(f"{1e3 * seconds:.3f} ms" for seconds in costs)] for name, costs in found["costs"].items()]
    heads = ("implementation", "in this process", "in a worker", "worker", "watching", "isolation", "computed")
    return f"medians of {CALLS} calls of a case with q {SHAPES[0]} in float32, in turns\n\n{markdown(heads, rows)}"


def _costs(implementation: Implementation) -> tuple[float, ...]:
    rng = np.random.default_rng(0)
    request = calls.Request.qkv("cpu", *(rng.standard_normal(shape).astype(np.float32) for shape in SHAPES))
    worker = Worker(memory=default())

    def here() -> object:
        return calls.call(implementation, request)

    def there() -> object:
        return worker.call("attention_conformance.impls.calls:call", implementation, request, timeout=300)

    def around_nothing() -> None:
        with Watch((*state.settings(), *backend(implementation.framework).settings())), Noise():
            pass

    def processor_time() -> float:
        return time.process_time() + float(worker.call("time:process_time"))

    try:
        alone, isolated, watching = _medians(here, there, around_nothing)
        computed = [_mean(each, processor_time) for each in (here, there, around_nothing)]
    finally:
        worker.close()
    isolation = isolated - alone + watching
    return alone, isolated, isolated - alone, watching, isolation, computed[1] - computed[0] + computed[2]


def _medians(*kinds: Callable[[], object]) -> list[float]:
    """The median seconds of each, called in turns, so that a slow moment of the machine affects all."""
    seconds: list[list[float]] = [[] for _ in kinds]
    for number in range(FIRST + CALLS):
        for kind, call in enumerate(kinds):
            started = time.perf_counter()
            call()
            if number >= FIRST:
                seconds[kind].append(time.perf_counter() - started)
    return [statistics.median(each) for each in seconds]


def _mean(call: Callable[[], object], clock: Callable[[], float]) -> float:
    """The mean of a call by a clock that is too slow to be read around each call."""
    started = clock()
    for _ in range(CALLS):
        call()
    return (clock() - started) / CALLS


STUDY = Study("isolation", "what isolation costs a small case", measure, {"": table})
