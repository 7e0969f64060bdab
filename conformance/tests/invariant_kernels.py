"""Attention in NumPy whose bits depend on nothing, or on one thing each: the batch, the place in it, the chunk."""

from __future__ import annotations

import numpy as np

Array = np.ndarray


def row_by_row(q: Array, k: Array, v: Array, *, kv_lengths: Array | None = None, block: int = 64) -> Array:
    """Each row by itself, its keys in blocks of one size, so that neither batch nor chunk nor padding is seen."""
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
    """Keys in as many splits as leave every core some, as kernels for decoding have them: fewer in a larger batch."""
    return row_by_row(q, k, v, block=16 * len(q))


def last_is_another(q: Array, k: Array, v: Array) -> Array:
    """The last sequence of a batch in smaller blocks."""
    found = [row_by_row(q[b : b + 1], k[b : b + 1], v[b : b + 1]) for b in range(len(q) - 1)]
    return np.concatenate([*found, row_by_row(q[-1:], k[-1:], v[-1:], block=8)])


def few_rows_are_others(q: Array, k: Array, v: Array) -> Array:
    """Another kernel for fewer than 8 rows."""
    return row_by_row(q, k, v, block=64 if q.shape[2] >= 8 else 8)


def one_batch(q: Array, k: Array, v: Array) -> Array:
    """Of two sequences; it says so."""
    if len(q) != 2:
        raise NotImplementedError("two sequences")
    return row_by_row(q, k, v)


def leaking(q: Array, k: Array, v: Array) -> Array:
    """The first sequence's output has a thousandth of the last one's."""
    output = row_by_row(q, k, v)
    output[:1] += output[-1:] / 1000
    return output
