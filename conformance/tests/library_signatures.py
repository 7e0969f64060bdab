"""Functions with the signatures of flash-attention 2 and 3, vLLM and PyTorch, computed in NumPy, and each with a leak.

Parameters, defaults, shapes and conventions are those of the sources that impls.packed names; bodies are our own.
"""

# Parameters are written as the libraries write them, without annotations.
# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from attention_conformance.impls.numpy.paged import paged
from attention_conformance.impls.numpy.varlen import varlen

Array = np.ndarray

#: Number of keys after the end of every sequence that are attended to.
_BEHIND = [0]


@contextlib.contextmanager
def _behind(keys: int) -> Iterator[None]:
    _BEHIND[0] = keys
    try:
        yield
    finally:
        _BEHIND[0] = 0


def leaking(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, attending to one key after the end of every sequence."""

    @functools.wraps(function)
    def wrong(*arguments: Any, **keywords: Any) -> Any:
        with _behind(1):
            return function(*arguments, **keywords)

    return wrong


def _options(
    causal: bool, window_size: Any, scale: float | None, softcap: float, sinks: Array | None
) -> dict[str, Any]:
    """The options under the names that impls.numpy uses."""
    left, right = window_size or (-1, -1)
    window = None if left < 0 and right < 0 else (None if left < 0 else left, None if right < 0 else right)
    return {"is_causal": causal, "window": window, "scale": scale, "softcap": softcap or None, "sinks": sinks}


def _packed(q: Array, k: Array, v: Array, cu_q: Array, cu_k: Array, **options: Any) -> tuple[Array, Array]:
    """Output (Tq, Hq, Dv) and lse (Hq, Tq)."""
    rows = [np.arange(a, min(b + _BEHIND[0], len(k))) for a, b in itertools.pairwise(cu_k)]
    ends = np.cumsum([0, *map(len, rows)]).astype(np.int32)
    own = np.concatenate(rows)
    found: tuple[Array, Array] = varlen(q, k[own], v[own], cu_q, ends, **options, return_lse=True)
    return found


def _paged(
    q: Array, k: Array, v: Array, cu_q: Array, table: Array, lengths: Array, **options: Any
) -> tuple[Array, Array]:
    found: tuple[Array, Array] = paged(q, k, v, cu_q, table, lengths + _BEHIND[0], **options, return_lse=True)
    return found


def flash_attn_varlen_func(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
    block_table=None,
):
    """The function of flash-attention 2; with a block table k and v are a cache and cu_seqlens_k gives its lengths."""
    assert max_seqlen_q >= np.diff(cu_seqlens_q).max()
    assert max_seqlen_k >= np.diff(cu_seqlens_k).max()
    options = _options(causal, window_size, softmax_scale, softcap, None)
    if block_table is None:
        found = _packed(q, k, v, cu_seqlens_q, cu_seqlens_k, **options)
    else:
        found = _paged(q, k, v, cu_seqlens_q, block_table, np.diff(cu_seqlens_k), **options)
    return (*found, None) if return_attn_probs else found[0]


def flash_attn_varlen_func_3(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    seqused_q=None,
    seqused_k=None,
    softmax_scale=None,
    causal=False,
    qv=None,
    q_descale=None,
    k_descale=None,
    v_descale=None,
    window_size=(-1, -1),
    attention_chunk=0,
    softcap=0.0,
    num_splits=1,
    pack_gqa=None,
    deterministic=False,
    sm_margin=0,
    return_attn_probs=False,
):
    """The function of flash-attention 3."""
    assert seqused_q is seqused_k is None
    assert max_seqlen_q >= np.diff(cu_seqlens_q).max()
    options = _options(causal, window_size, softmax_scale, softcap, None)
    found = _packed(q, k, v, cu_seqlens_q, cu_seqlens_k, **options)
    return found if return_attn_probs else found[0]


def flash_attn_with_kvcache(
    q,
    k_cache,
    v_cache,
    k=None,
    v=None,
    rotary_cos=None,
    rotary_sin=None,
    cache_seqlens=None,
    cache_batch_idx=None,
    cache_leftpad=None,
    block_table=None,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    rotary_interleaved=True,
    alibi_slopes=None,
    num_splits=0,
    return_softmax_lse=False,
):
    """The function of flash-attention 2: q (B, Sq, Hq, D), lse (B, Hq, Sq); k and v go after ``cache_seqlens`` keys."""
    batch, queries = q.shape[:2]
    assert cache_seqlens.shape == (batch,)
    assert cache_seqlens.dtype == np.int32
    lengths = cache_seqlens
    if k is not None:
        assert k.shape == (batch, queries, *k_cache.shape[2:])
        _append(k_cache, v_cache, k, v, block_table, lengths, [queries] * batch)
        lengths = lengths + queries
    boundaries = np.arange(batch + 1, dtype=np.int32) * queries
    options = _options(causal, window_size, softmax_scale, softcap, None)
    out, lse = _paged(q.reshape(-1, *q.shape[2:]), k_cache, v_cache, boundaries, block_table, lengths, **options)
    out, lse = out.reshape(batch, queries, *out.shape[1:]), lse.reshape(-1, batch, queries).swapaxes(0, 1)
    return (out, lse) if return_softmax_lse else out


def flash_attn_with_kvcache_3(
    q,
    k_cache,
    v_cache,
    k=None,
    v=None,
    qv=None,
    rotary_cos=None,
    rotary_sin=None,
    cache_seqlens=None,
    cache_batch_idx=None,
    cache_leftpad=None,
    page_table=None,
    cu_seqlens_q=None,
    cu_seqlens_k_new=None,
    max_seqlen_q=None,
    rotary_seqlens=None,
    q_descale=None,
    k_descale=None,
    v_descale=None,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    attention_chunk=0,
    softcap=0.0,
    rotary_interleaved=True,
    scheduler_metadata=None,
    num_splits=0,
    pack_gqa=None,
    sm_margin=0,
    return_softmax_lse=False,
):
    """The function of flash-attention 3: packed queries, and new keys with boundaries of their own."""
    assert max_seqlen_q >= np.diff(cu_seqlens_q).max()
    lengths = cache_seqlens
    if k is not None:
        counts = np.diff(cu_seqlens_k_new)
        k, v = (np.split(new, cu_seqlens_k_new[1:-1]) for new in (k, v))
        _append(k_cache, v_cache, k, v, page_table, lengths, counts.tolist())
        lengths = lengths + counts
    options = _options(causal, window_size, softmax_scale, softcap, None)
    if k_descale is not None:
        assert k_descale.shape == v_descale.shape == (len(lengths), k_cache.shape[2])
        options |= {"k_scale": k_descale[0][None, None, :, None], "v_scale": v_descale[0][None, None, :, None]}
    found = _paged(q, k_cache, v_cache, cu_seqlens_q, page_table, lengths, **options)
    return (*found, None, None) if return_softmax_lse else found[0]


def unified_attention(
    q,
    k,
    v,
    out,
    cu_seqlens_q,
    max_seqlen_q,
    seqused_k,
    max_seqlen_k,
    softmax_scale,
    causal,
    window_size,
    block_table,
    softcap,
    q_descale,
    k_descale,
    v_descale,
    seq_threshold_3D=None,  # noqa: N803
    num_par_softmax_segments=None,
    softmax_segm_output=None,
    softmax_segm_max=None,
    softmax_segm_expsum=None,
    alibi_slopes=None,
    output_scale=None,
    qq_bias=None,
    sinks=None,
    mm_prefix_range=None,
):
    """The function of vLLM: causal, writes to ``out``, reads only the left side of a window, takes a scalar scale."""
    assert causal
    assert q_descale is None
    assert out.shape == (*q.shape[:2], v.shape[3])
    assert max_seqlen_k >= seqused_k.max()
    options = _options(causal, (window_size[0], -1), float(softmax_scale), softcap, sinks)
    if k_descale is not None:
        assert k_descale.shape == v_descale.shape == (len(seqused_k), k.shape[2])
        options |= {"k_scale": k_descale[:1, :1, None, None], "v_scale": v_descale[:1, :1, None, None]}
    out[:] = _paged(q, k, v, cu_seqlens_q, block_table, seqused_k, **options)[0]


def varlen_attn(
    query,
    key,
    value,
    cu_seq_q,
    cu_seq_k,
    max_q,
    max_k,
    *,
    return_aux=None,
    scale=None,
    window_size=(-1, -1),
    enable_gqa=False,
    seqused_k=None,
    block_table=None,
    num_splits=None,
):
    """The function of PyTorch 2.13: causal is the window (−1, 0), and ``enable_gqa`` allows grouped heads."""
    heads = key.shape[2] if block_table is not None else key.shape[1]
    if not enable_gqa and query.shape[1] != heads:
        raise ValueError(f"Expect query and key/value to have the same number of heads, got {query.shape[1]}, {heads}")
    options = _options(False, window_size, scale, 0.0, None)
    if block_table is None:
        found = _packed(query, key, value, cu_seq_q, cu_seq_k, **options)
    else:
        assert cu_seq_k is None
        found = _paged(query, key, value, cu_seq_q, block_table, seqused_k, **options)
    return found if return_aux is not None and return_aux.lse else found[0]


def _append(k_cache, v_cache, k, v, table, lengths, counts) -> None:
    """Write new keys and values into the slots after the existing ones."""
    for n, (length, count) in enumerate(zip(lengths.tolist(), counts, strict=True)):
        j = np.arange(length, length + count)
        slots = table[n, j // k_cache.shape[1]], j % k_cache.shape[1]
        k_cache[slots], v_cache[slots] = k[n], v[n]


def _of(function: Callable[..., Any], operator: str) -> Callable[..., Any]:
    """The function with an attribute that names its operator."""

    @functools.wraps(function)
    def chosen(*arguments: Any, **keywords: Any) -> Any:
        return function(*arguments, **keywords)

    chosen.operator = operator  # type: ignore[attr-defined]
    return chosen


flash_attn_varlen_func_paged = _of(flash_attn_varlen_func, "paged")
varlen_attn_paged = _of(varlen_attn, "paged")


def heads_first(q, k_cache, v_cache, cu_seqlens_q, block_tables, seq_lens, *, causal=False, k_scale=None, v_scale=None):
    """Paged attention over caches (pages, Hkv, P, D), and scales in that order."""
    given: list[Any] = [None if a is None else a.swapaxes(1, 2) for a in (k_cache, v_cache, k_scale, v_scale)]
    k, v, *scales = given
    options = {} if k_scale is None else dict(zip(("k_scale", "v_scale"), scales, strict=True))
    return _paged(q, k, v, cu_seqlens_q, block_tables, seq_lens, is_causal=causal, **options)[0]


def interleaved(q, kv_cache, cu_seqlens_q, block_tables, seq_lens, *, causal=False):
    """Paged attention over one cache (pages, 2, P, Hkv, D)."""
    k, v = kv_cache.swapaxes(0, 1)
    return _paged(q, k, v, cu_seqlens_q, block_tables, seq_lens, is_causal=causal)[0]


def heads_first_misread(q, k_cache, v_cache, cu_seqlens_q, block_tables, seq_lens, *, causal=False):
    """``heads_first``, misreading the cache as if slots came before heads."""
    pages, heads, size = k_cache.shape[:3]
    k, v = (a.reshape(pages, size, heads, -1) for a in (k_cache, v_cache))
    return _paged(q, k, v, cu_seqlens_q, block_tables, seq_lens, is_causal=causal)[0]


def interleaved_misread(q, kv_cache, cu_seqlens_q, block_tables, seq_lens, *, causal=False):
    """``interleaved``, with keys taken for values."""
    v, k = kv_cache.swapaxes(0, 1)
    return _paged(q, k, v, cu_seqlens_q, block_tables, seq_lens, is_causal=causal)[0]


heads_first.cache_layout = heads_first_misread.cache_layout = "HND"  # type: ignore[attr-defined]
interleaved.cache_layout = interleaved_misread.cache_layout = "interleaved"  # type: ignore[attr-defined]

#: The functions by operator.
OF_VARLEN = ("flash_attn_varlen_func", "flash_attn_varlen_func_3", "varlen_attn")
OF_PAGED = (
    "flash_attn_varlen_func_paged",
    "flash_attn_with_kvcache",
    "flash_attn_with_kvcache_3",
    "unified_attention",
    "varlen_attn_paged",
)
globals().update({f"{name}_leaking": leaking(globals()[name]) for name in (*OF_VARLEN, *OF_PAGED)})
