"""Attention over latents in jax.numpy, absorbed (MLA-3); half precision is computed in float32 and rounded once."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from attention_conformance.impls.jax.eager import attention
from attention_conformance.impls.jax.parts import PRECISION, working_dtype
from attention_conformance.impls.validate import check_latent


def latent(
    q: jax.Array,
    q_rope: jax.Array,
    latents: jax.Array,
    k_rope: jax.Array,
    w_uk: jax.Array,
    w_uv: jax.Array,
    *,
    is_causal: bool = False,
    causal_offset: Any = None,
    kv_lengths: jax.Array | None = None,
    scale: Any = None,
    return_lse: bool = False,
) -> Any:
    """The output (B, H, Sq, Dv), and on request the lse (B, H, Sq).

    Raises ValueError or TypeError for inputs that do not fit together (MLA-8).
    """
    check_latent(q, q_rope, latents, k_rope, w_uk, w_uv)
    dtype, work = q.dtype, working_dtype(q.dtype)
    q, q_rope, latents, k_rope, w_uk, w_uv = (a.astype(work) for a in (q, q_rope, latents, k_rope, w_uk, w_uv))
    output, lse = attention(
        jnp.concatenate([jnp.matmul(q, w_uk.swapaxes(1, 2), precision=PRECISION), q_rope], axis=3),
        jnp.concatenate([latents, k_rope], axis=2)[:, None],
        latents[:, None],
        is_causal=is_causal,
        causal_offset=causal_offset,
        kv_lengths=kv_lengths,
        scale=(q.shape[3] + q_rope.shape[3]) ** -0.5 if scale is None else scale,
        return_lse=True,
    )
    output = jnp.matmul(output, w_uv, precision=PRECISION).astype(dtype)
    return (output, lse) if return_lse else output
