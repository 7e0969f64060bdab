"""Attention in NumPy over tiles, with the online softmax: no array as large as the score matrix.

Source: Milakov & Gimelshein 2018 (online softmax) and Dao et al. 2022 (FlashAttention), restated for NumPy:
a block of query rows meets one tile of keys after the other, and keeps its running maximum, sum and
output.  The query rows of the heads that share a key/value head form one block, so that grouped heads
and decoding with one query row are matrix products too.  Keys that causality, window or lengths hide
from a whole block are not visited.

It expresses every keyword but ``return_weights``, whose result is the array that it avoids.
Memory: a tile of ROWS x KEYS scores, and one head of k and v where they have to be converted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from impls.numpy.parts import add_special, finite_part, split_scale, with_past, working_dtype
from impls.validate import check_inputs

#: Rows of a block, over all heads of its group, and keys of a tile.  Matrix products are at their full speed from
#: about 128 rows; 256 x 1024 scores are 1 MiB in float32 and stay in a second-level cache from product to softmax.
ROWS = 256
KEYS = 1024


def attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    *,
    mask: np.ndarray | None = None,
    bias: np.ndarray | None = None,
    is_causal: bool = False,
    causal_offset: int | np.ndarray | None = None,
    window: tuple[int | None, int | None] | None = None,
    kv_lengths: np.ndarray | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: np.ndarray | None = None,
    past_key: np.ndarray | None = None,
    past_value: np.ndarray | None = None,
    return_lse: bool = False,
) -> Any:
    """The output (B, Hq, Sq, Dv), and on request the lse (B, Hq, Sq) in float32, or float64 for float64 inputs.

    With a past the present follows.  Shapes and keywords as in impls.contract.  Raises ValueError or TypeError for
    inputs that do not fit together (SDPA-31 to SDPA-36, DEC-7).
    """
    k, v, offset, present = with_past(k, v, causal_offset, past_key, past_value)
    check_inputs(q, k, v, mask, bias, sinks)
    work = working_dtype(q.dtype)
    batch, heads, queries, width = q.shape
    group = heads // k.shape[1]
    shape = (batch, heads, queries, k.shape[2])
    before, after = split_scale(scale, width)
    sides = window or (None, None)
    visible = _Visible(
        keys=k.shape[2],
        left=sides[0],
        right=_smaller(sides[1], 0 if is_causal else None),
        offsets=np.broadcast_to(offset, batch).tolist(),
        lengths=[k.shape[2]] * batch if kv_lengths is None else kv_lengths.tolist(),
    )
    mask = None if mask is None else np.broadcast_to(mask, shape)
    bias = None if bias is None else np.broadcast_to(bias, shape)
    output = np.empty((batch, heads, queries, v.shape[3]), q.dtype)
    lse = np.empty((batch, heads, queries), work)
    scratch = np.empty(max(ROWS, group) * KEYS, work)

    with np.errstate(all="ignore"):  # NaN and inf are inputs like any other
        for b, head in np.ndindex(batch, k.shape[1] if group else 0):
            hs = slice(head * group, (head + 1) * group)
            values = np.ascontiguousarray(v[b, head], dtype=work)
            source = _Head(
                keys=np.ascontiguousarray(k[b, head], dtype=work),
                values=values,
                finite=bool(np.isfinite(values).all()),
                mask=None if mask is None else mask[b, hs],
                bias=None if bias is None else bias[b, hs],
                scale=after,
                softcap=softcap,
                sinks=None if sinks is None else sinks[hs].astype(work),
            )
            for rows in _blocks(0, queries, max(1, ROWS // group)):
                block = q[b, hs, rows].astype(work) * work(before)
                output[b, hs, rows], lse[b, hs, rows] = _block(block, rows, source, visible, b, scratch)
    results = [output, *([lse] if return_lse else []), *present]
    return tuple(results) if len(results) > 1 else output


@dataclass(frozen=True)
class _Head:
    """What a block of query rows needs of one key/value head, and of the query heads that read it.

    Shapes: keys (Sk, D), values (Sk, Dv), mask and bias (G, Sq, Sk) for the G query heads.
    """

    keys: np.ndarray
    values: np.ndarray
    finite: bool
    mask: np.ndarray | None
    bias: np.ndarray | None
    scale: float
    softcap: float | None
    #: (G,) for the G query heads.
    sinks: np.ndarray | None


@dataclass(frozen=True)
class _Visible:
    """Which keys the diagonal and the lengths leave, by batch: j from i + offset − left to i + offset + right."""

    keys: int
    left: int | None
    right: int | None
    offsets: list[int]
    lengths: list[int]

    def span(self, b: int, rows: slice) -> tuple[int, int]:
        """First key, and last key + 1, that any of the rows sees."""
        first, last = 0, min(self.keys, self.lengths[b])
        if self.left is not None:
            first = max(0, rows.start + self.offsets[b] - self.left)
        if self.right is not None:
            last = min(last, rows.stop + self.offsets[b] + self.right)
        return first, last

    def hide(self, scores: np.ndarray, b: int, rows: slice, keys: slice) -> None:
        """Set to −inf the scores (G, rows, keys) of keys beyond a row's sides; only columns that an edge crosses."""
        row = np.arange(rows.start, rows.stop)[:, None] + self.offsets[b]
        if self.right is not None:
            start = max(keys.start, rows.start + self.offsets[b] + self.right + 1)
            if start < keys.stop:
                beyond = np.arange(start, keys.stop) > row + self.right
                np.copyto(scores[..., start - keys.start :], -np.inf, where=beyond)
        if self.left is not None:
            stop = min(keys.stop, rows.stop - 1 + self.offsets[b] - self.left)
            if stop > keys.start:
                before = np.arange(keys.start, stop) < row - self.left
                np.copyto(scores[..., : stop - keys.start], -np.inf, where=before)


def _block(
    q: np.ndarray, rows: slice, head: _Head, visible: _Visible, b: int, scratch: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Output (G, R, Dv) and lse (G, R) of a block of scaled query rows (G, R, D), tile after tile."""
    groups, count, width = q.shape
    lines = groups * count
    top = np.full((lines, 1), -np.inf, q.dtype)
    total = np.zeros((lines, 1), q.dtype)
    output = np.zeros((lines, head.values.shape[1]), q.dtype)
    if head.sinks is not None:  # SDPA-38: as if a key of this score and value 0 had been seen
        top = np.repeat(head.sinks, count)[:, None]
        total = np.where(np.isneginf(top), total, 1)
    special: list[tuple[np.ndarray, np.ndarray]] = []
    q = q.reshape(lines, width)
    first, last = visible.span(b, rows)
    for keys in _blocks(first, last, KEYS):
        scores = _scores(q, groups, rows, keys, head, scratch)
        visible.hide(scores.reshape(groups, count, keys.stop - keys.start), b, rows, keys)
        values = head.values[keys]
        if not head.finite:
            special.append((~np.isneginf(scores), values))
            values = finite_part(values)
        top, total, output = _merge(scores, values, top, total, output)
    empty = total == 0
    np.copyto(total, 1, where=empty)
    output /= total
    for allowed, values in special:
        add_special(output, allowed, values)
    lse = top + np.log(total)
    return output.reshape(groups, count, output.shape[1]), lse.reshape(groups, count)


def _scores(q: np.ndarray, groups: int, rows: slice, keys: slice, head: _Head, scratch: np.ndarray) -> np.ndarray:
    """Scores (G · R, keys) of one tile, in ``scratch``: −inf where mask or bias hide a key."""
    count = keys.stop - keys.start
    scores = scratch[: len(q) * count].reshape(len(q), count)
    np.matmul(q, head.keys[keys].T, out=scores)
    if head.scale != 1:
        scores *= head.scale
    if head.softcap is not None:
        scores /= head.softcap
        np.tanh(scores, out=scores)
        scores *= head.softcap
    cube = scores.reshape(groups, -1, count)
    if head.bias is not None:
        bias = head.bias[:, rows, keys]
        cube += bias.astype(cube.dtype, copy=False)
        np.copyto(cube, -np.inf, where=bias == -np.inf)  # a NaN or inf of a hidden key stays hidden
    if head.mask is not None:
        np.copyto(cube, -np.inf, where=~head.mask[:, rows, keys])
    return scores


def _merge(
    scores: np.ndarray, values: np.ndarray, top: np.ndarray, total: np.ndarray, output: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Running maximum, sum and output after one more tile; the scores are used up.

    With the maximum m over all keys so far, sum and output hold Σ exp(s − m) and Σ exp(s − m) v.
    """
    highest = np.maximum(top, scores.max(axis=1, keepdims=True))
    base = np.where(np.isneginf(highest), 0, highest)  # −inf − (−inf) is NaN; a row without a key keeps its zeros
    scores -= base
    np.exp(scores, out=scores)
    shrink = np.exp(top - base)
    total = total * shrink + scores.sum(axis=1, keepdims=True)
    output = output * shrink
    output += scores @ values
    return highest, total, output


def _blocks(start: int, stop: int, size: int) -> Iterator[slice]:
    """Consecutive slices of at most ``size`` from start to stop."""
    for first in range(start, stop, size):
        yield slice(first, min(first + size, stop))


def _smaller(a: int | None, b: int | None) -> int | None:
    """The smaller of two bounds, of which None is no bound."""
    given = [bound for bound in (a, b) if bound is not None]
    return min(given) if given else None
