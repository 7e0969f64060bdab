"""Attention over the ranks of a JAX mesh: a ring, an exchange of heads for rows, and jax.nn over sharded arrays.

Sources: Liu, Zaharia & Abbeel 2023 (ring attention) with ``jax.lax.ppermute``; Jacobs et al. 2023 (DeepSpeed Ulysses)
with ``jax.lax.all_to_all``; and https://docs.jax.dev/en/latest/notebooks/Distributed_arrays_and_automatic_parallelization.html.
The first two are called in ``jax.shard_map`` with a rank's shards, (B, H, S / ranks, D), which are padded with zeros
where a length does not divide; the third with whole arrays.
"""

from __future__ import annotations

from functools import reduce
from math import gcd, inf
from operator import and_
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from attention_conformance.impls.jax import eager, nn
from attention_conformance.impls.jax.parts import (
    Window,
    add_special,
    diagonal_tests,
    finite_part,
    product,
    special_places,
    split_scale,
    working_dtype,
)
from attention_conformance.impls.validate import check_inputs


def ring(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    axis: str,
    lengths: tuple[int, int],
    mask: jax.Array | None = None,
    bias: jax.Array | None = None,
    is_causal: bool = False,
    causal_offset: Any = None,
    window: Window | None = None,
    kv_lengths: jax.Array | None = None,
    scale: Any = None,
    softcap: Any = None,
    sinks: jax.Array | None = None,
    return_lse: bool = False,
) -> Any:
    """The output of a rank's rows: keys and values go round, and the softmax continues with every block (SDPA-14).

    Rows and keys are counted over all ranks.  The padding of the last shards is not a key, and its rows are cut off.
    """
    check_inputs(q, k, v, None, None, sinks)
    whole = [jax.ShapeDtypeStruct((*each.shape[:2], lengths[1], each.shape[3]), each.dtype) for each in (k, v)]
    check_inputs(q, whole[0], whole[1], mask, bias)
    dtype, work, block = q.dtype, working_dtype(q.dtype), k.shape[2]
    before, after = split_scale(scale, q.shape[3], work)
    size, rank = lax.axis_size(axis), lax.axis_index(axis)
    rows = rank * q.shape[2] + jnp.arange(q.shape[2])[:, None]
    top = jnp.full((*q.shape[:3], 1), -inf, work)
    if sinks is not None:
        top = jnp.broadcast_to(sinks.astype(work)[:, None, None], top.shape)
    total = jnp.where(jnp.isneginf(top), 0, 1).astype(work)
    sums, reached = (jnp.zeros((*q.shape[:3], n * v.shape[3]), work) for n in (1, 3))
    for step in range(size):
        first = (rank - step) % size * block
        scores = product("bhgid,bhjd->bhgij", q.astype(work) * before, k.astype(work))
        scores = scores if after is None else scores * after
        if softcap is not None:
            cap = jnp.asarray(softcap, work)
            scores = cap * jnp.tanh(scores / cap)
        keys = first + jnp.arange(block)
        added = None if bias is None else _part(bias, first, block, size)
        offset = 0 if causal_offset is None else causal_offset
        tests = [keys < lengths[1], *diagonal_tests(rows, keys, is_causal, offset, window, kv_lengths)]
        if mask is not None:
            tests.append(_part(mask, first, block, size))
        if added is not None:
            tests.append(~jnp.isneginf(added))
            scores = scores + added.astype(work)
        allowed = jnp.broadcast_to(reduce(and_, tests), scores.shape)
        scores = jnp.where(allowed, scores, -inf)
        # Nothing depends on the maximum, so it is differentiated as a constant.
        new = lax.stop_gradient(jnp.maximum(top, scores.max(axis=3, keepdims=True, initial=-inf)))
        base = jnp.where(jnp.isneginf(new), 0, new)
        powers, shrink = jnp.exp(scores - base), jnp.exp(top - base)
        total = total * shrink + powers.sum(axis=3, keepdims=True)
        values = v.astype(work)
        sums = sums * shrink + product("bhgij,bhjd->bhgid", powers, finite_part(values))
        reached = reached + product("bhgij,bhjd->bhgid", allowed.astype(work), special_places(values))
        top = new
        if step < size - 1:
            k, v = (lax.ppermute(each, axis, [(i, (i + 1) % size) for i in range(size)]) for each in (k, v))
    total = jnp.where(total == 0, 1, total)
    output = add_special(sums / total, lax.stop_gradient(reached)).astype(dtype)
    return (output, (top + jnp.log(total))[..., 0]) if return_lse else output


def _part(array: jax.Array, first: Any, block: int, ranks: int) -> jax.Array:
    """The keys of a block in a mask or bias, which may be broadcast along them."""
    if not array.ndim or array.shape[-1] == 1:
        return array
    filled = jnp.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, block * ranks - array.shape[-1])])
    return lax.dynamic_slice_in_dim(filled, first, block, -1)


def all_to_all(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    axis: str,
    lengths: tuple[int, int],
    is_causal: bool = False,
    causal_offset: Any = None,
    window: Window | None = None,
    kv_lengths: jax.Array | None = None,
    scale: Any = None,
    softcap: Any = None,
    return_lse: bool = False,
) -> Any:
    """The output of a rank's rows: it computes all rows of some heads, and heads are exchanged for rows on both sides.

    Key heads that are fewer than the ranks are repeated; query heads that do not divide are padded with zeros.
    """
    check_inputs(q, k, v)
    size, heads, rows = lax.axis_size(axis), q.shape[1], q.shape[2]
    repeats = size // gcd(k.shape[1], size)
    if heads % size or heads % (k.shape[1] * repeats):
        k, v = (jnp.repeat(each, heads // k.shape[1], axis=1) for each in (k, v))
        q, k, v = (jnp.pad(each, ((0, 0), (0, -heads % size), (0, 0), (0, 0))) for each in (q, k, v))
    else:
        k, v = (jnp.repeat(each, repeats, axis=1) for each in (k, v))
    q, k, v = (lax.all_to_all(each, axis, 1, 2, tiled=True) for each in (q, k, v))
    output, lse = eager.attention(
        q[:, :, : lengths[0]],
        k[:, :, : lengths[1]],
        v[:, :, : lengths[1]],
        is_causal=is_causal,
        causal_offset=causal_offset,
        window=window,
        kv_lengths=kv_lengths,
        scale=scale,
        softcap=softcap,
        return_lse=True,
    )
    missing = size * rows - lengths[0]
    output, lse = (
        jnp.pad(each, ((0, 0), (0, 0), (0, missing)) + ((0, 0),) * (each.ndim - 3)) for each in (output, lse)
    )
    output, lse = (lax.all_to_all(each, axis, 2, 1, tiled=True)[:, :heads] for each in (output, lse))
    return (output, lse) if return_lse else output


def sharded(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    mesh: Any,
    mask: jax.Array | None = None,
    bias: jax.Array | None = None,
    is_causal: bool = False,
    window: Window | None = None,
    scale: Any = None,
) -> Any:
    """``jax.nn.dot_product_attention``, (B, S, H, D), of arrays whose rows and keys are sharded: XLA partitions it."""
    return nn.attention(q, k, v, mask=mask, bias=bias, is_causal=is_causal, window=window, scale=scale)


ring.ranks = all_to_all.ranks = sharded.ranks = (2, 3, 4, 8)  # type: ignore[attr-defined]
ring.uneven = all_to_all.uneven = True  # type: ignore[attr-defined]
sharded.layout = "BSHD"  # type: ignore[attr-defined]
for _each in (ring, all_to_all, sharded):
    vars(_each).update(dtypes=("float32", "bfloat16"), profiles={"bfloat16": "wide"})
vars(sharded).update(profiles={"bfloat16": "fused"})
