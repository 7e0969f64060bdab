"""The bound of sdpa where q, k and v are results themselves: it carries their errors; zero errors change nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attention_conformance.conformance.bounds.sdpa import OperandErrors, Options, bound_under, profiles, rounding
from attention_conformance.conformance.cases import all_cases
from attention_conformance.conformance.cases.base import ALL_DTYPES
from attention_conformance.conformance.spec import sdpa as reference
from attention_conformance.impls.contract import Profile


@pytest.mark.parametrize("spread", [0.3, 1.0, 3.0])
def test_operands_moved_within_their_error_stay_inside(spread: float) -> None:
    """However projected q, k and v move within their error, heads and weights stay inside the bound."""
    rng = np.random.default_rng(4)
    q, k, v = (spread * rng.normal(size=(1, 2, 5, 4)) for _ in range(3))
    expected = reference.sdpa(q, k, v)
    for size in (1e-6, 1e-2, 0.2):
        errors = OperandErrors(*(size * rng.random(a.shape) for a in (q, k, v)))
        r = rounding("float64", Profile.WIDE)
        limit = bound_under(expected, Options(), r, errors)
        for _ in range(100):
            parts = ((q, errors.q), (k, errors.k), (v, errors.v))
            other = reference.sdpa(*(a + e * rng.choice([-1.0, 1.0], a.shape) for a, e in parts))
            assert np.all(np.abs(other.output - expected.output) <= limit.output)
            assert np.all(np.abs(other.weights - expected.weights) <= limit.weights)


@pytest.mark.parametrize("dtype", ALL_DTYPES)
def test_exact_operands_change_no_bound_of_sdpa(dtype: str) -> None:
    """Operand errors of zero leave the bounds of weights and lse equal bit for bit, and of outputs to second order."""
    for name in ("plain", "mask", "empty-row", "softcap", "bias", "weights-mask"):
        case = all_cases()[name]
        expected, keywords = case.expected(dtype), case.inputs(dtype).keywords
        options = Options.of(keywords)
        zero = OperandErrors(*(np.zeros_like(a) for a in (expected.q, expected.k, expected.v)))
        for profile in profiles(dtype):
            r = rounding(dtype, profile)
            with np.errstate(invalid="ignore"):  # scores of −inf, as in bound()
                without, with_zero = (bound_under(expected, options, r, errors) for errors in (None, zero))
            assert np.array_equal(without.weights, with_zero.weights)
            assert np.array_equal(without.lse, with_zero.lse)
            assert np.all(without.output <= with_zero.output)
            assert np.allclose(without.output, with_zero.output, rtol=0.05, atol=0)


@pytest.mark.parametrize("part", ["q", "k", "v"])
def test_an_error_of_an_operand_is_not_inside_the_bound_without_it(part: str) -> None:
    """An error of one percent in q, k or v is inside the bound only if the bound is given that error."""
    rng = np.random.default_rng(5)
    arrays: dict[str, Any] = {name: rng.normal(size=(1, 2, 5, 4)) for name in "qkv"}
    expected, r = reference.sdpa(**arrays), rounding("float32", Profile.WIDE)
    errors = OperandErrors(**{n: np.abs(a) * (0.01 if n == part else 0.0) for n, a in arrays.items()})
    signs = rng.choice([-1.0, 1.0], arrays[part].shape)
    moved = reference.sdpa(**{**arrays, part: arrays[part] * (1 + 0.01 * signs)})
    distance = np.abs(moved.output - expected.output)
    assert np.any(distance > bound_under(expected, Options(), r).output)
    assert np.all(distance <= bound_under(expected, Options(), r, errors).output)
