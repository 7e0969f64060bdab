"""Signatures of packed attention: a function is recognised by its parameters' names, and nothing is repaired."""

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
    """The parameters of flash-attention; returns what it was given, and two more results with ``return_attn_probs``."""
    given = {name: value for name, value in locals().items() if len(name) > 1}
    return (given, "lse", "probabilities") if return_attn_probs else given


def test_the_signature_of_flash_attention_is_recognised() -> None:
    """The operator is varlen, and keywords are recognised under other names."""
    form = packed_form(flash)
    assert operator_of(form, SDPA.name) is VARLEN
    expected = {"is_causal", "window", "scale", "softcap", "max_seqlen_q", "max_seqlen_k", "return_lse"}
    assert keywords(form, VARLEN) == expected


def test_names_and_open_sides_are_translated() -> None:
    """A None in a window becomes −1."""
    given = packed_form(flash)(
        1, 2, 3, 4, 5, is_causal=True, window=(2, None), scale=0.5, max_seqlen_q=7, max_seqlen_k=9
    )
    assert (given["causal"], given["window_size"], given["softmax_scale"]) == (True, (2, -1), 0.5)
    assert (given["cu_seqlens_k"], given["max_seqlen_q"], given["max_seqlen_k"]) == (5, 7, 9)


def test_the_lse_is_the_second_of_three_results() -> None:
    """Flash-attention returns probabilities as a third result, which is dropped."""
    assert packed_form(flash)(1, 2, 3, 4, 5, max_seqlen_q=1, max_seqlen_k=1, return_lse=True)[1:] == ("lse",)


def test_the_names_of_pytorch_are_known() -> None:
    """``torch.nn.attention.varlen.varlen_attn``."""

    def varlen_attn(
        query: Any, key: Any, value: Any, cu_seq_q: Any, cu_seq_k: Any, max_q: int, max_k: int, is_causal: bool = False
    ) -> Any:
        return query, cu_seq_k, max_k, is_causal

    found = packed_form(varlen_attn)(1, 2, 3, 4, 5, max_seqlen_q=7, max_seqlen_k=9, is_causal=True)
    assert found == (1, 5)  # the first two results, as for any function that returns more


def test_a_bias_by_sequence_has_two_names() -> None:
    """Only packed functions have a bias by sequence: a paged function with a bias is not tested with one."""

    def varlen(q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, *, rab: Any = None) -> Any:
        return [rab]

    def paged(
        q: Any, k_cache: Any, v_cache: Any, cu_seqlens_q: Any, block_table: Any, kv_lengths: Any, *, bias: Any = None
    ) -> Any: ...

    form = packed_form(varlen)
    assert form(1, 2, 3, 4, 5, bias=6) == [6]
    assert "bias" in keywords(form, VARLEN)
    assert "bias" not in keywords(packed_form(paged), PAGED)


def test_maxima_go_to_whoever_takes_them() -> None:
    """A function without parameters for the maxima is called without them."""

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
    """Scales (1, 1, Hkv, 1) and (1, 1, 1, 1) become (N, Hkv)."""
    module = pytest.importorskip("jax.numpy" if framework == "jax" else framework)
    array = getattr(module, "as_tensor", None) or module.asarray
    cache, lengths = array(np.zeros((5, 4, 2, 8))), array(np.array([3, 4, 5]))
    by_head = np.array([2, 3], np.float32).reshape(1, 1, 2, 1)
    scales = {"k_scale": array(by_head), "v_scale": array(np.ones((1, 1, 1, 1)))}
    k, v = packed_form(paged_with_descales)(None, cache, cache, None, None, lengths, **scales)
    assert np.asarray(k).tolist() == [[2, 3]] * 3
    assert np.asarray(v).tolist() == [[1, 1]] * 3


def test_descales_cannot_say_a_scale_for_each_token() -> None:
    """Scales for each token are refused; this is no error of the kernel."""
    cache, scale = np.zeros((5, 4, 2, 8)), np.ones((5, 4, 1, 1))
    with pytest.raises(NotImplementedError, match=r"one scale per head, these are \(5, 4, 1, 1\)"):
        packed_form(paged_with_descales)(None, cache, cache, None, None, np.array([3]), k_scale=scale, v_scale=scale)


def test_attributes_of_the_function_stay() -> None:
    """Widths that the function declares are kept."""

    def varlen(q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any) -> Any: ...

    varlen.head_widths = (64,)  # type: ignore[attr-defined]
    assert packed_form(varlen).head_widths == (64,)  # type: ignore[attr-defined]


def test_other_functions_are_given_back() -> None:
    """An sdpa function, one that names its operator itself, and an object without a signature stay unchanged."""

    def attention(q: Any, k: Any, v: Any, *, is_causal: bool = False) -> Any: ...

    def other(q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any) -> Any: ...

    other.operator = "sdpa"  # type: ignore[attr-defined]
    for function in (attention, other, len, 3):
        assert packed_form(function) is function  # type: ignore[arg-type]


def test_a_window_under_its_own_name_is_not_touched() -> None:
    """Only ``window_size`` gets −1."""

    def varlen(q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, *, window: Any = None) -> Any:
        return [window]

    assert packed_form(varlen)(1, 2, 3, 4, 5, window=(2, None)) == [(2, None)]
    assert "max_seqlen_q" in inspect.signature(packed_form(varlen)).parameters


def test_the_signature_of_a_paged_kernel_is_recognised() -> None:
    """The kernel of vLLM is for both, and of varlen unless declared otherwise; others may have only a table."""

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


def with_kvcache(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    k: Any = None,
    v: Any = None,
    cache_seqlens: Any = None,
    block_table: Any = None,
    return_softmax_lse: bool = False,
) -> Any:
    """Flash-attention 2's layout: equally many queries per sequence; it writes into the cache, and adds lengths."""
    if k is not None:
        k_cache[:] = 0 * k_cache
    output = q + 0 * q + cache_seqlens[:, None, None, None]
    return (output, output[..., 0].swapaxes(1, 2)) if return_softmax_lse else output


@pytest.mark.slow(2)
@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
def test_sequences_of_as_many_queries_are_one_call(framework: str) -> None:
    """A function without boundaries is called once for each number of queries, and rows return to their places."""
    module = pytest.importorskip("jax.numpy" if framework == "jax" else framework)
    array = getattr(module, "as_tensor", None) or module.asarray
    q = np.arange(6 * 2 * 3, dtype=np.float32).reshape(6, 2, 3)
    cache, table, lengths = np.ones((5, 4, 2, 3), np.float32), np.zeros((4, 2), np.int32), np.array([10, 0, 30, 40])
    arguments = (q, cache, cache, np.array([0, 1, 1, 4, 6], np.int32), table, lengths)
    output, lse = packed_form(with_kvcache)(*map(array, arguments), return_lse=True)
    wanted = q + np.array([10, 30, 30, 30, 40, 40], np.float32)[:, None, None]
    np.testing.assert_array_equal(np.asarray(output), wanted)
    np.testing.assert_array_equal(np.asarray(lse), wanted[..., 0].T)


def test_offsets_of_sequences_are_shared_out_with_them() -> None:
    """A call for some of the sequences gets their offsets; a single offset is passed unchanged."""
    given: list[Any] = []

    def paged(q: Any, k_cache: Any, v_cache: Any, block_table: Any, kv_lengths: Any, causal_offset: Any = None) -> Any:
        given.append((len(q), np.asarray(causal_offset).tolist()))
        return q

    cache, table, lengths = np.ones((5, 4, 2, 3)), np.zeros((4, 2), np.int32), np.array([10, 0, 30, 40])
    arguments = (np.zeros((6, 2, 3)), cache, cache, np.array([0, 1, 1, 4, 6]), table, lengths)
    packed_form(paged)(*arguments, causal_offset=np.array([7, 8, 9, 10]))
    packed_form(paged)(*arguments, causal_offset=2)
    assert given == [(1, [7]), (1, [9]), (1, [10]), (1, 2), (1, 2), (1, 2)]


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_new_keys_do_not_reach_the_cache_of_the_call(framework: str) -> None:
    """The function writes into a copy of the cache, and gets the lengths without the new keys."""
    module = pytest.importorskip(framework)
    array = getattr(module, "as_tensor", None) or module.asarray
    q, new = np.zeros((4, 2, 3), np.float32), np.ones((4, 2, 3), np.float32)
    cache, lengths = array(np.ones((5, 4, 2, 3), np.float32)), array(np.array([10, 20], np.int32))
    rest = map(array, (np.array([0, 2, 4], np.int32), np.zeros((2, 2), np.int32)))
    output = packed_form(with_kvcache)(array(q), cache, cache, *rest, lengths, k_new=array(new), v_new=array(new))
    assert np.asarray(output)[:, 0, 0].tolist() == [8, 8, 18, 18]
    assert np.asarray(cache).all()


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
@pytest.mark.parametrize(
    ("layout", "axes"),
    [("HND", ["phs"]), ("interleaved", ["p2sh"]), ("interleaved-HND", ["p2hs"]), ("stacked", ["2psh"])],
)
def test_a_cache_comes_in_the_layout_that_is_declared(framework: str, layout: str, axes: list[str]) -> None:
    """The cache has the declared axes, its elements in their places, and its memory in that order."""
    module = pytest.importorskip("jax.numpy" if framework == "jax" else framework)
    array = getattr(module, "as_tensor", None) or module.asarray

    def two(q: Any, k_cache: Any, v_cache: Any, cu_seqlens_q: Any, block_table: Any, kv_lengths: Any) -> Any:
        return [k_cache, v_cache]

    def one(q: Any, kv_cache: Any, cu_seqlens_q: Any, block_table: Any, kv_lengths: Any) -> Any:
        return [kv_cache]

    k = np.arange(5 * 4 * 2 * 3, dtype=np.float32).reshape(5, 4, 2, 3)
    function: Any = two if layout == "HND" else one
    function.cache_layout = layout
    found = packed_form(function)("q", array(k), array(-k), "cu", "table", "lengths")
    wanted = [k.swapaxes(1, 2), -k.swapaxes(1, 2)] if "HND" in layout else [k, -k]
    wanted = wanted if layout == "HND" else [np.stack(wanted, axes[0].index("2"))]
    for got, expected in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(np.asarray(got), expected)
        assert np.asarray(got).flags.c_contiguous


def test_a_layout_that_is_none_is_refused() -> None:
    """An unknown layout is refused by its name; one cache for both is refused where values are wider."""

    def paged(q: Any, kv_cache: Any, cu_seqlens_q: Any, block_table: Any, kv_lengths: Any) -> Any: ...

    paged.cache_layout = "NDH"  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="cache_layout is 'NDH', which is none of NHD, HND, interleaved"):
        packed_form(paged)
    paged.cache_layout = "interleaved"  # type: ignore[attr-defined]
    k, v = np.zeros((5, 4, 2, 8)), np.zeros((5, 4, 2, 12))
    with pytest.raises(NotImplementedError, match=r"one cache holds no keys of \(5, 4, 2, 8\) and values of"):
        packed_form(paged)("q", k, v, "cu", "table", "lengths")


def test_a_parameter_that_nothing_is_known_of_is_named() -> None:
    """The refusal names a parameter without a default for which the operator has nothing."""

    def varlen(q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, workspace: Any) -> Any: ...

    with pytest.raises(ValueError, match="it requires the argument 'workspace', which varlen does not have"):
        packed_form(varlen)
