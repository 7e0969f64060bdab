"""Transformers' eager attention, as its Llama model calls it (``attn_implementation="eager"``)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from transformers.models.llama.modeling_llama import eager_attention_forward


def attention(q: Any, k: Any, v: Any, *, mask: Any = None, bias: Any = None, scale: float | None = None) -> Any:
    """A mask is "a 4D float mask", 0 or the "minimum value for the given `dtype`" (masking_utils.eager_mask)."""
    layer = SimpleNamespace(num_key_value_groups=q.shape[1] // k.shape[1], training=False)
    added = bias
    if mask is not None:
        smallest = torch.finfo(q.dtype).min
        added = torch.where(mask, torch.zeros((), dtype=q.dtype) if bias is None else bias, smallest)
    scaling = q.shape[3] ** -0.5 if scale is None else scale  # a required argument, which the model computes so
    return eager_attention_forward(layer, q, k, v, added, scaling=scaling)[0].transpose(1, 2)
