"""The ONNX backend node tests of ``Attention``, translated into calls of the reference and back.

Only names and layouts are translated: 3-D inputs are split into heads; past keys and values are put before the new
ones, which shifts the diagonal by their number; ``nonpad_kv_seqlen`` is ``kv_lengths`` and shifts the diagonal of
batch b by nonpad_kv_seqlen[b] − Sq; a mask shorter than the keys masks the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx.backend.test.case.node as node_cases
import onnx.backend.test.case.node.attention  # importing it collects its tests
from onnx import helper, numpy_helper

from attention_conformance.conformance.spec import sdpa as reference

#: Names of the operator's inputs and outputs, by position.
INPUTS = ("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")
OUTPUTS = ("output", "present_key", "present_value", "qk")

#: Attributes translated below; any other is an error, so that none is overlooked.
#: ``softmax_precision`` changes the accuracy of an implementation, not what it computes.
ATTRIBUTES = {
    "is_causal",
    "kv_num_heads",
    "left_window_size",
    "q_num_heads",
    "qk_matmul_output_mode",
    "right_window_size",
    "scale",
    "softcap",
    "softmax_precision",
}


@dataclass(frozen=True, eq=False)
class NodeTest:
    """One shipped test: inputs and expected outputs by their names in the operator, and its attributes."""

    name: str
    opset: int
    inputs: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray]
    attributes: dict[str, Any]


def node_tests() -> list[NodeTest]:
    """Every attention test of the installed onnx package, without those of its expanded functions."""
    cases = [case for case in node_cases._NodeTestCases if case.model.graph.node[0].op_type == "Attention"]
    return [_node_test(case) for case in cases]


def _node_test(case: Any) -> NodeTest:
    (node,) = case.model.graph.node
    ((inputs, outputs),) = case.data_sets
    attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    if unknown := set(attributes) - ATTRIBUTES:
        raise NotImplementedError(f"{case.name} has attributes that nobody has translated: {unknown}")
    (opset,) = (entry.version for entry in case.model.opset_import if entry.domain == "")
    return NodeTest(
        case.name, opset, _named(INPUTS, node.input, inputs), _named(OUTPUTS, node.output, outputs), attributes
    )


def _named(names: tuple[str, ...], used: Any, arrays: Any) -> dict[str, np.ndarray]:
    """Arrays by name; a position with an empty name is not given, and has no array."""
    present = [name for name, given in zip(names, used, strict=False) if given]
    return {name: _array(array) for name, array in zip(present, arrays, strict=True)}


def _array(value: Any) -> np.ndarray:
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


@dataclass(frozen=True, eq=False)
class Translated:
    """A node test as a call of sdpa: q (B, Hq, Sq, D), k and v with the past in front, and the options."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    options: dict[str, Any]


def translate(test: NodeTest) -> Translated:
    """The call of sdpa that the node represents."""
    inputs, attributes = test.inputs, test.attributes
    q = _heads(inputs["Q"], attributes.get("q_num_heads"))
    k = _heads(inputs["K"], attributes.get("kv_num_heads"))
    v = _heads(inputs["V"], attributes.get("kv_num_heads"))
    options: dict[str, Any] = {"scale": attributes.get("scale"), "softcap": attributes.get("softcap") or None}
    options["is_causal"] = bool(attributes.get("is_causal", 0))
    sides = (attributes.get("left_window_size", -1), attributes.get("right_window_size", -1))
    options["window"] = None if sides == (-1, -1) else tuple(None if side < 0 else side for side in sides)
    if "past_key" in inputs:
        options["causal_offset"] = inputs["past_key"].shape[2]
        k = np.concatenate([inputs["past_key"], k], axis=2)
        v = np.concatenate([inputs["past_value"], v], axis=2)
    elif "nonpad_kv_seqlen" in inputs:
        options["kv_lengths"] = inputs["nonpad_kv_seqlen"]
        options["causal_offset"] = inputs["nonpad_kv_seqlen"] - q.shape[2]
    if "attn_mask" in inputs:
        mask = inputs["attn_mask"]
        options["mask" if mask.dtype == np.bool_ else "bias"] = _filled(mask, k.shape[2])
    return Translated(q, k, v, options)


def outputs(test: NodeTest, call: Translated, expected: reference.Expected) -> dict[str, np.ndarray]:
    """The node's outputs, from the reference's: float64, in the node's layout."""
    output = expected.output
    if test.inputs["Q"].ndim == 3:
        output = output.transpose(0, 2, 1, 3).reshape(*test.inputs["Q"].shape[:2], -1)
    capped = reference.capped_scores(expected.raw, call.options["softcap"])
    biased = capped + call.options.get("bias", 0.0)
    by_mode = (expected.raw, capped, np.where(expected.allowed, biased, -np.inf), expected.weights)
    qk = by_mode[test.attributes.get("qk_matmul_output_mode", 0)]
    return {"output": output, "present_key": call.k, "present_value": call.v, "qk": qk}


def _heads(array: np.ndarray, heads: int | None) -> np.ndarray:
    """(B, S, H · D) to (B, H, S, D); an array with four axes is unchanged."""
    if array.ndim == 4:
        return array
    assert heads is not None, "a 3-D input says how many heads it has"
    return array.reshape(*array.shape[:2], heads, -1).transpose(0, 2, 1, 3)


def _filled(mask: np.ndarray, keys: int) -> np.ndarray:
    """A mask filled up to the number of keys: the keys that it lacks are masked."""
    missing = keys - mask.shape[-1]
    fill = False if mask.dtype == np.bool_ else -np.inf
    return np.pad(mask, [(0, 0)] * (mask.ndim - 1) + [(0, missing)], constant_values=fill)
