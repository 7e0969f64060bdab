"""Paged attention written out in NumPy: keys of every sequence gathered by its table, then packed attention.

Source: SPEC.md, PAGED-1 to PAGED-15.  It expresses every keyword.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_conformance.impls.numpy.varlen import varlen
from attention_conformance.impls.validate import check_pages


def paged(
    q: np.ndarray,
    k_cache: np.ndarray,
    v_cache: np.ndarray,
    cu_seqlens_q: np.ndarray,
    block_table: np.ndarray,
    kv_lengths: np.ndarray,
    *,
    is_causal: bool = False,
    causal_offset: int | np.ndarray | None = None,
    window: tuple[int | None, int | None] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: np.ndarray | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    k_new: np.ndarray | None = None,
    v_new: np.ndarray | None = None,
    k_scale: np.ndarray | None = None,
    v_scale: np.ndarray | None = None,
    return_lse: bool = False,
) -> Any:
    """The output (Tq, Hq, Dv), and on request the lse (Hq, Tq).

    Shapes and keywords as in impls.operators; the maxima are not used.  Raises ValueError or TypeError for inputs that
    do not fit together (PAGED-12, PAGED-14).
    """
    check_pages(q, k_cache, v_cache, cu_seqlens_q, block_table, kv_lengths, k_scale, v_scale)
    dtype = q.dtype
    if k_scale is not None and v_scale is not None:  # attention is then computed in float32 at least
        wide = np.dtype(np.float64 if dtype == np.float64 else np.float32)
        k_cache, v_cache = (c.astype(wide) * s.astype(wide) for c, s in ((k_cache, k_scale), (v_cache, v_scale)))
        q, sinks = q.astype(wide), None if sinks is None else sinks.astype(wide)
    size = k_cache.shape[1]
    ends = np.concatenate([[0], np.cumsum(kv_lengths)]).astype(np.int64)
    sequence = np.repeat(np.arange(len(kv_lengths)), kv_lengths)
    j = np.arange(ends[-1]) - ends[sequence]  # the place of every key in its sequence
    page = block_table[sequence, j // size]
    k, v = k_cache[page, j % size], v_cache[page, j % size]
    if k_new is not None and v_new is not None:
        of_row = np.repeat(np.arange(len(kv_lengths)), np.diff(cu_seqlens_q))
        slots = ends[of_row + 1] - cu_seqlens_q[of_row + 1] + np.arange(cu_seqlens_q[-1])
        k[slots], v[slots] = k_new[: len(slots)], v_new[: len(slots)]
    results = varlen(
        q,
        k,
        v,
        cu_seqlens_q,
        ends,
        is_causal=is_causal,
        causal_offset=causal_offset,
        window=window,
        scale=scale,
        softcap=softcap,
        sinks=sinks,
        return_lse=return_lse,
    )
    return (results[0].astype(dtype), results[1]) if return_lse else results.astype(dtype)
