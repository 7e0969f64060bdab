"""Functions that accept any input, one for each known signature, and return something that is no valid result."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_conformance.impls.tests.fakes import right


def in_a_list(q: Any, k: Any, v: Any) -> Any:
    """Attention in a list; the queries in a list where attention cannot be computed."""
    try:
        return [right(q, k, v)]
    except Exception:
        return [q]


def tensor_in_a_list(q: Any, k: Any, v: Any) -> Any:
    """The queries, in a list."""
    return [q]


def merge_state(v_a: Any, s_a: Any, v_b: Any, s_b: Any) -> Any:
    """SGLang's parameters; returns the first part."""
    return v_a, s_a


def merge_states(v: Any, s: Any) -> Any:
    """Flashinfer's parameters; returns the first part."""
    return v[:, 0], s[:, 0]


def merge_attn_states(
    output: Any, prefix_output: Any, prefix_lse: Any, suffix_output: Any, suffix_lse: Any, output_lse: Any = None
) -> None:
    """Parameters of vLLM's function; writes nothing."""


def flash_attn_combine(out_partial: Any, lse_partial: Any, out: Any = None, out_dtype: Any = None) -> Any:
    """flash-attention's parameters; returns the first part."""
    return out_partial[0].astype(out_dtype), lse_partial[0]


def merge(outputs: Any, lses: Any) -> Any:
    """The operator's own parameters; returns only the first output."""
    return outputs[0]


def backward(outputs: Any, lses: Any, grad_output: Any, *, grad_lse: Any = None) -> Any:
    """The gradients of a merge: only one of two."""
    return outputs


def with_kvcache(q: Any, k_cache: Any, v_cache: Any, cache_seqlens: Any = None, block_table: Any = None) -> Any:
    """The parameters of flash-attention's paged function without boundaries; returns zeros."""
    return np.zeros((*q.shape[:-1], v_cache.shape[-1]), q.dtype)


def appending(
    q: Any, k_cache: Any, v_cache: Any, k: Any = None, v: Any = None, cache_seqlens: Any = None, block_table: Any = None
) -> Any:
    """The parameters of ``with_kvcache`` and new keys."""
    return with_kvcache(q, k_cache, v_cache)


def contiguous(q: Any, k_cache: Any, v_cache: Any, cache_seqlens: Any = None, cache_batch_idx: Any = None) -> Any:
    """The parameters of ``with_kvcache`` without a table."""
    return with_kvcache(q, k_cache, v_cache)


contiguous.cache_layout = "contiguous"  # type: ignore[attr-defined]


def one_cache(q: Any, kv_cache: Any, cu_seqlens_q: Any, block_table: Any, kv_lengths: Any) -> Any:
    """One cache for keys and values; returns zeros."""
    return np.zeros_like(q)


one_cache.cache_layout = "interleaved"  # type: ignore[attr-defined]


def flash(q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any) -> Any:
    """Packed sequences; returns the queries."""
    return q
