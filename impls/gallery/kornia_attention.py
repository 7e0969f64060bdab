"""Kornia's ``FullAttention`` of LoFTR, and ``SigLip2Attention`` with given weights."""

from __future__ import annotations

from typing import Any

import torch
from kornia.feature.loftr.loftr_module.linear_attention import FullAttention
from kornia.models.siglip2.attention import SigLip2Attention


def loftr(q: Any, k: Any, v: Any, *, kv_lengths: Any = None) -> Any:
    """``q_mask`` and ``kv_mask`` come together, (N, L) and (N, S), and both arrays are boolean."""
    if q.shape[2:] != k.shape[2:] or q.shape[2] != v.shape[2]:
        raise NotImplementedError("queries: [N, L, H, D], keys: [N, S, H, D], values: [N, S, H, D]")
    masks: tuple[Any, ...] = ()
    if kv_lengths is not None:
        masks = torch.ones(q.shape[:2], dtype=torch.bool), torch.arange(k.shape[1]) < kv_lengths[:, None]
    return FullAttention()(q, k, v, *masks)


def siglip(
    x_q: Any, w_q: Any, w_k: Any, w_v: Any, *, heads: int, w_o: Any = None, b_q: Any = None, b_k: Any = None,
    b_v: Any = None, b_o: Any = None, mask: Any = None, kv_lengths: Any = None,
) -> Any:  # fmt: skip
    """Weights are (outputs, inputs), each with a bias; "1/True means attend"."""
    if w_o is None or len({w.shape for w in (w_q, w_k, w_v, w_o)}) > 1 or w_q.shape[0] != w_q.shape[1]:
        raise NotImplementedError("nn.Linear(hidden_size, hidden_size)")
    if x_q.ndim != 3 or (mask is not None and kv_lengths is not None):
        raise NotImplementedError("batch_size, seq_len, _ = hidden_states.shape, and one mask")
    made = SigLip2Attention(w_q.shape[0], heads).eval()
    linears = {"q_proj": (w_q, b_q), "k_proj": (w_k, b_k), "v_proj": (w_v, b_v), "out_proj": (w_o, b_o)}
    given = {f"{name}.weight": w.T for name, (w, _) in linears.items()}
    for name, (w, b) in linears.items():
        given[f"{name}.bias"] = torch.zeros(w.shape[1], dtype=w.dtype) if b is None else b
    if mask is not None:
        mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    if kv_lengths is not None:
        mask = torch.arange(x_q.shape[1]) < kv_lengths[:, None]
    return torch.func.functional_call(made, given, (x_q, mask))


loftr.layout = "BSHD"  # type: ignore[attr-defined]
siglip.operator = "mha"  # type: ignore[attr-defined]
