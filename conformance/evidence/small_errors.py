r"""Sensitivity of the bounds of layers, gradients and decoding, by central differences of the reference.

An error of a *result* is compared with its bound as it is.  An error of one *operand* (an element of a weight, a bias,
v or grad_output) reaches the results through the whole computation.  To first order a result moves by its derivative
times the error, so that the smallest relative error ε that leaves the bound is the least of

    bound / |x ∂result/∂x|,

the derivative being a central difference of the reference, with an error of STEP² against it.  Of every array the
elements that are largest are tried; it is the one that shows most that counts, so that others could only show more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from attention_conformance.conformance.bounds.sdpa import profiles
from attention_conformance.conformance.cases.base import AnyCase
from attention_conformance.conformance.evidence import sensitivity
from attention_conformance.conformance.evidence.series import Series
from attention_conformance.conformance.evidence.stamp import cases_of
from attention_conformance.conformance.spec.gradients import sdpa_grad
from attention_conformance.conformance.spec.mha import mha, sublayer
from attention_conformance.conformance.spec.mha_gradients import mha_grad
from attention_conformance.impls.contract import Profile

Array = np.ndarray

#: Relative step of the central difference.
STEP = 2.0**-10

#: Elements of one array that are tried, the largest first.
ELEMENTS = 4

#: Cases of more multiplications are left out: each is computed again for every element.
MOST = 20_000

#: Keywords of a call that the references, which always give every result, do not take.
_RESULTS = ("return_weights", "return_lse")

_REFERENCES: Mapping[str, Callable[..., Any]] = {
    "mha": mha,
    "sublayer": sublayer,
    "sdpa_grad": sdpa_grad,
    "mha_grad": mha_grad,
}

#: What can be wrong, by operator: the operands of which one element is, and ("") the results.
QUANTITIES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "mha": {
        "one weight": ("w_q", "w_k", "w_v", "w_o"),
        "one bias": ("b_q", "b_v", "b_o"),
        "output": (),
    },
    "sublayer": {
        "one weight": ("w_q", "w_k", "w_v", "w_o"),
        "one bias": ("b_q", "b_v", "b_o"),
        "gamma or beta": ("gamma", "beta"),
        "output": (),
    },
    "sdpa_grad": {"one value": ("v",), "one of grad_output": ("grad_output",), "one gradient": ()},
    "mha_grad": {
        "one weight": ("w_q", "w_k", "w_v", "w_o"),
        "one bias": ("b_q", "b_v"),
        "one of grad_output": ("grad_output",),
        "one gradient": (),
    },
}


@dataclass(frozen=True)
class Place:
    """One input: its operands and other keywords, in float64, and the results that it returns."""

    case: AnyCase
    dtype: str

    def results(self, changed: Mapping[str, Array]) -> dict[str, Array]:
        """The results with other operands."""
        x = self.case.inputs(self.dtype)
        given = {n: a for n, a in {**x.arrays, **x.keywords}.items() if n not in _RESULTS}
        wide = {n: a.astype(np.float64) if _is_float(a) else a for n, a in {**given, **changed}.items()}
        with np.errstate(all="ignore"):
            found = _REFERENCES[self.case.operator](**wide)
        return {name: getattr(found, name) for name in self.case.results()}

    def operand(self, name: str) -> Array | None:
        """An operand in float64, or None."""
        x = self.case.inputs(self.dtype)
        array = {**x.arrays, **x.keywords}.get(name)
        return None if array is None else array.astype(np.float64)


def _is_float(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind not in "biu"


def slopes(place: Place, names: tuple[str, ...]) -> Iterator[dict[str, Array]]:
    """|x ∂result/∂x| of every result, for each of the largest elements of some operands."""
    for name in names:
        array = place.operand(name)
        if array is None or not array.size:
            continue
        for at in np.argsort(-np.abs(array), axis=None, kind="stable")[:ELEMENTS]:
            if not array.flat[at]:
                break
            up, down = (place.results({name: _with(array, int(at), 1 + sign * STEP)}) for sign in (1, -1))
            yield {result: np.abs(up[result] - down[result]) / (2 * STEP) for result in up}


def _with(array: Array, at: int, factor: float) -> Array:
    other = array.copy()
    other.flat[at] *= factor
    return other


def caught(place: Place, moved: list[dict[str, Array]], profile: Profile) -> float:
    """The smallest relative error that leaves the bound of any result, infinity if none up to 1 does."""
    limit = place.case.bound(place.dtype, profile)
    most = 0.0
    for each in moved:
        for name, array in each.items():
            bound = getattr(limit, name)
            seen = np.isfinite(array) & (array > 0) & np.isfinite(bound)
            ratio = np.divide(array, bound, out=np.zeros(array.shape), where=seen & (bound > 0))
            most = max(most, float(ratio.max(initial=0.0)))
    return 1 / most if most > 1 else np.inf


def value_cases(series: Series, dtype: str) -> list[AnyCase]:
    """The suite's cases of a series and dtype that have a finite result to be wrong."""
    return [c for c in cases_of(series) if dtype in c.dtypes and not c.invalid and not c.zeros and c.size[0] <= MOST]


def rows(series: Series) -> list[dict[str, Any]]:
    """For every dtype, profile and quantity: the smallest error that is caught on any case, and the median."""
    if series.operator == "sdpa":
        return sensitivity.rows({case.name for case in cases_of(series)})
    found = []
    for dtype in sensitivity.DTYPES:
        places = [Place(case, dtype) for case in value_cases(series, dtype)]
        for quantity, names in QUANTITIES[series.operator].items():
            moved = [_moved(place, names) for place in places]
            for profile in profiles(dtype):
                errors = {p.case.name: caught(p, m, profile) for p, m in zip(places, moved, strict=True) if m}
                found.append(sensitivity.row(dtype, profile, quantity, errors))
    return sorted(found, key=lambda row: sensitivity.DTYPES.index(row["dtype"]))


def _moved(place: Place, names: tuple[str, ...]) -> list[dict[str, Array]]:
    """How far results move per relative error, for each thing that may be wrong; none where the case has none of it."""
    if names:
        return list(slopes(place, names))
    return [{name: np.abs(array) for name, array in place.results({}).items()}]
