"""float64 computed in float32: whether the bounds of float64 catch it, on the suite's cases and on random problems."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from attention_conformance.conformance.bounds.sdpa import Bound
from attention_conformance.conformance.cases import Case, all_cases
from attention_conformance.conformance.judging.compare import shares
from attention_conformance.conformance.properties.drawn import once, random_problem
from attention_conformance.conformance.spec.sdpa import Expected
from attention_conformance.impls.contract import Profile
from attention_conformance.impls.numpy import eager


def value_cases() -> list[Case]:
    """The suite's float64 cases with a result that can be wrong."""
    return [c for c in all_cases().values() if "float64" in c.dtypes and not c.invalid and not c.zeros]


def computed_in_float32(case: Case) -> str:
    """Fate of float64 inputs that are computed in float32: "caught", "missed", or "float32" if nothing can be.

    Nothing can be caught where the exact results are float32 numbers, within the bound.
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


def _leaves(results: Iterable[np.ndarray], case: Case, expected: Expected, limit: Bound) -> bool:
    names = case.results()
    return any(
        bool((shares(got.astype(np.float64), getattr(expected, n), getattr(limit, n), "float64") > 1).any())
        for n, got in zip(names, results, strict=True)
    )


def counts(problems: int) -> dict[str, dict[str, int]]:
    """The fates of the suite's float64 cases, and of the first random problems, all of them in float64."""
    drawn = (once(random_problem(index), "float64") for index in range(problems))
    return {"cases": _count_fates(value_cases()), "problems": _count_fates(drawn)}


def _count_fates(cases: Iterable[Case]) -> dict[str, int]:
    fates = Counter(map(computed_in_float32, cases))
    return {name: fates[name] for name in ("caught", "missed", "float32")}
