"""JAX's Pallas kernels for GPUs: ``jax.experimental.pallas.ops.gpu.attention.mha`` and ``decode_attention``."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.gpu import attention, decode_attention

from attention_conformance.impls.kernels import declared

#: Weights are rounded before the product with v; on a GPU ``pl.dot`` multiplies float32 in TF32 by default.
PROFILES = {"float16": "fused", "bfloat16": "fused", "cuda-float32": "tf32"}

#: Rows and keys of a block; the lengths must be multiples of them.
BLOCK = 16


@declared(
    layout="BSHD",
    lengths=f"multiple of {BLOCK}",
    group_sizes=1,
    equal_widths=True,
    head_widths=(16, 32, 64, 128),
    dtypes=("float32", "float16", "bfloat16"),
    profiles=PROFILES,
)
@functools.partial(jax.jit, static_argnames=("is_causal", "scale"))
def mha(q: Any, k: Any, v: Any, *, is_causal: bool = False, scale: float | None = None) -> Any:
    """The flash-attention kernel: one key head per query head, D = Dv, lengths in whole blocks."""
    if not q.dtype == k.dtype == v.dtype:
        raise TypeError("q, k and v differ in dtype")  # the kernel leaves this to its caller
    return attention.mha(
        q,
        k,
        v,
        segment_ids=None,
        sm_scale=q.shape[3] ** -0.5 if scale is None else scale,
        causal=is_causal,
        block_sizes=attention.BlockSizes(block_q=BLOCK, block_k=BLOCK),
    )


@declared(
    layout="BSHD",
    query_lengths=1,
    key_lengths=f"multiple of {2 * BLOCK}",
    equal_widths=True,
    head_widths=(16, 32, 64, 128),
    dtypes=("float32", "float16", "bfloat16"),
    profiles=PROFILES,
)
@functools.partial(jax.jit, static_argnames="scale")
def gqa(q: Any, k: Any, v: Any, *, kv_lengths: Any = None, scale: float | None = None) -> Any:
    """The decoding kernel: one query, grouped heads, and the number of keys of each batch."""
    if not q.dtype == k.dtype == v.dtype:
        raise TypeError("q, k and v differ in dtype")
    found = decode_attention.gqa(
        q[:, 0],
        k,
        v,
        kv_seq_len=None if kv_lengths is None else kv_lengths.astype(jnp.int32),
        sm_scale=q.shape[3] ** -0.5 if scale is None else scale,
        block_k=BLOCK,
        k_splits=2,
    )
    return found[:, None]
