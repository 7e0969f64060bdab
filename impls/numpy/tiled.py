"""Attention in NumPy over tiles: no array as large as the score matrix, on as many threads as NumPy's BLAS has.

A call is cut into blocks of query rows and heads (``plan``), which threads share while the BLAS uses one thread each
(``share_out``).  A block goes over its keys tile by tile (``attend``): scores, softmax and output in memory of one
tile.  Its matrix products are cut into pieces that the BLAS multiplies without packing them first (``product``).

Source: Dao et al. 2022 (FlashAttention, https://arxiv.org/abs/2205.14135), restated for NumPy.  The query rows of the
heads that share a key/value head, and of several such heads, form one block, so that grouped heads and decoding with
one query row are matrix products too.  Keys that causality, window or lengths hide from a whole block are not visited.
Large blocks read keys and values seldom and need Python seldom; several of them give threads something to share, and
under a diagonal small ones skip more of the hidden keys.

Softmax is the same whatever is subtracted from a row's scores.  So a block is first computed with nothing
subtracted, which saves the passes over the scores that find and subtract a maximum.  That is accurate where a row's
Σ exp(s) is not tiny (LEAST; it is at least 1 with the maximum subtracted): nothing that counts underflows then.
Where a row has less, or anything is not finite, the block is computed again with the running maximum of the online
softmax (Milakov & Gimelshein 2018, https://arxiv.org/abs/1805.02867).

OpenBLAS copies its operands into an order of its own.  Its kernels for AVX-512 read matrices in place instead, if the
product has at most a million multiply-adds and the right matrix is not transposed
(kernel/x86_64/sgemm_small_kernel_permit_skylakex.c), which takes up to a sixth less time.  ``matmul`` of a stack of
pieces makes such calls one after the other without going back to Python.  A threaded BLAS shares out only matrix
products, and waits for its threads in each of them; threads that take whole blocks share out exp and the other passes
too, as NumPy releases the interpreter in them.

It expresses every keyword but ALiBi, scales by head, rotations, block masks, trees and ``return_weights``, whose
result is the array that it avoids.
Memory: a tile of scores and a copy of its keys for each thread, and k and v where they must be converted.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from threading import Lock
from typing import Any, TypeVar

import numpy as np
from numpy.lib import introspect

from attention_conformance.impls.numpy.parts import add_special, finite_part, split_scale, with_past, working_dtype
from attention_conformance.impls.process.threads import blas
from attention_conformance.impls.validate import check_inputs

#: Place of a block: its batch entry, its key/value heads, its query rows.
Place = tuple[int, slice, slice]

Job = TypeVar("Job")

#: Scores of a tile: 1.5 MiB in float32.  From product to softmax to product they stay in a cache of the second or third
#: level.
TILE = 3 * 2**17

#: Rows of a block, over all heads of its group: the more, the less often keys and values are read.
ROWS = 1024

#: Least rows of a block along a diagonal, where a block computes a triangle of hidden scores.  Not fewer: Python lets
#: one thread run at a time, and between products each needs Python.
DIAGONAL_ROWS = 256

#: Keys for each row of a block under a long diagonal: its hidden triangles are a sixteenth of a call.
DIAGONAL_KEYS = 16

#: Least blocks of a call, and the multiply-adds from which it applies, as long as blocks have LEAST_ROWS: threads need
#: something to share, but with small blocks they mostly wait for each other in Python.  The number of threads does not
#: count, as no bit of a result may depend on it.
BLOCKS = ((8, 2**29), (4, 2**27), (2, 2**25))

#: Rows from which on matrix products are near their full speed.
LEAST_ROWS = 128

#: Most keys of a tile.
KEYS = 768

#: Least Σ exp(s) of a row for which nothing must be subtracted.  Numbers below 2⁻¹²⁶ are lost: n · 2⁻¹⁰⁶ of such a sum
#: over n keys, and n · 2⁻¹³⁰ ÷ |v| of the products with values of size |v|.  The first rows of causal attention have
#: few keys, so that half of them have sums below 1.
LEAST = 2.0**-20

#: Multiply-adds of a product up to which OpenBLAS packs nothing, by the kernels that it has chosen.
UNPACKED = {"SkylakeX": 10**6}

#: Rows of a piece are a multiple of this, so that the kernels are full and the usual blocks leave no rows over.
PIECE = 8

#: Rows from which on a transposed copy of the keys takes no longer than it saves; impls/SPEED.md has the times of both
#: for many rows.
MANY = 128

#: The number of threads of a BLAS belongs to the process, so only one call at a time may change it.
_ONE_AT_A_TIME = Lock()


@dataclass(frozen=True)
class Visible:
    """Keys that the diagonal and the lengths leave, by batch: j from i + offset − left to i + offset + right."""

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

    def hide(self, scores: np.ndarray, b: int, rows: slice, keys: slice, fill: float) -> None:
        """Put ``fill`` into scores (G, rows, keys) of keys beyond a row's sides; only columns that an edge crosses."""
        count, first = rows.stop - rows.start, rows.start + self.offsets[b]
        if self.right is not None:
            start = max(keys.start, first + self.right + 1)
            if start < keys.stop:
                near = _triangle(count, keys.stop - start, first + self.right - start)
                np.copyto(scores[..., start - keys.start :], fill, where=~near)
        if self.left is not None:
            stop = min(keys.stop, first + count - 1 - self.left)
            if stop > keys.start:
                before = _triangle(count, stop - keys.start, first - self.left - 1 - keys.start)
                np.copyto(scores[..., : stop - keys.start], fill, where=before)


@functools.lru_cache(maxsize=16)
def _triangle(rows: int, columns: int, diagonal: int) -> np.ndarray:
    """True in column j of row i where j ≤ i + diagonal.  Cached, as most blocks of a call have the same edges."""
    triangle = np.tri(rows, columns, diagonal, dtype=bool)
    triangle.flags.writeable = False
    return triangle


def visible(
    keys: int,
    batch: int,
    is_causal: bool,
    offset: int | np.ndarray,
    window: tuple[int | None, int | None] | None,
    kv_lengths: np.ndarray | None,
) -> Visible:
    """(SDPA-9 to SDPA-12) Keys that a call's keywords leave of ``keys`` keys; is_causal is a right side of 0."""
    left, right = window or (None, None)
    if is_causal:
        right = 0 if right is None else min(right, 0)
    lengths = [keys] * batch if kv_lengths is None else kv_lengths.tolist()
    offsets = [offset] * batch if isinstance(offset, int) else np.broadcast_to(offset, batch).tolist()
    return Visible(keys, left, right, offsets, lengths)


@dataclass(frozen=True)
class Plan:
    """The blocks in the order in which they are done, the scores of a thread's tile, and how many threads there are."""

    blocks: list[Place]
    tile: int
    threads: int


def plan(seen: Visible, q: tuple[int, ...], v: tuple[int, ...]) -> Plan:
    """Plan of a call: its blocks, by the shapes of q (B, Hq, Sq, D) and of all v (B, Hkv, Sk, Dv)."""
    (batch, heads, queries, width), (_, kv_heads, keys, value_width) = q, v
    group, total = heads // kv_heads, batch * heads * queries
    products = total * keys * (width + value_width)
    least = next((count for count, from_here in BLOCKS if products >= from_here), 1)
    rows = _rows(seen)
    while rows > LEAST_ROWS and total < least * rows:
        rows //= 2
    rows = max(1, min(queries, rows // max(1, group)))
    lines = max(1, rows * group)
    together = max(1, min(kv_heads, ROWS // lines, total // (least * lines)))
    # The last rows first: under a diagonal they see the most keys, and threads without work wait for the rest.
    row_slices = list(slices(0, queries, rows))[::-1]
    head_slices = list(slices(0, kv_heads if group else 0, together))
    blocks = [(b, some, each) for b in range(batch) for some in head_slices for each in row_slices]
    lines *= together
    tile = lines * max(1, min(KEYS, TILE // lines, keys))
    return Plan(blocks, tile, max(1, min(len(blocks), available() if least > 1 else 1)))


def _rows(seen: Visible) -> int:
    """Rows of a block where there are many."""
    if seen.left is not None:
        return DIAGONAL_ROWS
    return ROWS if seen.right is None else max(DIAGONAL_ROWS, min(ROWS, seen.keys // DIAGONAL_KEYS))


def product(left: np.ndarray, right: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """``left`` (N · R, K) @ ``right`` (N, K, C), R rows with each of those, into ``out`` (N · R, C).

    ``left`` and ``out`` are contiguous.
    """
    stack, inner, columns = right.shape
    rows = len(left) // stack
    out = np.empty((len(left), columns), left.dtype) if out is None else out
    source, target = left.reshape(stack, rows, inner), out.reshape(stack, rows, columns)
    is_transposed = right.strides[2] != right.itemsize
    piece = 0 if is_transposed else unpacked() // max(1, inner * columns) // PIECE * PIECE
    whole = rows // piece * piece if 0 < piece < rows else 0
    if whole:
        pieces, into = (each[:, :whole].reshape(stack, -1, piece, each.shape[2]) for each in (source, target))
        np.matmul(pieces, right[:, None], out=into)
    if whole < rows:
        np.matmul(source[:, whole:], right, out=target[:, whole:])
    return out


def transposed(keys: np.ndarray, rows: int) -> np.ndarray:
    """``keys`` (N, C, D) as the right side (N, D, C) of a product with this many rows, copied where that pays."""
    right = keys.transpose(0, 2, 1)
    return np.ascontiguousarray(right) if unpacked() and rows >= MANY * len(keys) else right


@functools.cache
def unpacked() -> int:
    """Multiply-adds up to which no BLAS that NumPy may have packs a product; 0 where that is not known."""
    return min((UNPACKED.get(each.get("architecture", ""), 0) for each in blas().info()), default=0)


def available() -> int:
    """The threads that NumPy's BLAS is set to (by OMP_NUM_THREADS, OPENBLAS_NUM_THREADS, threadpoolctl)."""
    return min((each.num_threads for each in blas().lib_controllers), default=1)


def share_out(jobs: Sequence[Job], work: Callable[[Job, np.ndarray], None], scratch: Sequence[np.ndarray]) -> None:
    """Do the jobs in order, each with the scratch of its thread; the first thread is the caller's own.

    Each scratch has a thread, but there are no more than the caller's and one for each core.
    Raises the first exception of any of them.
    """
    todo = iter(jobs)  # shared: each free thread takes the next job

    def serve(own: np.ndarray) -> None:
        with np.errstate(all="ignore"):  # NaN and inf are inputs like any other; the setting is the thread's own
            for job in todo:
                work(job, own)

    if len(scratch) == 1:
        serve(scratch[0])
        return
    with _ONE_AT_A_TIME, blas().limit(limits=1):
        others = [_helpers().submit(serve, own) for own in scratch[1:]]
        try:
            serve(scratch[0])
        finally:
            wait(others)  # whatever happened: they use the caller's memory
        for each in others:
            each.result()


@functools.cache
def _helpers() -> ThreadPoolExecutor:
    """Threads that wait for the next call: starting one took 0.2 ms, of a call of 2 ms."""
    return ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="numpy-tiled")


os.register_at_fork(after_in_child=_helpers.cache_clear)  # a child has none of its parent's threads


@dataclass(frozen=True)
class Heads:
    """Heads as blocks of query rows need them: N key/value heads, and the G query heads that read them."""

    #: (N, Sk, D) and (N, Sk, Dv) in the dtype that is computed in, rows contiguous.
    keys: np.ndarray
    values: np.ndarray
    #: (G, Sq, Sk).
    mask: np.ndarray | None
    bias: np.ndarray | None
    #: Factors of query rows before the product and of scores after it, and the cap of the scores then.
    before: float
    after: float
    softcap: float | None
    #: (G,).
    sinks: np.ndarray | None
    visible: Visible
    batch: int


def attend(q: np.ndarray, rows: slice, heads: Heads, scratch: np.ndarray, output: np.ndarray, lse: np.ndarray) -> None:
    """Fill output (G, R, Dv) and lse (G, R) for a block of query rows (G, R, D), with a tile of scores in scratch."""
    block = _Block(q, rows, heads, scratch, output, lse)
    # A bias or a sink makes scores differ much, so that the plain attempt would often be followed by the second.
    if heads.bias is not None or heads.sinks is not None or not block.plain():
        block.online()


@dataclass(frozen=True)
class _Block:
    """Query rows (G, R, D), their places R in each head, what they attend to, and where results go."""

    q: np.ndarray
    rows: slice
    heads: Heads
    scratch: np.ndarray
    output: np.ndarray
    lse: np.ndarray

    def plain(self) -> bool:
        """Output and lse with nothing subtracted; False, without either, where that is not accurate."""
        parts = self._parts()
        first = next(parts, None)
        if first is None:
            return False
        total, output = first
        for sums, added in parts:
            total += sums
            output += added
        if not (total.min() >= LEAST and total.max() < np.inf):  # the comparisons are false for NaN too
            return False
        if not np.isfinite(np.vdot(output, output)):  # a sum of squares, which also excludes numbers beyond 1e17
            return False
        # In one pass, with the rounding to half precision in it.
        shape = self.output.shape
        np.divide(output.reshape(shape), total.reshape(*shape[:2], 1), out=self.output, casting="unsafe")
        self.lse[...] = np.log(total).reshape(shape[:2])
        return True

    def _parts(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Σ exp(s) (G · R,) and Σ exp(s) v (G · R, Dv) over the keys of each tile."""
        power, unit = _power()
        q = self._scaled(unit if self.heads.softcap is None else 1.0)
        for keys in self._tiles():
            weights = self._scores(q, keys, unit)
            power(weights, out=weights)
            self._hide(weights, keys, 0)  # not before: the vector loop of 2^x leaves −inf to a slow path
            yield _sums(weights), product(weights, self.heads.values[:, keys])

    def online(self) -> None:
        """Output and lse with the running maximum m: total and output hold Σ exp(s − m) and Σ exp(s − m) v."""
        heads, q = self.heads, self._scaled(1.0)
        top = np.full((len(q), 1), -np.inf, q.dtype)
        total = np.zeros((len(q), 1), q.dtype)
        output = np.zeros((len(q), heads.values.shape[2]), q.dtype)
        if heads.sinks is not None:  # SDPA-38: as if a key of this score and value 0 had been seen
            top = np.repeat(heads.sinks, self.q.shape[1])[:, None]
            total = np.where(np.isneginf(top), total, 1)
        special: list[tuple[np.ndarray, np.ndarray]] = []
        for keys in self._tiles():
            scores, values = self._scores(q, keys), heads.values[:, keys]
            self._hide(scores, keys, -np.inf)
            if not np.isfinite(values).all():
                special.append((~np.isneginf(scores), values))
                values = finite_part(values)
            highest = np.maximum(top, scores.max(axis=1, keepdims=True))
            # −inf − (−inf) is NaN; a fully masked row keeps its zeros
            scores -= np.where(np.isneginf(highest), 0, highest)
            np.exp(scores, out=scores)
            shrink = np.exp(top - np.where(np.isneginf(highest), 0, highest))
            total = total * shrink + _sums(scores)[:, None]
            output *= shrink
            output += product(scores, values)
            top = highest
        empty = total == 0
        np.copyto(total, 1, where=empty)
        output /= total
        for allowed, values in special:
            stacked = (len(values), len(output) // len(values), -1)
            add_special(output.reshape(stacked), allowed.reshape(stacked), values)
        self.output[...] = output.reshape(self.output.shape)
        self.lse[...] = (top + np.log(total)).reshape(self.lse.shape)

    def _scaled(self, unit: float) -> np.ndarray:
        """Query rows (G · R, D) in the dtype that is computed in, times the factor before the product and ``unit``."""
        work, (groups, count, width) = self.heads.keys.dtype, self.q.shape
        scaled = self.q.astype(work, copy=False) * work.type(self.heads.before * unit)
        return scaled.reshape(groups * count, width)

    def _tiles(self) -> Iterator[slice]:
        """The tiles of keys that any of the rows sees."""
        groups, count, _ = self.q.shape
        size = min(KEYS, len(self.scratch) // max(1, groups * count))
        return slices(*self.heads.visible.span(self.heads.batch, self.rows), max(1, size))

    def _scores(self, q: np.ndarray, keys: slice, unit: float = 1.0) -> np.ndarray:
        """Scores (G · R, keys) of one tile, in ``scratch``, hidden keys included.

        Capped scores are multiplied by ``unit``; others have it from ``q``.
        """
        heads, count = self.heads, keys.stop - keys.start
        scores = self.scratch[: len(q) * count].reshape(len(q), count)
        product(q, transposed(heads.keys[:, keys], len(q)), scores)
        if heads.after != 1:
            scores *= heads.after
        if heads.softcap is not None:
            scores /= heads.softcap
            np.tanh(scores, out=scores)
            scores *= heads.softcap * unit
        if heads.bias is not None:
            cube = scores.reshape(len(self.q), -1, count)
            bias = heads.bias[:, self.rows, keys]
            cube += bias.astype(cube.dtype, copy=False)
            np.copyto(cube, -np.inf, where=bias == -np.inf)  # a NaN or inf of a hidden key stays hidden
        return scores

    def _hide(self, scores: np.ndarray, keys: slice, fill: float) -> None:
        """Put ``fill`` where a key is hidden from a row."""
        heads, cube = self.heads, scores.reshape(len(self.q), -1, scores.shape[1])
        if heads.mask is not None:
            np.copyto(cube, fill, where=~heads.mask[:, self.rows, keys])
        heads.visible.hide(cube, heads.batch, self.rows, keys, fill)


@functools.cache
def _power() -> tuple[np.ufunc, float]:
    """A power, and the factor that makes a score its exponent: 2^x where NumPy has it as a vector loop.

    On AVX-512 that takes half the time of e^x, and elsewhere 18 times as much (measured in float32).
    """
    loops = introspect.opt_func_info(func_name="^exp2$", signature="float32").get("exp2", {})
    is_vector = any(not loop["current"].startswith("baseline") for loop in loops.values())
    return (np.exp2, 1 / math.log(2)) if is_vector else (np.exp, 1.0)


def _sums(weights: np.ndarray) -> np.ndarray:
    """Σ of each row, by the BLAS: a third of the time of ``weights.sum(axis=1)``."""
    return weights @ np.ones(weights.shape[1], weights.dtype)


def slices(start: int, stop: int, size: int) -> Iterator[slice]:
    """Consecutive slices of at most ``size`` from start to stop."""
    for first in range(start, stop, size):
        yield slice(first, min(first + size, stop))


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
    seen = visible(k.shape[2], batch, is_causal, offset, window, kv_lengths)
    mask, bias = (None if each is None else np.broadcast_to(each, shape) for each in (mask, bias))
    output = np.empty((*shape[:3], v.shape[3]), q.dtype)
    lse = np.empty(shape[:3], work)
    with np.errstate(all="ignore"):  # NaN and inf are inputs like any other
        keys, values = (np.ascontiguousarray(each, dtype=work) for each in (k, v))

    def block(place: Place, scratch: np.ndarray) -> None:
        b, kv_heads, rows = place
        hs = slice(kv_heads.start * group, kv_heads.stop * group)
        those = Heads(
            keys=keys[b, kv_heads],
            values=values[b, kv_heads],
            mask=None if mask is None else mask[b, hs],
            bias=None if bias is None else bias[b, hs],
            before=before,
            after=after,
            softcap=softcap,
            sinks=None if sinks is None else sinks[hs].astype(work),
            visible=seen,
            batch=b,
        )
        attend(q[b, hs, rows], rows, those, scratch, output[b, hs, rows], lse[b, hs, rows])

    cut = plan(seen, q.shape, v.shape)
    share_out(cut.blocks, block, [np.empty(cut.tile, work) for _ in range(cut.threads)])
    results = [output, *([lse] if return_lse else []), *present]
    return tuple(results) if len(results) > 1 else output
