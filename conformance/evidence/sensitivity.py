r"""Sensitivity of the bounds: the smallest relative error of one quantity that leaves the bound of a case.

Everything else is exact, so what is measured is the bound alone.  With S = Σ p_m expm1(δs_m) a row whose scores move
by δs_m has the new weights p_j (1 + expm1(δs_j)) / (1 + S), and so

    δp_j = p_j (expm1(δs_j) − S) / (1 + S),   δo = Σ p_j expm1(δs_j) (v_j − o) / (1 + S),   δlse = log(1 + S),

without cancellation, however small the error.  Where one score, weight or value is wrong it is the one that shows
most, of all that the case has.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from attention_conformance.conformance.bounds import sdpa as bounds
from attention_conformance.conformance.bounds.sdpa import Bound, profiles
from attention_conformance.conformance.cases import Case, all_cases
from attention_conformance.conformance.evidence.problems import once, random_problem
from attention_conformance.conformance.judging.compare import shares
from attention_conformance.conformance.spec.sdpa import Expected
from attention_conformance.impls.contract import Profile
from attention_conformance.impls.numpy import eager

#: An error that is small enough for shares to be proportional to it.
TINY = 1e-18

#: Halvings of the factor of 2 between an error that is not caught and one that is.
HALVINGS = 8

#: exp does not overflow below; scores are not moved farther.
FARTHEST = 700.0

#: The relative error of the promise that in float32 it is caught on at least one case.
PROMISED = 1e-4

DTYPES = ("float64", "float32", "float16", "bfloat16")


@dataclass(frozen=True)
class Place:
    """One input: what is expected of it, which results it returns, and the bound of each."""

    expected: Expected
    limit: Bound
    softcap: float | None
    results: tuple[str, ...]
    #: v_j − o, (B, Hq, Sq, Sk, Dv); 0 where the row is not finite.
    distance: np.ndarray = field(repr=False)

    @classmethod
    def of(cls, case: Case, dtype: str, profile: Profile) -> Place:
        """The place of a case."""
        expected, limit = case.expected(dtype), case.bound(dtype, profile)
        if expected.sinks is not None:  # one more key, whose value is 0 and whose weight is not returned
            expected = bounds.with_sinks(expected)
            limit = replace(limit, weights=np.pad(limit.weights, [(0, 0)] * 3 + [(0, 1)], constant_values=np.inf))
        distance = finite(expected.v)[:, :, None] - finite(expected.output)[:, :, :, None]
        softcap = case.inputs(dtype).keywords.get("softcap")
        return cls(expected, limit, softcap, case.results(), distance)


def finite(array: np.ndarray) -> np.ndarray:
    """The array with 0 for what is not finite."""
    return np.where(np.isfinite(array), array, 0.0)


# Each function: the largest share of the bound that an error of this relative size uses.


def of_scale(x: Place, error: float) -> float:
    """Every score before softcap and bias is wrong by this much."""
    raw = finite(x.expected.raw)
    moved = error * raw
    if x.softcap is not None:  # tanh a − tanh b = tanh(a − b) (1 − tanh a tanh b)
        a, b = (1 + error) * raw / x.softcap, raw / x.softcap
        moved = x.softcap * np.tanh(moved / x.softcap) * (1 - np.tanh(a) * np.tanh(b))
    p = finite(x.expected.weights)
    common = np.sum(p * moved, axis=3, keepdims=True)  # has no effect on weights, and is added to lse
    changed = np.expm1(np.clip(moved - common, -FARTHEST, FARTHEST))
    total = np.sum(p * changed, axis=3, keepdims=True)
    output = np.einsum("bhij,bhijd->bhid", p * changed, x.distance) / (1 + total)
    return _largest(x, output, x.limit.output, p * (changed - total) / (1 + total), (common + np.log1p(total))[..., 0])


def of_score(x: Place, error: float) -> float:
    """One score is wrong by this much."""
    p = finite(x.expected.weights)
    scores = np.where(x.expected.allowed, finite(x.expected.scores), 0.0)
    moved = p * np.expm1(np.clip(error * scores, -FARTHEST, FARTHEST))
    output = (moved / (1 + moved))[..., None] * x.distance
    lse = np.log1p(moved)
    return _largest(x, output, x.limit.output[:, :, :, None], moved * (1 - p) / (1 + moved), lse)


def of_weight(x: Place, error: float) -> float:
    """One weight is wrong by this much."""
    p = finite(x.expected.weights)
    output = error * p[..., None] * finite(x.expected.v)[:, :, None]
    return _largest(x, output, x.limit.output[:, :, :, None], error * p, None)


def of_value(x: Place, error: float) -> float:
    """One element of v is wrong by this much."""
    output = error * finite(x.expected.weights)[..., None] * finite(x.expected.v)[:, :, None]
    return _largest(x, output, x.limit.output[:, :, :, None], None, None)


def of_output(x: Place, error: float) -> float:
    """The whole output is wrong by this much."""
    return _largest(x, error * finite(x.expected.output), x.limit.output, None, None)


#: What can be wrong.
QUANTITIES: dict[str, Callable[[Place, float], float]] = {
    "scale": of_scale,
    "one score": of_score,
    "one weight": of_weight,
    "one value": of_value,
    "output": of_output,
}


def _largest(
    x: Place, output: np.ndarray, limit: np.ndarray, weights: np.ndarray | None, lse: np.ndarray | None
) -> float:
    """The largest share over the results that the case returns; ``lse`` may have an axis of keys behind its own."""
    share = _ratio(output, limit)
    if weights is not None and "weights" in x.results:
        share = max(share, _ratio(weights, x.limit.weights))
    if lse is not None and "lse" in x.results:
        share = max(share, _ratio(lse, x.limit.lse[(..., *[None] * (lse.ndim - 3))]))
    return share


def _ratio(change: np.ndarray, limit: np.ndarray) -> float:
    ratio = np.divide(np.abs(change), limit, out=np.zeros(change.shape), where=(change != 0) & np.isfinite(limit))
    return float(ratio.max(initial=0.0))


def smallest(quantity: Callable[[Place, float], float], x: Place) -> float:
    """The smallest relative error up to 1 that leaves the bound; infinity if none does."""
    with np.errstate(all="ignore"):
        used = quantity(x, TINY)
        if not used:
            return np.inf
        high = TINY / used / 2
        while quantity(x, high) <= 1:
            high *= 2
            if high > 1:
                return np.inf
        low = high / 2
        for _ in range(HALVINGS):
            middle = np.sqrt(low * high)
            low, high = (low, middle) if quantity(x, middle) > 1 else (middle, high)
    return float(high)


def value_cases(dtype: str) -> list[Case]:
    """The suite's cases of a dtype that have a result to be wrong."""
    return [c for c in all_cases().values() if dtype in c.dtypes and not c.invalid and not c.zeros]


def rows(names: Collection[str]) -> list[dict[str, Any]]:
    """For every dtype, profile and quantity: the smallest error caught on any case of these names, and the median."""
    found = []
    for dtype in DTYPES:
        for profile in profiles(dtype):
            chosen = [case for case in value_cases(dtype) if case.name in names]
            places = {case.name: Place.of(case, dtype, profile) for case in chosen}
            for name, quantity in QUANTITIES.items():
                errors = {case: smallest(quantity, place) for case, place in places.items()}
                found.append(row(dtype, profile, name, errors))
    return found


def row(dtype: str, profile: Profile, quantity: str, errors: Mapping[str, float]) -> dict[str, Any]:
    """What is kept of the smallest error of a quantity that is caught on each case, by its name."""
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


# float64 computed in float32.


def computed_in_float32(case: Case) -> str:
    """What becomes of float64 inputs that are computed in float32: "caught", "missed", or "float32" if nothing can be.

    Nothing can be caught where the exact results are float32 numbers, give or take the bound.
    """
    inputs, expected, limit = case.inputs("float64"), case.expected("float64"), case.bound("float64", Profile.WIDE)
    q, k, v = (array.astype(np.float32) for array in (inputs.q, inputs.k, inputs.v))
    keywords = {
        name: value.astype(np.float32) if getattr(value, "dtype", None) == np.float64 else value
        for name, value in inputs.keywords.items()
    }
    with np.errstate(all="ignore"):
        returned = eager.attention(q, k, v, **keywords)
        exact = [getattr(expected, name).astype(np.float32) for name in case.results()]
    results = returned if isinstance(returned, tuple) else (returned,)
    if not _leaves(exact, case, expected, limit):
        return "float32"
    return "caught" if _leaves(results, case, expected, limit) else "missed"


def _leaves(results: Iterable[np.ndarray], case: Case, expected: Expected, limit: bounds.Bound) -> bool:
    names = case.results()
    return any(
        bool((shares(got.astype(np.float64), getattr(expected, n), getattr(limit, n), "float64") > 1).any())
        for n, got in zip(names, results, strict=True)
    )


def float32_counts(problems: int) -> dict[str, dict[str, int]]:
    """The fates of the suite's float64 cases, and of the first random problems, all of them in float64."""
    cases = [computed_in_float32(case) for case in value_cases("float64")]
    drawn = (once(random_problem(index), "float64") for index in range(problems))
    return {"cases": _counted(cases), "problems": _counted(computed_in_float32(case) for case in drawn)}


def _counted(fates: Iterable[str]) -> dict[str, int]:
    fates = list(fates)
    return {name: fates.count(name) for name in ("caught", "missed", "float32")}
