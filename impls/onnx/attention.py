"""The standard operator: one ``Attention`` node of opset 23 or 24.

Source: the ONNX operator specification, https://onnx.ai/onnx/operators/onnx__Attention.html.  ONNX Runtime
has kernels of its own for float32 and float16; for float64 it expands the operator's function body.

The operator has no attribute for the offset of the diagonal: it is 0, the number of past keys where there is a past,
and ``nonpad_kv_seqlen`` − Sq, by batch, where there is that.  So these are the offsets that can be expressed.
"""

from __future__ import annotations

from onnx import ModelProto, helper

from attention_conformance.impls.onnx.graph import Input, float_attribute, model

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
    causal_offset: int | Input | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    past_key: Input | None = None,
    past_value: Input | None = None,
    return_weights: bool = False,
) -> ModelProto:
    """A model of one Attention node of opset 23, whose inputs have the names of the keywords.

    Raises NotImplementedError for mask together with bias, for an offset that the operator has not, and for a float64
    scale or softcap that a float32 attribute cannot hold.
    """
    if is_causal and causal_offset is not None:
        _refuse_offset(causal_offset, past_key)
    past = (past_key, past_value)
    return _model(23, (q, k, v), mask or bias, mask and bias, past, None, is_causal, scale, softcap, return_weights)


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
    forbids; and for key lengths with is_causal, unless an offset for each batch is given, which ``offsets`` compares
    with the lengths when the model is run.
    """
    if kv_lengths is not None and (past_key or past_value):
        raise NotImplementedError("nonpad_kv_seqlen and past_key exclude each other")
    if is_causal and kv_lengths is not None:
        if not isinstance(causal_offset, Input):
            raise NotImplementedError("with nonpad_kv_seqlen the operator aligns is_causal at the last valid key")
    elif is_causal and causal_offset is not None:
        _refuse_offset(causal_offset, past_key)
    past = (past_key, past_value)
    return _model(
        24, (q, k, v), mask or bias, mask and bias, past, kv_lengths, is_causal, scale, softcap, return_weights
    )


def _refuse_offset(offset: int | Input, past_key: Input | None) -> None:
    """An offset of the diagonal that is not the operator's own."""
    if isinstance(offset, Input) or offset != (past_key.shape[2] if past_key else 0):
        raise NotImplementedError("the operator's offset is the number of past keys, and cannot be given")


def _model(
    opset: int,
    arguments: tuple[Input, Input, Input],
    added: Input | None,
    both: Input | None,
    past: tuple[Input | None, Input | None],
    kv_lengths: Input | None,
    is_causal: bool,
    scale: float | None,
    softcap: float | None,
    return_weights: bool,
) -> ModelProto:
    """The model; ``added`` is the mask or the bias, and ``both`` is None unless both are given."""
    if both is not None:
        raise NotImplementedError("the operator has one attn_mask input, which is either boolean or float")
    given = [*arguments, added, *past, kv_lengths]
    while given[-1] is None:
        given.pop()
    dtype = arguments[0].dtype
    attributes = float_attribute("scale", scale, dtype) | float_attribute("softcap", softcap, dtype)
    present = ["present_key", "present_value"] if any(past) else ["", ""]
    outputs = ["output", *present]
    if return_weights:
        outputs.append("weights")
        attributes["qk_matmul_output_mode"] = AFTER_SOFTMAX
    while not outputs[-1]:
        outputs.pop()
    node = helper.make_node(
        "Attention",
        [each.name if each else "" for each in given],
        outputs,
        is_causal=int(is_causal),
        **attributes,
    )
    returned = ["output", *(["weights"] if return_weights else []), *(name for name in present if name)]
    return model([node], given, returned, opset)
