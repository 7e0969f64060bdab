"""Torchvision's ``shifted_window_attention`` of its Swin transformers, with one window over the whole sequence."""

from __future__ import annotations

from typing import Any

import torch

# torchvision takes for given that its library for CUDA has declared these two operators.
for name in ("nms", "qnms"):
    torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from torchvision.models.swin_transformer import shifted_window_attention  # noqa: E402


def layer(
    x_q: Any, w_q: Any, w_k: Any, w_v: Any, *, heads: int, w_o: Any = None, b_q: Any = None, b_k: Any = None,
    b_v: Any = None, b_o: Any = None, bias: Any = None,
) -> Any:  # fmt: skip
    """Inputs are (N, H, W, C); ``relative_position_bias`` is added to the scores, and is required."""
    if w_o is None or len({w.shape for w in (w_q, w_k, w_v)}) > 1 or w_q.shape[0] != w_q.shape[1]:
        raise NotImplementedError("C // num_heads")
    if len({b is None for b in (b_q, b_k, b_v)}) > 1 or x_q.ndim != 3:
        raise NotImplementedError("qkv_bias (Tensor[out_dim], optional): The bias tensor of query, key, value.")
    added = torch.zeros(1, dtype=x_q.dtype) if bias is None else bias
    qkv_bias = None if b_q is None else torch.cat([b_q, b_k, b_v])
    made = shifted_window_attention(
        x_q[:, None],
        torch.cat([w_q, w_k, w_v], 1).T,
        w_o.T,
        added,
        [1, x_q.shape[1]],
        heads,
        [0, 0],
        qkv_bias=qkv_bias,
        proj_bias=b_o,
        training=False,
    )
    return made[:, 0]


layer.operator = "mha"  # type: ignore[attr-defined]
