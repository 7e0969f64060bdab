"""timm's ``Attention``, the block of its vision transformers: self-attention by one fused projection."""

from __future__ import annotations

from typing import Any

import torch

# timm imports torchvision, which takes for given that its library for CUDA has declared these two operators.
for name in ("nms", "qnms"):
    torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from timm.layers.attention import Attention  # noqa: E402


def layer(
    x_q: Any, w_q: Any, w_k: Any, w_v: Any, *, heads: int, w_o: Any = None, b_q: Any = None, b_k: Any = None,
    b_v: Any = None, b_o: Any = None, mask: Any = None, is_causal: bool = False,
) -> Any:  # fmt: skip
    """Weights are (outputs, inputs), those of q, k and v one behind the other."""
    if w_o is None or w_q.shape != w_v.shape:
        raise NotImplementedError("Standard Multi-head Self Attention module with QKV projection.")
    if len({b is None for b in (b_q, b_k, b_v)}) > 1:
        raise NotImplementedError("qkv_bias: Whether to use bias in the query, key, value projections.")
    if x_q.ndim != 3:
        raise NotImplementedError("B, N, C = x.shape")
    width = w_q.shape[1] // heads
    options = {"qkv_bias": b_q is not None, "proj_bias": b_o is not None, "dtype": x_q.dtype}
    made = Attention(w_q.shape[0], heads, width, w_o.shape[1], **options).eval()
    given = {"qkv.weight": torch.cat([w_q, w_k, w_v], 1).T, "proj.weight": w_o.T}
    if b_q is not None:
        given["qkv.bias"] = torch.cat([b_q, b_k, b_v])
    if b_o is not None:
        given["proj.bias"] = b_o
    return torch.func.functional_call(made, given, (x_q, mask, is_causal))


layer.operator = "mha"  # type: ignore[attr-defined]
