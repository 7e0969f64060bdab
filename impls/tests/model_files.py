"""Helpers for tests of models in files: attention written out in ONNX nodes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto as types  # noqa: N813  (short names in tables)
from onnx import helper, numpy_helper

MASKED = [helper.make_node("Where", ["mask", "s0", "low"], ["s1"])]
MASKED_BY_INTEGERS = [
    helper.make_node("Cast", ["mask"], ["allowed"], to=types.BOOL),
    helper.make_node("Where", ["allowed", "s0", "low"], ["s1"]),
]
BIASED = [helper.make_node("Add", ["s0", "bias"], ["s1"])]


def write(
    path: Path,
    inputs: Sequence[tuple[str, int, Sequence[Any]]] = (),
    names: Sequence[str] = ("q", "k", "v", "output"),
    shape: Sequence[Any] = (None,) * 4,
    scale: float | None = 0.5,  # 1/√4
    extra: Sequence[Any] = (),
    outputs: Sequence[str] = (),
) -> str:
    """Write softmax(q kᵀ · scale, then ``extra``) v as a model in float32; its path.

    ``inputs`` (name, type, shape) follow q, k and v, which are declared with ``shape``; ``names`` are those of q, k, v
    and the output.
    """
    q, k, v, output = names
    nodes = [
        helper.make_node("Transpose", [k], ["kt"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", [q, "kt"], ["s"]),
        helper.make_node("Mul", ["s", "scale"], ["s0"]),
        *(extra or [helper.make_node("Identity", ["s0"], ["s1"])]),
        helper.make_node("Softmax", ["s1"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", v], [output]),
    ]
    constants = [("low", np.float32(-np.inf)), *([("scale", np.float32(scale))] if scale is not None else [])]
    given = [*((name, types.FLOAT, shape) for name in (q, k, v)), *inputs]
    graph = helper.make_graph(
        nodes,
        "attention",
        [helper.make_tensor_value_info(name, kind, list(axes)) for name, kind, axes in given],
        [helper.make_tensor_value_info(name, types.FLOAT, None) for name in (output, *outputs)],
        initializer=[numpy_helper.from_array(np.array(value), name) for name, value in constants],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    return str(path)
