"""ESM's ``MultiheadAttention`` of its protein language models, with given weights."""

from __future__ import annotations

from typing import Any

import torch
from esm.multihead_attention import MultiheadAttention


def layer(
    x_q: Any, w_q: Any, w_k: Any, w_v: Any, *, heads: int, x_kv: Any = None, w_o: Any = None, b_q: Any = None,
    b_k: Any = None, b_v: Any = None, b_o: Any = None, mask: Any = None, kv_lengths: Any = None,
    return_weights: bool = False, average_weights: bool = False,
) -> Any:  # fmt: skip
    """Inputs are "Time x Batch x Channel"; masks are True where they hide; ``need_head_weights`` for each head."""
    if w_o is None or len({w.shape[1] for w in (w_q, w_k, w_v, w_o)}) > 1 or w_q.shape[0] != w_q.shape[1]:
        raise NotImplementedError("embed_dim, kdim=None, vdim=None")
    if x_q.ndim != 3 or (mask is not None and mask.ndim != 2):
        raise NotImplementedError("Time x Batch x Channel, and attn_mask of the queries and keys")
    made = MultiheadAttention(w_q.shape[0], heads, kdim=w_k.shape[0], vdim=w_v.shape[0]).eval()
    linears = {"q_proj": (w_q, b_q), "k_proj": (w_k, b_k), "v_proj": (w_v, b_v), "out_proj": (w_o, b_o)}
    given = {f"{name}.weight": w.T for name, (w, _) in linears.items()}
    for name, (w, b) in linears.items():
        given[f"{name}.bias"] = torch.zeros(w.shape[1], dtype=w.dtype) if b is None else b
    query = x_q.transpose(0, 1)
    key = query if x_kv is None else x_kv.transpose(0, 1)
    padding = None if kv_lengths is None else torch.arange(len(key)) >= kv_lengths[:, None]
    options = {
        "key_padding_mask": padding,
        "need_weights": return_weights,
        "attn_mask": None if mask is None else ~mask,
    }
    options["need_head_weights"] = return_weights and not average_weights
    output, weights = torch.func.functional_call(made, given, (query, key, key), options)
    if not return_weights:
        return output.transpose(0, 1)
    return output.transpose(0, 1), weights if average_weights else weights.transpose(0, 1)


layer.operator = "mha"  # type: ignore[attr-defined]
