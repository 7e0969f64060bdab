"""JAX's Pallas kernel for TPUs, ``jax.experimental.pallas.ops.tpu.flash_attention``."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu import flash_attention as kernels

from attention_conformance.impls.kernels import declared


@declared(
    lengths="multiple of 128",
    group_sizes=1,
    head_widths=128,
    value_widths=128,
    dtypes=("float32", "bfloat16"),
    profiles={"bfloat16": "fused"},
)
@functools.partial(jax.jit, static_argnames=("is_causal", "scale"))
def flash_attention(
    q: Any, k: Any, v: Any, *, bias: Any = None, is_causal: bool = False, scale: float | None = None
) -> Any:
    """The flash-attention kernel: one key head per query head, D = Dv = 128, lengths in multiples of 128."""
    if not q.dtype == k.dtype == v.dtype:
        raise TypeError("q, k and v differ in dtype")  # the kernel leaves this to its caller
    if bias is not None:
        bias = jnp.broadcast_to(bias, (*q.shape[:3], k.shape[2]))
    scale = q.shape[3] ** -0.5 if scale is None else scale
    return kernels.flash_attention(q, k, v, ab=bias, causal=is_causal, sm_scale=scale)
