"""NumPy arrays: passed unchanged, bfloat16 as ``ml_dtypes.bfloat16``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np

from attention_conformance.impls.process.state import Setting
from attention_conformance.impls.process.threads import usable_cores


def devices() -> tuple[str, ...]:
    """NumPy computes on the CPU."""
    return ("cpu",)


def put(array: np.ndarray, device: str) -> np.ndarray:
    """The array itself: it was made for this call only."""
    return array


def get(array: Any) -> np.ndarray:
    """The array itself; a NumPy scalar becomes a rank-0 array.

    Raises TypeError for anything else, so that a list or another framework's tensor is not mistaken
    for a result.
    """
    if not isinstance(array, (np.ndarray, np.generic)):
        raise TypeError(f"expected a NumPy array, got {type(array).__module__}.{type(array).__qualname__}")
    return np.asarray(array)


def synchronize(device: str) -> None:
    """NumPy is synchronous."""


def wait(returned: Any) -> None:
    """NumPy is synchronous."""


def matmul(a: np.ndarray, b: np.ndarray) -> Callable[[], np.ndarray]:
    """A product into one array, so that no memory is taken."""
    return functools.partial(np.matmul, a, b, out=np.empty((a.shape[0], b.shape[1]), a.dtype))


def copy(array: np.ndarray) -> Callable[[], np.ndarray]:
    """A copy into one array, by as many threads as there are usable cores, as one core seldom fills the memory bus."""
    workers = usable_cores()
    pool, target = ThreadPoolExecutor(workers), np.zeros_like(array)
    parts = list(zip(np.array_split(target, workers), np.array_split(array, workers), strict=True))

    def run() -> np.ndarray:
        for started in [pool.submit(np.copyto, *part) for part in parts]:
            started.result()
        return target

    return run


def events(device: str) -> None:
    """NumPy is synchronous."""


def cache_bytes(device: str) -> None:
    """NumPy does not report it."""


def memory(device: str) -> None:
    """NumPy does not count it."""


def release() -> None:
    """NumPy keeps nothing."""


def versions() -> dict[str, str]:
    """NumPy's version and the one of the package that holds bfloat16."""
    return {"numpy": np.__version__, "ml_dtypes": ml_dtypes.__version__}


def settings() -> tuple[Setting, ...]:
    """No further settings: those of every process include NumPy's (impls.process)."""
    return ()
