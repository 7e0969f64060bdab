"""The elements of a result that a script checks: the worst ones, with what is expected there and the error bound."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from conformance.bounds import LARGEST
from conformance.cases import AnyCase
from conformance.judging.compare import shares
from impls.calls import Reply
from impls.contract import Profile

#: Elements that a script checks.
CHECKED = 8


@dataclass(frozen=True)
class Element:
    """One element of one result."""

    result: str
    index: tuple[int, ...]
    expected: float
    got: float
    #: How far it may be from what is expected; 0 where NaN or an infinity is.
    bound: float
    #: Whether the dtype's largest number lies within the bound, so that it may be infinite.
    may_overflow: bool = False


def worst_elements(
    reply: Reply, case: AnyCase, dtype: str, profile: Profile, *, wrong: bool = True, count: int = CHECKED
) -> tuple[Element, ...]:
    """The worst elements of the first result that has wrong ones, worst first; () if none has.

    With ``wrong=False`` those of the first result, wrong or not.
    """
    expected, bound = case.expected(dtype), case.bound(dtype, profile)
    for name in case.results() if wrong else case.results()[:1]:
        stored = dtype if name != "lse" else "float64" if dtype == "float64" else "float32"
        got, wanted, limit = reply.results[name].astype(np.float64), getattr(expected, name), getattr(bound, name)
        share = shares(got, wanted, limit, stored).ravel()
        order = np.argsort(-share, kind="stable")[:count]
        chosen = [np.unravel_index(i, got.shape) for i in order if not (wrong and share[i] <= 1)]
        if chosen:
            return tuple(_element(name, place, got, wanted, limit, LARGEST[stored]) for place in chosen)
    return ()


def _element(
    name: str, place: tuple[np.intp, ...], got: np.ndarray, wanted: np.ndarray, limit: np.ndarray, largest: float
) -> Element:
    expected, bound = float(wanted[place]), float(limit[place])
    if not math.isfinite(expected):
        bound = 0.0
    overflow = math.isfinite(expected) and abs(expected) + bound > largest
    return Element(name, tuple(int(i) for i in place), expected, float(got[place]), bound, overflow)
