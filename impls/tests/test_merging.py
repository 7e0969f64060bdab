"""Signatures of merging: functions are recognised by their parameters, and their declarations are converted."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from attention_conformance.impls.contract import ImplementationError
from attention_conformance.impls.loading import keywords, operator_of
from attention_conformance.impls.merging import merge_form
from attention_conformance.impls.numpy.merge import merge
from attention_conformance.impls.numpy.merge_gradients import merge_gradients
from attention_conformance.impls.operators import MERGE, MERGE_GRAD, SDPA
from attention_conformance.impls.select import select

Array = np.ndarray


def states(parts: int = 3, dtype: type = np.float32) -> tuple[Array, Array]:
    """Parts; the first one has no key in some rows."""
    rng = np.random.default_rng(0)
    outputs, lses = rng.standard_normal((parts, 2, 3, 5, 4)), 5 + rng.standard_normal((parts, 2, 3, 5))
    outputs[0, ..., 1:3, :], lses[0, ..., 1:3] = 0, -np.inf
    return outputs.astype(dtype), lses.astype(dtype)


def merge_state(v_a: Array, s_a: Array, v_b: Array, s_b: Array) -> tuple[Array, Array]:
    """SGLang's function: (S, H, D) and (S, H), natural logarithms."""
    assert v_a.shape == (*s_a.shape, 4) == v_b.shape
    output, lse = merge(np.stack([v_a, v_b])[:, None], np.stack([s_a, s_b])[:, None])
    return output[0], lse[0]


def merge_states(v: Array, s: Array) -> tuple[Array, Array]:
    """Flashinfer's function for any number of parts: (S, P, H, D) and (S, P, H), in base 2."""
    output, lse = merge(v.swapaxes(0, 1)[:, None], s.swapaxes(0, 1)[:, None] * math.log(2))
    return output[0], lse[0] / math.log(2)


merge_states.lse_base = 2  # type: ignore[attr-defined]


def merge_attn_states(
    output: Array,
    prefix_output: Array,
    prefix_lse: Array,
    suffix_output: Array,
    suffix_lse: Array,
    output_lse: Array | None = None,
) -> None:
    """The function of vLLM: log-sum-exps are (H, S), results are written in place, +inf marks a part without a key."""
    assert prefix_lse.shape == prefix_output.shape[1::-1]
    lses = np.stack([prefix_lse.T, suffix_lse.T])
    merged, lse = merge(
        np.stack([prefix_output, suffix_output])[:, None], np.where(np.isposinf(lses), -np.inf, lses)[:, None]
    )
    output[:] = merged[0]
    assert output_lse is not None
    output_lse[:] = np.where(np.isneginf(lse[0]), np.inf, lse[0]).T


merge_attn_states.empty_lse = math.inf  # type: ignore[attr-defined]


def flash_attn_combine(
    out_partial: Array, lse_partial: Array, out: Array | None = None, out_dtype: Any = None
) -> tuple[Array, Array]:
    """flash-attention's function: (P, B, S, H, D) and (P, B, S, H), with rows adjacent in memory."""
    assert out_partial.dtype == np.float32
    assert lse_partial.strides[-2] == lse_partial.itemsize
    output, lse = merge(out_partial.swapaxes(2, 3), lse_partial.swapaxes(2, 3))
    return output.swapaxes(1, 2).astype(out_dtype or np.float32), lse.swapaxes(1, 2)


ALL = pytest.mark.parametrize("function", [merge_state, merge_states, merge_attn_states, flash_attn_combine, merge])


@ALL
@pytest.mark.parametrize("parts", [1, 2, 3, 6])
def test_known_signatures_are_called_as_they_are_written(function: Callable[..., Any], parts: int) -> None:
    """Layout, base and sentinel are translated both ways, for any number of parts."""
    form = merge_form(function)
    assert operator_of(form, SDPA.name) is MERGE
    for got, wanted in zip(form(*states(parts)), merge(*states(parts)), strict=True):
        assert got.shape == wanted.shape
        assert got.dtype == wanted.dtype
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("array", [np.asarray, torch.as_tensor])
def test_a_combination_in_half_precision_is_given_float32(array: Callable[[Array], Any]) -> None:
    """flash-attention's kernel takes only float32 partial outputs; the output is stored in the requested dtype."""
    outputs, lses = states()
    given: list[Any] = []

    def combine(out_partial: Any, lse_partial: Any, out_dtype: Any = None) -> Any:
        given.extend([out_partial.dtype, out_dtype])
        return out_partial[0], lse_partial[0]

    half = array(outputs.astype(np.float16))
    output, lse = merge_form(combine)(half, array(lses))
    assert given == [array(outputs).dtype, half.dtype]
    assert (tuple(output.shape), tuple(lse.shape)) == (outputs.shape[1:], lses.shape[1:])


def test_what_is_not_declared_is_not_converted() -> None:
    """A function in base 2 that does not declare it is wrong."""

    def silent(v: Array, s: Array) -> tuple[Array, Array]:
        return merge_states(v, s)

    assert not np.allclose(merge_form(silent)(*states())[1], merge(*states())[1], atol=1e-2)


def test_the_base_of_flashinfer_is_known() -> None:
    """The base is known from the function's package."""

    def merge_states_of_flashinfer(v: Array, s: Array) -> tuple[Array, Array]:
        return merge_states(v, s)

    merge_states_of_flashinfer.__module__ = "flashinfer.cascade"
    np.testing.assert_allclose(merge_form(merge_states_of_flashinfer)(*states())[1], merge(*states())[1], atol=1e-5)


def test_a_result_that_is_not_written_is_nan() -> None:
    """Output memory that a function is given holds NaN until it is written."""

    def merge_attn_states(
        output: Any, prefix_output: Any, prefix_lse: Any, suffix_output: Any, suffix_lse: Any, output_lse: Any = None
    ) -> None: ...

    assert all(np.isnan(array).all() for array in merge_form(merge_attn_states)(*states()))


def backward(outputs: Array, lses: Array, grad_output: Array, *, grad_lse: Array | None = None) -> Any:
    """A backward pass in base 2, with +inf for a part without a key."""
    assert not np.isneginf(lses).any()
    natural = np.where(np.isposinf(lses), -np.inf, lses * np.float32(math.log(2)))
    h = None if grad_lse is None else grad_lse / np.float32(math.log(2))
    grad_outputs, grad_lses = merge_gradients(outputs, natural, grad_output, grad_lse=h)
    return grad_outputs, grad_lses * np.float32(math.log(2))


backward.lse_base, backward.empty_lse = 2, math.inf  # type: ignore[attr-defined]


@pytest.mark.parametrize("of_lse", [False, True])
def test_a_backward_pass_is_converted_as_declared(of_lse: bool) -> None:
    """Log-sum-exps and their gradients are converted to base 2, and so is the sentinel."""
    form = merge_form(backward)
    assert operator_of(form, SDPA.name) is MERGE_GRAD
    outputs, lses = states(3)
    lses[0, ..., 0] = -np.inf
    rng = np.random.default_rng(1)
    g = rng.standard_normal(outputs.shape[1:]).astype(outputs.dtype)
    given = {"grad_lse": rng.standard_normal(lses.shape[1:]).astype(lses.dtype)} if of_lse else {}
    for got, wanted in zip(form(outputs, lses, g, **given), merge_gradients(outputs, lses, g, **given), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5)


def test_a_backward_pass_without_a_gradient_of_lse_is_asked_for_none() -> None:
    """The function's parameters say whether it takes a gradient of lse."""

    def without(outputs: Any, lses: Any, grad_output: Any) -> Any: ...

    def anything(outputs: Any, lses: Any, grad_output: Any, **rest: Any) -> Any: ...

    assert keywords(merge_form(without), MERGE_GRAD) == frozenset()
    assert keywords(merge_form(anything), MERGE_GRAD) == keywords(merge_form(backward), MERGE_GRAD) == {"grad_lse"}


@pytest.mark.parametrize("base", [1, 0, -2, "2", None])
def test_a_base_that_is_none_is_refused(base: object) -> None:
    """A base that is none is refused by the name of the attribute."""

    def broken(v: Array, s: Array) -> None: ...

    broken.lse_base = base  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="lse_base"):
        merge_form(broken)


def test_other_functions_are_given_back() -> None:
    """An sdpa function, one that names its operator itself, and an object without a signature stay unchanged."""

    def attention(q: Any, k: Any, v: Any) -> Any: ...

    def other(v: Any, s: Any) -> Any: ...

    other.operator = "sdpa"  # type: ignore[attr-defined]
    for function in (attention, other, 3):
        assert merge_form(function) is function  # type: ignore[arg-type]


def test_torch_and_jax_arrays_are_translated() -> None:
    """Sentinels are translated in torch and in JAX."""
    torch, jnp = pytest.importorskip("torch"), pytest.importorskip("jax.numpy")

    def merge_states_of(v: Any, s: Any) -> Any:
        found = merge_states(np.asarray(v), np.where(np.isposinf(s), -np.inf, np.asarray(s)))
        return array(found[0]), array(np.where(np.isneginf(found[1]), np.inf, found[1]))

    def merge_states_here(v: Any, s: Any) -> Any:
        return merge_states_of(v, s)

    merge_states_here.lse_base, merge_states_here.empty_lse = 2, math.inf  # type: ignore[attr-defined]
    for array in (torch.tensor, jnp.asarray):
        got = merge_form(merge_states_here)(*map(array, states()))
        for one, wanted in zip(got, merge(*states()), strict=True):
            np.testing.assert_allclose(np.asarray(one), wanted, rtol=0, atol=1e-5)


def test_a_bad_declaration_is_an_error_of_the_user(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """A bad declaration is reported in one sentence when the function is loaded."""
    from attention_conformance.impls.loading import load_function

    path = tmp_path / "m.py"
    path.write_text("def merge_states(v, s): ...\nmerge_states.lse_base = 1\n")
    (plugged,) = select([f"{path}:merge_states"])
    with pytest.raises(ImplementationError, match="lse_base is 1"):
        load_function(plugged)
