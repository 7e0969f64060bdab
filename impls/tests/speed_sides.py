"""The two sides of a comparison of speed, in the processes that hold them: opened, called in turns, closed.

What is called is an implementation by its own record, as everywhere, or a function of impls.tests.by_hand.  Nothing
but the call lies between two readings of the clock.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from impls import calls
from impls.backend import backend
from impls.calls import Request
from impls.contract import Implementation
from impls.loading import load, opened
from impls.process import threads

#: B, H and D of every problem.
BATCH, HEADS, WIDTH = 1, 8, 64

#: Calls before the first turn.  A session of ONNX Runtime takes the memory of all its intermediate results in its
#: second one, page by page, which at S = 2048 takes several times as long as a call (its memory pattern).
WARM = 3

#: The calls that are open in this process, by side.
_OPEN: dict[str, Callable[[], Any]] = {}


def open_implementation(side: str, implementation: Implementation, length: int, causal: bool) -> np.ndarray:
    """Prepare an implementation's own call; gives its result (B, H, S, D)."""
    keywords = {"is_causal": True} if causal else {}
    request = Request.qkv("cpu", *_problem(length), keywords=keywords)
    arrays = backend(implementation.framework)
    _, native, specification = calls.arguments(implementation, request)
    prepared = calls.prepared(implementation, opened(implementation), specification)

    def run() -> Any:
        returned = prepared(**native)
        arrays.wait(returned)
        return returned

    return calls.collect(_open(side, run), specification, implementation.layout, arrays)["output"]


def open_by_hand(side: str, function: str, length: int, causal: bool) -> np.ndarray:
    """Make the call of a ``module:function`` that is written as those of impls.tests.by_hand; gives its result."""
    run, read = load(function)(*_problem(length), causal)
    return np.array(read(_open(side, run)))


def _open(side: str, run: Callable[[], Any]) -> Any:
    """Keep a call, and warm it; what it returned last."""
    _OPEN[side] = run
    for _ in range(WARM - 1):
        run()
    return run()


def turn(side: str, seconds: float, number: int) -> float:
    """Milliseconds of a call: the median of those that fit into so many seconds, of one at least.

    The number says on which core they begin (impls.process.threads).
    """
    threads.begin_on(number)
    run = _OPEN[side]
    taken: list[float] = []
    end = time.perf_counter() + seconds
    while not taken or time.perf_counter() < end:
        started = time.perf_counter()
        run()
        taken.append(time.perf_counter() - started)
    return 1e3 * statistics.median(taken)


def close(side: str) -> None:
    """Let go of a call and its arrays."""
    del _OPEN[side]


def _problem(length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """q, k and v, the same in every process."""
    shape = (BATCH, HEADS, length, WIDTH)
    q, k, v = np.random.default_rng(0).standard_normal((3, *shape), dtype=np.float32)
    return q, k, v
