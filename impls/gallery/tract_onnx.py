"""tract, a runtime of ONNX in Rust: a model that is one node ``Attention`` of opset 23."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tract
from onnx import TensorProto, helper

_models: dict[Any, Any] = {}
_TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "bool": TensorProto.BOOL}


def attention(
    q: Any, k: Any, v: Any, *, mask: Any = None, bias: Any = None, is_causal: bool = False, scale: float | None = None,
) -> Any:  # fmt: skip
    """``attn_mask`` is boolean or added; the model is loaded for the shapes of the call."""
    if mask is not None and bias is not None:
        raise NotImplementedError("one attn_mask")
    added = bias if mask is None else mask
    given = [np.ascontiguousarray(each).reshape(each.shape) for each in (q, k, v, added) if each is not None]
    options: dict[str, Any] = {"is_causal": int(is_causal), "scale": scale}
    key = (tuple((each.shape, each.dtype.name) for each in given), *options.values())
    if key not in _models:
        node = helper.make_node(
            "Attention", ["Q", "K", "V", "attn_mask"][: len(given)], ["Y"],
            **{name: value for name, value in options.items() if value is not None},
        )  # fmt: skip
        inputs = [
            helper.make_tensor_value_info(name, _TYPES[each.dtype.name], each.shape)
            for name, each in zip(node.input, given, strict=True)
        ]
        output = helper.make_tensor_value_info("Y", _TYPES[q.dtype.name], (*q.shape[:3], v.shape[3]))
        graph = helper.make_graph([node], "attention", inputs, [output])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
        onnx.checker.check_model(model)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "attention.onnx"
            path.write_bytes(model.SerializeToString())
            _models[key] = tract.onnx().load(path).into_model().into_runnable()
    return np.array(_models[key].run(given)[0].to_numpy())


attention.dtypes = ("float32", "float16")  # type: ignore[attr-defined]
