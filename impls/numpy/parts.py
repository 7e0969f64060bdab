"""Parts that the written-out NumPy implementations share: working precision, and values that are not finite."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

import ml_dtypes  # noqa: F401  (registers bfloat16 with NumPy)
import numpy as np

from attention_conformance.impls.validate import check_past

#: The dtype computed in, by the dtype of q: half precision is computed in float32 and rounded once, at the end.
WORKING: dict[str, type[np.floating[Any]]] = {
    "float64": np.float64,
    "float32": np.float32,
    "float16": np.float32,
    "bfloat16": np.float32,
}


@functools.cache  # the name of a dtype takes as long as a check of all inputs
def working_dtype(dtype: np.dtype) -> type[np.floating[Any]]:
    """The dtype to compute in.

    Parameters
    ----------
    dtype
        Dtype of q, k and v.

    Returns
    -------
    type[np.floating[Any]]
        float64 for float64, float32 for all others.

    Raises
    ------
    TypeError
        For a dtype that is not a floating-point one of the spec.
    """
    try:
        return WORKING[str(dtype)]
    except KeyError:
        raise TypeError(f"q, k and v must have one of the dtypes {', '.join(WORKING)}, got {dtype}") from None


def split_scale(scale: float | None, width: int) -> tuple[float, float]:
    """The factors for q before q · k, and for the scores after it; None is 1/√width (SDPA-3).

    The scale goes to the side on which it cannot overflow where the scaled score does not (SDPA-26): a
    factor of at most 1 to q, a larger one to the scores.

    Parameters
    ----------
    scale
        Factor of q · k.
    width
        D, the width of q and k.

    Returns
    -------
    tuple[float, float]
        For q, and for the scores; their product is the scale.
    """
    if scale is None:
        scale = 1 / math.sqrt(width) if width else 1.0
    return (scale, 1.0) if abs(scale) <= 1 else (1.0, scale)


def finite_part(v: np.ndarray) -> np.ndarray:
    """The values with zeros for NaN and infinities, which ``add_special`` adds separately.

    Parameters
    ----------
    v
        Values of any shape.

    Returns
    -------
    np.ndarray
        A new array, in the shape and dtype of v.
    """
    return np.where(np.isfinite(v), v, v.dtype.type(0))


def special_places(v: np.ndarray) -> Iterator[tuple[float, np.ndarray]]:
    """NaN, +inf and −inf, each with 1.0 where v holds it and 0.0 elsewhere; those that v does not hold are left out."""
    for value, where in ((np.nan, np.isnan(v)), (np.inf, v == np.inf), (-np.inf, v == -np.inf)):
        if where.any():
            yield value, where.astype(v.dtype)


def add_special(output: np.ndarray, allowed: np.ndarray, v: np.ndarray) -> None:
    """Add to ``output`` (…, Sq, Dv), in place, the NaN and infinite values of allowed keys (SDPA-22, SDPA-23).

    In a plain product such a value would reach every row as 0 · NaN, masked or not; and one whose weight has
    underflowed to zero must still be seen.

    Parameters
    ----------
    output
        (…, Sq, Dv), changed.
    allowed
        (…, Sq, Sk), boolean: the keys that each row may attend to.
    v
        (…, Sk, Dv), with its NaN and infinities.
    """
    for value, where in special_places(v):
        reached = np.matmul(allowed.astype(v.dtype), where) > 0
        np.add(output, value, out=output, where=reached)


def with_past(
    k: np.ndarray,
    v: np.ndarray,
    causal_offset: int | np.ndarray | None,
    past_key: np.ndarray | None,
    past_value: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray, int | np.ndarray, list[np.ndarray]]:
    """All keys and values, the offset of the diagonal, and the present, if any (DEC-1 to DEC-3).

    Raises ValueError or TypeError for a past that does not fit (DEC-7).
    """
    if past_key is None and past_value is None:
        return k, v, 0 if causal_offset is None else causal_offset, []
    check_past(k, v, past_key, past_value)
    assert past_key is not None
    assert past_value is not None
    k, v = np.concatenate([past_key, k], axis=2), np.concatenate([past_value, v], axis=2)
    return k, v, past_key.shape[2] if causal_offset is None else causal_offset, [k, v]
