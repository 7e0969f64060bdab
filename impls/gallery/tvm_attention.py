"""TVM's ``relax.op.nn.attention``, compiled for the processor and for the shapes of the call."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax

_machines: dict[Any, Any] = {}


def attention(
    q: Any, k: Any, v: Any, *, bias: Any = None, is_causal: bool = False, scale: float | None = None
) -> Any:  # fmt: skip
    """``causal_mask="TopLeft"``; ``bias`` is "a 4-D tensor ending with seq_len_kv"."""
    arrays = [np.ascontiguousarray(each) for each in (q, k, v)]
    if bias is not None:
        arrays.append(np.ascontiguousarray(bias.reshape((1,) * (4 - bias.ndim) + bias.shape)))
    causal = "TopLeft" if is_causal else None
    key = (tuple((each.shape, each.dtype.name) for each in arrays), causal, scale)
    if key not in _machines:
        _machines[key] = _compiled(arrays, causal, scale)
    return _machines[key]["main"](*map(tvm.runtime.tensor, arrays)).numpy()


def _compiled(arrays: list[Any], causal: str | None, scale: float | None) -> Any:
    builder = relax.BlockBuilder()
    given = zip("qkvb", arrays, strict=False)
    inputs = [relax.Var(name, relax.TensorType(each.shape, each.dtype.name)) for name, each in given]
    with builder.function("main", inputs):
        with builder.dataflow():
            bias = inputs[3] if len(inputs) > 3 else None
            call = relax.op.nn.attention(*inputs[:3], bias=bias, scale=scale, causal_mask=causal)
            output = builder.emit_output(builder.emit(call))
        builder.emit_func_output(output)
    return relax.VirtualMachine(tvm.compile(builder.get(), target="llvm"), tvm.cpu())


attention.layout = "BSHD"  # type: ignore[attr-defined]
attention.dtypes = ("float32", "float16")  # type: ignore[attr-defined]
