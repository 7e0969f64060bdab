"""OpenVINO's ScaledDotProductAttention-13 on the CPU, compiled for the shapes of the call."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13


def attention(
    q: Any, k: Any, v: Any, *, mask: Any = None, bias: Any = None, is_causal: bool = False, scale: float | None = None
) -> Any:
    """There is one ``attention_mask``, "or scalar float type zero value" where only a scale is given."""
    if sum((mask is not None, bias is not None, is_causal)) > 1:
        raise NotImplementedError("causal: autogenerates causal attention mask instead of using attention_mask input")
    if q.shape[1] != k.shape[1]:
        raise NotImplementedError("Query tensor of shape [N, ..., L, E], Key tensor of shape [N, ..., S, E]")
    added = bias if mask is None else mask
    if added is None and scale is not None:
        added = np.zeros((), q.dtype)
    last = None if scale is None else np.full((), scale, q.dtype)
    given = [np.ascontiguousarray(each).reshape(each.shape) for each in (q, k, v, added, last) if each is not None]
    model = _model(tuple((each.shape, each.dtype.name) for each in given), is_causal)
    return np.array(model(given)[0])


@functools.lru_cache(maxsize=1024)
def _model(inputs: tuple[tuple[tuple[int, ...], str], ...], causal: bool) -> Any:
    parameters = [opset13.parameter(list(shape), np.dtype(dtype)) for shape, dtype in inputs]
    node = opset13.scaled_dot_product_attention(*parameters, causal=causal)
    settings = {"INFERENCE_PRECISION_HINT": "f32"}  # otherwise bfloat16 where the processor has it
    return ov.Core().compile_model(ov.Model([node], parameters), "CPU", settings)


attention.dtypes = ("float32",)  # type: ignore[attr-defined]
