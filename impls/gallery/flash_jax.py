"""flash-attention-jax's ``flash_attention`` and, for causal, ``causal_flash_attention``."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from flash_attention_jax import causal_flash_attention, flash_attention


def attention(q: Any, k: Any, v: Any, *, is_causal: bool = False, kv_lengths: Any = None) -> Any:
    """``key_mask`` is of the keys of each sequence, (batch, keys), and required."""
    if q.shape[1] != k.shape[1] or (is_causal and kv_lengths is not None):
        raise NotImplementedError("flash_attention(q, k, v, key_mask), causal_flash_attention(q, k, v)")
    if is_causal:
        return causal_flash_attention(q, k, v)
    lengths = jnp.full(k.shape[0], k.shape[2]) if kv_lengths is None else kv_lengths
    return flash_attention(q, k, v, jnp.arange(k.shape[2]) < lengths[:, None])
