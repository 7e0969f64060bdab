"""Models built node by node: the inputs as a builder gets them, and the model that it returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from attention_conformance.impls.contract import Call, Function

_TYPES = {
    "float64": TensorProto.DOUBLE,
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
}
#: Array keywords that do not have the dtype of q.
_OTHER_TYPES = {"mask": TensorProto.BOOL, "kv_lengths": TensorProto.INT64, "causal_offset": TensorProto.INT64}

#: The contrib operators of ONNX Runtime.
MICROSOFT = "com.microsoft"

#: The IR version that came with opset 23; ONNX Runtime refuses newer ones than it knows.
IR_VERSION = 11


@dataclass(frozen=True)
class Input:
    """An array that a model will be given: its name, the dtype of q, and its shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def type(self) -> int:
        """The ONNX element type."""
        return int(_OTHER_TYPES.get(self.name, _TYPES[self.dtype]))

    @property
    def info(self) -> ValueInfoProto:
        """The declaration as a graph input, of this rank and of any lengths."""
        return helper.make_tensor_value_info(self.name, self.type, [None] * len(self.shape))


def build(function: Function, call: Call) -> ModelProto:
    """The model that a builder makes for a call."""
    inputs = {name: Input(name, call.dtype, shape) for name, shape in call.shapes}
    return function(**inputs, **call.static)


def without_tail(names: list[str]) -> list[str]:
    """The names of a node's inputs or outputs without the absent ones at the end."""
    while names and not names[-1]:
        names = names[:-1]
    return names


@dataclass
class Graph:
    """Nodes and constants of a model; every method adds some and returns the name of their result."""

    nodes: list[NodeProto] = field(default_factory=list)
    constants: list[TensorProto] = field(default_factory=list)

    def node(self, operator: str, inputs: list[str], *outputs: str, **attributes: Any) -> str:
        """A node; absent inputs at the end are left out."""
        self.nodes.append(helper.make_node(operator, without_tail(inputs), list(outputs), **attributes))
        return outputs[0]

    def constant(self, name: str, numbers: Any, dtype: Any = np.int64) -> str:
        """An array of constants."""
        self.constants.append(numpy_helper.from_array(np.array(numbers, dtype), name))
        return name

    def reshape(self, source: str, target: str, shape: tuple[int, ...]) -> str:
        """A Reshape to exactly this shape, in which a 0 is a length."""
        return self.node("Reshape", [source, self.constant(f"{target}_shape", shape)], target, allowzero=1)

    def model(self, inputs: Sequence[Input | None], outputs: Sequence[str], opset: int) -> ModelProto:
        """The model.  Outputs have the dtype of the first input; inputs that are None are left out."""
        given = [each for each in inputs if each is not None]
        results = [helper.make_tensor_value_info(name, given[0].type, None) for name in outputs]
        declared = [each.info for each in given]
        graph = helper.make_graph(self.nodes, "attention", declared, results, initializer=self.constants)
        opsets = [helper.make_opsetid("", opset), helper.make_opsetid(MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)


def float_attribute(name: str, value: float | None, dtype: str) -> dict[str, Any]:
    """A float attribute, or none for None.

    Raises NotImplementedError if an attribute, which is float32, cannot hold the number of a float64 call.
    """
    if value is None:
        return {}
    if dtype == "float64" and float(np.float32(value)) != value:
        # says "scale : float", and an attribute of that kind is float32
        raise NotImplementedError(f"{name} is a float32 attribute of the operator and cannot hold {value!r}")
    return {name: float(value)}


def compared(run: Function, call: Call, get: Callable[[Any], np.ndarray]) -> Function:
    """A model's function for calls with an offset for each batch, which is not its input; ``get`` makes a NumPy array.

    The function raises NotImplementedError if the offsets are not kv_lengths − Sq, which is what the operator has.
    """
    if "causal_offset" not in call.arrays:
        return run
    queries = call.shape("q")[2]

    def checked(causal_offset: Any, **arrays: Any) -> Any:
        if call.static.get("is_causal") and (get(causal_offset) != get(arrays["kv_lengths"]) - queries).any():
            # "`offset = nonpad_kv_seqlen - q_sequence_length` (per batch)"
            raise NotImplementedError("the operator's offset is nonpad_kv_seqlen - Sq, and cannot be given")
        return run(**arrays)

    return checked
