"""Paddle's ``paddle.nn.functional.scaled_dot_product_attention`` on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle


def attention(q: Any, k: Any, v: Any, *, mask: Any = None, bias: Any = None, is_causal: bool = False) -> Any:
    """``attn_mask`` is "bool or the same data type with query"."""
    if mask is not None and bias is not None:
        raise NotImplementedError("one attn_mask")
    added = bias if mask is None else mask
    found = paddle.nn.functional.scaled_dot_product_attention(
        paddle.to_tensor(q),
        paddle.to_tensor(k),
        paddle.to_tensor(v),
        attn_mask=None if added is None else paddle.to_tensor(added),
        is_causal=is_causal,
        training=False,
    )
    return np.array(found.numpy())


attention.layout = "BSHD"  # type: ignore[attr-defined]
attention.dtypes = ("float32",)  # type: ignore[attr-defined]
