"""Error patterns: a wrong result that is NaN, infinite, zero or the mean of the values throughout."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attention_conformance.conformance.spec.sdpa import Expected

#: Distance from a known wrong output, relative to the largest value, below which an output gets its name.
#: Far above any rounding in half precision (2^-8), far below a difference that matters.
CLOSENESS = 0.02


def error_pattern(got: np.ndarray, expected: Expected, wrong: np.ndarray) -> str:
    """One word or phrase for the wrong elements of an output, or "" if they look like nothing known.

    Parameters
    ----------
    got
        The output (B, Hq, Sq, Dv).
    expected
        The reference.
    wrong
        Whether each of its elements is outside the bound.

    Returns
    -------
    str
        A pattern, such as "NaN" or "the mean of v".
    """
    found = plain(got, wrong)
    return found or ("the mean of v" if np.all(_mean(got.astype(np.float64), expected)[wrong]) else "")


def plain(got: np.ndarray, wrong: np.ndarray) -> str:
    """Error pattern of any result of any operator: NaN, infinities or zeros, or "".

    Parameters
    ----------
    got
        The result, of any shape.
    wrong
        Whether each of its elements is outside the bound.

    Returns
    -------
    str
        A pattern, such as "NaN", "zeros" or "".
    """
    got = got.astype(np.float64)
    return next((name for name, known in _PLAIN.items() if np.all(known(got)[wrong])), "")


def _near(got: np.ndarray, value: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        size = np.max(np.abs(value[np.isfinite(value)]), initial=0.0)
        return np.abs(got - value) <= CLOSENESS * size


def _mean(got: np.ndarray, expected: Expected) -> np.ndarray:
    if expected.v.shape[2] == 0:
        return np.zeros(got.shape, bool)
    return _near(got, np.broadcast_to(expected.v.mean(2, keepdims=True), got.shape))


_PLAIN: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "NaN": np.isnan,
    "infinity": np.isinf,
    "zeros": lambda got: got == 0,
}
