"""TensorFlow's ``tf.keras.layers.MultiHeadAttention``, in a ``tf.function`` as its models run it."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf


def layer(
    x_q: Any, w_q: Any, w_k: Any, w_v: Any, *, heads: int, x_kv: Any = None, w_o: Any = None, b_q: Any = None,
    b_k: Any = None, b_v: Any = None, b_o: Any = None, mask: Any = None, is_causal: bool = False,
) -> Any:  # fmt: skip
    """Kernels are (inputs, heads, width), that of the output (heads, width, outputs)."""
    if w_o is None:
        raise NotImplementedError("output_shape: The expected shape of an output tensor")
    if len({b is None for b in (b_q, b_k, b_v, b_o)}) > 1:
        raise NotImplementedError("use_bias: Boolean, whether the dense layers use bias vectors/matrices.")
    if x_q.ndim != 3:
        raise NotImplementedError("query: Query Tensor of shape (B, T, dim)")
    x_kv = x_q if x_kv is None else x_kv
    options = {"value_dim": w_v.shape[1] // heads, "use_bias": b_q is not None, "output_shape": w_o.shape[1]}
    options["kernel_initializer"] = "zeros"  # others draw random numbers
    made = tf.keras.layers.MultiHeadAttention(heads, w_q.shape[1] // heads, **options, dtype=x_q.dtype.name)
    made.build(x_q.shape, x_kv.shape, x_kv.shape)
    weights = []
    for weight, bias in ((w_q, b_q), (w_k, b_k), (w_v, b_v)):
        weights.append(weight.reshape(weight.shape[0], heads, -1))
        weights += [] if bias is None else [bias.reshape(heads, -1)]
    weights.append(w_o.reshape(heads, -1, w_o.shape[1]))
    made.set_weights([*weights, *([] if b_o is None else [b_o])])
    if mask is not None:  # "of shape (B, T, S)", and its code takes one with heads too
        mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    call = tf.function(lambda query, value: made(query, value, attention_mask=mask, use_causal_mask=is_causal))
    return np.array(call(tf.constant(x_q), tf.constant(x_kv)))


layer.operator = "mha"  # type: ignore[attr-defined]
