"""Equinox' ``eqx.nn.MultiheadAttention``, vmapped over the batch as its documentation has it."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp


def layer(
    x_q: Any, w_q: Any, w_k: Any, w_v: Any, *, heads: int, x_kv: Any = None, w_o: Any = None, b_q: Any = None,
    b_k: Any = None, b_v: Any = None, b_o: Any = None, mask: Any = None,
) -> Any:  # fmt: skip
    """Weights are (outputs, inputs); a mask is "(num_heads, query_seq_length, kv_seq_length)"."""
    x_kv = x_q if x_kv is None else x_kv
    if w_o is None:
        raise NotImplementedError('$W^O_i$ is one of "the trainable weights"')
    made = eqx.nn.MultiheadAttention(
        heads,
        query_size=w_q.shape[0],
        key_size=w_k.shape[0],
        value_size=w_v.shape[0],
        output_size=w_o.shape[1],
        qk_size=w_q.shape[1] // heads,
        vo_size=w_v.shape[1] // heads,
        use_query_bias=b_q is not None,
        use_key_bias=b_k is not None,
        use_value_bias=b_v is not None,
        use_output_bias=b_o is not None,
        dtype=x_q.dtype,
        key=jax.random.key(0),
    )
    weights = {"query_proj": (w_q, b_q), "key_proj": (w_k, b_k), "value_proj": (w_v, b_v), "output_proj": (w_o, b_o)}
    for name, (weight, bias) in weights.items():
        linear = eqx.tree_at(lambda one: one.weight, getattr(made, name), weight.T)
        if bias is not None:
            linear = eqx.tree_at(lambda one: one.bias, linear, bias)
        made = eqx.tree_at(lambda one, name=name: getattr(one, name), made, linear)
    if x_q.ndim == 2:
        return made(x_q, x_kv, x_kv, _broadcast(mask, heads, x_q, x_kv))
    if mask is None:
        return jax.vmap(made)(x_q, x_kv, x_kv)
    return jax.vmap(made)(x_q, x_kv, x_kv, _broadcast(mask, heads, x_q, x_kv))


def _broadcast(mask: Any, heads: int, x_q: Any, x_kv: Any) -> Any:
    if mask is None:
        return None
    return jnp.broadcast_to(mask, (*x_q.shape[:-2], heads, x_q.shape[-2], x_kv.shape[-2]))


layer.operator = "mha"  # type: ignore[attr-defined]
