"""The closed formula of a layer's gradients agrees with complex-step differences of its output."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attention_conformance.conformance.spec.mha_gradients import LayerGradExpected, mha_grad
from attention_conformance.conformance.spec.sdpa import InvalidInput
from attention_conformance.conformance.tests import complex_step_layers

#: Largest difference from the complex step, for data of order 1: sums of some hundred terms, each rounded at 2^-53.
CLOSE = 1e-12

#: B, Sq, Sk, E, Ekv, D, Dv and Eo of the inputs here, with two heads.
SIZES = {"b": 2, "sq": 3, "sk": 4, "e": 3, "ekv": 2, "d": 2, "dv": 3, "eo": 5}
HEADS = 2

#: (B, H, Sq, Sk) in self-attention.
SQUARE = (2, HEADS, 3, 3)

RNG = np.random.default_rng(1)
HIDING = np.ones(SQUARE, bool)
HIDING[0, :, 1], HIDING[1, 1, 2], HIDING[:, :, :, 2] = False, False, False


def call(seed: int = 0, *, cross: bool = False, biases: str = "", project: bool = True, **given: Any) -> dict[str, Any]:
    """All keywords of a call; ``biases`` are letters of q, k, v and o, ``given`` are further options."""
    s, rng = {**SIZES, **({} if cross else {"sk": SIZES["sq"], "ekv": SIZES["e"]})}, np.random.default_rng(seed)
    columns = {"q": HEADS * s["d"], "k": HEADS * s["d"], "v": HEADS * s["dv"], "o": s["eo"]}
    rows = {"q": s["e"], "k": s["ekv"], "v": s["ekv"], "o": HEADS * s["dv"]}
    shapes: dict[str, tuple[int, ...]] = {"x_q": (s["b"], s["sq"], s["e"])}
    shapes |= {f"w_{name}": (rows[name], columns[name]) for name in ("qkvo" if project else "qkv")}
    shapes |= {f"b_{name}": (columns[name],) for name in biases}
    shapes |= {"x_kv": (s["b"], s["sk"], s["ekv"])} if cross else {}
    shapes["grad_output"] = (s["b"], s["sq"], s["eo"] if project else HEADS * s["dv"])
    arrays = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    if given.get("sequence_first"):
        arrays |= {name: np.swapaxes(a, 0, 1) for name, a in arrays.items() if a.ndim == 3}
    return {"heads": HEADS, **arrays, **given}


def agree(found: LayerGradExpected, right: dict[str, np.ndarray]) -> bool:
    """Whether all gradients are present, in their order and shapes, and equal to within CLOSE."""
    return list(found.gradients) == list(right) and all(
        array.shape == right[name].shape and bool((np.abs(array - right[name]) <= CLOSE).all())
        for name, array in found.gradients.items()
    )


CALLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "without an output projection": {"project": False},
    "cross-attention": {"cross": True},
    "all biases": {"biases": "qkvo"},
    "cross-attention, all biases": {"cross": True, "biases": "qkvo"},
    "the bias of queries": {"biases": "q"},
    "the bias of keys": {"biases": "k"},
    "the bias of values": {"biases": "v"},
    "the bias of the output": {"biases": "o"},
    "mask": {"mask": RNG.random(SQUARE) < 0.6, "biases": "qkvo"},
    "fully masked rows": {"mask": HIDING, "biases": "qkvo"},
    "no key at all": {"mask": np.zeros((1, 1, 1, 1), bool), "biases": "o"},
    "causal": {"is_causal": True},
    "causal with more keys": {"is_causal": True, "cross": True},
    "key lengths": {"kv_lengths": np.array([0, 3]), "cross": True, "biases": "qkvo"},
    "scale": {"scale": 0.3},
    "scale 0": {"scale": 0.0},
    "negative scale": {"scale": -1.5, "biases": "qk"},
    "bias": {"bias": RNG.standard_normal(SQUARE)},
    "bias of minus infinity": {"bias": np.where(RNG.random(SQUARE) < 0.4, -np.inf, RNG.standard_normal(SQUARE))},
    "sequence first": {"sequence_first": True, "cross": True, "biases": "qkvo"},
    "sequence first, mask": {"sequence_first": True, "mask": RNG.random(SQUARE) < 0.7},
}


@pytest.mark.parametrize("given", CALLS.values(), ids=CALLS.keys())
def test_complex_step(given: dict[str, Any]) -> None:
    """The formula agrees for each option alone, with two heads and all widths different."""
    named = call(**given)
    assert agree(mha_grad(**named), complex_step_layers.mha_grad(**named))


@pytest.mark.parametrize("axes", [*np.ndindex(2, 2, 2, 2), (0, 1, 1), (1, 0), (1,), ()])
def test_bias_is_summed_over_broadcast_axes(axes: tuple[int, ...]) -> None:
    """A bias with any of its axes of length 1 (0 here) or left off has a gradient of its own shape."""
    full = SQUARE[4 - len(axes) :]
    bias = np.random.default_rng(2).standard_normal([n if kept else 1 for n, kept in zip(full, axes, strict=True)])
    named = call(bias=np.asarray(bias))
    assert agree(mha_grad(**named), complex_step_layers.mha_grad(**named))


@pytest.mark.parametrize("cross", [False, True])
def test_unbatched(cross: bool) -> None:
    """The formula agrees for inputs without a batch axis, with a bias (H, Sq, Sk)."""
    named = call(3, cross=cross, biases="qkvo")
    named |= {name: named[name][0] for name in ("x_q", "x_kv", "grad_output") if name in named}
    named["bias"] = np.random.default_rng(4).standard_normal((HEADS, 3, 4 if cross else 3))
    found = mha_grad(**named)
    assert agree(found, complex_step_layers.mha_grad(**named))
    assert found.grad_x_q.shape == named["x_q"].shape


@pytest.mark.parametrize("seed", range(25))
def test_options_together(seed: int) -> None:
    """The formula agrees for random combinations of the options in self-attention."""
    rng = np.random.default_rng(seed)
    chosen: dict[str, Any] = {}
    for given in CALLS.values():
        chosen |= given if rng.random() < 0.2 else {}
    chosen["cross"] = False
    chosen["biases"] = "".join(name for name in "qkvo" if rng.random() < 0.5)
    if not chosen.get("project", True):
        chosen["biases"] = chosen["biases"].replace("o", "")
    named = call(seed, **chosen)
    assert agree(mha_grad(**named), complex_step_layers.mha_grad(**named))


def test_the_comparison_can_fail() -> None:
    """An error of 1e-9 in one element, a gradient of another shape and a missing one are found."""
    named = call(biases="q")
    found, right = mha_grad(**named), complex_step_layers.mha_grad(**named)
    assert agree(found, right)
    wrong = found.grad_w_k.copy()
    wrong[1, 2] += 1e-9
    assert not agree(replace(found, grad_w_k=wrong), right)
    assert not agree(replace(found, grad_w_q=found.grad_w_q[None]), right)
    assert not agree(replace(found, grad_b_q=None), right)


def test_by_hand() -> None:
    """One head of width 1, weights of 1, two equal rows of another input: p = 1/2, and only values move the output."""
    one = np.ones((1, 1))
    found = mha_grad(one, one, one, one, one, heads=1, x_kv=np.array([[2.0], [2.0]]), w_o=3 * one, b_v=np.ones(1))
    assert found.grad_w_o is not None
    assert found.grad_w_o.item() == 3.0  # C = 2 + 1
    assert found.grad_x_kv is not None
    assert found.grad_x_kv.tolist() == [[1.5], [1.5]]
    assert found.grad_w_v.item() == 6.0
    assert found.grad_b_v is not None
    assert found.grad_b_v.item() == 3.0
    assert found.grad_x_q.item() == found.grad_w_q.item() == found.grad_w_k.item() == 0.0


def test_a_row_without_a_key_reaches_the_output_bias_alone() -> None:
    """With no key at all the gradient of b_o is the sum of grad_output, and every other gradient is zero."""
    named = call(biases="qkvo", kv_lengths=np.zeros(2, int))
    found = mha_grad(**named).gradients
    np.testing.assert_allclose(found.pop("grad_b_o"), named["grad_output"].sum(axis=(0, 1)), rtol=1e-12)
    assert not any(array.any() for array in found.values())


def test_padded_rows_have_zero_gradients() -> None:
    """A padded row has a gradient of zero, and its values change no other gradient."""
    named = call(cross=True, biases="qkvo", kv_lengths=np.array([3, 2]))
    found = mha_grad(**named)
    assert found.grad_x_kv is not None
    assert not found.grad_x_kv[0, 3].any()
    assert not found.grad_x_kv[1, 2:].any()
    named["x_kv"] = named["x_kv"].copy()
    named["x_kv"][0, 3], named["x_kv"][1, 2:] = 7.0, -3.0
    for name, array in mha_grad(**named).gradients.items():
        np.testing.assert_allclose(array, found.gradients[name], rtol=0, atol=CLOSE)


@pytest.mark.parametrize("empty", ["x_q", "x_kv"])
def test_empty_axes(empty: str) -> None:
    """Without rows or keys gradients have the shapes of their inputs, and are zero."""
    named = call(cross=True, biases="qkv")
    named[empty] = named[empty][:, :0]
    if empty == "x_q":
        named["grad_output"] = named["grad_output"][:, :0]
    for name, array in mha_grad(**named).gradients.items():
        assert array.shape == named[name.removeprefix("grad_")].shape
        assert not array.any()


@pytest.mark.parametrize("change", [lambda g: g[:, :2], lambda g: g.astype(np.float32), lambda g: g[..., :3]])
def test_grad_output_must_fit(change: Any) -> None:
    """A grad_output with another shape or dtype than the output is refused by GRAD-27."""
    named = call()
    named["grad_output"] = change(named["grad_output"])
    with pytest.raises(InvalidInput, match="GRAD-27"):
        mha_grad(**named)


def test_what_mha_refuses_is_refused() -> None:
    """Heads that do not divide the columns are refused by the clause of mha."""
    with pytest.raises(InvalidInput, match="MHA-19"):
        mha_grad(**{**call(), "heads": 3})
