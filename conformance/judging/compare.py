"""Comparison of a result with the reference, within its bound: the worst element, and where the wrong ones are.

It only compares; message.py makes the text.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from attention_conformance.conformance.bounds.sdpa import LARGEST


@dataclass(frozen=True)
class Comparison:
    """Comparison of one result.  ``share`` is the worst error/bound (inf where the class is wrong)."""

    name: str
    ok: bool
    share: float
    #: Elements compared and elements outside the bound.
    total: int
    wrong: int
    #: The worst element: its index, what was expected there, what came, and the bound.
    index: tuple[int, ...] = ()
    expected: float = 0.0
    got: float = 0.0
    bound: float = 0.0
    #: Where the wrong elements lie: per axis, the indices that have one.
    where: tuple[tuple[int, ...], ...] = ()
    #: Which elements are outside the bound, in the result's shape.
    outside: np.ndarray = field(default_factory=lambda: np.zeros(0, bool), repr=False, compare=False)
    #: The shape of the whole result, where a part of it is compared; ``index`` and ``where`` then refer to the whole.
    whole: tuple[int, ...] = ()


def compare(name: str, got: np.ndarray, expected: np.ndarray, bound: np.ndarray, dtype: str) -> Comparison:
    """Compare element by element.  Shapes must be equal; ``dtype`` is the one the result is stored in.

    Where the reference is NaN or infinite the result must be of the same class.  A result may be infinite
    where the reference, give or take its bound, is beyond the dtype's largest number.

    Parameters
    ----------
    name
        Name of the result, such as "output".
    got
        The result, of any shape and dtype.
    expected
        The reference, float64, of the same shape.
    bound
        Allowed |got − expected|, absolute, of the same shape.
    dtype
        Storage dtype of the result.

    Returns
    -------
    Comparison
        The worst share, and where the wrong elements are.
    """
    with np.errstate(invalid="ignore"):  # uninitialised memory may hold signalling NaN
        got = got.astype(np.float64)
    share = shares(got, expected, bound, dtype)
    outside = ~(share <= 1)
    if not share.size:
        return Comparison(name, True, 0.0, 0, 0, outside=outside)
    worst = np.unravel_index(int(np.argmax(share)), share.shape)
    return Comparison(
        name,
        ok=not outside.any(),
        share=float(share[worst]),
        total=share.size,
        wrong=int(outside.sum()),
        index=tuple(int(i) for i in worst),
        expected=float(expected[worst]),
        got=float(got[worst]),
        bound=float(bound[worst]),
        where=_where(outside),
        outside=outside,
    )


def _where(outside: np.ndarray) -> tuple[tuple[int, ...], ...]:
    """Per axis, the indices that have an element outside."""
    if not outside.any():  # as in most results: saves time
        return ((),) * outside.ndim
    others = (tuple(a for a in range(outside.ndim) if a != axis) for axis in range(outside.ndim))
    return tuple(tuple(np.flatnonzero(outside.any(axis=rest)).tolist()) for rest in others)


def shares(got: np.ndarray, expected: np.ndarray, bound: np.ndarray, dtype: str) -> np.ndarray:
    """error/bound for every element; inf where one is finite and the other is not, or the class differs.

    Parameters
    ----------
    got
        The result, of any shape and dtype.
    expected
        The reference, float64, of the same shape.
    bound
        Allowed |got − expected|, absolute, of the same shape.
    dtype
        Storage dtype of the result.

    Returns
    -------
    np.ndarray
        Error ÷ bound, float64, in the shape of ``got``.
    """
    with np.errstate(all="ignore"):
        error = np.abs(got - expected)
        share = np.where(error == 0, 0.0, error / bound)
        same = np.where(np.isnan(expected), np.isnan(got), got == expected)
        overflow = (np.abs(expected) + bound > LARGEST[dtype]) & (np.isinf(got)) & (np.sign(got) == np.sign(expected))
    share = np.where(np.isfinite(expected), share, np.where(same, 0.0, np.inf))
    share = np.where(overflow, 0.0, share)
    return np.where(np.isnan(share), np.inf, share)
