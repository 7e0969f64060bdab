"""The bounds of a layer's gradients: honest programs keep the bound of their profile, and mistakes leave it."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from attention_conformance.conformance.bounds import gradients as bounds
from attention_conformance.conformance.bounds import mha_gradients as layer_bounds
from attention_conformance.conformance.bounds.gradients import GradOperandErrors
from attention_conformance.conformance.bounds.sdpa import Options, profiles, rounding
from attention_conformance.conformance.cases.base import ALL_DTYPES, NUMPY_DTYPES
from attention_conformance.conformance.spec import gradients as reference
from attention_conformance.conformance.spec.mha_gradients import mha_grad
from attention_conformance.conformance.tests import layer_programs
from attention_conformance.conformance.tests.layer_gradient_programs import (
    BySample,
    Problem,
    Program,
    Sequential,
    SideBySide,
    by_name,
    problem,
    worst,
)
from attention_conformance.impls.contract import Profile

WIDE, TF32 = Profile.WIDE, Profile.TF32
SEEDS = 80


def fixed(dtype: str, spread: float = 1.0) -> Problem:
    """Two samples, 2 heads of width 4, model width 8, 5 rows, with biases; ``spread`` applies to queries and keys."""
    rng = np.random.default_rng(8)
    shapes = {"x_q": (2, 5, 8), **{f"w_{name}": (8, 8) for name in "qkvo"}, **{f"b_{name}": (8,) for name in "qkvo"}}
    size = {name: 8**-0.5 if name.startswith("w_") else 1.0 for name in shapes}
    size |= {name: spread * size[name] for name in ("w_q", "w_k", "b_q", "b_k")}
    arrays = {name: (rng.normal(size=s) * size[name]).astype(NUMPY_DTYPES[dtype]) for name, s in shapes.items()}
    grad_output = rng.normal(size=(2, 5, 8)).astype(NUMPY_DTYPES[dtype])
    return Problem(layer_programs.Problem(2, arrays), grad_output)


# ------------------------------------------------------------------------------------------------- must be accepted


@pytest.mark.slow(4)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("make", [Program, BySample, SideBySide], ids=lambda make: make.__name__)
@pytest.mark.parametrize("dtype", ALL_DTYPES)
def test_an_honest_program_keeps_the_bound_of_its_profile(dtype: str, make: type[Program]) -> None:
    """Rounding wherever a profile rounds stays inside its bound, with samples and weights taken together or apart."""
    for profile in profiles(dtype):
        for seed in range(SEEDS):
            p = problem(seed, dtype)
            assert worst(make(p, dtype, profile).gradients(), p, profile) <= 1, (seed, profile)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("heads", ["kept_weights_one_by_one", "flash_one_by_one"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sums_added_one_by_one_keep_the_bound(dtype: str, heads: str) -> None:
    """The order of summation is free: the worst order is inside, with weights kept or recomputed."""
    for seed in range(SEEDS):
        p = problem(seed, dtype)
        assert worst(Sequential(p, dtype, WIDE, heads).gradients(), p, WIDE) <= 1, seed


@pytest.mark.parametrize("size", [1e-6, 1e-2, 0.2])
def test_operands_moved_within_their_error_stay_inside(size: float) -> None:
    """However q, k, v and grad_output move within their error, the gradients of sdpa stay inside the bound."""
    rng = np.random.default_rng(4)
    q, k, v, g = (rng.normal(size=(1, 2, 5, 4)) for _ in range(4))
    bias = rng.normal(size=(5, 5))
    expected, r = reference.sdpa_grad(q, k, v, g, bias=bias), rounding("float64", WIDE)
    errors = GradOperandErrors(*(size * rng.random(a.shape) for a in (q, k, v, g)))
    limit = bounds.bound_under(expected, Options(bias=bias), r, errors)
    for _ in range(100):
        parts = ((q, errors.q), (k, errors.k), (v, errors.v), (g, errors.grad_output))
        moved = (a + e * rng.choice([-1.0, 1.0], a.shape) for a, e in parts)
        for name, array in reference.sdpa_grad(*moved, bias=bias).gradients.items():
            assert np.all(np.abs(array - expected.gradients[name]) <= limit[name]), name


@pytest.mark.parametrize("dtype", ALL_DTYPES)
def test_exact_operands_change_a_bound_to_second_order_only(dtype: str) -> None:
    """Operand errors of zero add only the roundings of errors, and never make a bound smaller."""
    rng = np.random.default_rng(6)
    arrays = [rng.normal(size=(1, 2, 5, 4)).astype(NUMPY_DTYPES[dtype]) for _ in range(4)]
    expected = reference.sdpa_grad(*arrays)
    zero = GradOperandErrors(*(np.zeros(a.shape) for a in arrays))
    for profile in profiles(dtype):
        r = rounding(dtype, profile)
        without, with_zero = (bounds.bound_under(expected, Options(), r, errors) for errors in (None, zero))
        largest = 64 * max(r.store, r.operand, r.weight)
        for name in without:
            assert np.all(without[name] <= with_zero[name])
            assert np.allclose(without[name], with_zero[name], rtol=largest, atol=0), (name, profile)


# ------------------------------------------------------------------------------------------------- must be rejected


@pytest.mark.parametrize("part", ["q", "k", "v", "grad_output"])
def test_an_error_of_an_operand_is_not_inside_the_bound_without_it(part: str) -> None:
    """An error of one percent in an operand is inside the bound only if the bound is given that error."""
    rng = np.random.default_rng(5)
    arrays: dict[str, Any] = {name: rng.normal(size=(1, 2, 5, 4)) for name in ("q", "k", "v", "grad_output")}
    expected, r = reference.sdpa_grad(**arrays), rounding("float32", WIDE)
    errors = GradOperandErrors(**{n: np.abs(a) * (0.01 if n == part else 0.0) for n, a in arrays.items()})
    signs = rng.choice([-1.0, 1.0], arrays[part].shape)
    moved = reference.sdpa_grad(**{**arrays, part: arrays[part] * (1 + 0.01 * signs)}).gradients
    exact, knowing = bounds.bound_under(expected, Options(), r), bounds.bound_under(expected, Options(), r, errors)
    distance = {name: np.abs(array - expected.gradients[name]) for name, array in moved.items()}
    assert any(np.any(distance[name] > exact[name]) for name in distance)
    assert all(np.all(distance[name] <= knowing[name]) for name in distance)


@pytest.mark.parametrize("name", ["x_q", "w_q", "w_k", "w_v", "w_o", "b_q", "b_v", "b_o"])
def test_one_part_in_ten_thousand_of_a_gradient_is_caught_in_float32(name: str) -> None:
    """A relative error of 1e-4 in any one gradient leaves its bound; the gradient of b_k is zero in any case."""
    p = fixed("float32")
    right = p.expected().gradients
    assert worst(right, p, WIDE) == 0
    off = by_name({**right, f"grad_{name}": right[f"grad_{name}"] * (1 + 1e-4)}, p, WIDE)
    assert [each for each, share in off.items() if share > 1] == [f"grad_{name}"]


@pytest.mark.parametrize("name", ["w_q", "w_k", "w_v", "w_o", "b_q", "b_v", "x_q"])
def test_one_part_in_ten_thousand_of_an_input_is_caught_in_float32(name: str) -> None:
    """A relative error of 1e-4 in an input, weight or bias leaves some bound; b_k and b_o reach no gradient."""
    p = fixed("float32")
    program = Program(p, "float32", WIDE)
    program.arrays[name] = np.multiply(program.arrays[name], np.float32(1 + 1e-4))
    assert worst(program.gradients(), p, WIDE) > 1


@pytest.mark.parametrize("name", ["w_q", "w_k", "w_v", "w_o"])
def test_one_part_in_ten_thousand_of_one_element_of_a_weight_is_caught_in_float32(name: str) -> None:
    """A relative error of 1e-4 in only the largest element of a weight leaves some bound."""
    p = fixed("float32")
    program = Program(p, "float32", WIDE)
    array = program.arrays[name]
    array[np.unravel_index(np.argmax(np.abs(array)), array.shape)] *= np.float32(1 + 1e-4)
    assert worst(program.gradients(), p, WIDE) > 1


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_float64_computed_in_float32_leaves_the_bound() -> None:
    """Gradients of float64 computed in float32 leave some bound on every problem, and all but that of b_k on one."""
    for seed in range(SEEDS):
        p = problem(seed, "float64")
        single = Problem(
            layer_programs.Problem(
                p.call.heads, {n: a.astype(np.float32) for n, a in p.call.arrays.items()}, p.call.options
            ),
            p.grad_output.astype(np.float32),
        )
        got = Program(single, "float32", WIDE).gradients()
        assert worst(got, p, WIDE) > 1, seed
    p = fixed("float64")
    program = Program(fixed("float32"), "float32", WIDE)
    assert min(share for name, share in by_name(program.gradients(), p, WIDE).items() if name != "grad_b_k") > 1


def test_a_program_that_rounds_to_eleven_bits_leaves_the_bound_of_float32() -> None:
    """``tf32`` is outside ``wide``.  In half precision the storing between operators, in every profile, hides it."""
    p = fixed("float32")
    got = Program(p, "float32", TF32).gradients()
    assert worst(got, p, TF32) <= 1
    assert min(share for name, share in by_name(got, p, WIDE).items() if name not in ("grad_b_k", "grad_b_o")) > 1


class OneSample(Program):
    """The gradients of weights are computed from the first sample only."""

    def of_weight(self, x: np.ndarray, d: np.ndarray) -> np.ndarray:
        """Σ over the rows of the first sample."""
        return super().of_weight(x[:1], d[:1])


class Transposed(Program):
    """The gradients of weights are transposed, as a Linear layer holds them."""

    def of_weight(self, x: np.ndarray, d: np.ndarray) -> np.ndarray:
        """Σ d[r]ᵀ x[r]."""
        return super().of_weight(x, d).T


class ValuesForgotten(Program):
    """The gradient of an input leaves out the path through values."""

    def of_input(self, d: Any, names: str) -> np.ndarray:
        """The sum of the other parts."""
        return super().of_input(d, names.replace("v", ""))


@pytest.mark.parametrize("dtype", ALL_DTYPES)
@pytest.mark.parametrize("wrong", [OneSample, Transposed, ValuesForgotten])
def test_wrong_gradients_leave_the_bound(wrong: type[Program], dtype: str) -> None:
    """Gross mistakes are outside the loosest bound of every dtype."""
    p, loosest = fixed(dtype, spread=0.3), profiles(dtype)[-1]
    assert worst(Program(p, dtype, loosest).gradients(), p, loosest) <= 1
    assert worst(wrong(p, dtype, loosest).gradients(), p, loosest) > 1


# ------------------------------------------------------------------------------------------------------- properties


@pytest.mark.parametrize("dtype", ALL_DTYPES)
def test_bounds_are_finite_and_ordered(dtype: str) -> None:
    """No bound is NaN or infinite, and a looser profile never has a smaller one."""
    for seed in range(20):
        limits = [problem(seed, dtype).bound(profile) for profile in profiles(dtype)]
        assert all(np.isfinite(array).all() for limit in limits for array in limit.values())
        for strict, loose in itertools.pairwise(limits):
            assert all(np.all(strict[name] <= loose[name]) for name in strict)


def test_what_is_masked_is_exactly_zero() -> None:
    """A padded row of x_kv, and all but b_o without any key, have a bound of 0: the smallest number is outside."""
    rng = np.random.default_rng(2)
    x_kv = rng.normal(size=(2, 6, 8)).astype(np.float32)
    named = {**fixed("float32").call.keywords(), "grad_output": fixed("float32").grad_output, "x_kv": x_kv}
    expected = mha_grad(**named, kv_lengths=np.array([5, 4]))
    limit = layer_bounds.bound(expected, Options(), "float32", WIDE)
    assert np.array_equal(limit["grad_x_kv"] == 0, expected.grad_x_kv == 0)
    assert not limit["grad_x_kv"][1, 4:].any()
    nothing = layer_bounds.bound(mha_grad(**named, kv_lengths=np.array([0, 0])), Options(), "float32", WIDE)
    assert {name for name, array in nothing.items() if array.any()} == {"grad_b_o"}


def test_bounds_have_the_form_of_the_results() -> None:
    """Unbatched and sequence-first calls have bounds in the shapes of their gradients."""
    p = fixed("float32")
    named = {**p.call.keywords(), "grad_output": p.grad_output}
    batched = p.bound(WIDE)
    first = {**named, "x_q": named["x_q"].swapaxes(0, 1), "grad_output": p.grad_output.swapaxes(0, 1)}
    turned = layer_bounds.bound(mha_grad(**first, sequence_first=True), Options(), "float32", WIDE)
    np.testing.assert_allclose(turned.pop("grad_x_q"), batched["grad_x_q"].swapaxes(0, 1), rtol=1e-9)
    for name, array in turned.items():
        np.testing.assert_allclose(array, batched[name], rtol=1e-9)
    one = {**named, "x_q": named["x_q"][0], "grad_output": p.grad_output[0]}
    alone = layer_bounds.bound(mha_grad(**one), Options(), "float32", WIDE)
    np.testing.assert_allclose(alone["grad_x_q"], batched["grad_x_q"][0], rtol=1e-9)
