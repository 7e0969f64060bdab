"""OpenCLIP's ``Attention``, of its residual blocks: self-attention by one fused projection."""

from __future__ import annotations

from typing import Any

import torch

# torchvision takes for given that its library for CUDA has declared these two operators.
for name in ("nms", "qnms"):
    torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from open_clip.transformer import Attention  # noqa: E402


def layer(
    x_q: Any, w_q: Any, w_k: Any, w_v: Any, *, heads: int, w_o: Any = None, b_q: Any = None, b_k: Any = None,
    b_v: Any = None, b_o: Any = None, mask: Any = None, bias: Any = None,
) -> Any:  # fmt: skip
    """Weights are (outputs, inputs); a mask is (L, L) or (N, heads, L, L), True where it hides, or added."""
    if w_o is None or len({w.shape for w in (w_q, w_k, w_v, w_o)}) > 1 or w_q.shape[0] != w_q.shape[1]:
        raise NotImplementedError("dim * 3, dim")
    if len({b is None for b in (b_q, b_k, b_v)}) > 1 or x_q.ndim != 3:
        raise NotImplementedError("qkv_bias, and N, L, C = x.shape")
    if mask is not None and bias is not None:
        raise NotImplementedError("one attn_mask")
    added = bias if mask is None else ~mask
    sizes = (x_q.shape[0], heads, x_q.shape[1], x_q.shape[1])
    if added is not None and added.shape not in (sizes, sizes[2:]):
        raise NotImplementedError("this module works with (L, L), or (N, num_heads, L, L) masks")
    made = Attention(w_q.shape[0], heads, qkv_bias=b_q is not None).eval()
    given = {"in_proj_weight": torch.cat([w_q, w_k, w_v], 1).T, "out_proj.weight": w_o.T}
    given["out_proj.bias"] = torch.zeros(w_o.shape[1], dtype=x_q.dtype) if b_o is None else b_o
    if b_q is not None:
        given["in_proj_bias"] = torch.cat([b_q, b_k, b_v])
    return torch.func.functional_call(made, given, (x_q, added))


layer.operator = "mha"  # type: ignore[attr-defined]
