"""Haiku's ``hk.MultiHeadAttention``, transformed and applied with the given weights."""

from __future__ import annotations

from typing import Any

import haiku as hk
import jax.numpy as jnp


def layer(
    x_q: Any, w_q: Any, w_k: Any, w_v: Any, *, heads: int, x_kv: Any = None, w_o: Any = None, b_q: Any = None,
    b_k: Any = None, b_v: Any = None, b_o: Any = None, mask: Any = None,
) -> Any:  # fmt: skip
    """One ``key_size`` for queries and keys, and one ``with_bias`` for all four projections."""
    if w_o is None:
        raise NotImplementedError("Apply another projection to get the final embeddings.")
    if len({b is None for b in (b_q, b_k, b_v, b_o)}) > 1:
        raise NotImplementedError("with_bias: Whether to add a bias when computing various linear projections.")
    x_kv = x_q if x_kv is None else x_kv
    linears = {"query": (w_q, b_q), "key": (w_k, b_k), "value": (w_v, b_v), "linear": (w_o, b_o)}
    given = {f"mha/{name}": {"w": w} if b is None else {"w": w, "b": b} for name, (w, b) in linears.items()}
    if mask is not None:  # "mask dimensionality must match logits dimensionality"
        mask = jnp.reshape(mask, (1,) * (x_q.ndim + 1 - mask.ndim) + mask.shape)

    def forward(query: Any, key: Any, mask: Any) -> Any:
        made = hk.MultiHeadAttention(
            heads,
            key_size=w_q.shape[1] // heads,
            w_init=hk.initializers.Constant(0),
            with_bias=b_q is not None,
            value_size=w_v.shape[1] // heads,
            model_size=w_o.shape[1],
            name="mha",
        )
        return made(query, key, key, mask)

    return hk.without_apply_rng(hk.transform(forward)).apply(given, x_q, x_kv, mask)


layer.operator = "mha"  # type: ignore[attr-defined]
