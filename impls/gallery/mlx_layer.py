"""MLX's ``nn.MultiHeadAttention`` on the CPU, with given weights."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn


def layer(
    x_q: Any, w_q: Any, w_k: Any, w_v: Any, *, heads: int, x_kv: Any = None, w_o: Any = None, b_q: Any = None,
    b_k: Any = None, b_v: Any = None, b_o: Any = None, mask: Any = None, bias: Any = None,
) -> Any:  # fmt: skip
    """Weights are (outputs, inputs); a mask is boolean or additive, of "(batch, num_heads, # queries, # keys)"."""
    if w_o is None or x_q.ndim != 3 or (mask is not None and bias is not None):
        raise NotImplementedError("queries, keys and values are linearly projected, with an optional mask")
    if len({b is None for b in (b_q, b_k, b_v, b_o)}) > 1:
        raise NotImplementedError("bias (bool, optional): Whether or not to use a bias in the projections.")
    made = nn.MultiHeadAttention(
        w_q.shape[1],
        heads,
        query_input_dims=w_q.shape[0],
        key_input_dims=w_k.shape[0],
        value_dims=w_v.shape[1],
        value_output_dims=w_o.shape[1],
        bias=b_q is not None,
    )
    given = {"query_proj": (w_q, b_q), "key_proj": (w_k, b_k), "value_proj": (w_v, b_v), "out_proj": (w_o, b_o)}
    for name, (weight, shift) in given.items():
        parts = {"weight": mx.array(np.ascontiguousarray(weight.T))}
        getattr(made, name).update(parts if shift is None else parts | {"bias": mx.array(shift)})
    added = bias if mask is None else mask
    x_kv = mx.array(x_q if x_kv is None else x_kv)
    return np.array(made(mx.array(x_q), x_kv, x_kv, mask=None if added is None else mx.array(added)))


layer.operator = "mha"  # type: ignore[attr-defined]
layer.dtypes = ("float32", "float16")  # type: ignore[attr-defined]
