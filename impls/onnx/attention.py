"""The standard operator: one ``Attention`` node of opset 23 or 24.

Source: the ONNX operator specification, https://onnx.ai/onnx/operators/onnx__Attention.html.  ONNX Runtime
has kernels of its own for float32 and float16; for float64 it expands the operator's function body.

The operator has no attribute for the offset of the diagonal: it is 0, the number of past keys where there is a past,
and ``nonpad_kv_seqlen`` − Sq, by batch, where that is given.  Only these offsets can be expressed.
"""

from __future__ import annotations

from onnx import ModelProto

from attention_conformance.impls.onnx.graph import Graph, Input, float_attribute, without_tail

#: Attribute qk_matmul_output_mode: the second result is the output of the softmax.
AFTER_SOFTMAX = 3


def attention23(
    q: Input,
    k: Input,
    v: Input,
    *,
    mask: Input | None = None,
    bias: Input | None = None,
    is_causal: bool = False,
    causal_offset: int | Input | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    past_key: Input | None = None,
    past_value: Input | None = None,
    return_weights: bool = False,
) -> ModelProto:
    """A model of one Attention node of opset 23, whose inputs have the names of the keywords.

    Raises NotImplementedError for mask together with bias, for an offset that the operator does not have, and for a
    float64 scale or softcap that a float32 attribute cannot hold.
    """
    return _model(23, **locals())


def attention24(
    q: Input,
    k: Input,
    v: Input,
    *,
    mask: Input | None = None,
    bias: Input | None = None,
    is_causal: bool = False,
    causal_offset: int | Input | None = None,
    kv_lengths: Input | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    past_key: Input | None = None,
    past_value: Input | None = None,
    return_weights: bool = False,
) -> ModelProto:
    """A model of one Attention node of opset 24, which adds key lengths (nonpad_kv_seqlen) to opset 23.

    Raises NotImplementedError as ``attention23`` does; for key lengths together with a past, which the operator
    forbids; and for key lengths with is_causal, unless an offset for each batch is given, which ``compared`` compares
    with the lengths when the model is run.
    """
    return _model(24, **locals())


def _model(
    opset: int,
    q: Input,
    k: Input,
    v: Input,
    mask: Input | None,
    bias: Input | None,
    is_causal: bool,
    causal_offset: int | Input | None,
    scale: float | None,
    softcap: float | None,
    past_key: Input | None,
    past_value: Input | None,
    return_weights: bool,
    kv_lengths: Input | None = None,
) -> ModelProto:
    if kv_lengths and (past_key or past_value):
        # "This should not be used together with `past_key` and `past_value` inputs"
        raise NotImplementedError("nonpad_kv_seqlen and past_key exclude each other")
    past = past_key.shape[2] if past_key else 0
    if is_causal and kv_lengths:
        if not isinstance(causal_offset, Input):
            # "`offset = nonpad_kv_seqlen - q_sequence_length` (per batch)"
            raise NotImplementedError("with nonpad_kv_seqlen the operator aligns is_causal at the last valid key")
    elif is_causal and causal_offset not in (None, past):
        # "`offset = past_sequence_length` when `past_key` is provided"
        raise NotImplementedError("the operator's offset is the number of past keys, and cannot be given")
    if mask and bias:
        # "Two types of masks are supported"
        raise NotImplementedError("the operator has one attn_mask input, which is either boolean or float")
    attributes = float_attribute("scale", scale, q.dtype) | float_attribute("softcap", softcap, q.dtype)
    if return_weights:
        attributes["qk_matmul_output_mode"] = AFTER_SOFTMAX
    present = ["present_key", "present_value"] if past_key or past_value else ["", ""]
    given = (q, k, v, mask or bias, past_key, past_value, kv_lengths)
    graph = Graph()
    inputs = [each.name if each else "" for each in given]
    outputs = without_tail(["output", *present, "weights" if return_weights else ""])
    graph.node("Attention", inputs, *outputs, is_causal=int(is_causal), **attributes)
    returned = ["output", *(["weights"] if return_weights else []), *(name for name in present if name)]
    return graph.model(given, returned, opset)
