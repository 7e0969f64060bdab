"""Terms of the bound that random problems found missing: underflow, scores with large errors, a stored lse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16

from attention_conformance.conformance.bounds import sdpa as bounds
from attention_conformance.conformance.bounds.sdpa import Options, bound
from attention_conformance.conformance.cases.data import Shape
from attention_conformance.conformance.evidence import variants
from attention_conformance.conformance.judging.compare import shares
from attention_conformance.conformance.properties.drawn import once
from attention_conformance.conformance.properties.problem import Problem
from attention_conformance.conformance.spec import sdpa as reference
from attention_conformance.impls.contract import Profile

pytestmark = pytest.mark.slow


def inside(results: dict[str, np.ndarray], case: Any, dtype: str, profile: Profile) -> bool:
    """Whether results by name keep the bound of a case."""
    expected, limit = case.expected(dtype), case.bound(dtype, profile)
    found = (shares(a.astype(float), getattr(expected, n), getattr(limit, n), dtype) for n, a in results.items())
    return all(bool((share <= 1).all()) for share in found)


def stored(problem: Problem, dtype: str) -> tuple[Any, dict[str, np.ndarray]]:
    """The case of a problem, and its results where every intermediate is stored."""
    case = once(problem, dtype)
    x = case.inputs(dtype)
    returned = variants.storage(x.q, x.k, x.v, **x.keywords)
    returned = returned if isinstance(returned, tuple) else (returned,)
    return case, dict(zip(case.results(), returned, strict=True))


@pytest.mark.parametrize("seed", range(10))
def test_weights_may_underflow_as_powers_and_as_weights(seed: int) -> None:
    """Weights near the smallest float16 number are rounded twice to multiples of it."""
    problem = Problem(f"underflow-{seed}", Shape(b=1, sq=8, sk=300, d=4), spread=3.0, return_weights=True)
    case, results = stored(problem, "float16")
    assert inside(results, case, "float16", Profile.STORAGE)


def test_a_weight_that_is_lost_and_large_is_outside() -> None:
    """Underflow excuses at most three times the subnormal spacing."""
    problem = Problem("underflow-0", Shape(b=1, sq=8, sk=300, d=4), spread=3.0, return_weights=True)
    case, results = stored(problem, "float16")
    small = (results["weights"] > 2.0**-22) & (results["weights"] < 2.0**-20)
    assert small.any()
    results["weights"] = np.where(small, np.float16(0), results["weights"])
    assert not inside(results, case, "float16", Profile.STORAGE)


def test_lse_may_be_stored_stage_by_stage() -> None:
    """The sum of the powers, its logarithm and lse may each be rounded upwards to bfloat16 by nearly half a spacing."""
    keys = max(range(3000, 4097), key=lambda n: float(bfloat16(np.log(float(bfloat16(n))))) - np.log(n))
    x = Shape(b=1, hq=1, hkv=1, sq=1, sk=keys, d=1, dv=1)
    score = 0.033  # over half the spacing of bfloat16 near log 4000
    q, k = np.full((1, 1, 1, 1), score, bfloat16), np.ones((1, 1, x.sk, 1), bfloat16)
    expected = reference.sdpa(q, k, k, scale=1.0)
    _, lse = variants.storage(q, k, k, scale=1.0, return_lse=True)
    error = float(lse.item() - expected.lse.item())
    unit = 2.0**-8
    assert error > unit * (4 + expected.lse.item())
    assert error <= bound(expected, Options(scale=1.0), "bfloat16", Profile.STORAGE).lse.item()


def test_scores_with_errors_of_hundreds_have_a_bound() -> None:
    """Bounds are finite, and no weight exceeds its own, where exp of the error overflows and the weight underflows."""
    q, v = np.ones((1, 1, 1, 1)), np.array([1.0, -1.0, 3.0]).reshape(1, 1, 3, 1)
    expected = reference.sdpa(q, np.array([90000.0, 80000.0, -80000.0]).reshape(1, 1, 3, 1), v)
    limit = bound(expected, Options(), "bfloat16", Profile.STORAGE)
    for array in (limit.output, limit.weights, limit.lse):
        assert np.isfinite(array).all()
    assert limit.weights.max() <= 1 + 2.0**-7


def test_a_key_whose_weight_has_underflowed_may_come_back() -> None:
    """Scores of 30000 and 29000 stored in bfloat16 may swap order, though the smaller weight is 0 in float64."""
    q, v = np.ones((1, 1, 1, 1)), np.array([1.0, -1.0]).reshape(1, 1, 2, 1)
    expected = reference.sdpa(q, np.array([30000.0, 29000.0]).reshape(1, 1, 2, 1), v)
    assert expected.weights[0, 0, 0, 1] == 0
    limit = bound(expected, Options(), "bfloat16", Profile.STORAGE)
    assert limit.output >= 2
    assert limit.weights.min() >= 1
    assert limit.lse >= 400
    assert bound(expected, Options(), "bfloat16", Profile.FUSED).output < 0.1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_may_be_flushed_to_zero(dtype: str) -> None:
    """A weight below 2^-126 may be lost, even if only its value is not 0."""
    q, k = np.ones((1, 1, 1, 1)), np.array([88.0, 0.0]).reshape(1, 1, 2, 1)
    v = np.array([0.0, 1e6]).reshape(1, 1, 2, 1)
    expected = reference.sdpa(q, k, v)
    assert 0 < expected.weights[0, 0, 0, 1] < bounds.UNDERFLOW["float32"]
    limit = bound(expected, Options(), dtype, Profile.WIDE)
    assert abs(float(expected.output.item())) <= limit.output.item()


@pytest.mark.parametrize("values", [0.0, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_nearly_equal_powers_may_be_added_one_by_one(seed: int, values: float) -> None:
    """Roundings in the same direction may exceed every multiple of the square root of their number."""
    rng = np.random.default_rng(seed)
    q, k = np.full((1, 1, 1, 1), 1e-4, np.float32), rng.standard_normal((1, 1, 20_000, 1)).astype(np.float32)
    v = np.where(values, np.float32(values), rng.standard_normal((1, 1, 20_000, 2)).astype(np.float32))
    expected = reference.sdpa(q, k, v)
    limit = bound(expected, Options(), "float32", Profile.WIDE)
    output, lse = variants.sequential(q, k, v, return_lse=True)
    assert abs(lse.item() - expected.lse.item()) > bounds.LAMBDA * np.sqrt(20_000) * 2.0**-24
    assert shares(lse.astype(float), expected.lse, limit.lse, "float32").max() <= 1
    assert shares(output.astype(float), expected.output, limit.output, "float32").max() <= 1
