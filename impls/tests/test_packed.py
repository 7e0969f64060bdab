"""Signatures of packed attention: a function is recognised by the names of its parameters, and nothing is repaired."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

from attention_conformance.impls.loading import keywords, operator_of
from attention_conformance.impls.operators import PAGED, SDPA, VARLEN
from attention_conformance.impls.packed import packed_form


def flash(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    return_attn_probs: bool = False,
) -> Any:
    """The parameters of flash-attention; what it was given, and with ``return_attn_probs`` two results more."""
    given = {name: value for name, value in locals().items() if len(name) > 1}
    return (given, "lse", "probabilities") if return_attn_probs else given


def test_the_signature_of_flash_attention_is_recognised() -> None:
    """Its operator, and the keywords that it takes under other names."""
    form = packed_form(flash)
    assert operator_of(form, SDPA.name) is VARLEN
    expected = {"is_causal", "window", "scale", "softcap", "max_seqlen_q", "max_seqlen_k", "return_lse"}
    assert keywords(form, VARLEN) == expected


def test_names_and_open_sides_are_translated() -> None:
    """None is −1 on the side of a window."""
    given = packed_form(flash)(
        1, 2, 3, 4, 5, is_causal=True, window=(2, None), scale=0.5, max_seqlen_q=7, max_seqlen_k=9
    )
    assert (given["causal"], given["window_size"], given["softmax_scale"]) == (True, (2, -1), 0.5)
    assert (given["cu_seqlens_k"], given["max_seqlen_q"], given["max_seqlen_k"]) == (5, 7, 9)


def test_the_lse_is_the_second_of_three_results() -> None:
    """Flash-attention returns probabilities behind it, which nobody asked for."""
    assert packed_form(flash)(1, 2, 3, 4, 5, max_seqlen_q=1, max_seqlen_k=1, return_lse=True)[1:] == ("lse",)


def test_the_names_of_pytorch_are_known() -> None:
    """``torch.nn.attention.varlen.varlen_attn``."""

    def varlen_attn(
        query: Any, key: Any, value: Any, cu_seq_q: Any, cu_seq_k: Any, max_q: int, max_k: int, is_causal: bool = False
    ) -> Any:
        return query, cu_seq_k, max_k, is_causal

    found = packed_form(varlen_attn)(1, 2, 3, 4, 5, max_seqlen_q=7, max_seqlen_k=9, is_causal=True)
    assert found == (1, 5)  # the first two results, as of any function that returns more


def test_maxima_go_to_whoever_takes_them() -> None:
    """A function without them is called without."""

    def varlen(q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, *, is_causal: bool = False) -> Any:
        return [is_causal]

    assert packed_form(varlen)(1, 2, 3, 4, 5, max_seqlen_q=7, max_seqlen_k=9, is_causal=True) == [True]


def paged_with_descales(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    cu_seqlens_q: Any,
    block_table: Any,
    cache_seqlens: Any,
    *,
    k_descale: Any = None,
    v_descale: Any = None,
) -> Any:
    """A kernel that takes scales as flash-attention does."""
    return [k_descale, v_descale]


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
def test_scales_for_heads_become_descales(framework: str) -> None:
    """(1, 1, Hkv, 1) and (1, 1, 1, 1) as (N, Hkv)."""
    module = pytest.importorskip("jax.numpy" if framework == "jax" else framework)
    array = getattr(module, "as_tensor", None) or module.asarray
    cache, lengths = array(np.zeros((5, 4, 2, 8))), array(np.array([3, 4, 5]))
    by_head = np.array([2, 3], np.float32).reshape(1, 1, 2, 1)
    scales = {"k_scale": array(by_head), "v_scale": array(np.ones((1, 1, 1, 1)))}
    k, v = packed_form(paged_with_descales)(None, cache, cache, None, None, lengths, **scales)
    assert np.asarray(k).tolist() == [[2, 3]] * 3
    assert np.asarray(v).tolist() == [[1, 1]] * 3


def test_descales_cannot_say_a_scale_for_each_token() -> None:
    """Which is a refusal, and no error of the kernel."""
    cache, scale = np.zeros((5, 4, 2, 8)), np.ones((5, 4, 1, 1))
    with pytest.raises(NotImplementedError, match=r"one scale per head, these are \(5, 4, 1, 1\)"):
        packed_form(paged_with_descales)(None, cache, cache, None, None, np.array([3]), k_scale=scale, v_scale=scale)


def test_attributes_of_the_function_stay() -> None:
    """Widths that it declares are those of its form."""

    def varlen(q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any) -> Any: ...

    varlen.head_widths = (64,)  # type: ignore[attr-defined]
    assert packed_form(varlen).head_widths == (64,)  # type: ignore[attr-defined]


def test_other_functions_are_given_back() -> None:
    """Of sdpa, of another operator that it names itself, and what has no signature."""

    def attention(q: Any, k: Any, v: Any, *, is_causal: bool = False) -> Any: ...

    def other(q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any) -> Any: ...

    other.operator = "sdpa"  # type: ignore[attr-defined]
    for function in (attention, other, len, 3):
        assert packed_form(function) is function  # type: ignore[arg-type]


def test_a_window_under_its_own_name_is_not_touched() -> None:
    """Only ``window_size`` is written with −1."""

    def varlen(q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, *, window: Any = None) -> Any:
        return [window]

    assert packed_form(varlen)(1, 2, 3, 4, 5, window=(2, None)) == [(2, None)]
    assert "max_seqlen_q" in inspect.signature(packed_form(varlen)).parameters


def test_the_signature_of_a_paged_kernel_is_recognised() -> None:
    """vLLM's: one function for both, of varlen unless it says otherwise; and one that has a table alone."""

    def both(
        q: Any,
        k: Any,
        v: Any,
        cu_seqlens_q: Any,
        cu_seqlens_k: Any = None,
        seqused_k: Any = None,
        block_table: Any = None,
    ) -> Any:
        return [k, seqused_k, block_table]

    def paged(q: Any, key_cache: Any, value_cache: Any, cu_seqlens_q: Any, block_tables: Any, seq_lens: Any) -> Any:
        return [key_cache, seq_lens, block_tables]

    assert operator_of(packed_form(both), SDPA.name) is VARLEN
    assert operator_of(packed_form(paged), SDPA.name) is PAGED
    both.operator = "paged"  # type: ignore[attr-defined]
    for function in (both, paged):
        assert packed_form(function)("q", "k", "v", "cu", "table", "lengths", max_seqlen_q=1) == [
            "k",
            "lengths",
            "table",
        ]
