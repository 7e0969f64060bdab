"""NumPy arrays: handed over as they are, bfloat16 as ``ml_dtypes.bfloat16``."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from impls.state import Setting


def devices() -> tuple[str, ...]:
    """NumPy computes on the CPU."""
    return ("cpu",)


def put(array: np.ndarray, device: str) -> np.ndarray:
    """The array itself: it was made for this call alone."""
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


def versions() -> dict[str, str]:
    """NumPy's version and the one of the package that holds bfloat16."""
    return {"numpy": np.__version__, "ml_dtypes": ml_dtypes.__version__}


def settings() -> tuple[Setting, ...]:
    """None but those of every process, which has NumPy's (impls.process)."""
    return ()
