"""JAX's Pallas kernel over a paged cache, ``jax.experimental.pallas.ops.gpu.paged_attention``.

Nothing needs isolation: it is a module of ``jax`` itself.  Queries must be multiplied by the scale before the call.
The kernels for TPUs are not included: ``paged_attention`` takes an hour in the interpreter for TPUs, and
``ragged_paged_attention`` does not run in it.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax.experimental.pallas.ops.gpu import paged_attention as kernels

from attention_conformance.impls.kernels import declared, fit
from attention_conformance.impls.kernels.pallas_gpu import PROFILES


def _scaled(q: Any, scale: float | None) -> Any:
    return q * jnp.asarray(q.shape[3] ** -0.5 if scale is None else scale, q.dtype)


def _pages(array: Any, size: int) -> Any:
    """(B, Hkv, Sk, D) as (Hkv, pages, size, D), the last page first."""
    batch, heads, keys, width = array.shape
    return array.transpose(1, 0, 2, 3).reshape(heads, batch * keys // size, size, width)[:, ::-1]


def _table(batch: int, keys: int, size: int) -> Any:
    """The page of each part of the keys, int32 (B, keys / size)."""
    count = keys // size
    return jnp.arange(batch * count, dtype=jnp.int32)[::-1].reshape(batch, count)


def _lengths(k: Any, kv_lengths: Any) -> Any:
    return jnp.full(k.shape[0], k.shape[2], jnp.int32) if kv_lengths is None else kv_lengths.astype(jnp.int32)


@declared(
    query_lengths=1,
    key_lengths="multiple of 16",
    equal_widths=True,
    head_widths=(16, 32, 64, 128),
    dtypes=("float32", "float16", "bfloat16"),
    profiles=PROFILES,
)
def gpu_paged_attention(
    q: Any, k: Any, v: Any, *, kv_lengths: Any = None, scale: float | None = None, softcap: float | None = None
) -> Any:
    """One query for each sequence over pages of 8, in two parts."""
    fit(q, k, v)
    found = kernels.paged_attention(
        _scaled(q, scale)[:, :, 0],
        _pages(k, 8),
        _pages(v, 8),
        _table(k.shape[0], k.shape[2], 8),
        _lengths(k, kv_lengths),
        pages_per_compute_block=1,
        k_splits=2,
        attn_logits_soft_cap=softcap,
    )
    return found[:, :, None]
