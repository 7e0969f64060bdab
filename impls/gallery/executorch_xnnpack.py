"""ExecuTorch: ``scaled_dot_product_attention`` exported for the shapes of the call, lowered to XNNPACK."""

from __future__ import annotations

from typing import Any

import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower
from executorch.runtime import Runtime
from torch.nn.functional import scaled_dot_product_attention

_methods: dict[Any, Any] = {}


class _Model(torch.nn.Module):
    """A model that is nothing but the call."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def forward(self, q: Any, k: Any, v: Any, mask: Any = None) -> Any:
        return scaled_dot_product_attention(q, k, v, attn_mask=mask, **self.options)


def attention(
    q: Any, k: Any, v: Any, *, mask: Any = None, bias: Any = None, is_causal: bool = False, scale: float | None = None
) -> Any:
    """``attn_mask`` is boolean or added to the scores."""
    if mask is not None and bias is not None:
        raise NotImplementedError("one attn_mask")
    added = bias if mask is None else mask
    given = tuple(each.contiguous() for each in (q, k, v, added) if each is not None)
    key = (tuple((each.shape, each.dtype) for each in given), is_causal, scale)
    if key not in _methods:
        model = _Model(is_causal=is_causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1]).eval()
        lowered = to_edge_transform_and_lower(torch.export.export(model, given), partitioner=[XnnpackPartitioner()])
        program = Runtime.get().load_program(lowered.to_executorch().buffer)
        _methods[key] = program, program.load_method("forward")  # a method lives as long as its program
    return _methods[key][1].execute(given)[0].clone()


attention.dtypes = ("float32",)  # type: ignore[attr-defined]
