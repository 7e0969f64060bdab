"""Segment Anything's ``Attention`` of its mask decoder, with given weights."""

from __future__ import annotations

from typing import Any

import torch

# torchvision takes for given that its library for CUDA has declared these two operators.
for name in ("nms", "qnms"):
    torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from segment_anything.modeling.transformer import Attention  # noqa: E402


def layer(
    x_q: Any, w_q: Any, w_k: Any, w_v: Any, *, heads: int, x_kv: Any = None, w_o: Any = None, b_q: Any = None,
    b_k: Any = None, b_v: Any = None, b_o: Any = None,
) -> Any:  # fmt: skip
    """Weights are (outputs, inputs), each with a bias; ``downsample_rate`` divides the width of the projections."""
    widths = {w.shape for w in (w_q, w_k, w_v)} | {w_o.T.shape if w_o is not None else None}
    if len(widths) > 1 or w_q.shape[0] % w_q.shape[1] or x_q.ndim != 3:
        raise NotImplementedError("nn.Linear(embedding_dim, self.internal_dim)")
    made = Attention(w_q.shape[0], heads, w_q.shape[0] // w_q.shape[1]).eval()
    linears = {"q_proj": (w_q, b_q), "k_proj": (w_k, b_k), "v_proj": (w_v, b_v), "out_proj": (w_o, b_o)}
    given = {f"{name}.weight": w.T for name, (w, _) in linears.items()}
    for name, (w, b) in linears.items():
        given[f"{name}.bias"] = torch.zeros(w.shape[1], dtype=w.dtype) if b is None else b
    x_kv = x_q if x_kv is None else x_kv
    return torch.func.functional_call(made, given, (x_q, x_kv, x_kv))


layer.operator = "mha"  # type: ignore[attr-defined]
