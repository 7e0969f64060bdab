"""Parts that the written-out JAX implementations share: precision, scale, allowed keys, values that are not finite.

Numbers given as options may be Python numbers or traced scalars, so nothing here branches on their value.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from attention_conformance.impls.validate import check_past

#: The dtype computed in, by the dtype of q: half precision is computed in float32 and rounded once, at the end.
WORKING = {"float64": "float64", "float32": "float32", "float16": "float32", "bfloat16": "float32"}

#: Without it, JAX multiplies float32 matrices on NVIDIA GPUs in TF32, with 11 significant bits.
PRECISION = lax.Precision.HIGHEST

Window = tuple[Any, Any]


def product(axes: str, a: jax.Array, b: jax.Array) -> jax.Array:
    """A product of a (B, Hq, …) with b (B, Hkv, …), as (B, Hq, …); axes are b, h, g = query heads of h, i, j and d."""
    return lax.collapse(jnp.einsum(axes, grouped(a, b.shape[1]), b, precision=PRECISION), 1, 3)


def working_dtype(dtype: Any) -> jnp.dtype:
    """The dtype to compute in.  Raises TypeError for a dtype that is not a floating-point one of the spec."""
    try:
        return jnp.dtype(WORKING[str(dtype)])
    except KeyError:
        raise TypeError(f"q, k and v must have one of the dtypes {', '.join(WORKING)}, got {dtype}") from None


def split_scale(scale: Any, width: int, dtype: Any) -> tuple[Any, Any]:
    """The factors for q before q · k, and for the scores after it; None is 1/√width (SDPA-3).

    The scale goes to the side on which it cannot overflow where the scaled score does not (SDPA-26): a
    factor of at most 1 to q, a larger one to the scores.  The second is None if it is known to be 1.
    """
    if scale is None:
        return jnp.asarray(1 / math.sqrt(width) if width else 1.0, dtype), None
    scale = jnp.asarray(scale, dtype)
    small = jnp.abs(scale) <= 1
    return jnp.where(small, scale, 1), jnp.where(small, 1, scale)


def with_past(
    k: jax.Array, v: jax.Array, causal_offset: Any, past_key: jax.Array | None, past_value: jax.Array | None
) -> tuple[jax.Array, jax.Array, Any, list[jax.Array]]:
    """All keys and values, the offset of the diagonal, and the present, if any (DEC-1 to DEC-3).

    Raises ValueError or TypeError for a past that does not fit (DEC-7).
    """
    if past_key is None and past_value is None:
        return k, v, 0 if causal_offset is None else causal_offset, []
    check_past(k, v, past_key, past_value)
    assert past_key is not None
    assert past_value is not None
    k, v = jnp.concatenate([past_key, k], axis=2), jnp.concatenate([past_value, v], axis=2)
    return k, v, past_key.shape[2] if causal_offset is None else causal_offset, [k, v]


def grouped(array: jax.Array, heads: int) -> jax.Array:
    """(B, Hq, S, X) as (B, Hkv, Hq / Hkv, S, X): SDPA-17, query head h reads key/value head h // group."""
    batch, query_heads, *rest = array.shape
    return array.reshape(batch, heads, query_heads // heads, *rest)


def diagonal_tests(
    rows: jax.Array, keys: jax.Array, is_causal: bool, causal_offset: Any, window: Window | None, kv_lengths: Any
) -> Iterator[jax.Array]:
    """SDPA-9 to SDPA-12: which ``keys`` (n,) the ``rows`` (Sq, 1) may attend to, broadcastable to (B, 1, Sq, n)."""
    left, right = window or (None, None)
    diagonal = rows + _per_batch(causal_offset)
    if is_causal:
        yield keys <= diagonal
    if left is not None:
        yield keys >= diagonal - left
    if right is not None:
        yield keys <= diagonal + right
    if kv_lengths is not None:
        yield keys < _per_batch(kv_lengths)


def distances(rows: jax.Array, keys: jax.Array, causal_offset: Any) -> jax.Array:
    """SDPA-42: the distances of ``keys`` (n,) from the places of ``rows`` (Sq, 1), (B or 1, 1, Sq, n)."""
    return jnp.abs(rows + _per_batch(causal_offset) - keys)


def tree_allows(parents: jax.Array, offset: Any, keys: jax.Array) -> jax.Array:
    """TREE-1: the keys before the tree, and those of a node and its ancestors, (B or 1, 1, Sq, n)."""
    nodes = parents.shape[-1]
    seen = (parents.reshape(-1, nodes, 1) == jnp.arange(nodes)) | jnp.eye(nodes, dtype=bool)
    for _ in range(max(nodes - 1, 0).bit_length()):  # twice as many generations each time
        seen = (seen[:, :, :, None] & seen[:, None]).any(axis=2)
    place = keys - _per_batch(offset)
    inside = (place >= 0) & (place < nodes)
    shape = (len(place) if len(seen) == 1 else len(seen), 1, nodes)
    column = jnp.broadcast_to(jnp.where(inside, place, 0), (*shape, len(keys)))
    own = jnp.take_along_axis(jnp.broadcast_to(seen[:, None], (*shape, nodes)), column, axis=3)
    return (place < 0) | (inside & own)


def _per_batch(numbers: Any) -> jax.Array:
    """A number, or one per batch, as (B or 1, 1, 1, 1); 64-bit indices are not needed."""
    return jnp.asarray(numbers).astype(jnp.int32).reshape(-1, 1, 1, 1)


def finite_part(v: jax.Array) -> jax.Array:
    """The values with zeros for NaN and infinities, which ``add_special`` adds separately."""
    return jnp.where(jnp.isfinite(v), v, 0)


def special_places(v: jax.Array) -> jax.Array:
    """Places where v (…, Dv) holds NaN, +inf and −inf, as 1 and 0, side by side: (…, 3 · Dv)."""
    return jnp.concatenate([jnp.isnan(v), jnp.isposinf(v), jnp.isneginf(v)], axis=-1).astype(v.dtype)


def add_special(output: jax.Array, reached: jax.Array) -> jax.Array:
    """The output with the values that are not finite; ``reached`` (…, 3 · Dv) counts the ones of allowed keys.

    SDPA-22 and SDPA-23: in a plain product such a value would reach every row as 0 · NaN, masked or not; and one
    whose weight has underflowed to zero must still be seen.
    """
    nan, positive, negative = jnp.split(reached > 0, 3, axis=-1)
    output = jnp.where(positive, output + jnp.inf, output)
    output = jnp.where(negative, output - jnp.inf, output)
    return jnp.where(nan, jnp.nan, output)
