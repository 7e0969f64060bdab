"""ejkernel's functions of ``ejkernel.modules`` for dense attention, on the CPU, where they run by XLA."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from ejkernel.modules import attention as ejkernel_attention
from ejkernel.modules import flash_attention, ring_attention, scaled_dot_product_attention
from ejkernel.types import MaskInfo


def attention(
    q: Any, k: Any, v: Any, *, mask: Any = None, bias: Any = None, is_causal: bool = False, window: Any = None,
    kv_lengths: Any = None, scale: float | None = None, softcap: float | None = None, sinks: Any = None,
    return_weights: bool = False,
) -> Any:  # fmt: skip
    """``attention`` in the dtype of the inputs; its own default is bfloat16."""
    out = ejkernel_attention(
        q,
        k,
        v,
        _bias(bias, q, k),
        None,
        sinks,
        mask_info=_mask_info(mask, kv_lengths, q, k),
        softmax_scale=scale,
        logits_soft_cap=softcap,
        dtype=q.dtype,
        causal=is_causal,
        sliding_window=_window(window),
    )
    return out if return_weights else out[0]


def flash(
    q: Any, k: Any, v: Any, *, mask: Any = None, bias: Any = None, is_causal: bool = False, window: Any = None,
    kv_lengths: Any = None, scale: float | None = None, softcap: float | None = None, sinks: Any = None,
) -> Any:  # fmt: skip
    """``flash_attention``; sinks are "[num_sinks] or [num_heads, num_sinks]"."""
    if sinks is not None and q.shape[2] > 1:
        sinks = sinks[:, None]
    return flash_attention(
        q,
        k,
        v,
        _bias(bias, q, k),
        None,
        None,
        sinks,
        mask_info=_mask_info(mask, kv_lengths, q, k),
        softmax_scale=scale,
        causal=is_causal,
        sliding_window=_window(window),
        logits_soft_cap=softcap,
    )


def sdpa(
    q: Any, k: Any, v: Any, *, mask: Any = None, bias: Any = None, is_causal: bool = False, window: Any = None,
    kv_lengths: Any = None, scale: float | None = None,
) -> Any:  # fmt: skip
    """``scaled_dot_product_attention``."""
    return scaled_dot_product_attention(
        q,
        k,
        v,
        _bias(bias, q, k),
        mask_info=_mask_info(mask, kv_lengths, q, k),
        softmax_scale=scale,
        causal=is_causal,
        sliding_window=_window(window),
    )


def ring(
    q: Any, k: Any, v: Any, *, mask: Any = None, bias: Any = None, is_causal: bool = False, window: Any = None,
    kv_lengths: Any = None, scale: float | None = None, softcap: float | None = None, sinks: Any = None,
) -> Any:  # fmt: skip
    """``ring_attention`` without an axis of devices; sinks are "[num_sinks]"."""
    if sinks is not None and q.shape[2] > 1:
        raise NotImplementedError('softmax_aux: Float[Array, "num_sinks"] | None')
    return ring_attention(
        q,
        k,
        v,
        sinks,
        _bias(bias, q, k),
        mask_info=_mask_info(mask, kv_lengths, q, k),
        sliding_window=_window(window),
        causal=is_causal,
        logits_soft_cap=softcap,
        softmax_scale=scale,
    )


def _mask_info(mask: Any, kv_lengths: Any, q: Any, k: Any) -> Any:
    """Of a mask, ``(batch, heads, qlen, kvlen)``, or of segments, -1 where keys are padding."""
    if mask is not None and kv_lengths is not None:
        raise NotImplementedError("MaskInfo.from_attention_mask, MaskInfo.from_segments")
    if mask is not None:
        heads = mask.shape[-3] if mask.ndim > 2 else 1
        if mask.ndim <= 4:
            mask = jnp.broadcast_to(mask, (q.shape[0], heads, q.shape[1], k.shape[1]))
        return MaskInfo.from_attention_mask(mask)
    if kv_lengths is not None:
        keys = jnp.where(jnp.arange(k.shape[1]) < kv_lengths[:, None], 0, -1)
        return MaskInfo.from_segments(jnp.zeros(q.shape[:2], jnp.int32), keys)
    return None


def _bias(bias: Any, q: Any, k: Any) -> Any:
    """``[batch, num_heads, seq_len, kv_len]``: no axis is broadcast."""
    return None if bias is None else jnp.broadcast_to(bias, (q.shape[0], q.shape[2], q.shape[1], k.shape[1]))


def _window(window: Any) -> Any:
    if window is not None and None in window:
        raise NotImplementedError("sliding_window: int | tuple[int, int] | None")
    return window


attention.layout = "BSHD"  # type: ignore[attr-defined]
flash.layout = "BSHD"  # type: ignore[attr-defined]
sdpa.layout = "BSHD"  # type: ignore[attr-defined]
ring.layout = "BSHD"  # type: ignore[attr-defined]
