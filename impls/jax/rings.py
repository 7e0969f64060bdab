"""Attention over the ranks of a JAX mesh: a ring, an exchange of heads for rows, and jax.nn over sharded arrays.

Sources: Liu, Zaharia & Abbeel 2023 (ring attention) with ``jax.lax.ppermute``; Jacobs et al. 2023 (DeepSpeed Ulysses)
with ``jax.lax.all_to_all``; and https://docs.jax.dev/en/latest/notebooks/Distributed_arrays_and_automatic_parallelization.html.
The first two are called in ``jax.shard_map`` with a rank's shards, (B, H, S / ranks, D); the third with whole arrays.
"""

from __future__ import annotations

from math import gcd
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from attention_conformance.impls.jax import eager, nn
from attention_conformance.impls.jax.merge import merge
from attention_conformance.impls.jax.parts import Window, working_dtype
from attention_conformance.impls.validate import check_inputs


def ring(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    axis: str,
    is_causal: bool = False,
    causal_offset: Any = None,
    window: Window | None = None,
    kv_lengths: jax.Array | None = None,
    scale: Any = None,
    softcap: Any = None,
    return_lse: bool = False,
) -> Any:
    """The output of a rank's rows: keys and values go round, and the states of all blocks are merged at the end.

    A block that begins with key ``first`` sees a diagonal that is shifted by it, and as many keys fewer.  It has
    no bias: one that makes every score of a row huge is beyond a merge by log-sum-exps.
    """
    check_inputs(q, k, v, None, None)
    dtype, work = q.dtype, working_dtype(q.dtype)
    q, k, v = (each.astype(work) for each in (q, k, v))
    size, rank, keys = lax.axis_size(axis), lax.axis_index(axis), k.shape[2]
    states = []
    for step in range(size):
        first = (rank - step) % size * keys
        states.append(
            eager.attention(
                q,
                k,
                v,
                is_causal=is_causal,
                causal_offset=(0 if causal_offset is None else causal_offset) + rank * q.shape[2] - first,
                window=window,
                kv_lengths=None if kv_lengths is None else kv_lengths - first,
                scale=scale,
                softcap=softcap,
                return_lse=True,
            )
        )
        if step < size - 1:
            k, v = (lax.ppermute(each, axis, [(i, (i + 1) % size) for i in range(size)]) for each in (k, v))
    output, lse = merge(*map(jnp.stack, zip(*states, strict=True)))
    return (output.astype(dtype), lse) if return_lse else output.astype(dtype)


def all_to_all(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    axis: str,
    is_causal: bool = False,
    causal_offset: Any = None,
    window: Window | None = None,
    kv_lengths: jax.Array | None = None,
    scale: Any = None,
    softcap: Any = None,
    return_lse: bool = False,
) -> Any:
    """The output of a rank's rows: it computes all rows of some heads, and heads are exchanged for rows on both sides.

    Key heads that are fewer than the ranks are repeated.  Raises NotImplementedError for heads that do not divide.
    """
    size = lax.axis_size(axis)
    repeats = size // gcd(k.shape[1], size)
    if q.shape[1] % size or q.shape[1] % (k.shape[1] * repeats):
        raise NotImplementedError(f"{q.shape[1]} query heads and {k.shape[1]} key heads over {size} ranks")
    k, v = (jnp.repeat(each, repeats, axis=1) for each in (k, v))
    q, k, v = (lax.all_to_all(each, axis, 1, 2, tiled=True) for each in (q, k, v))
    output, lse = eager.attention(
        q,
        k,
        v,
        is_causal=is_causal,
        causal_offset=causal_offset,
        window=window,
        kv_lengths=kv_lengths,
        scale=scale,
        softcap=softcap,
        return_lse=True,
    )
    output, lse = (lax.all_to_all(each, axis, 2, 1, tiled=True) for each in (output, lse))
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


ring.ranks = all_to_all.ranks = sharded.ranks = (2, 4)  # type: ignore[attr-defined]
sharded.layout = "BSHD"  # type: ignore[attr-defined]
for _each in (ring, all_to_all, sharded):
    vars(_each).update(dtypes=("float32", "bfloat16"), profiles={"bfloat16": "wide"})
vars(sharded).update(profiles={"bfloat16": "fused"})
