"""MLX's ``mx.fast.scaled_dot_product_attention`` on the CPU."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np


def attention(
    q: Any, k: Any, v: Any, *, mask: Any = None, bias: Any = None, is_causal: bool = False, scale: float | None = None,
    sinks: Any = None,
) -> Any:  # fmt: skip
    """``mask`` is "causal", or an array that is "boolean or additive"; ``scale`` is required."""
    if sum((mask is not None, bias is not None, is_causal)) > 1:
        raise NotImplementedError("the mask can be an array or a string")
    given = bias if mask is None else mask
    added = "causal" if is_causal else None if given is None else mx.array(given)
    found = mx.fast.scaled_dot_product_attention(
        mx.array(q),
        mx.array(k),
        mx.array(v),
        scale=q.shape[3] ** -0.5 if scale is None else scale,  # "typically 1.0 / sqrt(q.shape(-1))"
        mask=added,
        sinks=None if sinks is None else mx.array(sinks),
    )
    return np.array(found)


attention.dtypes = ("float32", "float16")  # type: ignore[attr-defined]
