r"""Sensitivity of the bounds: the smallest relative error of one quantity that leaves the bound of a case.

Everything else is exact, so only the bound is measured.  To first order a result moves by its derivative times the
error, so that the smallest relative error of x that leaves the bound is the least of bound / |x ∂result/∂x|.

For attention the derivatives are known: for a row with the weights p and the output o

    ∂p_j/∂s_m = p_j ([j = m] − p_m),   ∂o/∂s_m = p_m (v_m − o),   ∂lse/∂s_m = p_m.

For layers and gradients an *operand* is wrong, one element of a weight, a bias, v or grad_output, and its error runs
through the whole computation: the derivative is a central difference of the reference, with a relative error of STEP².
The one wrong element is the one that shows most: for attention among all elements of the case, otherwise among the
largest.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from attention_conformance.conformance.bounds import sdpa as bounds
from attention_conformance.conformance.bounds.sdpa import profiles
from attention_conformance.conformance.cases.base import AnyCase
from attention_conformance.conformance.evidence.series import Series
from attention_conformance.conformance.evidence.stamp import cases_of
from attention_conformance.conformance.spec.gradients import sdpa_grad
from attention_conformance.conformance.spec.mha import mha, sublayer
from attention_conformance.conformance.spec.mha_gradients import mha_grad
from attention_conformance.impls.contract import Profile

Array = np.ndarray

#: Movement of results per relative error, by name.  For attention there is an axis of the keys where the error may be,
#: and the movement of "scores": first order is valid for a movement below 1.
Moved = dict[str, Array]

#: Relative step of the central difference.
STEP = 2.0**-10

#: Elements of one operand that are tried, the largest first.
ELEMENTS = 4

#: Cases of layers and gradients with more multiplications are left out: each is recomputed for every element.
MOST = 20_000

#: The relative error that is promised to be caught on at least one case in float32.
PROMISED = 1e-4

DTYPES = ("float64", "float32", "float16", "bfloat16")

#: Keywords of a call that the references, which always give every result, do not take.
_RESULTS = ("return_weights", "return_lse")

_REFERENCES: Mapping[str, Callable[..., Any]] = {
    "mha": mha,
    "sublayer": sublayer,
    "sdpa_grad": sdpa_grad,
    "mha_grad": mha_grad,
}


@dataclass(frozen=True)
class Place:
    """One case in one dtype, in which something may be wrong."""

    case: AnyCase
    dtype: str

    def results(self, changed: Mapping[str, Array]) -> dict[str, Array]:
        """The results of a layer or of gradients with other operands, in float64."""
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


#: Movements of a case's results for an error in a quantity, one for each place of the error; none if there is no place.
Quantity = Callable[[Place], Iterator[Moved]]


# Attention.


@dataclass(frozen=True)
class _Attention:
    """Results of the reference for a case of sdpa, with 0 for non-finite numbers, and a sink as an additional key."""

    raw: Array
    scores: Array
    p: Array
    #: v_j and v_j − o, (B, Hq, Sq, Sk, Dv).
    v: Array
    distance: Array
    softcap: float | None

    @classmethod
    def of(cls, x: Place) -> _Attention:
        e = x.case.expected(x.dtype)
        e = e if e.sinks is None else bounds.with_sinks(e)
        v, output = (_finite(a) for a in (e.v[:, :, None], e.output[:, :, :, None]))
        scores = np.where(e.allowed, _finite(e.scores), 0.0)
        softcap = x.case.inputs(x.dtype).keywords.get("softcap")
        return cls(_finite(e.raw), scores, _finite(e.weights), v, v - output, softcap)


def _finite(array: Array) -> Array:
    return np.where(np.isfinite(array), array, 0.0)


def scale(x: Place) -> Iterator[Moved]:
    """Every score before softcap and bias is wrong; the movement common to a row only moves lse."""
    a = _Attention.of(x)
    moved = a.raw if a.softcap is None else a.raw * (1 - np.tanh(a.raw / a.softcap) ** 2)
    common = np.sum(a.p * moved, axis=3, keepdims=True)
    weights = a.p * (moved - common)
    output = np.einsum("bhij,bhijd->bhid", weights, a.distance)
    farthest = np.abs(moved).max(axis=3, keepdims=True, initial=0.0)
    yield {"output": output, "weights": weights, "lse": common[..., 0], "scores": farthest}


def score(x: Place) -> Iterator[Moved]:
    """One score is wrong; its own weight moves most."""
    a = _Attention.of(x)
    moved = a.p * a.scores
    yield {
        "output": moved[..., None] * a.distance,
        "weights": moved * (1 - a.p),
        "lse": moved,
        "scores": np.abs(a.scores),
    }


def weight(x: Place) -> Iterator[Moved]:
    """One weight is wrong."""
    a = _Attention.of(x)
    yield {"output": a.p[..., None] * a.v, "weights": a.p}


def value(x: Place) -> Iterator[Moved]:
    """One element of v is wrong."""
    a = _Attention.of(x)
    yield {"output": a.p[..., None] * a.v}


def output(x: Place) -> Iterator[Moved]:
    """The whole output is wrong."""
    yield {"output": _finite(x.case.expected(x.dtype).output)}


# Layers and gradients.


def operands(*names: str) -> Quantity:
    """One element of one of these operands is wrong: each of the largest in turn."""

    def moved(x: Place) -> Iterator[Moved]:
        for name in names:
            array = x.operand(name)
            for at in () if array is None else np.argsort(-np.abs(array), axis=None, kind="stable")[:ELEMENTS]:
                if array is None or not array.flat[at]:
                    break
                up, down = (x.results({name: _with(array, int(at), 1 + sign * STEP)}) for sign in (1, -1))
                yield {result: (up[result] - down[result]) / (2 * STEP) for result in up}

    return moved


def _with(array: Array, at: int, factor: float) -> Array:
    other = array.copy()
    other.flat[at] *= factor
    return other


def results(x: Place) -> Iterator[Moved]:
    """Every result is wrong."""
    yield x.results({})


_WEIGHT, _GRAD_OUTPUT = operands("w_q", "w_k", "w_v", "w_o"), operands("grad_output")

#: Quantities that can be wrong, by operator.
QUANTITIES: Mapping[str, Mapping[str, Quantity]] = {
    "sdpa": {"scale": scale, "one score": score, "one weight": weight, "one value": value, "output": output},
    "mha": {"one weight": _WEIGHT, "one bias": operands("b_q", "b_v", "b_o"), "output": results},
    "sublayer": {
        "one weight": _WEIGHT,
        "one bias": operands("b_q", "b_v", "b_o"),
        "gamma or beta": operands("gamma", "beta"),
        "output": results,
    },
    "sdpa_grad": {"one value": operands("v"), "one of grad_output": _GRAD_OUTPUT, "one gradient": results},
    "mha_grad": {
        "one weight": _WEIGHT,
        "one bias": operands("b_q", "b_v"),
        "one of grad_output": _GRAD_OUTPUT,
        "one gradient": results,
    },
}


def smallest(x: Place, moved: list[Moved], profile: Profile) -> float:
    """The smallest relative error that leaves the bound of a result of the case; infinity if none up to 1 does."""
    limit, most = x.case.bound(x.dtype, profile), 0.0
    for each in moved:
        for name in each.keys() & set(x.case.results()):
            bound = getattr(limit, name)
            change = np.abs(each[name])
            if name == "weights":  # a sink's weight is not returned
                change = change[..., : bound.shape[-1]]
            if change.ndim > bound.ndim:
                bound = np.expand_dims(bound, 3)
            seen = np.isfinite(change) & (change > 0) & np.isfinite(bound)
            ratio = np.divide(change, bound, out=np.zeros(change.shape), where=seen & (bound > 0))
            if "scores" in each:
                ratio = np.where(ratio >= _aligned(each["scores"], ratio), ratio, 0.0)
            most = max(most, float(ratio.max(initial=0.0)))
    return 1 / most if most > 1 else np.inf


def _aligned(scores: Array, ratio: Array) -> Array:
    """Scores aligned with an array that has an additional axis of columns, or no axis of keys, or no sink."""
    if ratio.ndim == scores.ndim:
        return scores[..., : ratio.shape[-1]]
    return scores[..., None] if ratio.ndim > scores.ndim else scores[..., 0]


def value_cases(series: Series, dtype: str) -> list[AnyCase]:
    """The suite's cases of a series and dtype with a finite result that can be wrong."""
    cases = [c for c in cases_of(series) if dtype in c.dtypes and not c.invalid and not c.zeros]
    return [c for c in cases if series.operator == "sdpa" or c.size[0] <= MOST]


def rows(series: Series) -> list[dict[str, Any]]:
    """For every dtype, profile and quantity: the smallest error that is caught on any case, and the median."""
    found = []
    for dtype in DTYPES:
        places = [Place(case, dtype) for case in value_cases(series, dtype)]
        for quantity, moves in QUANTITIES[series.operator].items():
            moved = [list(moves(place)) for place in places]
            for profile in profiles(dtype):
                errors = {p.case.name: smallest(p, m, profile) for p, m in zip(places, moved, strict=True) if m}
                found.append(_row(dtype, profile, quantity, errors))
    return found


def _row(dtype: str, profile: Profile, quantity: str, errors: Mapping[str, float]) -> dict[str, Any]:
    """Record of the smallest error of a quantity that is caught on each case, by its name."""
    best = min(errors, key=lambda case: errors[case])
    median = statistics.median(errors.values())
    return {
        "dtype": dtype,
        "profile": profile.value,
        "quantity": quantity,
        "cases": len(errors),
        "smallest": float(f"{errors[best]:.2g}") if np.isfinite(errors[best]) else None,
        "smallest_on": best,
        "median": float(f"{median:.2g}") if np.isfinite(median) else None,
        "caught_at_promised": sum(error <= PROMISED for error in errors.values()),
    }
