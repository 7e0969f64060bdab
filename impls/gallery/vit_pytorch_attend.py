"""vit-pytorch's ``Attend`` of its vision transformers with flash attention, with and without ``use_flash``."""

from __future__ import annotations

from typing import Any

import torch

# torchvision takes for given that its library for CUDA has declared these two operators.
for name in ("nms", "qnms"):
    torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from vit_pytorch.simple_flash_attn_vit import Attend  # noqa: E402


def flash(q: Any, k: Any, v: Any) -> Any:
    """``use_flash=True``, which calls torch's scaled_dot_product_attention."""
    if len({each.shape[-3] for each in (q, k, v)}) > 1:
        raise NotImplementedError("'b n (h d) -> b h n d', of q, k and v alike")
    return Attend(use_flash=True).eval()(q, k, v)


def eager(q: Any, k: Any, v: Any) -> Any:
    """``use_flash=False``: einsum and softmax."""
    return Attend(use_flash=False).eval()(q, k, v)
