"""OpenVINO's converter of PyTorch: ``ov.convert_model`` of a module that is ``scaled_dot_product_attention``."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
import torch
from torch.nn.functional import scaled_dot_product_attention

_models: dict[Any, Any] = {}


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
    """``attn_mask`` is boolean or added to the scores; the model is converted for the shapes of the call."""
    if mask is not None and bias is not None:
        raise NotImplementedError("one attn_mask")
    added = bias if mask is None else mask
    given = [each for each in (q, k, v, added) if each is not None]
    key = (tuple((each.shape, each.dtype.name) for each in given), is_causal, scale)
    if key not in _models:
        model = _Model(is_causal=is_causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1]).eval()
        example = tuple(torch.from_numpy(np.ascontiguousarray(each)) for each in given)
        converted = ov.convert_model(model, example_input=example, input=[each.shape for each in given])
        settings = {"INFERENCE_PRECISION_HINT": "f32"}  # otherwise bfloat16 where the processor has it
        _models[key] = ov.Core().compile_model(converted, "CPU", settings)
    return np.array(_models[key]([np.ascontiguousarray(each).reshape(each.shape) for each in given])[0])


attention.dtypes = ("float32",)  # type: ignore[attr-defined]
