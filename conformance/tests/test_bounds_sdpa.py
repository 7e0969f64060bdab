"""The error bound: correct programs stay inside their profile, and small mistakes leave it."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from attention_conformance.conformance.bounds import sdpa as bounds
from attention_conformance.conformance.bounds.sdpa import Options, bound, profiles, rounding
from attention_conformance.conformance.cases import all_cases
from attention_conformance.conformance.cases.base import ALL_DTYPES, HALVES, NUMPY_DTYPES
from attention_conformance.conformance.cases.data import LONG, Shape, normal, shifted
from attention_conformance.conformance.judging.compare import shares
from attention_conformance.conformance.spec import sdpa as reference
from attention_conformance.impls.contract import Profile

SHAPES = {
    "small": Shape(),
    "wide": Shape(b=1, sq=4, sk=33, d=128, dv=16),
    "long": LONG,
}


def made(shape: Shape, dtype: str, spread: float = 1.0, seed: int = 0):  # type: ignore[no-untyped-def]
    """Random q, k, v in a dtype, and the reference's results for them."""
    arrays = (a.astype(NUMPY_DTYPES[dtype]) for a in normal(spread)(np.random.default_rng(seed), shape))
    q, k, v = arrays
    return q, k, v, reference.sdpa(q, k, v)


def computed(q, k, v, dtype: str, profile: Profile) -> np.ndarray:  # type: ignore[no-untyped-def]
    """Plain attention that rounds where the profile rounds, in float64 for float64 and in float32 otherwise."""
    working = np.float64 if dtype == "float64" else np.float32
    stored = NUMPY_DTYPES[dtype]

    def kept(array: np.ndarray, *, rounds: bool) -> np.ndarray:
        return array.astype(stored).astype(working) if rounds else array.astype(working)

    storage, weights = profile is Profile.STORAGE, profile in (Profile.STORAGE, Profile.FUSED)
    q, k, v = (a.astype(working) for a in (q, k, v))
    scores = kept(kept(q * working(q.shape[3] ** -0.5), rounds=storage) @ k.swapaxes(2, 3), rounds=storage)
    powers = kept(np.exp(kept(scores - scores.max(3, keepdims=True), rounds=storage)), rounds=storage)
    total = kept(powers.sum(3, keepdims=True), rounds=storage)
    p = kept(powers / total, rounds=weights)
    return (p @ v).astype(stored)


def worst(got: np.ndarray, expected: reference.Expected, limit: bounds.Bound, dtype: str) -> float:
    """The largest share of the bound of an output."""
    return float(shares(got.astype(np.float64), expected.output, limit.output, dtype).max())


def test_the_own_error_of_a_reference_is_that_of_its_call() -> None:
    """The reference's own error is reused for other profiles, and not for another call, bias or scale."""
    first, second = (made(Shape(), "float32", seed=seed)[3] for seed in (1, 2))
    calls = [
        (first, Options()),
        (second, Options()),
        (second, Options(scale=3.0)),
        (second, Options(scale=3.0, softcap=0.5)),
        (second, Options(scale=3.0, softcap=0.5, bias=np.ones((5, 7), np.float32))),
        (first, Options()),
    ]
    for expected, options in calls:
        for profile in (Profile.WIDE, Profile.TF32):
            found = bound(expected, options, "float32", profile).output
            theirs, ours = (
                bounds.bound_under(expected, options, rounding(*of)).output
                for of in (("float32", profile), ("float64", Profile.WIDE))
            )
            assert found.tobytes() == (theirs + ours).tobytes()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("spread", [0.01, 1.0, 5.0])
@pytest.mark.parametrize("dtype", ALL_DTYPES)
def test_a_correct_program_keeps_the_bound_of_its_profile(dtype: str, spread: float, shape: str) -> None:
    """Rounding exactly where a profile rounds stays inside that profile's bound."""
    for profile in profiles(dtype):
        for seed in range(5):
            q, k, v, expected = made(SHAPES[shape], dtype, spread, seed)
            limit = bound(expected, Options(), dtype, profile)
            assert worst(computed(q, k, v, dtype, profile), expected, limit, dtype) <= 1


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(("done", "claimed"), [(Profile.STORAGE, Profile.FUSED), (Profile.FUSED, Profile.WIDE)])
def test_rounding_more_than_the_profile_leaves_its_bound(dtype: str, done: Profile, claimed: Profile) -> None:
    """A program that rounds more intermediates than its profile says leaves the bound."""
    q, k, v, expected = made(Shape(b=1, sq=16, sk=64, d=64, dv=8), dtype, 2.0)
    limit = bound(expected, Options(), dtype, claimed)
    assert worst(computed(q, k, v, dtype, done), expected, limit, dtype) > 1


def test_scores_stored_in_half_precision_are_seen_when_shifted() -> None:
    """A shift of all scores by 625 changes nothing unless scores are stored in half precision."""
    shape = Shape(sk=33)
    q, k, v = (a.astype(np.float16) for a in shifted(625.0)(np.random.default_rng(1), shape))
    expected = reference.sdpa(q, k, v)
    limit = bound(expected, Options(), "float16", Profile.FUSED)
    assert worst(computed(q, k, v, "float16", Profile.FUSED), expected, limit, "float16") <= 1
    assert worst(computed(q, k, v, "float16", Profile.STORAGE), expected, limit, "float16") > 1


def test_float64_computed_in_float32_is_always_caught() -> None:
    """Every case with values in float64 leaves the bound if it is computed in float32."""
    for name, case in all_cases().items():
        if "float64" not in case.dtypes or case.zeros or case.clauses[0] in ("SDPA-15", "SDPA-23"):
            continue
        expected = case.expected("float64")
        rounded = expected.output.astype(np.float32).astype(np.float64)
        if np.allclose(rounded, expected.output, rtol=1e-10, atol=0):
            continue  # the result is a float32 number: nothing to catch
        limit = case.bound("float64", Profile.WIDE)
        assert worst(rounded, expected, limit, "float64") > 1, name


@pytest.mark.parametrize("what", ["scale", "score", "weight", "value", "output"])
def test_one_part_in_ten_thousand_is_caught_in_float32(what: str) -> None:
    """A relative error of 1e-4 in the scale, one score, one weight, one value or the output leaves the bound."""
    _q, _k, _v, expected = made(Shape(b=1, hq=1, hkv=1, sq=3, sk=4, d=8, dv=4), "float32")
    limit = bound(expected, Options(), "float32", Profile.WIDE)
    scores, p = expected.scores.copy(), expected.weights.copy()
    values, output = expected.v.copy(), None
    at = np.unravel_index(np.argmax(p), p.shape)
    if what == "scale":
        scores *= 1 + 1e-4
    if what == "score":
        scores[at] *= 1 + 1e-4
    if what in ("scale", "score"):
        p = np.exp(scores) / np.exp(scores).sum(3, keepdims=True)
    if what == "weight":
        p[at] *= 1 + 1e-4
    if what == "value":
        values[:, :, at[3]] *= 1 + 1e-4
    output = p @ values
    if what == "output":
        output *= 1 + 1e-4
    assert worst(output, expected, limit, "float32") > 1


def test_rows_without_a_key_must_be_zero_exactly_or_underflow() -> None:
    """The bound of a fully masked row is the smallest number of the dtype, nothing more."""
    case = all_cases()["empty-row"]
    limit = case.bound("float32", Profile.WIDE)
    assert limit.output[0, 0, 1].max() <= 2 * bounds.UNDERFLOW["float32"]


def test_masked_weights_must_be_zero_exactly() -> None:
    """The bound of a masked weight is zero: a fill of −1e9 that leaves a weight is wrong."""
    case = all_cases()["weights-mask"]
    expected, limit = case.expected("bfloat16"), case.bound("bfloat16", Profile.STORAGE)
    assert np.all(limit.weights[~expected.allowed] == 0)


def test_the_bound_never_exceeds_the_distance_to_the_farthest_value() -> None:
    """However imprecise the scores, the bound keeps a weighted mean between the values."""
    case = all_cases()["softmax-shift-plus-1e5"]
    expected, limit = case.expected("float32"), case.bound("float32", Profile.WIDE)
    farthest = np.abs(expected.v[:, :, None] - expected.output[:, :, :, None]).max(3)
    assert np.all(limit.output <= farthest * (1 + 1e-3))


def test_every_bound_is_finite_and_positive() -> None:
    """Where the reference is finite, the bound is finite and positive."""
    for case in all_cases().values():
        if case.invalid:
            continue
        for dtype in case.dtypes:
            expected = case.expected(dtype)
            limit = case.bound(dtype, Profile.STORAGE if dtype in HALVES else Profile.WIDE)
            finite = np.isfinite(expected.output)
            assert np.all(np.isfinite(limit.output[finite])), case.name
            assert np.all(limit.output[finite] > 0), case.name


@pytest.mark.parametrize("spread", [0.1, 1.0, 8.0])
@pytest.mark.parametrize("dtype", HALVES)
def test_scores_moved_within_their_error_stay_inside(dtype: str, spread: float) -> None:
    """However the scores move within their error, every result stays inside the bound."""
    *_, expected = made(SHAPES["small"], dtype, spread)
    r = rounding(dtype, Profile.STORAGE)
    epsilon = bounds.score_error(expected, Options(), r)
    limit = bound(expected, Options(), dtype, Profile.STORAGE)
    rng = np.random.default_rng(0)
    for _ in range(300):
        scores = expected.scores + epsilon * rng.choice([-1.0, 1.0], epsilon.shape)
        weights, lse = reference.softmax(scores, expected.allowed)
        assert np.all(np.abs(weights @ expected.v - expected.output) <= limit.output)
        assert np.all(np.abs(weights - expected.weights) <= limit.weights)
        assert np.all(np.abs(lse - expected.lse) <= limit.lse)


@pytest.mark.parametrize("dtype", ALL_DTYPES)
def test_profiles_are_ordered(dtype: str) -> None:
    """A looser profile never has a smaller bound."""
    _q, _k, _v, expected = made(SHAPES["small"], dtype)
    limits = [bound(expected, Options(), dtype, profile) for profile in profiles(dtype)]
    for strict, loose in itertools.pairwise(limits):
        assert np.all(strict.output <= loose.output)
        assert np.all(strict.weights <= loose.weights)
        assert np.all(strict.lse <= loose.lse)


def test_half_precision_accumulates_in_float32() -> None:
    """No profile allows sums in half precision: over 520 equal weights a bfloat16 sum stops at 256."""
    case = all_cases()["softmax-constant-values-long"]
    expected, limit = case.expected("bfloat16"), case.bound("bfloat16", Profile.STORAGE)
    stuck = expected.output * 520 / 256
    assert worst(stuck, expected, limit, "bfloat16") > 1
    assert rounding("bfloat16", Profile.STORAGE).accumulator == 2.0**-24


def test_softcap_shrinks_the_bound() -> None:
    """The slope of tanh is part of the bound, so that saturated scores forgive errors."""
    q, k, v, _ = made(Shape(), "bfloat16", 20.0)
    capped = reference.sdpa(q, k, v, softcap=1.0)
    limit = bound(capped, Options(softcap=1.0), "bfloat16", Profile.STORAGE)
    loose = bound(replace(capped, raw=capped.raw), Options(), "bfloat16", Profile.STORAGE)
    assert limit.output.mean() < loose.output.mean()
