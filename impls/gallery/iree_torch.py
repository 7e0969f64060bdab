"""IREE: ``scaled_dot_product_attention`` exported by IREE Turbine, compiled for the processor and for the shapes."""

from __future__ import annotations

from typing import Any

import iree.runtime as rt
import iree.turbine.aot as aot
import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

_functions: dict[Any, Any] = {}


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
    given = [np.ascontiguousarray(each).reshape(each.shape) for each in (q, k, v, added) if each is not None]
    key = (tuple((each.shape, each.dtype.name) for each in given), is_causal, scale)
    if key not in _functions:
        model = _Model(is_causal=is_causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1]).eval()
        exported = aot.export(model, *map(torch.from_numpy, given))
        binary = exported.compile(save_to=None, target_backends="llvm-cpu")
        config = rt.Config("local-sync")
        module = rt.VmModule.copy_buffer(config.vm_instance, binary.map_memory())
        _functions[key] = rt.load_vm_module(module, config)
    return np.array(_functions[key].main(*given).to_host())


attention.dtypes = ("float32", "float16")  # type: ignore[attr-defined]
