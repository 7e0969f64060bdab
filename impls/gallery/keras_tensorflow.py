"""Keras' ``keras.ops.dot_product_attention`` on the backend ``tensorflow``, with NumPy's arrays."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np


def attention(
    q: Any, k: Any, v: Any, *, mask: Any = None, bias: Any = None, is_causal: bool = False, scale: float | None = None
) -> Any:
    """The function as it is."""
    return np.array(keras.ops.dot_product_attention(q, k, v, bias=bias, mask=mask, scale=scale, is_causal=is_causal))


attention.layout = "BSHD"  # type: ignore[attr-defined]
