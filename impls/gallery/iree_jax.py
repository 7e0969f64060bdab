"""IREE: ``jax.nn.dot_product_attention`` as StableHLO, compiled for the processor and for the shapes of the call."""

from __future__ import annotations

from typing import Any

import iree.compiler as ireec
import iree.runtime as rt
import jax
import numpy as np

_functions: dict[Any, Any] = {}


def attention(
    q: Any, k: Any, v: Any, *, mask: Any = None, bias: Any = None, is_causal: bool = False, scale: float | None = None
) -> Any:
    """A ``mask`` and a ``bias`` have four axes."""
    arrays = {"query": q, "key": k, "value": v, "mask": mask, "bias": bias}
    given = {name: np.ascontiguousarray(each).reshape(each.shape) for name, each in arrays.items() if each is not None}
    key = (tuple((name, each.shape, each.dtype.name) for name, each in given.items()), is_causal, scale)
    if key not in _functions:

        def call(*some: Any) -> Any:
            named = dict(zip(given, some, strict=True))
            return jax.nn.dot_product_attention(**named, is_causal=is_causal, scale=scale)

        text = jax.jit(call, keep_unused=True).lower(*given.values()).as_text()
        binary = ireec.compile_str(text, input_type="stablehlo", target_backends=["llvm-cpu"])
        config = rt.Config("local-sync")
        module = rt.VmModule.copy_buffer(config.vm_instance, binary)
        _functions[key] = rt.load_vm_module(module, config)
    return np.array(_functions[key].main(*given.values()).to_host())


attention.layout = "BSHD"  # type: ignore[attr-defined]
attention.dtypes = ("float32", "float16")  # type: ignore[attr-defined]
