"""(PAGED-…) Attention over a paged cache in float64 NumPy: keys and values from the table, then packed sequences."""

from __future__ import annotations

import numpy as np

from attention_conformance.conformance.spec.sdpa import Array, InvalidInput
from attention_conformance.conformance.spec.varlen import PackedExpected, attend, check_heads

#: PAGED-14: dtypes of a cache with scales.
QUANTISED = ("int8", "float8_e4m3fn", "float8_e5m2")


def paged(
    q: Array,
    k_cache: Array,
    v_cache: Array,
    cu_seqlens_q: Array,
    block_table: Array,
    kv_lengths: Array,
    *,
    is_causal: bool = False,
    causal_offset: int | Array | None = None,
    window: tuple[int | None, int | None] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Array | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    k_new: Array | None = None,
    v_new: Array | None = None,
    k_scale: Array | None = None,
    v_scale: Array | None = None,
) -> PackedExpected:
    """Attention over pages as SPEC.md defines it.

    Parameters
    ----------
    q, k_cache, v_cache
        (Tq, Hq, D), (pages, P, Hkv, D) and (pages, P, Hkv, Dv), of one floating dtype (PAGED-1),
        or the caches in one of QUANTISED, with scales.
    cu_seqlens_q, block_table, kv_lengths
        (N + 1,), (N, M) and (N,).
    k_new, v_new
        (Tq, Hkv, D) and (Tq, Hkv, Dv), together or not at all (PAGED-11).
    k_scale, v_scale
        Factors with four axes, each of length 1 or the cache's, together or not at all (PAGED-14).
    others
        As for varlen.

    Returns
    -------
    PackedExpected
        Results of every row, and the sdpa results that they come from.

    Raises
    ------
    InvalidInput
        Where PAGED-12 or PAGED-14 requires an exception.
    """
    check_pages(q, k_cache, v_cache, cu_seqlens_q, block_table, kv_lengths)
    if k_scale is not None or v_scale is not None:
        k_cache, v_cache = dequantised(k_cache, k_scale), dequantised(v_cache, v_scale)
        q = q.astype(np.float64)
        sinks = None if sinks is None else sinks.astype(np.float64)
    check_heads("PAGED-12", q, k_cache, v_cache)
    keys: list[Array] = []
    values: list[Array] = []
    for n, length in enumerate(kv_lengths.tolist()):
        rows = slice(cu_seqlens_q[n], cu_seqlens_q[n + 1])
        for found, cache, new in ((keys, k_cache, k_new), (values, v_cache, v_new)):
            own = in_order(cache, block_table[n], length)
            if new is not None and len(new[rows]):
                own[-len(new[rows]) :] = new[rows]  # PAGED-11
            found.append(own)
    return attend(
        q,
        cu_seqlens_q,
        keys,
        values,
        is_causal=is_causal,
        causal_offset=causal_offset,
        window=window,
        scale=scale,
        softcap=softcap,
        sinks=sinks,
    )


def dequantised(cache: Array, scale: Array | None) -> Array:
    """(PAGED-14) The numbers that a quantised cache represents, exactly: eight bits times twenty-four.

    Parameters
    ----------
    cache
        Pages of keys or values, (pages, page size, Hkv, D).
    scale
        Factors of the cache; None is refused.

    Returns
    -------
    Array
        Values in the shape of ``cache``, float64.
    """
    return cache.astype(np.float64) * check_scale(cache, scale).astype(np.float64)


def check_scale(cache: Array, scale: Array | None) -> Array:
    """(PAGED-14) The scale, if it fits the cache; otherwise refuse both.

    Parameters
    ----------
    cache
        Pages of keys or values, (pages, page size, Hkv, D).
    scale
        Factors of the cache; None is refused.

    Returns
    -------
    Array
        The scale unchanged.

    Raises
    ------
    InvalidInput
        For a missing scale, and for a dtype or shape that does not fit.
    """
    if scale is None:
        raise InvalidInput("PAGED-14", "one cache has a scale and the other has none")
    if str(cache.dtype) not in QUANTISED:
        raise InvalidInput("PAGED-14", f"a cache with a scale is {cache.dtype}")
    if scale.ndim != cache.ndim or any(n not in (1, full) for n, full in zip(scale.shape, cache.shape, strict=True)):
        raise InvalidInput("PAGED-14", f"a scale of shape {scale.shape} over a cache of {cache.shape}")
    return scale


def in_order(cache: Array, table: Array, length: int) -> Array:
    """(PAGED-1) The first ``length`` keys or values of a sequence, looked up by its row of the table.

    Parameters
    ----------
    cache
        Pages of keys or values, (pages, page size, Hkv, D).
    table
        Numbers of the sequence's pages, in their order.
    length
        Number of keys.

    Returns
    -------
    Array
        (length, Hkv, D).
    """
    j = np.arange(length)
    return cache[table[j // cache.shape[1]], j % cache.shape[1]]


def check_pages(
    q: Array, k_cache: Array, v_cache: Array, cu_seqlens_q: Array, block_table: Array, kv_lengths: Array
) -> None:
    """(PAGED-12) Refuse arguments that do not fit together.

    Parameters
    ----------
    q
        (Tq, Hq, D).
    k_cache
        (pages, page size, Hkv, D).
    v_cache
        (pages, page size, Hkv, Dv).
    cu_seqlens_q
        Boundaries of the sequences' queries, (N + 1,).
    block_table
        Page numbers of each sequence, (N, most pages).
    kv_lengths
        Number of keys of each sequence, (N,).

    Raises
    ------
    InvalidInput
        For the first thing that does not fit.
    """
    if q.ndim != 3 or not k_cache.ndim == v_cache.ndim == 4:
        raise InvalidInput("PAGED-12", f"q and the caches have ranks {q.ndim}, {k_cache.ndim}, {v_cache.ndim}")
    if k_cache.shape[:2] != v_cache.shape[:2]:
        raise InvalidInput("PAGED-12", f"pages of keys are {k_cache.shape[:2]}, of values {v_cache.shape[:2]}")
    if not len(cu_seqlens_q) - 1 == len(block_table) == len(kv_lengths):
        sizes = f"{len(cu_seqlens_q) - 1}, {len(block_table)}, {len(kv_lengths)}"
        raise InvalidInput("PAGED-12", f"boundaries, table and lengths are of {sizes} sequences")
