"""PyTorch's ``scaled_dot_product_attention`` in a program of ``torch.export``, exported for the shapes of the call."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

_programs: dict[Any, Any] = {}


class _Model(torch.nn.Module):
    """A model that is nothing but the call."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def forward(self, q: Any, k: Any, v: Any, mask: Any) -> Any:
        return scaled_dot_product_attention(q, k, v, attn_mask=mask, **self.options)


def attention(
    q: Any, k: Any, v: Any, *, mask: Any = None, bias: Any = None, is_causal: bool = False, scale: float | None = None
) -> Any:
    """``attn_mask`` is boolean or "added to the attention score"."""
    if mask is not None and bias is not None:
        raise NotImplementedError("one attn_mask")
    added = bias if mask is None else mask
    given = (q, k, v, added)
    shapes = tuple(None if each is None else (each.shape, each.stride(), each.dtype) for each in given)
    key = (shapes, is_causal, scale)
    if key not in _programs:
        model = _Model(is_causal=is_causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1])
        _programs[key] = torch.export.export(model, given).module()
    return _programs[key](*given)
