"""The bounds of the layers: honest programs keep the bound of their profile, and mistakes leave it."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from attention_conformance.conformance.bounds import mha as bounds
from attention_conformance.conformance.bounds import sdpa as of_sdpa
from attention_conformance.conformance.bounds.sdpa import Options, profiles
from attention_conformance.conformance.cases.base import ALL_DTYPES, HALVES, NUMPY_DTYPES
from attention_conformance.conformance.judging.compare import shares
from attention_conformance.conformance.spec import mha as reference
from attention_conformance.conformance.spec.mha import LayerExpected, SublayerExpected
from attention_conformance.conformance.tests.layer_programs import Array, Problem, Program, random_problem
from attention_conformance.impls.contract import Profile

#: Random problems per operator, dtype and profile, in chunks so that a failure names few seeds.
SEEDS = 300
CHUNK = 100


class Sequential(Program):
    """Every product adds one term after the other: the most roundings that a sum can have."""

    def matmul(self, a: Array, b: Array) -> Array:
        """A product, term by term."""
        total = a[..., :1] * b[..., :1, :]
        for term in range(1, a.shape[-1]):
            total = total + a[..., term, None] * b[..., term, None, :]
        return total


def reference_of(problem: Problem) -> LayerExpected | SublayerExpected:
    """The reference's results for a problem."""
    named = problem.keywords()
    return reference.sublayer(**named) if problem.norm else reference.mha(**named)


def shares_of(
    problem: Problem,
    program: Program,
    dtype: str,
    profile: Profile,
    expected: LayerExpected | SublayerExpected | None = None,
) -> tuple[float, float]:
    """The largest shares of the bound of a profile: of the output, and of the weights of the layer."""
    expected = expected or reference_of(problem)
    limit = bounds.bound(expected, problem.of_bound(), dtype, profile)
    layer = expected if isinstance(expected, LayerExpected) else expected.layer
    output, weights = (result.astype(np.float64) for result in program.run())
    return (
        float(shares(output, expected.output, limit.output, dtype).max()),
        float(shares(weights, layer.weights, limit.weights, dtype).max()),
    )


def fixed(dtype: str, *, sublayer: bool = False, epsilon: float = 1e-5, spread: float = 1.0) -> Problem:
    """Two batches, 2 heads of width 4, model width 8, 5 rows, with biases; ``spread`` applies to input and biases."""
    rng = np.random.default_rng(8)
    shapes = {"x_q": (2, 5, 8), **{f"w_{name}": (8, 8) for name in "qkvo"}, **{f"b_{name}": (8,) for name in "qkvo"}}
    size = {name: 8**-0.5 if name.startswith("w_") else spread for name in shapes}
    arrays = {name: (rng.normal(size=s) * size[name]).astype(NUMPY_DTYPES[dtype]) for name, s in shapes.items()}
    affine = {name: rng.normal(size=8).astype(NUMPY_DTYPES[dtype]) for name in ("gamma", "beta")}
    return Problem(2, arrays, norm={**affine, "epsilon": epsilon} if sublayer else {})


# ------------------------------------------------------------------------------------------------- must be accepted


@pytest.mark.parametrize("first", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(CHUNK, SEEDS, CHUNK))])
@pytest.mark.parametrize("sublayer", [False, True], ids=["mha", "sublayer"])
@pytest.mark.parametrize("dtype", ALL_DTYPES)
def test_an_honest_program_keeps_the_bound_of_its_profile(dtype: str, sublayer: bool, first: int) -> None:
    """Rounding exactly where a profile rounds stays inside that profile's bound, in output and weights."""
    for seed in range(first, first + CHUNK):
        problem = random_problem(seed, dtype, sublayer=sublayer)
        expected = reference_of(problem)
        for profile in profiles(dtype):
            program = Program(problem, dtype, profile)
            assert max(shares_of(problem, program, dtype, profile, expected)) <= 1, (seed, profile)


@pytest.mark.parametrize("sublayer", [False, True], ids=["mha", "sublayer"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sums_added_one_by_one_keep_the_bound(dtype: str, sublayer: bool) -> None:
    """The order of summation is free: even the worst order stays inside."""
    for seed in range(CHUNK):
        problem = random_problem(seed, dtype, sublayer=sublayer)
        program = Sequential(problem, dtype, Profile.WIDE)
        assert max(shares_of(problem, program, dtype, Profile.WIDE)) <= 1, seed


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("mean", [0.0, 30.0, 1000.0])
def test_a_layer_norm_of_two_passes_keeps_the_bound_at_any_mean(mean: float, dtype: str) -> None:
    """A mean of many deviations magnifies the error of the mean, and the bound allows for it."""
    for seed in range(20):
        norm = _norm(np.random.default_rng(seed).normal(size=(1, 4, 64)) + mean, dtype)
        limit = bounds.norm_error(norm, None, of_sdpa.rounding(dtype, Profile.WIDE))
        z = norm.z.astype(np.float32)
        centred = z - z.mean(axis=2, keepdims=True)
        got = (centred / np.sqrt((centred**2).mean(axis=2, keepdims=True) + np.float32(1e-5))).astype(dtype)
        assert shares(got.astype(np.float64), norm.result, limit, dtype).max() <= 1


@pytest.mark.parametrize("moved", [1e-6, 1e-2, 0.3])
@pytest.mark.parametrize("epsilon", [1e-12, 1e-5, 0.1])
def test_an_input_moved_within_its_error_stays_inside(epsilon: float, moved: float) -> None:
    """However z moves within the error of its input, the normalised row stays inside the bound."""
    rng = np.random.default_rng(3)
    norm = _norm(rng.normal(size=(1, 6, 8)) * rng.choice([1e-3, 1.0], (1, 6, 1)), "float64", epsilon)
    arriving = moved * rng.random(norm.z.shape)
    limit = bounds.norm_error(norm, arriving, of_sdpa.rounding("float64", Profile.WIDE))
    for _ in range(300):
        z = norm.z + arriving * rng.choice([-1.0, 1.0], arriving.shape)
        other = reference.layer_norm(z, norm.gamma, norm.beta, epsilon)
        assert np.all(np.abs(other.result - norm.result) <= limit)


# ------------------------------------------------------------------------------------------------- must be rejected


class ModelScale(Program):
    """1/√(model width), as in source 002."""

    def scale(self, width: int, model: int) -> float:
        """The scale for the width of the model instead of the head."""
        return float(1 / np.sqrt(model))


class CombinedBySequence(Program):
    """(B, Sq, H, Dv) viewed as (Sq, B, H·Dv), as in source 002."""

    def combine(self, x: Array) -> Array:
        """The view, and the transpose that makes its shape right."""
        batch, heads, rows, width = x.shape
        return x.transpose(0, 2, 1, 3).reshape(rows, batch, heads * width).swapaxes(0, 1)


class SplitByRows(Program):
    """(S, H·D) viewed as (H, S, D)."""

    def split(self, x: Array) -> Array:
        """The view without the transpose."""
        return x.reshape(x.shape[0], self.problem.heads, x.shape[1], -1)


class Bessel(Program):
    """The variance divided by n − 1, as torch.var does."""

    def variance(self, centred: Array) -> Array:
        """The sum over n − 1."""
        n = centred.shape[2]
        return super().variance(centred) * self.work(n / (n - 1))


class EpsilonOutside(Program):
    """Epsilon added to the deviation."""

    def deviation(self, var: Array, epsilon: float) -> Array:
        """The root taken before epsilon is added."""
        return np.sqrt(var) + self.work(epsilon)


@pytest.mark.parametrize("dtype", ALL_DTYPES)
@pytest.mark.parametrize("wrong", [ModelScale, CombinedBySequence, SplitByRows])
def test_a_wrong_layer_leaves_the_bound(wrong: type[Program], dtype: str) -> None:
    """The mistakes of published layers are outside the loosest bound of every dtype."""
    problem, loosest = fixed(dtype), profiles(dtype)[-1]
    assert shares_of(problem, Program(problem, dtype, loosest), dtype, loosest)[0] <= 1
    assert shares_of(problem, wrong(problem, dtype, loosest), dtype, loosest)[0] > 1


def test_a_wrong_combination_is_right_for_one_batch() -> None:
    """The check above fails for the stated reason: with one batch that mistake changes nothing."""
    problem = fixed("float32")
    problem = replace(problem, arrays={**problem.arrays, "x_q": problem.arrays["x_q"][:1]})
    program = CombinedBySequence(problem, "float32", Profile.WIDE)
    assert shares_of(problem, program, "float32", Profile.WIDE)[0] <= 1


@pytest.mark.parametrize("pre_norm", [False, True], ids=["post", "pre"])
@pytest.mark.parametrize(("wrong", "epsilon"), [(Bessel, 1e-5), (EpsilonOutside, 1e-5), (EpsilonOutside, 0.01)])
def test_a_wrong_normalisation_leaves_the_bound(wrong: type[Program], epsilon: float, pre_norm: bool) -> None:
    """Bessel's correction and epsilon outside the root are outside the bound of float32."""
    problem = fixed("float32", sublayer=True, epsilon=epsilon, spread=0.05)
    problem = replace(problem, norm={**problem.norm, "pre_norm": pre_norm})
    assert shares_of(problem, Program(problem, "float32", Profile.WIDE), "float32", Profile.WIDE)[0] <= 1
    program = wrong(problem, "float32", Profile.WIDE)
    assert shares_of(problem, program, "float32", Profile.WIDE)[0] > 1


@pytest.mark.parametrize("dtype", HALVES)
def test_bessel_leaves_the_bound_of_half_precision(dtype: str) -> None:
    """A sub-layer that normalises only x shows Bessel's correction even in half precision (n = 8: 7 %)."""
    problem = fixed(dtype, sublayer=True)
    problem = replace(problem, arrays={**problem.arrays, "w_o": np.zeros_like(problem.arrays["w_o"])})
    assert shares_of(problem, Program(problem, dtype, Profile.WIDE), dtype, Profile.WIDE)[0] <= 1
    assert shares_of(problem, Bessel(problem, dtype, Profile.WIDE), dtype, Profile.WIDE)[0] > 1


def test_a_variance_of_one_pass_leaves_the_bound_at_a_large_mean() -> None:
    """mean(z²) − mean(z)² cancels where the mean is 1000 deviations."""
    norm = _norm(np.random.default_rng(0).normal(size=(1, 4, 64)) + 1000, "float32")
    limit = bounds.norm_error(norm, None, of_sdpa.rounding("float32", Profile.WIDE))
    z = norm.z.astype(np.float32)
    mean = z.mean(axis=2, keepdims=True)
    var = np.maximum((z**2).mean(axis=2, keepdims=True) - mean**2, 0)
    got = (z - mean) / np.sqrt(var + np.float32(1e-5))
    assert shares(got.astype(np.float64), norm.result, limit, "float32").max() > 1


@pytest.mark.parametrize("sublayer", [False, True], ids=["mha", "sublayer"])
def test_float64_computed_in_float32_leaves_the_bound(sublayer: bool) -> None:
    """A float64 layer that is computed in float32 leaves the bound."""
    problem = fixed("float64", sublayer=sublayer)
    program = Program(problem, "float64", Profile.WIDE)
    program.work = np.float32
    program.arrays = {name: a.astype(np.float32) for name, a in program.arrays.items()}
    assert min(shares_of(problem, program, "float64", Profile.WIDE)) > 1


@pytest.mark.parametrize("name", ["w_q", "w_k", "w_v", "w_o", "b_q", "b_v", "b_o"])
def test_one_part_in_ten_thousand_of_one_weight_is_caught_in_float32(name: str) -> None:
    """A relative error of 1e-4 in one element of one weight or bias leaves the bound."""
    problem = fixed("float32")
    program = Program(problem, "float32", Profile.WIDE)
    array = program.arrays[name]
    array[np.unravel_index(np.argmax(np.abs(array)), array.shape)] *= np.float32(1 + 1e-4)
    assert shares_of(problem, program, "float32", Profile.WIDE)[0] > 1


@pytest.mark.parametrize("averaged", [False, True])
def test_one_part_in_ten_thousand_of_one_returned_weight_is_caught(averaged: bool) -> None:
    """A relative error of 1e-4 in one returned weight, per head or averaged, leaves the bound."""
    problem = fixed("float32")
    expected = reference.mha(**problem.keywords(), average_weights=averaged)
    limit = bounds.bound(expected, Options(), "float32", Profile.WIDE)
    wrong = expected.weights.copy()
    wrong[np.unravel_index(np.argmax(wrong), wrong.shape)] *= 1 + 1e-4
    assert shares(wrong, expected.weights, limit.weights, "float32").max() > 1


# ------------------------------------------------------------------------------------------------------- properties


@pytest.mark.parametrize("sublayer", [False, True], ids=["mha", "sublayer"])
@pytest.mark.parametrize("dtype", ALL_DTYPES)
def test_bounds_are_finite_positive_and_ordered(dtype: str, sublayer: bool) -> None:
    """Every element of an output has a positive finite bound, and a looser profile never has a smaller one."""
    problem = fixed(dtype, sublayer=sublayer)
    expected = (reference.sublayer if sublayer else reference.mha)(**problem.keywords())
    limits = [bounds.bound(expected, Options(), dtype, profile).output for profile in profiles(dtype)]
    assert all(np.all(limit > 0) and np.all(np.isfinite(limit)) for limit in limits)
    for strict, loose in itertools.pairwise(limits):
        assert np.all(strict <= loose)


def test_masked_weights_must_be_zero_exactly() -> None:
    """The bound of a masked weight is zero, and of an averaged one where no head may attend."""
    mask = np.ones((2, 5, 5), bool)
    mask[:, 2] = False
    mask[0, :, 1] = False
    for averaged in (False, True):
        named = {**fixed("bfloat16").keywords(), "mask": mask, "average_weights": averaged}
        expected = reference.mha(**named)
        limit = bounds.bound(expected, Options(), "bfloat16", Profile.STORAGE)
        assert np.array_equal(limit.weights == 0, expected.weights == 0)


def test_bounds_have_the_form_of_the_results() -> None:
    """Unbatched and sequence-first calls have bounds in the shapes of their results."""
    problem = fixed("float32")
    x = problem.arrays["x_q"]
    batched = bounds.bound(reference.mha(**problem.keywords()), Options(), "float32", Profile.WIDE)
    first = {**problem.keywords(), "x_q": x.swapaxes(0, 1), "sequence_first": True}
    turned = bounds.bound(reference.mha(**first), Options(), "float32", Profile.WIDE)
    alone = bounds.bound(reference.mha(**{**problem.keywords(), "x_q": x[0]}), Options(), "float32", Profile.WIDE)
    np.testing.assert_allclose(turned.output, batched.output.swapaxes(0, 1), rtol=1e-9)
    np.testing.assert_allclose(turned.weights, batched.weights, rtol=1e-9)
    np.testing.assert_allclose(alone.output, batched.output[0], rtol=1e-9)
    np.testing.assert_allclose(alone.weights, batched.weights[0], rtol=1e-9)


def _norm(z: Array, dtype: str, epsilon: float = 1e-5) -> reference.Norm:
    """LayerNorm of z, rounded to the dtype, without an affine part."""
    width = z.shape[2]
    return reference.layer_norm(z.astype(dtype).astype(np.float64), np.ones(width), np.zeros(width), epsilon)


@pytest.mark.parametrize("poison", [np.nan, np.inf, 1e30])
def test_a_masked_key_does_not_change_the_bound(poison: float) -> None:
    """Whatever a padded input row holds, the bound of the other rows is unchanged."""
    named = {**fixed("float32").keywords(), "x_kv": np.ones((2, 6, 8), np.float32), "kv_lengths": np.array([5, 5])}
    clean = bounds.bound(reference.mha(**named), Options(), "float32", Profile.WIDE)
    named["x_kv"] = named["x_kv"].copy()
    named["x_kv"][:, 5] = poison
    poisoned = bounds.bound(reference.mha(**named), Options(), "float32", Profile.WIDE)
    np.testing.assert_allclose(poisoned.output, clean.output, rtol=1e-6)
    np.testing.assert_allclose(poisoned.weights, clean.weights, rtol=1e-6)


@pytest.mark.parametrize("shape", [(0, 5, 8), (2, 0, 8)])
def test_empty_inputs_have_empty_bounds(shape: tuple[int, ...]) -> None:
    """Inputs without a batch or a row have bounds of the shape of the empty output."""
    for sublayer in (False, True):
        named = {**fixed("float32", sublayer=sublayer).keywords(), "x_q": np.zeros(shape, np.float32)}
        expected = (reference.sublayer if sublayer else reference.mha)(**named)
        assert bounds.bound(expected, Options(), "float32", Profile.WIDE).output.shape == shape
