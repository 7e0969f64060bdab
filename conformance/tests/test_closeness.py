"""Closeness: right results pass, wrong ones are refused with clause, place and diagnosis; misuse is distinguished."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import ml_dtypes
import numpy as np
import pytest
from threadpoolctl import threadpool_info

from attention_conformance.conformance.cases import all_cases, every_case
from attention_conformance.conformance.cases.base import NUMPY_DTYPES
from attention_conformance.conformance.cases.latent import LatentShape
from attention_conformance.conformance.closeness import (
    Closeness,
    NotClose,
    assert_close,
    assert_latent_close,
    assert_layer_close,
    assert_merge_close,
    assert_paged_close,
    assert_varlen_close,
    error_share,
    layer_error_share,
)
from attention_conformance.conformance.faults.registry import FAULTS
from attention_conformance.conformance.spec import gradients as gradient_reference
from attention_conformance.conformance.spec import mha as layer_reference
from attention_conformance.conformance.spec import sdpa as reference
from attention_conformance.conformance.spec.latent import latent
from attention_conformance.conformance.spec.merge import merge
from attention_conformance.conformance.spec.varlen import varlen

RNG = np.random.default_rng(7)


def drawn(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    """Normally distributed numbers."""
    return RNG.standard_normal(shape).astype(dtype)


def problem(sq: int = 5, sk: int = 7, dtype: Any = np.float32, heads: int = 2) -> tuple[np.ndarray, ...]:
    """Random q, k, v."""
    return drawn(2, heads, sq, 8, dtype=dtype), drawn(2, 2, sk, 8, dtype=dtype), drawn(2, 2, sk, 8, dtype=dtype)


def right(q: np.ndarray, k: np.ndarray, v: np.ndarray, **options: Any) -> np.ndarray:
    """The reference's output, rounded once."""
    return reference.sdpa(q, k, v, **options).output.astype(q.dtype)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
def test_the_reference_rounded_once_is_close(dtype: Any) -> None:
    """The reference's output, rounded once, has a share of the bound below 1 in every dtype."""
    q, k, v = problem(dtype=dtype)
    found = assert_close(right(q, k, v, is_causal=True), q, k, v, is_causal=True)
    assert 0 <= found.share <= 1
    assert found.rows is None


def test_a_profile_decides() -> None:
    """An error that storage allows in bfloat16 fails under wide, and the text says which profile is kept."""
    q, k, v = problem(dtype=ml_dtypes.bfloat16)
    output = right(q, k, v).astype(np.float32)
    output = (output * (1 + 2.0**-7)).astype(ml_dtypes.bfloat16)
    assert assert_close(output, q, k, v).profile == "storage"
    with pytest.raises(NotClose, match="keeps the bound of storage") as caught:
        assert_close(output, q, k, v, profile="wide")
    assert caught.value.clause == "SDPA-25"


def test_a_wrong_alignment_is_named() -> None:
    """The text of a failure has the clause, the worst element, and the mistake that gives this result."""
    q, k, v = problem()
    output = right(q, k, v, is_causal=True, causal_offset=2)
    with pytest.raises(NotClose) as caught:
        assert_close(output, q, k, v, is_causal=True)
    text = str(caught.value)
    assert "\nSDPA-9 · Causal (MUST): " in text
    assert "\nWorst:    output[" in text
    assert "Diagnosis: this failure equals “causal mask aligned bottom-right”" in text
    assert caught.value.share > 1e3


def test_the_wrong_places_are_those_of_the_caller() -> None:
    """For arrays (B, S, H, D) and for arrays without batch and heads, wrong places are given in the caller's axes."""
    q, k, v = problem()
    output = right(q, k, v)
    output[1, 0, 3] += 1
    inside = [np.swapaxes(a, 1, 2) for a in (output, q, k, v)]
    with pytest.raises(NotClose, match="batch 1 of 2, row 3 of 5, head 0 of 2, every column"):
        assert_close(*inside, layout="bshd")
    with pytest.raises(NotClose, match=r"row 3 of 5, every column(\n|$)"):
        assert_close(*(a[1, 0] for a in (output, q, k, v)))


@pytest.mark.parametrize("heads", [2, 5])
def test_a_forgotten_layout_is_named(heads: int) -> None:
    """Arrays (B, S, H, D) that are close in that layout, and only there, get a hint at it in place of a diagnosis."""
    q, k, v = problem(heads=heads)[0], *(drawn(2, heads, 5, 8) for _ in range(2))
    inside = [np.swapaxes(a, 1, 2) for a in (right(q, k, v, is_causal=True), q, k, v)]
    with pytest.raises(NotClose) as caught:
        assert_close(*inside, is_causal=True)
    assert 'Hint:     the arrays look like (B, S, H, D): pass layout="bshd"' in str(caught.value)
    with pytest.raises(NotClose) as caught:
        assert_close(*inside)
    assert "Hint:" not in str(caught.value)


def test_a_forgotten_layout_is_named_where_the_arrays_do_not_fit() -> None:
    """A mask that does not fit to arrays in another layout is refused with a hint at the layout."""
    q, k, v = problem()
    mask = np.tril(np.ones((5, 7), bool))
    inside = [np.swapaxes(a, 1, 2) for a in (right(q, k, v, mask=mask), q, k, v)]
    with pytest.raises(ValueError, match='pass layout="bshd"'):
        assert_close(*inside, mask=mask)
    with pytest.raises(ValueError, match=r"[^\"]$"):
        assert_close(inside[0] + 1, *inside[1:], mask=mask)


def test_a_layout_that_is_not_meant_is_named() -> None:
    """Arrays (B, H, S, D) that are read as "bshd" get a hint at their layout."""
    q, k, v = problem()
    with pytest.raises((NotClose, ValueError)) as caught:
        assert_close(right(q, k, v), q, k, v, layout="bshd")
    assert 'the arrays look like (B, H, S, D): pass layout="bhsd"' in str(caught.value)


@pytest.mark.parametrize("dropped", [1, 2])
def test_missing_axes_are_taken_for_one(dropped: int) -> None:
    """Arrays (H, S, D) and (S, D) are taken as having one batch, or one batch and head."""
    q, k, v = problem()
    output = right(q, k, v)
    arrays = [a[(0,) * dropped] for a in (output, q, k, v)]
    assert assert_close(*arrays).share <= 1
    with pytest.raises(NotClose):
        assert_close(arrays[0] + 1, *arrays[1:])


@pytest.mark.parametrize(
    ("change", "failure", "clause"),
    [
        (lambda o: o[:, :, 1:], "shape", "SDPA-1"),
        (lambda o: o.astype(np.float64), "dtype", "SDPA-27"),
        (lambda o: o[..., 0], "shape", "SDPA-1"),
        (lambda o: np.full_like(o, np.nan), "value", "SDPA-16"),
        (lambda o: o * 0, "value", "SDPA-16"),
    ],
)
def test_another_form_is_refused(change: Any, failure: str, clause: str) -> None:
    """A wrong shape, dtype or value is refused by its own clause, with a share above 1."""
    q, k, v = problem()
    output = change(right(q, k, v))
    with pytest.raises(NotClose) as caught:
        assert_close(output, q, k, v)
    assert (caught.value.failure, caught.value._finding.broken) == (failure, clause)
    assert error_share(output, q, k, v) > 1


def test_further_results_are_checked() -> None:
    """Wrong weights and lse, such as a base-2 lse, are each refused by their own clause."""
    q, k, v = problem()
    found = reference.sdpa(q, k, v)
    output, weights, lse = (a.astype(np.float32) for a in (found.output, found.weights, found.lse))
    assert set(assert_close(output, q, k, v, weights=weights, lse=lse).shares) == {"output", "weights", "lse"}
    for clause, wrong in (("SDPA-19", {"lse": lse / np.float32(np.log(2))}), ("SDPA-18", {"weights": weights[::-1]})):
        with pytest.raises(NotClose) as caught:
            assert_close(output, q, k, v, **wrong)
        assert caught.value._finding.broken == clause


def test_a_past_is_joined() -> None:
    """A past and present keys are taken into account, and a wrong present key is refused."""
    q, k, v = problem(sq=2, sk=7)
    past: dict[str, Any] = {"past_key": k[:, :, :5], "past_value": v[:, :, :5]}
    new = k[:, :, 5:], v[:, :, 5:]
    output = right(q, *new, is_causal=True, **past)
    assert assert_close(output, q, *new, is_causal=True, present_key=k, present_value=v, **past).share <= 1
    with pytest.raises(NotClose, match="present_key"):
        assert_close(output, q, *new, is_causal=True, present_key=k + 1, present_value=v, **past)


@pytest.mark.parametrize("sizes", [(1, 2, 0), (1, 0, 5), (0, 2, 5)], ids=["no-rows", "no-query-heads", "no-batch"])
def test_a_call_without_queries_is_checked(sizes: tuple[int, int, int]) -> None:
    """Nothing can be wrong in an empty output but its shape, and the gradients of k and v are zeros."""
    b, hq, sq = sizes
    q, k = np.zeros((b, hq, sq, 8), np.float32), np.zeros((b, 2, 7, 8), np.float32)
    grads: dict[str, Any] = {"grad_output": q, "grad_q": q, "grad_k": k, "grad_v": k}
    assert assert_close(q, q, k, k, **grads).share == 0
    assert error_share(q, q, k, k, **grads) == 0
    with pytest.raises(NotClose, match="output has shape"):
        assert_close(q[..., :4], q, k, k)


def test_gradients_are_checked() -> None:
    """Right gradients pass; each of them, doubled, is refused by its clause."""
    q, k, v = problem(heads=4)
    g, bias = drawn(2, 4, 5, 8), drawn(1, 4, 5, 7)
    found = gradient_reference.sdpa_grad(q, k, v, g, bias=bias)
    grads: dict[str, Any] = {n: a.astype(np.float32) for n, a in found.gradients.items()}
    output = found.forward.output.astype(np.float32)
    assert len(assert_close(output, q, k, v, bias=bias, grad_output=g, **grads).shares) == 5
    for name, clause in {"grad_q": "GRAD-4", "grad_k": "GRAD-4", "grad_v": "GRAD-2", "grad_bias": "GRAD-5"}.items():
        with pytest.raises(NotClose, match=name) as caught:
            assert_close(output, q, k, v, bias=bias, grad_output=g, **{**grads, name: 2 * grads[name]})
        assert caught.value._finding.broken == clause


def test_gradients_of_many_heads_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sample has the first and the last head; an error there is found, and the text says what was checked."""
    monkeypatch.setattr("attention_conformance.conformance.calls.question.GRADIENT_SCORES", 2 * 2 * 5 * 7 * 2)
    q, k, v = drawn(2, 8, 5, 8), drawn(2, 4, 7, 8), drawn(2, 4, 7, 8)
    g = drawn(2, 8, 5, 8)
    found = gradient_reference.sdpa_grad(q, k, v, g)
    grads: dict[str, Any] = {n: a.astype(np.float32) for n, a in found.gradients.items()}
    output = found.forward.output.astype(np.float32)
    assert assert_close(output, q, k, v, grad_output=g, **grads).heads == (0, 3)
    grads["grad_k"][:, 3] *= 2
    with pytest.raises(NotClose, match="Checked:  key heads 0, 3 of 4") as caught:
        assert_close(output, q, k, v, grad_output=g, **grads)
    assert "head 3 of 4" in str(caught.value)


def test_long_inputs_are_sampled() -> None:
    """The sample has the first and the last row and odd-looking ones; a wrong row is named by its own index."""
    q, k, v = drawn(1, 1, 300, 8), drawn(1, 1, 300, 8), drawn(1, 1, 300, 8)
    output = right(q, k, v, is_causal=True)
    found = assert_close(output, q, k, v, is_causal=True, rows=12, seed=3)
    assert found.rows is not None
    assert (len(found.rows), found.rows[0], found.rows[-1]) == (12, 0, 299)
    wrong = output.copy()
    wrong[0, 0, 299] += 1
    with pytest.raises(NotClose, match=r"rows? 299 of 300"):
        assert_close(wrong, q, k, v, is_causal=True, rows=12, seed=3)
    hole = output.copy()
    hole[0, 0, 137] = np.nan
    assert 137 not in found.rows
    with pytest.raises(NotClose, match="12 of 300 query rows of every head, seed 3"):
        assert_close(hole, q, k, v, is_causal=True, rows=12, seed=3)


def test_rows_in_parts_are_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """A computation by a few heads and rows at a time gives the same shares, with every option of batches or heads."""
    q, k, v = problem(heads=4)
    options: dict[str, Any] = {
        "mask": RNG.random((2, 4, 5, 7)) < 0.8, "bias": drawn(4, 1, 7), "kv_lengths": np.array([7, 3]),
        "is_causal": True, "causal_offset": np.array([2, 1]), "sinks": drawn(4), "softcap": 3.0,
        "alibi_slopes": drawn(4), "head_scale": drawn(4), "rotary_interleaved": True,
        "block_mask": RNG.random((2, 1, 3, 2)) < 0.8, "block_size": (2, 4),
        "tree_parents": np.array([[-1, 0, 0, 1, 2], [-1, -1, 1, 0, 3]]),
    } | tables(9)  # fmt: skip
    output = right(q, k, v, **options)
    whole = error_share(output, q, k, v, **options)
    monkeypatch.setattr("attention_conformance.conformance.cases.given.KEYS_AT_ONCE", 1)
    monkeypatch.setattr("attention_conformance.conformance.cases.given.SCORES_AT_ONCE", 30)
    assert error_share(output, q, k, v, **options) == pytest.approx(whole, rel=1e-6)
    assert error_share(output + 1e-3, q, k, v, **options) > 1


def test_what_a_masked_nan_does_is_left_open() -> None:
    """(SDPA-22, a SHOULD) NaN passes where the cache after the lengths holds NaN, and nowhere else."""
    q, k, v = problem()
    options: dict[str, Any] = {"kv_lengths": np.array([7, 3])}
    v[1, 0, 5, 2] = np.nan
    output = right(q, k, v, **options)
    assert np.isfinite(output).all()
    leaky = output.copy()
    leaky[1, 0, :, 2] = np.nan
    assert assert_close(leaky, q, k, v, **options).share <= 1
    leaky[1, 1, 0, 2] = np.nan
    with pytest.raises(NotClose):
        assert_close(leaky, q, k, v, **options)


def tables(rows: int, pairs: int = 4) -> dict[str, np.ndarray]:
    """Rotary tables of some places and pairs of columns."""
    angles = np.arange(rows)[:, None] / (1 + np.arange(pairs))
    return {"rotary_cos": np.cos(angles).astype(np.float32), "rotary_sin": np.sin(angles).astype(np.float32)}


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"q": np.zeros((2, 2, 5, 8), int)}, TypeError, "q is int64"),
        ({"k": np.zeros((2, 2, 7, 8), np.float16)}, TypeError, "one dtype"),
        ({"v": np.zeros((2, 2, 6, 8), np.float32)}, ValueError, "SDPA-31"),
        ({"mask": np.zeros((5, 7), np.float32)}, TypeError, "mask is float32"),
        ({"mask": np.zeros((5, 6), bool)}, ValueError, "SDPA-36"),
        ({"causal_offset": 2}, ValueError, "none is given"),
        ({"alibi_slopes": np.ones(3, np.float32)}, ValueError, "not one per query head"),
        (tables(3), ValueError, "has 3 rows, places go from 0 to 6"),
        (tables(9) | {"causal_offset": -1}, ValueError, "places go from -1 to 6"),
        (tables(9, 5), ValueError, "W up to 8"),
        ({"rotary_cos": np.ones((9, 4), np.float32)}, ValueError, "do not fit together"),
        ({"rotary_interleaved": True}, ValueError, "are not given"),
        ({"block_mask": np.ones((1, 1), bool)}, ValueError, "BLOCK-5"),
        ({"block_mask": np.ones((1, 1), bool), "block_size": (0, 8)}, ValueError, "each 1 or more"),
        ({"tree_parents": [-1, 0, 1, 2, 4]}, ValueError, "TREE-4"),
        ({"softcap": 0.0}, ValueError, "above 0"),
        ({"softcap": float("inf")}, ValueError, "softcap is inf; expected a finite number"),
        ({"scale": float("nan")}, ValueError, "scale is nan; expected a finite number"),
        ({"scale": np.float32("inf")}, ValueError, "scale is inf; expected a finite number"),
        ({"alibi_slopes": np.full(2, np.nan, np.float32)}, ValueError, "alibi_slopes has NaN or infinities"),
        ({"head_scale": np.full(2, np.inf, np.float32)}, ValueError, "head_scale has NaN or infinities"),
        ({"rotary_cos": np.full((9, 4), np.nan, np.float32)}, ValueError, "rotary_cos has NaN or infinities"),
        ({"sinks": np.full(2, np.inf, np.float32)}, ValueError, r"sinks has NaN or \+inf"),
        ({"window": (-1, 0)}, ValueError, "open side"),
        ({"kv_lengths": [8, 1]}, ValueError, "there are 7 keys"),
        ({"kv_lengths": [7, 1, 1]}, ValueError, "3 entries"),
        ({"profile": "exact"}, ValueError, "expected one of wide"),
        ({"profile": "storage"}, ValueError, "profile is 'storage'; expected one of wide, tf32 in float32"),
        ({"layout": "sbhd"}, ValueError, "'bhsd' or 'bshd'"),
        ({"grad_q": np.zeros((2, 2, 5, 8), np.float32)}, ValueError, "without grad_output"),
        ({"q": [[1.0]]}, TypeError, "expected an array, got builtins.list"),
        ({"q": np.full((2, 2, 5, 8), np.inf, np.float32)}, ValueError, "SDPA-37"),
    ],
)
def test_slips_are_no_failures(change: dict[str, Any], error: type[Exception], text: str) -> None:
    """Arguments that do not fit raise a TypeError or a ValueError with one sentence."""
    q, k, v = problem()
    arguments = {"q": q, "k": k, "v": v, **change}
    with pytest.raises(error, match=text):
        assert_close(right(q, k, v), **arguments)


def layer() -> dict[str, Any]:
    """Arrays of a layer of two heads."""
    weights = {n: drawn(8, 8) for n in ("w_q", "w_k", "w_v", "w_o")}
    return {"x_q": drawn(2, 5, 8), **weights}


def test_a_layer_is_checked() -> None:
    """A right output passes; a scale of the model width is refused and named."""
    arrays = layer()
    output = layer_reference.mha(**arrays, heads=2).output.astype(np.float32)
    assert assert_layer_close(output, **arrays, heads=2).share <= 1
    wrong = layer_reference.mha(**arrays, heads=2, scale=8**-0.5).output.astype(np.float32)
    assert layer_error_share(wrong, **arrays, heads=2) > 1
    with pytest.raises(NotClose, match="Diagnosis: this failure equals") as caught:
        assert_layer_close(wrong, **arrays, heads=2)
    assert caught.value.clause == "MHA-7"
    assert "“the default scale of a layer is of all heads together, 1/√(H·D)”" in str(caught.value)


@pytest.mark.parametrize(
    "change", [{"scale": np.nan}, {"epsilon": np.inf}, {"bias": np.full((5, 5), np.nan, np.float32)}], ids=str
)
def test_an_option_of_a_layer_without_meaning_is_refused(change: dict[str, Any]) -> None:
    """With a scale of NaN every result is NaN, which would pass."""
    nothing = np.full((2, 5, 8), np.nan, np.float32)
    normed: dict[str, Any] = {"gamma": drawn(8), "beta": drawn(8)} if "epsilon" in change else {}
    with pytest.raises(ValueError, match=f"{next(iter(change))} (is|has)"):
        assert_layer_close(nothing, **layer(), **normed, heads=2, **change)


def test_a_sink_may_be_minus_infinity() -> None:
    """(SDPA-38) It changes nothing."""
    q, k, v = problem()
    sinks = np.full(2, -np.inf, np.float32)
    assert assert_close(right(q, k, v), q, k, v, sinks=sinks).share <= 1


def test_a_diagnosis_within_a_handler_is_the_same() -> None:
    """A text requested inside an except block is the same, although faults raise while the diagnosis is made."""
    arrays = layer()
    wrong = layer_reference.mha(**arrays, heads=2, scale=8**-0.5).output.astype(np.float32)
    try:
        assert_layer_close(wrong, **arrays, heads=2)
    except NotClose as error:
        said = str(error)
        again = NotClose(error._case, error._reply, error._blank, error._finding, error._note)
    assert "of all heads together" in said
    assert str(again) == said


def test_a_sublayer_is_checked() -> None:
    """A post-norm output passes, and is refused as pre-norm."""
    arrays = layer() | {"gamma": drawn(8), "beta": drawn(8)}
    output = layer_reference.sublayer(**arrays, heads=2, epsilon=1e-5).output.astype(np.float32)
    assert assert_layer_close(output, **arrays, heads=2, epsilon=1e-5).share <= 1
    with pytest.raises(NotClose):
        assert_layer_close(output, **arrays, heads=2, epsilon=1e-5, pre_norm=True)


@pytest.mark.parametrize("name", ["mha-grad-plain"])
def test_gradients_of_a_layer_are_checked(name: str) -> None:
    """Gradients of a case of the suite pass; the gradient of one weight, transposed, is refused."""
    case = every_case()[name]
    inputs = case.inputs("float32")
    found = case.expected("float32").gradients
    grads = {n.removeprefix("grad_"): a.astype(np.float32) for n, a in found.items()}
    arrays = dict(inputs.arrays)
    g = arrays.pop("grad_output")
    given = {**arrays, **inputs.keywords}
    assert assert_layer_close(None, **given, grad_output=g, gradients=grads).share <= 1
    grads["w_q"] = grads["w_q"].T.copy()
    with pytest.raises(NotClose, match="grad_w_q") as caught:
        assert_layer_close(None, **given, grad_output=g, gradients=grads)
    assert caught.value._finding.broken == "GRAD-17"


def test_arrays_of_torch_and_the_gradients_that_hang_on_them() -> None:
    """Results of torch's own attention in bfloat16 with ``requires_grad`` pass; a slightly larger scale is refused."""
    torch = pytest.importorskip("torch")
    q, k, v = (torch.randn(2, 4, 9, 16, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    attention = torch.nn.functional.scaled_dot_product_attention
    assert assert_close(attention(q, k, v, is_causal=True), q, k, v, is_causal=True).share <= 1
    with pytest.raises(NotClose):
        assert_close(attention(q, k, v, is_causal=True, scale=0.3), q, k, v, is_causal=True)


@pytest.mark.slow(2)
def test_arrays_of_jax() -> None:
    """Arrays of JAX pass in JAX's own layout."""
    jax = pytest.importorskip("jax")
    q, k, v = (jax.random.normal(jax.random.key(i), (2, 9, 4, 16)) for i in range(3))
    output = jax.nn.dot_product_attention(q, k, v, is_causal=True)
    assert assert_close(output, q, k, v, is_causal=True, layout="bshd").share <= 1
    with pytest.raises(NotClose):
        assert_close(output, q, k, v, layout="bshd")


def shown(**protocols: Any) -> Any:
    """An object that has these protocols and nothing else."""
    return type("Exported", (), protocols)()


def capsule(array: Any, dlpack: Callable[..., Any]) -> Any:
    """An array readable only by DLPack."""
    return shown(__dlpack__=dlpack, __dlpack_device__=lambda self: array.__dlpack_device__())


@pytest.mark.parametrize("protocol", ["array", "interface", "dlpack", "old dlpack", "read-only", "strided"])
def test_arrays_of_any_protocol(protocol: str) -> None:
    """Arrays of each protocol are read, and judged like the NumPy array that they hold."""
    q, k, v = problem()
    output = right(q, k, v)
    readers: dict[str, Callable[[np.ndarray], Any]] = {
        "array": lambda x: shown(__array__=lambda self, dtype=None, copy=None: x),
        "interface": lambda x: shown(__array_interface__=x.__array_interface__, kept=x),
        "dlpack": lambda x: capsule(x, lambda self, **options: x.__dlpack__(**options)),
        "old dlpack": lambda x: capsule(x, lambda self, stream=None: x.__dlpack__()),
        "read-only": lambda x: np.broadcast_to(x, x.shape),
        "strided": lambda x: np.repeat(x, 2, 3)[..., ::2],
    }
    read = readers[protocol]
    given = [read(each) for each in (output, q, k, v)]
    assert assert_close(*given).share == error_share(output, q, k, v)
    with pytest.raises(NotClose):
        assert_close(read(output + np.float32(0.01)), *given[1:])


def test_an_array_that_numpy_cannot_read_is_a_slip() -> None:
    """bfloat16 readable only by DLPack, for which NumPy has no dtype, raises a TypeError."""
    torch = pytest.importorskip("torch")
    tensor = torch.ones(1, 1, 2, 4, dtype=torch.bfloat16)
    alone = capsule(tensor, lambda self, **options: tensor.__dlpack__(**options))
    with pytest.raises(TypeError, match=r"q: NumPy cannot read .*Exported"):
        assert_close(tensor, alone, tensor, tensor)


@pytest.mark.slow(3)
def test_a_long_input_takes_a_second_or_two_of_one_core() -> None:
    """2 × 16 × 1024 × 1024 scores take under 4 s of processor time; a wrong row in the sample is found."""
    q, k, v = (drawn(2, 16, 1024, 64) for _ in range(3))
    scores = q @ k.swapaxes(2, 3) / np.float32(8)
    powers = np.exp(scores - scores.max(3, keepdims=True))
    output = powers / powers.sum(3, keepdims=True) @ v
    started = time.process_time()
    found = assert_close(output, q, k, v)
    assert time.process_time() - started < 4  # 0.8 s on an idle core
    assert found.rows is not None
    assert len(found.rows) == 32
    output[1, 15, found.rows[7]] *= np.float32(1.001)
    assert error_share(output, q, k, v) > 1


def test_threads_are_as_they_were() -> None:
    """The number of threads is restored, after a failure too."""
    before = [each["num_threads"] for each in threadpool_info()]
    q, k, v = problem()
    with pytest.raises(NotClose):
        assert_close(q[..., : v.shape[3]] * 0, q, k, v)
    assert [each["num_threads"] for each in threadpool_info()] == before


def test_no_framework_is_imported() -> None:
    """NumPy arrays need neither torch nor jax."""
    program = (
        "import sys, numpy as np; from attention_conformance.conformance.closeness import assert_close;"
        "x = np.ones((1, 1, 2, 4), np.float32); assert_close(x, x, x, x);"
        "assert not {'torch', 'jax', 'onnxruntime'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize(
    "name",
    [
        *("plain", "sinks", "lengths", "bias", "softcap", "empty-row", "alibi-grouped", "head-scale-grouped"),
        *("rotary-part", "rotary-past", "block-grouped", "block-past", "tree-drawn", "tree-offsets", "tree-blocks"),
    ],
)
def test_cases_of_the_suite_are_close(name: str) -> None:
    """The reference of a case passes, and fails with 0.01 added."""
    case = all_cases()[name]
    inputs = case.inputs("float32")
    options = {n: x for n, x in inputs.keywords.items() if not n.startswith("return_")}
    output = case.expected("float32").output.astype(np.float32)
    assert error_share(output, *inputs.arrays.values(), **options) <= 1
    assert error_share(output + np.float32(0.01), *inputs.arrays.values(), **options) > 1


@pytest.mark.parametrize("number", [0, 1])
def test_the_page_shows_what_happens(number: int) -> None:
    """The examples of ASSERT_CLOSE.md fail with the lines printed below them."""
    page = (Path(__file__).parents[1] / "ASSERT_CLOSE.md").read_text(encoding="utf-8")
    program, shown = (re.findall(rf"```{kind}\n(.*?)```", page, re.DOTALL)[number] for kind in ("python", "text"))
    found: dict[str, Any] = {}
    exec(program, found)  # noqa: S102  # the page's own example
    (test,) = (each for name, each in found.items() if name.startswith("test_"))
    with pytest.raises(NotClose) as caught:
        test()
    assert set(shown.splitlines()) <= set(str(caught.value).splitlines())


def test_one_example_of_each_passes() -> None:
    """The third program of ASSERT_CLOSE.md passes; it has an example of each function that the others lack."""
    pytest.importorskip("torch")
    page = (Path(__file__).parents[1] / "ASSERT_CLOSE.md").read_text(encoding="utf-8")
    found: dict[str, Any] = {}
    exec(re.findall(r"```python\n(.*?)```", page, re.DOTALL)[2], found)  # noqa: S102  # the page's own example
    tests = [each for name, each in found.items() if name.startswith("test_")]
    for test in tests:
        test()
    assert len(tests) == 4


PUBLIC = (
    assert_close, error_share, assert_layer_close, layer_error_share, assert_varlen_close, assert_paged_close,
    assert_merge_close, assert_latent_close,
)  # fmt: skip


@pytest.mark.parametrize("function", PUBLIC, ids=lambda each: each.__name__)
def test_every_option_has_a_name_a_type_and_a_line_of_documentation(function: Callable[..., Any]) -> None:
    """Every option has a type and an entry in the docstring, for help(), editors and type checkers."""
    listed = re.findall(r"(?m)^    ([a-z_]\w*(?:, \w+)*)$", str(function.__doc__))
    documented = {name for names in listed for name in names.split(", ")}
    for name, parameter in inspect.signature(function).parameters.items():
        assert parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        assert parameter.annotation not in (parameter.empty, "Any")
        assert name in documented


@pytest.mark.parametrize(
    ("function", "given", "sentence"),
    [
        (assert_close, "causal", "assert_close has no option 'causal'; did you mean is_causal"),
        (error_share, "softcapp", "error_share has no option 'softcapp'; did you mean softcap"),
        (assert_layer_close, "prenorm", "assert_layer_close has no option 'prenorm'; did you mean pre_norm"),
        (assert_latent_close, "kv_length", "assert_latent_close has no option 'kv_length'; did you mean kv_lengths"),
        (layer_error_share, "weight", "layer_error_share has no option 'weight'; did you mean weights"),
    ],
)
def test_a_misspelt_option_is_refused(function: Callable[..., Any], given: str, sentence: str) -> None:
    """A misspelt option is refused with the nearest name."""
    array = drawn(1, 1, 2, 4)
    with pytest.raises(TypeError, match=sentence):
        function(array, array, array, array, **{given: True})


# Packed sequences, pages, merges and latents.


def packed(name: str, dtype: str = "float32") -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Arguments, options and results, rounded once, of a case of the suite."""
    case = every_case()[name]
    inputs = case.inputs(dtype)
    options = {n: x for n, x in inputs.keywords.items() if not n.startswith(("return_", "max_"))}
    expected = case.expected(dtype)
    lse = expected.lse.astype(np.float64 if dtype == "float64" else np.float32)
    return inputs.arrays, options, {"output": expected.output.astype(NUMPY_DTYPES[dtype]), "lse": lse}


ASSERTS: dict[str, Callable[..., Closeness]] = {
    "varlen": assert_varlen_close,
    "paged": assert_paged_close,
    "merge": assert_merge_close,
    "latent": assert_latent_close,
}


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", ["varlen-self", "paged-mixed", "merge-two", "latent-plain"])
def test_other_operators_are_close(name: str, dtype: str) -> None:
    """Output and lse of the reference, rounded once, pass for the other operators."""
    arrays, options, results = packed(name, dtype)
    found = ASSERTS[name.split("-")[0]](**results, **arrays, **options)
    assert set(found.shares) == {"output", "lse"}
    assert 0 <= found.share <= 1


PACKS = (
    "varlen-causal-more-queries", "varlen-causal-offsets", "varlen-window-causal", "varlen-empty-both",
    "varlen-softcap", "varlen-scale", "varlen-grouped-sinks", "varlen-behind", "varlen-tiles-causal",
    "varlen-bias", "varlen-bias-one-head", "varlen-bias-one-sequence", "varlen-bias-empty", "paged-shared",
    "paged-page-17", "paged-window", "paged-padding", "paged-empty", "paged-offsets", "paged-sinks-decode",
    "paged-new-window", "paged-quantised-int8-head-softcap", "paged-quantised-e4m3fn-head-sinks",
    "paged-quantised-e4m3fn-token-decode", "paged-quantised-accuracy", "merge-parts-33", "merge-one", "merge-lse-signs",
    "latent-causal-end", "latent-lengths", "latent-lengths-zero", "latent-scale", "latent-deepseek-decode",
    "latent-square",
)  # fmt: skip


@pytest.mark.slow(26)
@pytest.mark.parametrize("name", PACKS)
def test_cases_of_other_operators_are_close(name: str) -> None:
    """Right results pass; each result, off by one part in a hundred or moved by one row, is refused."""
    arrays, options, results = packed(name)
    close = ASSERTS[name.split("-")[0]]
    assert close(**results, **arrays, **options).share <= 1
    for which, axis in (("output", 0), ("lse", 1)):
        right = results[which]
        for wrong in (right * np.float32(1.01), np.roll(right, 1, axis)):
            if not np.array_equal(wrong, right):
                with pytest.raises(NotClose, match=rf"Worst: +{which}\["):
                    close(**{**results, which: wrong}, **arrays, **options)


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("varlen-causal-more-keys", "causal masks of packed sequences are aligned at the top left"),
        ("varlen-cross", "the boundaries of packed sequences are ignored"),
        ("paged-mixed", "every sequence reads the pages of the first"),
        ("paged-new", "new keys are written one slot too far"),
        ("merge-base", "log-sum-exps taken as base 2"),
        ("latent-plain", "the scale is of the width of the cache, 1/√(R + Dr)"),
        ("latent-causal-end", "values go through the projection of the next head"),
    ],
)
def test_a_mistake_of_other_operators_is_named(name: str, title: str) -> None:
    """The diagnosis names the mistake and the clause that it breaks."""
    fault = next(each for each in FAULTS.values() if each.title == title)
    arrays, options, _ = packed(name)
    extra = getattr(every_case()[name].shape, "options", {})
    found = fault.make()(**arrays, **options, **extra)
    results = dict(zip(("output", "lse"), found if isinstance(found, tuple) else (found,), strict=False))
    with pytest.raises(NotClose) as caught:
        ASSERTS[name.split("-")[0]](**results, **arrays, **options)
    assert caught.value.clause == fault.clause
    assert f"Diagnosis: this failure equals “{title}”" in str(caught.value)


def test_a_merge_without_lse_is_diagnosed() -> None:
    """Only the output is given, so a mistake is compared by its output, and named."""
    parts, lses = [drawn(1, 2, 3, 4) for _ in range(2)], [drawn(1, 2, 3) for _ in range(2)]
    with pytest.raises(NotClose, match="Diagnosis: this failure equals “parts averaged without weights”"):
        assert_merge_close((parts[0] + parts[1]) / 2, parts, lses)


def test_a_decoding_step_without_present_is_diagnosed() -> None:
    """Only the output of a step is given, so a mistake is compared by its output, and named."""
    (q, k, v), past_key, past_value = problem(1, 3), drawn(2, 2, 4, 8), drawn(2, 2, 4, 8)
    cache: dict[str, Any] = {"past_key": past_key, "past_value": past_value}
    wrong = right(q, k, v, **cache, is_causal=True, causal_offset=0)
    with pytest.raises(NotClose, match="Diagnosis: this failure equals “the causal offset ignored”"):
        assert_close(wrong, q, k, v, **cache, is_causal=True)


def pack(*lengths: tuple[int, int], heads: int = 2) -> dict[str, Any]:
    """Queries, keys and values of sequences of these lengths."""
    queries, keys = (np.cumsum([0, *each]).astype(np.int32) for each in zip(*lengths, strict=True))
    q = drawn(int(queries[-1]), heads, 8)
    k, v = (drawn(int(keys[-1]), heads, 8) for _ in range(2))
    return {"q": q, "k": k, "v": v, "cu_seqlens_q": queries, "cu_seqlens_k": keys}


def test_a_long_pack_is_sampled() -> None:
    """The sample has rows at boundaries; a wrong row has its index in the pack, and the text says what was checked."""
    arrays = pack((60, 60), (1, 90), (0, 7), (140, 140))
    output = varlen(**arrays, is_causal=True).output.astype(np.float32)
    found = assert_varlen_close(output, **arrays, is_causal=True, rows=16, seed=5)
    assert found.rows is not None
    assert (len(found.rows), found.rows[0], found.rows[-1]) == (16, 0, 200)
    assert {59, 60, 61} & set(found.rows)
    for row in (found.rows[3], 131):
        wrong = output.copy()
        wrong[row, 1] = np.nan if row == 131 else wrong[row, 1] + 1
        with pytest.raises(NotClose, match=rf"row {row} of 201, head 1 of 2") as caught:
            assert_varlen_close(wrong, **arrays, is_causal=True, rows=16, seed=5)
        assert "Checked:  16 of 201 rows, each with every head, seed 5: 0" in str(caught.value)


def test_a_sampled_pack_is_judged_as_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample of all rows has the share of the whole; by default a sample has 2²⁰ scores and at least 8 rows."""
    arrays, options, results = packed("varlen-tiles-causal")
    whole = assert_varlen_close(**results, **arrays, **options)
    every = assert_varlen_close(**results, **arrays, **options, rows=178)
    assert (whole.rows, every.share) == (None, whole.share)
    monkeypatch.setattr("attention_conformance.conformance.calls.question.WHOLE", 1)
    assert len(assert_varlen_close(**results, **arrays, **options).rows or ()) == 8


def test_a_short_sequence_has_its_own_bound() -> None:
    """An error that the bound of a neighbour with large numbers would excuse is refused."""
    arrays = pack((4, 4), (4, 4))
    arrays["v"][:4] *= 1000
    output = varlen(**arrays).output.astype(np.float32)
    assert assert_varlen_close(output, **arrays).share <= 1
    output[5, 0] += np.float32(1e-4)
    with pytest.raises(NotClose, match="row 5 of 8, head 0 of 2, every column"):
        assert_varlen_close(output, **arrays)


def test_a_scale_that_is_left_out_is_refused() -> None:
    """A quantised cache passes with its scale, by the bound of the scaled numbers, and is refused without it."""
    arrays, options, results = packed("paged-quantised-accuracy")
    assert assert_paged_close(results["output"], **arrays, **options).share <= 1
    with pytest.raises(NotClose) as caught:
        assert_paged_close(results["output"], **arrays, **{**options, "v_scale": np.ones((1, 1, 1, 1), np.float32)})
    assert caught.value._finding.broken == "PAGED-14"


def test_rows_behind_the_last_sequence_are_not_looked_at() -> None:
    """(VARLEN-12) Rows after the last sequence are not checked."""
    arrays = pack((3, 3), (2, 2))
    output = varlen(**arrays).output.astype(np.float32)
    longer = {**arrays, "q": np.concatenate([arrays["q"], drawn(2, 2, 8)])}
    padded = np.concatenate([output, np.full((2, 2, 8), np.nan, np.float32)])
    assert assert_varlen_close(padded, **longer).share <= 1
    padded[4] = np.nan
    with pytest.raises(NotClose):
        assert_varlen_close(padded, **longer)


def test_nan_of_another_sequence_is_left_open() -> None:
    """(VARLEN-13, PAGED-5, SHOULDs) NaN passes where another sequence's keys hold NaN; a wrong number does not."""
    arrays = pack((3, 3), (2, 2))
    arrays["v"][4] = np.nan
    output = varlen(**arrays).output.astype(np.float32)
    assert np.isfinite(output[:3]).all()
    output[0] = np.nan
    assert assert_varlen_close(output, **arrays).share <= 1
    output[1] += 1
    with pytest.raises(NotClose, match="row 1 of 5"):
        assert_varlen_close(output, **arrays)
    arrays, options, results = packed("paged-slots-nan")
    assert assert_paged_close(np.full_like(results["output"], np.nan), **arrays, **options).share <= 1
    arrays, options, results = packed("paged-mixed")
    with pytest.raises(NotClose):
        assert_paged_close(np.full_like(results["output"], np.nan), **arrays, **options)


def test_a_merge_takes_lists_and_layouts() -> None:
    """Outputs (S, H, Dv) of two parts as in vLLM, without batch, and log-sum-exps (H, S) are accepted."""
    arrays, _, results = packed("merge-two")
    parts = [each[0].swapaxes(0, 1) for each in arrays["outputs"]]
    lses = [each[0] for each in arrays["lses"]]
    output, lse = results["output"][0].swapaxes(0, 1), results["lse"][0]
    assert assert_merge_close(output, parts, lses, lse=lse, layout="bshd").share <= 1
    wrong = output.copy()
    wrong[3, 1] += 1
    with pytest.raises(NotClose, match="row 3 of 5, head 1 of 2, every column"):
        assert_merge_close(wrong, parts, lses, layout="bshd")


@pytest.mark.parametrize("form", ["expanded", "absorbed"])
def test_either_form_of_latents_is_close(form: str) -> None:
    """Both forms pass at real widths, in bfloat16, with every product stored; a scale of the cache's width fails."""
    x = every_case()["latent-deepseek"].inputs("bfloat16")
    q, rope, c, k_rope, w_uk, w_uv = (array.astype(np.float32) for array in x.arrays.values())

    def stored(array: np.ndarray) -> np.ndarray:
        return array.astype(ml_dtypes.bfloat16).astype(np.float32)

    def computed(scale: float) -> np.ndarray:
        options = {"scale": scale}
        if form == "absorbed":
            keys = np.concatenate([c, k_rope], 2)[:, None]
            queries = np.concatenate([stored(q @ w_uk.swapaxes(1, 2)), rope], 3)
            return (stored(right(queries, keys, c[:, None], **options)) @ w_uv).astype(ml_dtypes.bfloat16)
        shared = np.broadcast_to(k_rope[:, None], (1, 2, *k_rope.shape[1:]))
        keys = np.concatenate([stored(c[:, None] @ w_uk), shared], 3)
        values = stored(c[:, None] @ w_uv)
        return right(np.concatenate([q, rope], 3), keys, values, **options).astype(ml_dtypes.bfloat16)

    assert assert_latent_close(computed(192**-0.5), **x.arrays).share <= 1
    with pytest.raises(NotClose):
        assert_latent_close(computed(576**-0.5), **x.arrays)


def test_latents_take_layouts_and_no_batch() -> None:
    """Queries (S, H, D) without batch, as in engines, are accepted; a wrong element is named in the caller's axes."""
    arrays, _, results = packed("latent-plain")
    mine = {n: a[0] if n not in ("w_uk", "w_uv") else a for n, a in arrays.items()}
    mine |= {n: mine[n].swapaxes(0, 1) for n in ("q", "q_rope")}
    output, lse = results["output"][0].swapaxes(0, 1), results["lse"][0]
    assert assert_latent_close(output, **mine, lse=lse, layout="bshd").share <= 1
    wrong = output.copy()
    wrong[3, 1] += 1
    with pytest.raises(NotClose, match="row 3 of 5, head 1 of 3, every column"):
        assert_latent_close(wrong, **mine, layout="bshd")


def test_long_latents_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some rows of every head are sampled, with the shares of the whole; a wrong row has its index in the whole."""
    x = replace(every_case()["latent-plain"], name="long", shape=LatentShape(b=1, sq=60, sk=60), dtypes=("float32",))
    arrays = x.inputs("float32").arrays
    output = latent(*arrays.values(), is_causal=True).output.astype(np.float32)
    whole = assert_latent_close(output, **arrays, is_causal=True)
    found = assert_latent_close(output, **arrays, is_causal=True, rows=12, seed=3)
    assert whole.rows is None
    assert found.rows is not None
    assert (len(found.rows), found.rows[0], found.rows[-1]) == (12, 0, 59)
    assert 0 < found.share <= whole.share <= 1
    wrong = output.copy()
    wrong[0, 2, found.rows[4]] += 1
    with pytest.raises(NotClose, match=f"row {found.rows[4]} of 60") as caught:
        assert_latent_close(wrong, **arrays, is_causal=True, rows=12, seed=3)
    assert "Checked:  12 of 60 query rows of every head, seed 3: 0" in str(caught.value)
    monkeypatch.setattr("attention_conformance.conformance.calls.question.WHOLE", 1)
    assert len(assert_latent_close(output, **arrays, is_causal=True).rows or ()) == 8


def test_memory_that_nobody_wrote_is_left_open() -> None:
    """(MERGE-7, a SHOULD) NaN in uninitialised memory next to −inf may reach its output element, and no other."""
    arrays, _, _ = packed("merge-two")
    lses, outputs = arrays["lses"].copy(), arrays["outputs"].copy()
    lses[0, 0, 0, 0], outputs[0, 0, 0, 0] = -np.inf, np.nan
    found = merge(outputs, lses)
    output = found.output.astype(np.float32)
    assert assert_merge_close(output, outputs, lses).share <= 1
    output[0, 0, 0] = np.nan
    assert assert_merge_close(output, outputs, lses).share <= 1
    output[0, 0, 1] = np.nan
    with pytest.raises(NotClose):
        assert_merge_close(output, outputs, lses)


@pytest.mark.parametrize(
    ("name", "change", "error", "text"),
    [
        ("varlen-cross", {"cu_seqlens_q": [0, 4, 3, 14, 14]}, ValueError, "never fall,"),
        ("varlen-cross", {"cu_seqlens_k": [0, 9, 16, 22, 33]}, ValueError, "end within 32 rows"),
        ("varlen-cross", {"cu_seqlens_k": [0, 9, 16]}, ValueError, "VARLEN-11"),
        ("varlen-cross", {"cu_seqlens_q": np.zeros(5, np.float32)}, TypeError, "cu_seqlens_q is float32"),
        ("varlen-cross", {"causal_offset": [1, 2]}, ValueError, "none is given"),
        ("varlen-cross", {"causal_offset": [1, 2], "is_causal": True}, ValueError, "there are 4 sequences"),
        ("varlen-cross", {"v": np.full((32, 2, 8), np.inf, np.float32)}, ValueError, "SDPA-37"),
        ("varlen-cross", {"sinks": np.zeros(3, np.float32)}, ValueError, "sinks"),
        ("paged-mixed", {"kv_lengths": [9, 14, 7]}, ValueError, "PAGED-12"),
        ("paged-mixed", {"kv_lengths": [9, 14, 7, 400]}, ValueError, "a row of the table has"),
        ("paged-mixed", {"block_table": np.full((4, 5), 99)}, ValueError, "beyond the"),
        ("paged-mixed", {"k_new": np.zeros((12, 2, 8), np.float32)}, ValueError, "given together"),
        ("paged-quantised-accuracy", {"v_scale": None}, ValueError, "PAGED-14: one cache has a scale"),
        (
            "paged-quantised-accuracy",
            {"k_scale": np.ones((1, 1, 3, 1), np.float32)},
            ValueError,
            "PAGED-14: a scale of",
        ),
        ("paged-mixed", {"k_scale": np.ones((1, 1, 1, 1), np.float32)}, ValueError, "PAGED-14"),
        ("merge-two", {"lses": np.zeros((2, 2, 2, 4), np.float32)}, ValueError, "MERGE-15"),
        ("merge-two", {"lses": [np.zeros((2, 2, 5), np.float32)]}, ValueError, "2 outputs and 1 lses"),
        ("merge-two", {"lses": np.zeros((2, 2, 2, 5), np.float16)}, TypeError, "lses are float16"),
        ("merge-two", {"lses": np.full((2, 2, 2, 5), np.inf, np.float32)}, ValueError, "MERGE-16"),
        ("varlen-bias", {"bias": np.zeros((4, 2, 5, 10), np.float32)}, ValueError, "up to 6 queries and 10 keys"),
        ("varlen-bias", {"bias": np.zeros((3, 2, 6, 10), np.float32)}, ValueError, "VARLEN-16: bias must be"),
        ("varlen-bias", {"bias": np.zeros((4, 2, 6, 10))}, ValueError, "VARLEN-16: bias must have the dtype of q"),
        ("latent-plain", {"w_uk": np.zeros((3, 11, 8), np.float32)}, ValueError, r"MLA-8: w_uk must be \(H, R, D\)"),
        ("latent-plain", {"k_rope": np.zeros((2, 6, 4), np.float32)}, ValueError, "MLA-8: k_rope"),
        ("latent-plain", {"q_rope": np.zeros((3, 5, 4), np.float32)}, ValueError, "MLA-8: q_rope"),
        ("latent-plain", {"q": np.zeros((5, 8), np.float32)}, ValueError, "expected 4 axes, or 3 without a batch"),
        ("latent-plain", {"latents": np.zeros((2, 7, 12))}, TypeError, "latents is float64"),
        ("latent-plain", {"latents": np.full((2, 7, 12), np.nan, np.float32)}, ValueError, "MLA-8 leaves"),
        ("latent-plain", {"causal_offset": 2}, ValueError, "none is given"),
        ("latent-plain", {"kv_lengths": [7, 8]}, ValueError, "there are 7 keys"),
    ],
)
def test_slips_of_other_operators(name: str, change: dict[str, Any], error: type[Exception], text: str) -> None:
    """Arguments of other operators that do not fit raise one sentence each."""
    arrays, options, results = packed(name)
    with pytest.raises(error, match=text):
        ASSERTS[name.split("-")[0]](results["output"], **{**arrays, **options, **change})


def test_packs_of_torch() -> None:
    """Tensors of torch are accepted, also as boundaries."""
    torch = pytest.importorskip("torch")
    arrays, _, results = packed("varlen-causal")
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    assert assert_varlen_close(torch.from_numpy(results["output"]), **tensors, is_causal=True).share <= 1
    with pytest.raises(NotClose):
        assert_varlen_close(torch.from_numpy(results["output"]), **tensors)


def test_nothing_is_not_close() -> None:
    """None, returned by a function that writes in place or forgets to return, raises a TypeError."""
    q, k, v = problem()
    with pytest.raises(TypeError, match="nothing to compare"):
        assert_close(None, q, k, v)
    with pytest.raises(TypeError, match="nothing to compare"):
        error_share(None, q, k, v, grad_output=v)
    x, w = drawn(1, 3, 4), drawn(4, 4)
    with pytest.raises(TypeError, match="nothing to compare"):
        assert_layer_close(None, x, w, w, w, heads=2)
    ends = np.array([0, 5])
    packed = q[0].swapaxes(0, 1)
    with pytest.raises(TypeError, match="output"):
        assert_varlen_close(cast("Any", None), packed, packed, packed, ends, ends)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"window": 128}, "window is 128; expected a pair"),
        ({"block_mask": np.ones((1, 1, 1, 1), bool), "block_size": (64,)}, "block_size is"),
    ],
)
def test_a_pair_that_is_none_is_refused_in_words(options: dict[str, Any], error: str) -> None:
    """A pair that is not one is refused in words, not by the code that unpacks it."""
    q, k, v = problem()
    with pytest.raises((TypeError, ValueError), match=error):
        assert_close(v, q, k, v, **options)
