"""The closed formula of the gradients agrees with complex-step and with high-precision differences of the output."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import mpmath
import numpy as np
import pytest

from attention_conformance.conformance.spec.gradients import GradExpected, sdpa_grad
from attention_conformance.conformance.spec.sdpa import InvalidInput
from attention_conformance.conformance.tests import complex_step, fifty_digits
from attention_conformance.conformance.tests.gradient_problems import part
from attention_conformance.impls.operators import OPERATORS

#: Largest difference from the complex step, for data of order 1: sums of some ten terms, each rounded at 2^-53.
CLOSE = 1e-13

Arrays = tuple[np.ndarray, ...]
Shape = tuple[int, int, int, int]

#: (B, Hq, Sq, Sk) of the inputs here; Hkv is 2, D is 2 and Dv is 3.
SMALL: Shape = (2, 4, 3, 4)


def data(seed: int = 0, shape: Shape = SMALL, heads: int = 2) -> Arrays:
    """Normally distributed q, k, v and grad_output."""
    rng = np.random.default_rng(seed)
    batch, query_heads, rows, keys = shape
    sizes = (
        (batch, query_heads, rows, 2),
        (batch, heads, keys, 2),
        (batch, heads, keys, 3),
        (batch, query_heads, rows, 3),
    )
    return tuple(rng.standard_normal(size) for size in sizes)


def agree(found: GradExpected, right: dict[str, np.ndarray]) -> bool:
    """Whether all gradients are present, in their shapes, and equal to within CLOSE."""
    return found.gradients.keys() == right.keys() and all(
        array.shape == right[name].shape and bool((np.abs(array - right[name]) <= CLOSE).all())
        for name, array in found.gradients.items()
    )


RNG = np.random.default_rng(1)
HIDING = np.ones(SMALL, bool)
HIDING[0, 1, 1], HIDING[1, :, :, 2] = False, False

OPTIONS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "mask": {"mask": RNG.random(SMALL) < 0.6},
    "a fully masked row in a batch": {"mask": HIDING},
    "no key at all": {"mask": np.zeros((1, 1, 1, 1), bool)},
    "causal": {"is_causal": True},
    "causal at the bottom right": {"is_causal": True, "causal_offset": 1},
    "causal with rows before the first key": {"is_causal": True, "causal_offset": np.array([-2, 1])},
    "window": {"window": (1, 0)},
    "key lengths": {"kv_lengths": np.array([0, 3])},
    "scale": {"scale": 0.3},
    "scale 0": {"scale": 0.0},
    "negative scale": {"scale": -1.5},
    "softcap": {"softcap": 0.8},
    "softcap and bias": {"softcap": 0.8, "bias": RNG.standard_normal(SMALL), "scale": -2.0},
    "bias of minus infinity": {"bias": np.where(RNG.random(SMALL) < 0.4, -np.inf, RNG.standard_normal(SMALL))},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_complex_step(options: dict[str, Any]) -> None:
    """The formula agrees for each option alone, with grouped heads, Dv ≠ D and Sq ≠ Sk."""
    assert agree(sdpa_grad(*data(), **options), complex_step.sdpa_grad(*data(), **options))


def test_the_comparison_can_fail() -> None:
    """An error of 1e-9 in one element, a gradient of another shape and a missing one are found."""
    options: dict[str, Any] = {"bias": np.ones((1, 1, 1, 4))}
    found, right = sdpa_grad(*data(), **options), complex_step.sdpa_grad(*data(), **options)
    assert agree(found, right)
    wrong = found.grad_k.copy()
    wrong[0, 0, 1, 1] += 1e-9
    assert not agree(replace(found, grad_k=wrong), right)
    assert not agree(replace(found, grad_bias=np.broadcast_to(right["grad_bias"], SMALL)), right)
    assert not agree(replace(found, grad_bias=None), right)


@pytest.mark.parametrize("shape", [(1, 2, 5, 3), (1, 2, 3, 5), (1, 2, 1, 4), (1, 2, 4, 1)])
def test_causal_of_other_lengths(shape: Shape) -> None:
    """The diagonal begins at the top left for more rows than keys and for more keys than rows."""
    arrays = data(1, shape)
    assert agree(sdpa_grad(*arrays, is_causal=True), complex_step.sdpa_grad(*arrays, is_causal=True))


@pytest.mark.slow(2)
@pytest.mark.parametrize("axes", [*np.ndindex(2, 2, 2, 2), (0, 1, 1), (1, 0), (1,), (0,), ()])
def test_bias_is_summed_over_broadcast_axes(axes: tuple[int, ...]) -> None:
    """A bias with any of its axes of length 1 (0 here) or left off has a gradient of its own shape."""
    full = SMALL[4 - len(axes) :]
    bias = np.random.default_rng(2).standard_normal([n if kept else 1 for n, kept in zip(full, axes, strict=True)])
    found = sdpa_grad(*data(), bias=np.asarray(bias), softcap=1.5)
    assert agree(found, complex_step.sdpa_grad(*data(), bias=np.asarray(bias), softcap=1.5))


@pytest.mark.parametrize("heads", [1, 2, 4])
def test_groups_are_summed(heads: int) -> None:
    """One, two or four key heads for four query heads."""
    arrays = data(3, heads=heads)
    assert agree(sdpa_grad(*arrays), complex_step.sdpa_grad(*arrays))


@pytest.mark.slow(1)
@pytest.mark.parametrize("seed", range(25))
def test_options_together(seed: int) -> None:
    """The formula agrees for random combinations of the options."""
    rng = np.random.default_rng(seed)
    chosen: dict[str, Any] = {}
    for options in OPTIONS.values():
        chosen |= options if rng.random() < 0.25 else {}
    if rng.random() < 0.5:
        chosen["bias"] = rng.standard_normal(part(rng, SMALL))
    if "window" in chosen or chosen.get("is_causal"):
        chosen["causal_offset"] = int(rng.integers(-2, 4))
    else:
        chosen.pop("causal_offset", None)
    assert agree(sdpa_grad(*data(seed), **chosen), complex_step.sdpa_grad(*data(seed), **chosen))


@pytest.mark.parametrize("name", ["nothing", "softcap and bias", "a fully masked row in a batch"])
def test_high_precision_differences(name: str) -> None:
    """The formula agrees with central differences of a 50-digit evaluation, for every third element of each input."""
    shape, step, options = (1, 2, 2, 3), mpmath.mpf(10) ** -15, OPTIONS[name]
    options = {n: a[:1, :2, :2, :3] if isinstance(a, np.ndarray) else a for n, a in options.items()}
    q, k, v, grad_output = data(4, shape, heads=1)
    found = sdpa_grad(q, k, v, grad_output, **options).gradients
    given = {"q": q, "k": k, "v": v, **{n: a for n, a in options.items() if n == "bias"}}

    def loss(moved: dict[str, np.ndarray]) -> Any:
        rows = fifty_digits.sdpa(moved["q"], moved["k"], moved["v"], **{**options, **moved_bias(moved)})
        return sum(
            mpmath.mpf(g) * o
            for place, row in rows.items()
            for g, o in zip(grad_output[place], row.output, strict=True)
        )

    def moved_bias(moved: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"bias": moved["bias"]} if "bias" in moved else {}

    with mpmath.workdps(fifty_digits.DIGITS):
        for name, array in given.items():
            for place in list(np.ndindex(*array.shape))[::3]:
                values = []
                for sign in (1, -1):
                    moved = array.astype(object)
                    moved[place] = mpmath.mpf(array[place]) + sign * step
                    values.append(loss({**given, name: moved}))
                difference = float((values[0] - values[1]) / (2 * step))
                assert abs(difference - found[f"grad_{name}"][place]) <= CLOSE


def test_by_hand() -> None:
    """Two keys of equal score and the values 1 and 3: p = 1/2 each, δ = 2, dS = (−1/2, 1/2)."""
    q, k, v, one = (np.array(a, float).reshape(1, 1, -1, 1) for a in ([0], [1, 2], [1, 3], [1]))
    found = sdpa_grad(q, k, v, one, bias=np.zeros(2))
    assert found.grad_v.ravel().tolist() == [0.5, 0.5]
    assert found.grad_bias is not None
    assert found.grad_bias.tolist() == [-0.5, 0.5]
    assert found.grad_q.ravel().tolist() == [0.5]
    assert found.grad_k.ravel().tolist() == [0.0, 0.0]


def test_rows_without_a_key_alone() -> None:
    """Every gradient is zero without any key, also where a bias of minus infinity hides all keys."""
    for options in ({"kv_lengths": np.zeros(2, int)}, {"bias": np.full(SMALL, -np.inf)}):
        assert all(not array.any() for array in sdpa_grad(*data(), **options).gradients.values())


def test_a_row_without_a_key_changes_nothing() -> None:
    """A fully masked row contributes nothing: the gradients are those of the input without it."""
    q, k, v, g = data()
    mask = np.ones((3, 1), bool)
    mask[1] = False
    whole, rest = sdpa_grad(q, k, v, g, mask=mask), sdpa_grad(q[:, :, ::2], k, v, g[:, :, ::2])
    assert not whole.grad_q[:, :, 1].any()
    np.testing.assert_allclose(whole.grad_q[:, :, ::2], rest.grad_q, rtol=0, atol=CLOSE)
    np.testing.assert_allclose(whole.grad_k, rest.grad_k, rtol=0, atol=CLOSE)
    np.testing.assert_allclose(whole.grad_v, rest.grad_v, rtol=0, atol=CLOSE)


def test_masked_keys_have_zero_gradients_and_their_values_stay_out() -> None:
    """NaN in k and v at a masked key reaches no gradient, and the key's own gradients are zero."""
    q, k, v, g = data()
    k[:, :, 3], v[:, :, 3] = np.nan, np.nan
    found = sdpa_grad(q, k, v, g, kv_lengths=np.array([3, 3]), softcap=1.0, bias=np.zeros(4))
    assert all(np.isfinite(array).all() for array in found.gradients.values())
    assert not found.grad_k[:, :, 3].any()
    assert not found.grad_v[:, :, 3].any()


def test_a_nan_that_may_be_attended_to_is_not_hidden() -> None:
    """NaN in an allowed value reaches the gradients of q and of k."""
    q, k, v, g = data()
    v[0, 0, 0, 0] = np.nan
    found = sdpa_grad(q, k, v, g)
    assert np.isnan(found.grad_q[0, 0]).all()
    assert not np.isnan(found.grad_q[1]).any()


@pytest.mark.parametrize("shape", [(0, 4, 3, 4), (2, 4, 0, 4), (2, 4, 3, 0)])
def test_empty_axes(shape: Shape) -> None:
    """Gradients have the shapes of their inputs, and are zero where the sum is empty."""
    arrays = data(0, shape)
    found = sdpa_grad(*arrays, bias=np.zeros((1, 4, 1, 1)))
    for name, array in zip(("grad_q", "grad_k", "grad_v"), arrays, strict=False):
        assert found.gradients[name].shape == array.shape
        assert not found.gradients[name].any()
    assert found.gradients["grad_bias"].shape == (1, 4, 1, 1)


@pytest.mark.parametrize("change", [lambda g: g[:, :, :2], lambda g: g.astype(np.float32)])
def test_grad_output_must_fit(change: Any) -> None:
    """A grad_output with another shape or dtype than the output is refused by GRAD-12."""
    q, k, v, g = data()
    with pytest.raises(InvalidInput, match="GRAD-12"):
        sdpa_grad(q, k, v, change(g))


@pytest.mark.parametrize("name", ["head_scale", "sinks", "rotary_cos", "past_key", "tree_parents"])
def test_a_keyword_of_sdpa_alone_is_refused(name: str) -> None:
    """A keyword without gradients in the formula is refused, as ignoring it would give wrong numbers."""
    given: dict[str, Any] = {name: np.ones(2)}
    with pytest.raises(TypeError, match=name):
        sdpa_grad(*data(), **given)


def test_the_keywords_are_those_of_the_operator() -> None:
    """The reference takes the keywords of the operator, in their order."""
    parameters = inspect.signature(sdpa_grad).parameters.values()
    assert tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY) == OPERATORS["sdpa_grad"].keywords
