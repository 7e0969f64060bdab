"""The standard operator: one ``Attention`` node of opset 23 or 24.

Source: the ONNX operator specification, https://onnx.ai/onnx/operators/onnx__Attention.html.  ONNX Runtime
has kernels of its own for float32 and float16; for float64 it expands the operator's function body.
"""

from __future__ import annotations

from onnx import ModelProto, helper

from impls.onnx.graph import Input, float_attribute, model

#: Attribute qk_matmul_output_mode: the second result is what comes out of the softmax.
AFTER_SOFTMAX = 3


def attention23(
    q: Input,
    k: Input,
    v: Input,
    *,
    mask: Input | None = None,
    bias: Input | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    softcap: float | None = None,
    return_weights: bool = False,
) -> ModelProto:
    """A model of one Attention node of opset 23, whose inputs have the names of the keywords.

    Raises NotImplementedError for mask together with bias, and for a float64 scale or softcap that a
    float32 attribute cannot hold.
    """
    return _model(23, q, k, v, mask, bias, None, is_causal, scale, softcap, return_weights)


def attention24(
    q: Input,
    k: Input,
    v: Input,
    *,
    mask: Input | None = None,
    bias: Input | None = None,
    is_causal: bool = False,
    kv_lengths: Input | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    return_weights: bool = False,
) -> ModelProto:
    """A model of one Attention node of opset 24, which adds key lengths (nonpad_kv_seqlen) to opset 23.

    Raises NotImplementedError as ``attention23`` does, and for key lengths together with is_causal: the
    operator then aligns the diagonal at the last valid key, per batch, and has no attribute to say otherwise.
    """
    if kv_lengths is not None and is_causal:
        raise NotImplementedError("with nonpad_kv_seqlen the operator aligns is_causal at the last valid key")
    return _model(24, q, k, v, mask, bias, kv_lengths, is_causal, scale, softcap, return_weights)


def _model(
    opset: int,
    q: Input,
    k: Input,
    v: Input,
    mask: Input | None,
    bias: Input | None,
    kv_lengths: Input | None,
    is_causal: bool,
    scale: float | None,
    softcap: float | None,
    return_weights: bool,
) -> ModelProto:
    if mask is not None and bias is not None:
        raise NotImplementedError("the operator has one attn_mask input, which is either boolean or float")
    given = [q, k, v, mask or bias, None, None, kv_lengths]  # past_key and past_value are not used
    while given[-1] is None:
        given.pop()
    attributes = float_attribute("scale", scale, q.dtype) | float_attribute("softcap", softcap, q.dtype)
    outputs = ["output"]
    if return_weights:
        outputs += ["", "", "weights"]  # present_key and present_value are not asked for
        attributes["qk_matmul_output_mode"] = AFTER_SOFTMAX
    node = helper.make_node(
        "Attention",
        [each.name if each else "" for each in given],
        outputs,
        is_causal=int(is_causal),
        **attributes,
    )
    return model([node], given, [name for name in outputs if name], opset)
