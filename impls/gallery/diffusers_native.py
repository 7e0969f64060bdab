"""Diffusers' ``dispatch_attention_fn`` with its default backend, ``native``."""

from __future__ import annotations

from typing import Any

from diffusers.models.attention_dispatch import dispatch_attention_fn


def attention(q: Any, k: Any, v: Any, *, mask: Any = None, is_causal: bool = False, scale: float | None = None) -> Any:
    """The function as its attention processors call it."""
    if mask is not None and is_causal:
        raise NotImplementedError("`is_causal` cannot be True when `attn_mask` is not None.")
    grouped = q.shape[2] != k.shape[2]
    return dispatch_attention_fn(q, k, v, attn_mask=mask, is_causal=is_causal, scale=scale, enable_gqa=grouped)


attention.layout = "BSHD"  # type: ignore[attr-defined]
