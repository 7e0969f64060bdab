"""Flax Linen's ``dot_product_attention``."""

from __future__ import annotations

from typing import Any

from flax import linen


def attention(q: Any, k: Any, v: Any, *, mask: Any = None, bias: Any = None) -> Any:
    """The function as it is."""
    if q.shape[2] != k.shape[2]:
        raise NotImplementedError("q, k, v num_heads must match.")
    return linen.dot_product_attention(q, k, v, bias=bias, mask=mask)


attention.layout = "BSHD"  # type: ignore[attr-defined]
