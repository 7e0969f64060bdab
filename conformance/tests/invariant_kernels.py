"""Attention in NumPy whose bits depend on nothing, or on one thing each: the batch, the place in it, the chunk."""

from __future__ import annotations

import numpy as np

Array = np.ndarray


def row_by_row(q: Array, k: Array, v: Array, *, kv_lengths: Array | None = None, block: int = 64) -> Array:
    """Each row computed alone, its keys in blocks of one size, so that batch, chunk and padding have no effect."""
    output = np.zeros((*q.shape[:3], v.shape[3]), q.dtype)
    for b, h in np.ndindex(q.shape[:2]):
        keys = k.shape[2] if kv_lengths is None else int(kv_lengths[b])
        for i in range(q.shape[2]):
            scores = (k[b, h, :keys] * q[b, h, i]).sum(axis=1) / np.sqrt(q.dtype.type(q.shape[3]))
            powers = np.exp(scores - scores.max())
            parts = [
                (powers[j : j + block, None] * v[b, h, j : j + block][: keys - j]).sum(axis=0)
                for j in range(0, keys, block)
            ]
            output[b, h, i] = sum(parts) / powers.sum()
    return output


def split_by_batch(q: Array, k: Array, v: Array) -> Array:
    """Keys in enough splits to occupy every core, as in kernels for decoding: fewer splits in a larger batch."""
    return row_by_row(q, k, v, block=16 * len(q))


def last_is_another(q: Array, k: Array, v: Array) -> Array:
    """The last sequence of a batch computed in smaller blocks."""
    found = [row_by_row(q[b : b + 1], k[b : b + 1], v[b : b + 1]) for b in range(len(q) - 1)]
    return np.concatenate([*found, row_by_row(q[-1:], k[-1:], v[-1:], block=8)])


def few_rows_are_others(q: Array, k: Array, v: Array) -> Array:
    """Another block size for fewer than 8 rows."""
    return row_by_row(q, k, v, block=64 if q.shape[2] >= 8 else 8)


def one_batch(q: Array, k: Array, v: Array) -> Array:
    """A kernel that takes only two sequences and refuses other batches."""
    if len(q) != 2:
        raise NotImplementedError("two sequences")
    return row_by_row(q, k, v)


def leaking(q: Array, k: Array, v: Array) -> Array:
    """The first sequence's output plus a thousandth of the last one's."""
    output = row_by_row(q, k, v)
    output[:1] += output[-1:] / 1000
    return output


def packed(
    q: Array,
    k: Array,
    v: Array,
    cu_seqlens_q: Array,
    cu_seqlens_k: Array,
    *,
    is_causal: bool = False,
    max_seqlen_q: int = 0,
    max_seqlen_k: int = 0,
    block: int = 64,
) -> Array:
    """Each row of a pack computed alone."""
    output = np.zeros((*q.shape[:2], v.shape[2]), q.dtype)
    for n in range(len(cu_seqlens_q) - 1):
        start, end = (int(cu_seqlens_q[n + each]) for each in (0, 1))
        first, last = (int(cu_seqlens_k[n + each]) for each in (0, 1))
        for i in range(start, end):
            keys = slice(first, last - (end - 1 - i) if is_causal else last)
            row = q[i][None, :, None], k[keys].swapaxes(0, 1)[None], v[keys].swapaxes(0, 1)[None]
            output[i] = row_by_row(*row, block=block)[0, :, 0]
    return output


def packed_split_by_batch(q: Array, k: Array, v: Array, cu_seqlens_q: Array, cu_seqlens_k: Array) -> Array:
    """Fewer splits with more sequences."""
    return packed(q, k, v, cu_seqlens_q, cu_seqlens_k, block=4 * len(cu_seqlens_q))


def packed_split_by_maximum(
    q: Array, k: Array, v: Array, cu_seqlens_q: Array, cu_seqlens_k: Array, *, max_seqlen_k: int = 0
) -> Array:
    """Splits of a fifth of the longest allowed sequence."""
    return packed(q, k, v, cu_seqlens_q, cu_seqlens_k, block=max_seqlen_k // 5)


def packed_split_as_told(
    q: Array, k: Array, v: Array, cu_seqlens_q: Array, cu_seqlens_k: Array, *, num_splits: int = 0
) -> Array:
    """Blocks of 64 keys unless ``num_splits``, as in flash-attention, says otherwise."""
    return packed(q, k, v, cu_seqlens_q, cu_seqlens_k, block=len(k) if num_splits == 1 else 64)


def packed_decoding(
    q: Array, k: Array, v: Array, cu_seqlens_q: Array, cu_seqlens_k: Array, *, is_causal: bool = False
) -> Array:
    """Another block size where every sequence has one query."""
    small = len(q) == len(cu_seqlens_q) - 1
    return packed(q, k, v, cu_seqlens_q, cu_seqlens_k, is_causal=is_causal, block=8 if small else 64)


def paged(
    q: Array,
    k_cache: Array,
    v_cache: Array,
    cu_seqlens_q: Array,
    block_table: Array,
    kv_lengths: Array,
    *,
    is_causal: bool = False,
    block: int = 64,
) -> Array:
    """The keys of each sequence gathered by its table, then ``packed``."""
    rows = [block_table[n, np.arange(m) // k_cache.shape[1]] for n, m in enumerate(kv_lengths)]
    page, slot = np.concatenate(rows), np.concatenate([np.arange(m) % k_cache.shape[1] for m in kv_lengths])
    ends = np.concatenate([[0], np.cumsum(kv_lengths)])
    return packed(q, k_cache[page, slot], v_cache[page, slot], cu_seqlens_q, ends, is_causal=is_causal, block=block)


def paged_by_place(
    q: Array, k_cache: Array, v_cache: Array, cu_seqlens_q: Array, block_table: Array, kv_lengths: Array
) -> Array:
    """Blocks whose size depends on where the first page lies."""
    block = 16 + int(block_table[0, 0])
    return paged(q, k_cache, v_cache, cu_seqlens_q, block_table, kv_lengths, block=block)


def flat(q: Array, k: Array, v: Array) -> Array:
    """A result with two axes."""
    return row_by_row(q, k, v).reshape(-1, v.shape[-1])
