"""JAX's Pallas kernel for TPUs with sparse masks, ``jax.experimental.pallas.ops.tpu.splash_attention``.

Nothing needs isolation: it is a module of ``jax`` itself.  Its mask is known before it is compiled; queries must be
multiplied by the scale before the call.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

from attention_conformance.impls.kernels import declared

#: Rows and keys of a block.
BLOCK = 128


@declared(
    lengths=f"multiple of {BLOCK}",
    batch_sizes="at least 1",
    head_widths=128,
    value_widths=128,
    dtypes=("float32", "bfloat16"),
    profiles={"bfloat16": "fused"},
)
def splash_attention(
    q: Any, k: Any, v: Any, *, is_causal: bool = False, window: Any = None, scale: float | None = None,
    softcap: float | None = None, sinks: Any = None,
) -> Any:  # fmt: skip
    """``make_splash_mha`` with the mask of the package for causal and for windows, a batch at a time."""
    if not q.dtype == k.dtype == v.dtype:
        raise TypeError("q, k and v differ in dtype")  # the kernel leaves this to its caller
    heads, (rows, keys) = q.shape[1], (q.shape[2], k.shape[2])
    mask: Any = masks.CausalMask((rows, keys)) if is_causal else masks.FullMask((rows, keys))
    if window is not None:
        mask = masks.LocalMask((rows, keys), tuple(window), 0) & mask
    sizes = kernels.BlockSizes(block_q=BLOCK, block_kv=BLOCK, block_kv_compute=BLOCK)
    interpreted = jax.default_backend() == "cpu"  # by the generic interpreter: the one for TPUs takes 20 times as long
    kernel = kernels.make_splash_mha(
        masks.MultiHeadMask([mask] * heads), block_sizes=sizes, head_shards=1, q_seq_shards=1,
        attn_logits_soft_cap=softcap, interpret=interpreted,
    )  # fmt: skip
    q = q * jnp.asarray(np.asarray(q.shape[3] ** -0.5 if scale is None else scale), q.dtype)
    return jnp.stack([kernel(*one, None, sinks) for one in zip(q, k, v, strict=True)])
