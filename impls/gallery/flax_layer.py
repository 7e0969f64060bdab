"""Flax NNX's ``nnx.MultiHeadAttention`` with given weights."""

from __future__ import annotations

from typing import Any

from flax import nnx


def layer(
    x_q: Any, w_q: Any, w_k: Any, w_v: Any, *, heads: int, x_kv: Any = None, w_o: Any = None, b_q: Any = None,
    b_k: Any = None, b_v: Any = None, b_o: Any = None, mask: Any = None,
) -> Any:  # fmt: skip
    """Kernels are (inputs, heads, width), that of the output (heads, width, outputs)."""
    if w_o is None or len({w.shape[1] for w in (w_q, w_k, w_v)}) > 1:
        raise NotImplementedError("qkv_features: Dimension of the key, query, and value.")
    if len({b is None for b in (b_q, b_k, b_v, b_o)}) > 1:
        raise NotImplementedError("use_bias: Bool: whether pointwise QKVO dense transforms use bias.")
    made = nnx.MultiHeadAttention(
        heads,
        in_features=w_q.shape[0],
        qkv_features=w_q.shape[1],
        out_features=w_o.shape[1],
        in_kv_features=w_k.shape[0],
        use_bias=b_q is not None,
        decode=False,
        param_dtype=x_q.dtype,
        rngs=nnx.Rngs(0),
    )
    for name, weight, bias in (("query", w_q, b_q), ("key", w_k, b_k), ("value", w_v, b_v), ("out", w_o, b_o)):
        linear = getattr(made, name)
        shape = (heads, -1, weight.shape[1]) if name == "out" else (weight.shape[0], heads, -1)
        linear.kernel[...] = weight.reshape(shape)
        if bias is not None:
            linear.bias[...] = bias if name == "out" else bias.reshape(heads, -1)
    return made(x_q, x_kv, mask=mask, deterministic=True)


layer.operator = "mha"  # type: ignore[attr-defined]
