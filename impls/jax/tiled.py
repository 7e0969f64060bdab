"""Attention in JAX over tiles, with the online softmax: memory linear in the sequence length.

Source: Milakov & Gimelshein 2018 (online softmax) and Rabe & Staats 2021 (https://arxiv.org/abs/2112.05682).  A loop
over blocks of query rows holds a loop over tiles of keys, which keeps running maximum, sum and output.  The inner loop
runs over the tiles that causality, window and lengths leave to some row of the block, so its bounds are traced.

It expresses every keyword but ALiBi, scales by head, rotations, block masks, trees and ``return_weights``, whose
result is the array that it avoids.
Memory: the scores of a tile, B · Hq · ROWS · KEYS, and k and v where they must be converted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from attention_conformance.impls.jax.parts import (
    Window,
    add_special,
    diagonal_tests,
    finite_part,
    product,
    special_places,
    split_scale,
    with_past,
    working_dtype,
)
from attention_conformance.impls.validate import check_inputs

#: Rows of a block and keys of a tile.
ROWS = 256
KEYS = 256

#: Running maximum (B, Hq, R, 1), sum (B, Hq, R, 1), output (B, Hq, R, Dv), and how many allowed keys hold NaN or an
#: infinity in each place of v (B, Hq, R, 3 · Dv).
State = tuple[jax.Array, jax.Array, jax.Array, jax.Array]


def attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    mask: jax.Array | None = None,
    bias: jax.Array | None = None,
    is_causal: bool = False,
    causal_offset: Any = None,
    window: Window | None = None,
    kv_lengths: jax.Array | None = None,
    scale: Any = None,
    softcap: Any = None,
    sinks: jax.Array | None = None,
    past_key: jax.Array | None = None,
    past_value: jax.Array | None = None,
    return_lse: bool = False,
) -> Any:
    """The output (B, Hq, Sq, Dv), and on request the lse (B, Hq, Sq); then the present.

    Shapes and keywords as in impls.contract; numbers may be traced scalars, as in impls.jax.eager.  lse is float32, or
    float64 for float64 inputs.  Raises ValueError or TypeError for inputs that do not fit together (SDPA-31 to SDPA-36,
    DEC-7).
    """
    k, v, offset, present = with_past(k, v, causal_offset, past_key, past_value)
    check_inputs(q, k, v, mask, bias, sinks)
    work = working_dtype(q.dtype)
    before, after = split_scale(scale, q.shape[3], work)
    right: Any = 0 if is_causal else None
    if window is not None and window[1] is not None:
        right = jnp.minimum(window[1], 0) if is_causal else window[1]
    call = _Call(
        keys=k.astype(work),
        values=finite_part(v.astype(work)),
        special=v.astype(work),
        finite=jnp.isfinite(v).all(),
        mask=mask,
        bias=bias,
        sinks=None if sinks is None else sinks.astype(work),
        scale=after,
        softcap=None if softcap is None else jnp.asarray(softcap, work),
        left=None if window is None else window[0],
        right=right,
        offsets=_numbers(offset),
        lengths=None if kv_lengths is None else _numbers(kv_lengths),
    )
    size = min(ROWS, q.shape[2])

    def block(index: Any, results: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        start = jnp.minimum(index * size, q.shape[2] - size)  # the last block begins early and repeats some rows
        rows = lax.dynamic_slice_in_dim(q, start, size, 2).astype(work) * before
        output, lse = call.block(rows, start)
        put = lax.dynamic_update_slice_in_dim
        return put(results[0], output.astype(q.dtype), start, 2), put(results[1], lse, start, 2)

    empty = jnp.zeros((*q.shape[:3], v.shape[3]), q.dtype), jnp.zeros(q.shape[:3], work)
    blocks = 0 if 0 in q.shape[:3] else -(-q.shape[2] // size)
    output, lse = _repeat(0, blocks, blocks, block, empty)
    results = [output, *([lse] if return_lse else []), *present]
    return tuple(results) if len(results) > 1 else output


@dataclass(frozen=True)
class _Call:
    """Arguments that all blocks share; k and v in the dtype that is computed in."""

    keys: jax.Array
    #: v with zeros for NaN and infinities, v itself, and whether they are the same.
    values: jax.Array
    special: jax.Array
    finite: jax.Array
    mask: jax.Array | None
    bias: jax.Array | None
    sinks: jax.Array | None
    scale: Any
    softcap: Any
    #: A row sees keys from its diagonal − left to its diagonal + right.
    left: Any
    right: Any
    offsets: jax.Array
    lengths: jax.Array | None

    def block(self, q: jax.Array, start: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Output (B, Hq, R, Dv) and lse (B, Hq, R) of the scaled rows q (B, Hq, R, D), which begin with ``start``."""
        shape, keys = q.shape[:3], self.keys.shape[2]
        size = min(KEYS, keys)
        top = jnp.full((*shape, 1), -jnp.inf, q.dtype)
        total = jnp.zeros((*shape, 1), q.dtype)
        if self.sinks is not None:  # SDPA-38: as if a key of this score and value 0 had been seen
            top = jnp.broadcast_to(self.sinks[:, None, None], top.shape)
            total = jnp.where(jnp.isneginf(top), total, 1)
        width = self.values.shape[3]
        state = top, total, jnp.zeros((*shape, width), q.dtype), jnp.zeros((*shape, 3 * width), q.dtype)
        tiles = -(-keys // size) if keys else 0
        first, last = self._tiles(start, shape[2], size) if tiles > 1 else (0, tiles)
        state = _repeat(first, last, tiles, lambda index, state: self._tile(q, start, index, size, state), state)
        top, total, output, reached = state
        total = jnp.where(total == 0, 1, total)
        output = lax.cond(self.finite, lambda o: o, lambda o: add_special(o, reached), output / total)
        return output, (top + jnp.log(total))[..., 0]

    def _tiles(self, start: jax.Array, rows: int, size: int) -> tuple[jax.Array, jax.Array]:
        """The first tile, and the last one + 1, that holds a key which some row of some batch sees."""
        first, last = jnp.zeros((), jnp.int32), jnp.full((), self.keys.shape[2], jnp.int32)
        if self.left is not None:
            first = jnp.maximum(first, start + self.offsets.min() - _numbers(self.left)[0])
        if self.right is not None:
            last = jnp.minimum(last, start + rows + self.offsets.max() + _numbers(self.right)[0])
        if self.lengths is not None:
            last = jnp.minimum(last, self.lengths.max())
        return first // size, -(-last // size)

    def _tile(self, q: jax.Array, start: jax.Array, index: Any, size: int, state: State) -> State:
        """The state after one more tile of keys."""
        top, total, output, reached = state
        at = jnp.minimum(index * size, self.keys.shape[2] - size)  # the last tile begins early; see ``_tests``
        keys, values = (lax.dynamic_slice_in_dim(each, at, size, 2) for each in (self.keys, self.values))
        scores = product("bhgid,bhjd->bhgij", q, keys)
        if self.scale is not None:
            scores = scores * self.scale
        if self.softcap is not None:
            scores = self.softcap * jnp.tanh(scores / self.softcap)
        bias = None if self.bias is None else self._part(self.bias, start, q.shape[2], at, size)
        if bias is not None:
            scores = scores + bias.astype(scores.dtype)
        allowed = reduce(and_, self._tests(start, q.shape[2], at, index, size, bias))
        scores = jnp.where(allowed, scores, -jnp.inf)
        highest = jnp.maximum(top, scores.max(axis=3, keepdims=True))
        base = jnp.where(jnp.isneginf(highest), 0, highest)  # −inf − (−inf) is NaN; a fully masked row keeps its zeros
        powers, shrink = jnp.exp(scores - base), jnp.exp(top - base)
        total = total * shrink + powers.sum(axis=3, keepdims=True)
        output = output * shrink + product("bhgij,bhjd->bhgid", powers, values)

        def count(reached: jax.Array) -> jax.Array:
            seen = jnp.broadcast_to(allowed, scores.shape).astype(scores.dtype)
            places = special_places(lax.dynamic_slice_in_dim(self.special, at, size, 2))
            return reached + product("bhgij,bhjd->bhgid", seen, places)

        return highest, total, output, lax.cond(self.finite, lambda reached: reached, count, reached)

    def _tests(
        self, start: jax.Array, rows: int, at: jax.Array, index: Any, size: int, bias: jax.Array | None
    ) -> Iterator[jax.Array]:
        """Allowed keys of the rows in a tile, broadcastable to (B, Hq, R, keys)."""
        row, key = start + jnp.arange(rows)[:, None], at + jnp.arange(size)
        yield key >= index * size  # earlier keys belong to the tile before
        yield from diagonal_tests(row, key, False, self.offsets, (self.left, self.right), self.lengths)
        if self.mask is not None:
            yield self._part(self.mask, start, rows, at, size)
        if bias is not None:
            yield ~jnp.isneginf(bias)

    def _part(self, array: jax.Array, start: jax.Array, rows: int, at: jax.Array, size: int) -> jax.Array:
        """Rows and keys of a mask or bias, whose axes may be missing or of length 1 where it repeats."""
        array = array.reshape((1,) * (4 - array.ndim) + array.shape)
        if array.shape[2] > 1:
            array = lax.dynamic_slice_in_dim(array, start, rows, 2)
        return lax.dynamic_slice_in_dim(array, at, size, 3) if array.shape[3] > 1 else array


def _repeat(first: Any, last: Any, most: int, body: Callable[[Any, Any], Any], state: Any) -> Any:
    """``lax.fori_loop``, but without a loop for at most one step: that compiles as fast as jax-jit."""
    if most > 1:
        return lax.fori_loop(first, last, body, state)
    return body(0, state) if most else state


def _numbers(given: Any) -> jax.Array:
    """A number, or one per batch, as (1,) or (B,); 64-bit indices are not needed."""
    return jnp.asarray(given).astype(jnp.int32).reshape(-1)
