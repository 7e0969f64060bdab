"""KerasHub's ``CachedMultiHeadAttention`` of its decoders, on JAX, without its cache."""

from __future__ import annotations

from typing import Any

import numpy as np
from keras_hub.layers import CachedMultiHeadAttention


def layer(
    x_q: Any, w_q: Any, w_k: Any, w_v: Any, *, heads: int, x_kv: Any = None, w_o: Any = None, b_q: Any = None,
    b_k: Any = None, b_v: Any = None, b_o: Any = None, mask: Any = None,
) -> Any:  # fmt: skip
    """Kernels are (inputs, heads, width), that of the output (heads, width, outputs); a mask is (B, T, S)."""
    if w_o is None or len({b is None for b in (b_q, b_k, b_v, b_o)}) > 1 or x_q.ndim != 3:
        raise NotImplementedError("use_bias: Boolean, whether the dense layers use bias vectors/matrices.")
    x_kv = x_q if x_kv is None else x_kv
    made = CachedMultiHeadAttention(
        heads,
        w_q.shape[1] // heads,
        value_dim=w_v.shape[1] // heads,
        use_bias=b_q is not None,
        output_shape=w_o.shape[1],
        kernel_initializer="zeros",  # others draw random numbers
        dtype=x_q.dtype.name,
    )
    made.build(x_q.shape, x_kv.shape)
    given = []
    for weight, bias in ((w_q, b_q), (w_k, b_k), (w_v, b_v), (w_o, b_o)):
        shape = (heads, -1, weight.shape[1]) if weight is w_o else (weight.shape[0], heads, -1)
        given.append(weight.reshape(shape))
        if bias is not None:
            given.append(bias if weight is w_o else bias.reshape(heads, -1))
    made.set_weights(given)
    if mask is not None:  # "Broadcasting can happen for the missing batch dimensions and the head dimension"
        mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    return np.asarray(made(x_q, x_kv, attention_mask=mask))


layer.operator = "mha"  # type: ignore[attr-defined]
