"""torchtune's ``MultiHeadAttention`` of its decoders, with given weights and no position embeddings."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torchtune.modules import MultiHeadAttention


def layer(
    x_q: Any, w_q: Any, w_k: Any, w_v: Any, *, heads: int, x_kv: Any = None, w_o: Any = None, b_q: Any = None,
    b_k: Any = None, b_v: Any = None, b_o: Any = None, mask: Any = None, is_causal: bool = False,
) -> Any:  # fmt: skip
    """A mask is ``[b x s x s]``, True where it attends; ``is_causal`` holds "when no mask is provided"."""
    if w_o is None or len({w.shape[1] for w in (w_q, w_k, w_v)}) > 1 or x_q.ndim != 3:
        raise NotImplementedError("head_dim, and x [b x s_x x d]")
    if mask is not None and (is_causal or (mask.ndim > 3 and mask.shape[1] > 1)):
        raise NotImplementedError("A boolean tensor with shape [b x s x s]; If no mask is specified, a causal mask")
    linears = {"q_proj": (w_q, b_q), "k_proj": (w_k, b_k), "v_proj": (w_v, b_v), "output_proj": (w_o, b_o)}
    layers = {name: nn.Linear(w.shape[0], w.shape[1], bias=b is not None) for name, (w, b) in linears.items()}
    made = MultiHeadAttention(
        embed_dim=w_q.shape[1],
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=w_q.shape[1] // heads,
        is_causal=is_causal,
        **layers,
    ).eval()
    given = {f"{name}.weight": w.T for name, (w, _) in linears.items()}
    given |= {f"{name}.bias": b for name, (_, b) in linears.items() if b is not None}
    x_kv = x_q if x_kv is None else x_kv
    if mask is not None:
        mask = mask[:, 0] if mask.ndim > 3 else mask
        mask = mask.expand(x_q.shape[0], x_q.shape[1], x_kv.shape[1])
    return torch.func.functional_call(made, given, (x_q, x_kv), {"mask": mask})


layer.operator = "mha"  # type: ignore[attr-defined]
