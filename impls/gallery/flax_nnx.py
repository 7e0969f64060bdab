"""Flax NNX's ``dot_product_attention``, which calls that of JAX unless it is to drop out or record weights."""

from __future__ import annotations

from typing import Any

from flax import nnx


def attention(q: Any, k: Any, v: Any, *, mask: Any = None, bias: Any = None, is_causal: bool = False) -> Any:
    """The function as it is."""
    return nnx.dot_product_attention(q, k, v, bias=bias, mask=mask, is_causal=is_causal)


attention.layout = "BSHD"  # type: ignore[attr-defined]
