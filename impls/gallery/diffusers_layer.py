"""Diffusers' ``Attention`` block of its U-Nets, with its default processor and given weights."""

from __future__ import annotations

from typing import Any

import torch
from diffusers.models.attention_processor import Attention


def layer(
    x_q: Any, w_q: Any, w_k: Any, w_v: Any, *, heads: int, x_kv: Any = None, w_o: Any = None, b_q: Any = None,
    b_k: Any = None, b_v: Any = None, b_o: Any = None,
) -> Any:  # fmt: skip
    """Weights are (outputs, inputs); ``bias`` is for query, key and value at once, ``out_bias`` for the output."""
    if w_o is None or w_v.shape[1] != w_q.shape[1] or w_o.shape[1] != w_q.shape[0]:
        raise NotImplementedError("query_dim: The number of channels in the query., and those of the output")
    if len({b is None for b in (b_q, b_k, b_v)}) > 1:
        raise NotImplementedError("bias: Set to `True` for the query, key, and value linear layers to contain a bias")
    if x_q.ndim != 3:
        raise NotImplementedError("batch_size, sequence_length, _ = hidden_states.shape")
    made = Attention(
        query_dim=w_q.shape[0],
        cross_attention_dim=None if x_kv is None else w_k.shape[0],
        heads=heads,
        dim_head=w_q.shape[1] // heads,
        bias=b_q is not None,
        out_bias=b_o is not None,
    ).eval()
    given = {"to_q": (w_q, b_q), "to_k": (w_k, b_k), "to_v": (w_v, b_v), "to_out.0": (w_o, b_o)}
    state = {f"{name}.weight": w.T for name, (w, _) in given.items()}
    state |= {f"{name}.bias": b for name, (_, b) in given.items() if b is not None}
    return torch.func.functional_call(made, state, (x_q,), {"encoder_hidden_states": x_kv})


layer.operator = "mha"  # type: ignore[attr-defined]
