"""ONNX Runtime's own operators, which its transformer models use: MultiHeadAttention and GroupQueryAttention.

Source: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md.  They take
(B, S, H · D), so the layout here is (B, S, H, D), of which that is another view.  They have kernels for
float32 and float16, no type for float64, and no CPU kernel for bfloat16.  A model is for one shape.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from attention_conformance.impls.onnx.graph import MICROSOFT, Input, float_attribute, model

#: The standard opset for the few nodes around the operator.
OPSET = 21

#: Attribute qk_output of GroupQueryAttention: the weights after softmax.
AFTER_SOFTMAX = 2


def multi_head(
    q: Input,
    k: Input,
    v: Input,
    *,
    mask: Input | None = None,
    bias: Input | None = None,
    is_causal: bool = False,
    kv_lengths: Input | None = None,
    scale: float | None = None,
) -> ModelProto:
    """A model of one MultiHeadAttention node; q (B, Sq, H, D), k (B, Sk, H, D), v (B, Sk, H, Dv).

    ``mask`` becomes key_padding_mask as (B, Sk) or (B, Sq, Sk), ``kv_lengths`` the same input as (B,),
    ``bias`` becomes attention_bias.  The value of a masked score is the operator's default, −10000.
    Raises NotImplementedError for grouped heads, for a mask that differs between heads or has another
    shape, for a mask together with key lengths, and for a bias that repeats rows or keys.
    """
    if k.shape[2] != q.shape[2]:
        raise NotImplementedError("the operator has no grouped heads")
    _refuse_repeated(bias, q.shape[1], k.shape[1])
    if mask is not None and kv_lengths is not None:
        raise NotImplementedError("the operator has one key_padding_mask input for masks and lengths")
    nodes: list[NodeProto] = []
    constants: list[TensorProto] = []
    _flatten(nodes, constants, (q, k, v))
    padding = ""
    if mask is not None:
        padding = "padding"
        _reshape(nodes, constants, "mask", "mask_2d", _padding_shape(mask, q, k))
        nodes.append(helper.make_node("Cast", ["mask_2d"], [padding], to=TensorProto.INT32))
    if kv_lengths is not None:
        padding = "padding"
        nodes.append(helper.make_node("Cast", ["kv_lengths"], [padding], to=TensorProto.INT32))
    given = ["q_flat", "k_flat", "v_flat", "", padding, "bias" if bias else ""]
    attributes = float_attribute("scale", scale, q.dtype)
    nodes.append(
        helper.make_node(
            "MultiHeadAttention",
            _without_tail(given),
            ["flat"],
            domain=MICROSOFT,
            num_heads=q.shape[2],
            unidirectional=int(is_causal),
            **attributes,
        )
    )
    _reshape(nodes, constants, "flat", "output", (*q.shape[:3], v.shape[3]))
    return model(nodes, (q, k, v, mask, bias, kv_lengths), ("output",), OPSET, constants)


def group_query(
    q: Input,
    k: Input,
    v: Input,
    *,
    bias: Input | None = None,
    is_causal: bool = False,
    window: tuple[int | None, int | None] | None = None,
    kv_lengths: Input | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Input | None = None,
    past_key: Input | None = None,
    past_value: Input | None = None,
    return_weights: bool = False,
) -> ModelProto:
    """A model of one GroupQueryAttention node; q (B, S, Hq, D), k and v (B, S, Hkv, D), the past (B, Hkv, P, D).

    ``kv_lengths`` becomes seqlens_k (which is one less), ``bias`` becomes attention_bias, ``window``
    local_window_size (which counts the row's own key), ``sinks`` head_sink.  Raises NotImplementedError for another
    number of queries than of new keys, Dv ≠ D, a width that is not a multiple of 8, a window that is not causal, a bias
    that repeats rows or keys, and key lengths together with a past: the operator takes the new keys of a batch to lie
    directly behind its own last one.
    """
    if q.shape[1] != k.shape[1]:
        raise NotImplementedError("the operator needs as many queries as new keys")
    if kv_lengths is not None and past_key is not None:
        raise NotImplementedError("with seqlens_k the new keys lie behind the last one of each batch, not of the past")
    if past_key is not None and q.shape[0] != 1 != q.shape[1]:
        raise NotImplementedError("with a past the operator takes several new tokens for a batch of one only")
    if v.shape[3] != k.shape[3]:
        raise NotImplementedError("the operator has one width for keys and values")
    if q.shape[3] % 8:
        raise NotImplementedError("the operator needs a head width that is a multiple of 8")
    total = k.shape[1] + (past_key.shape[2] if past_key else 0)
    _refuse_repeated(bias, q.shape[1], total)
    left = _local_window(window, is_causal)
    nodes: list[NodeProto] = []
    constants: list[TensorProto] = [
        numpy_helper.from_array(np.array(1, np.int32), "one"),
        numpy_helper.from_array(np.array(total, np.int32), "total"),
    ]
    _flatten(nodes, constants, (q, k, v))
    if kv_lengths is not None:
        nodes.append(helper.make_node("Cast", ["kv_lengths"], ["lengths"], to=TensorProto.INT32))
        nodes.append(helper.make_node("Sub", ["lengths", "one"], ["last"]))
    else:
        constants.append(numpy_helper.from_array(np.full(q.shape[0], total - 1, np.int32), "last"))
    extra = ["bias" if bias else "", "sinks" if sinks else ""]
    past = ["past_key" if past_key else "", "past_value" if past_value else ""]
    given = ["q_flat", "k_flat", "v_flat", *past, "last", "total", "", "", "", *extra]
    outputs = ["flat", "present_key", "present_value"]
    attributes = float_attribute("scale", scale, q.dtype) | float_attribute("softcap", softcap, q.dtype)
    if return_weights:
        outputs.append("weights")
        attributes["qk_output"] = AFTER_SOFTMAX
    if not is_causal:  # an attribute that older versions do not have
        attributes["causal"] = 0
    nodes.append(
        helper.make_node(
            "GroupQueryAttention",
            _without_tail(given),
            outputs,
            domain=MICROSOFT,
            num_heads=q.shape[2],
            kv_num_heads=k.shape[2],
            local_window_size=left,
            **attributes,
        )
    )
    _reshape(nodes, constants, "flat", "output", (*q.shape[:3], v.shape[3]))
    results = ["output", *(["weights"] if return_weights else [])]
    if past_key or past_value:
        results += ["present_key", "present_value"]
    return model(nodes, (q, k, v, bias, kv_lengths, sinks, past_key, past_value), results, OPSET, constants)


def _refuse_repeated(bias: Input | None, queries: int, keys: int) -> None:
    """attention_bias is documented as (B or 1, H or 1, Sq, Sk); what does not fit at all is left to the operator."""
    if bias is None:
        return
    last = bias.shape[-2:]
    if len(bias.shape) < 4 or any(n == 1 != full for n, full in zip(last, (queries, keys), strict=True)):
        raise NotImplementedError("attention_bias is (B or 1, H or 1, Sq, Sk)")


def _padding_shape(mask: Input, q: Input, k: Input) -> tuple[int, ...]:
    """The shape in which key_padding_mask takes a mask that is the same for all heads."""
    batch, queries, keys = q.shape[0], q.shape[1], k.shape[1]
    if mask.shape == (batch, 1, 1, keys):
        return (batch, keys)
    if mask.shape == (batch, 1, queries, keys):
        return (batch, queries, keys)
    raise NotImplementedError("key_padding_mask is (B, Sk) or (B, Sq, Sk), the same for all heads")


def _local_window(window: tuple[int | None, int | None] | None, is_causal: bool) -> int:
    """Attribute local_window_size: how many keys, the row's own included; −1 for no limit."""
    left, right = window or (None, None)
    if left is None and (right is None or is_causal):
        return -1
    if not is_causal:
        raise NotImplementedError("local_window_size needs a causal mask")
    return -1 if left is None else left + 1


def _flatten(nodes: list[NodeProto], constants: list[TensorProto], inputs: Sequence[Input]) -> None:
    """(B, S, H, D) to (B, S, H · D) for each input."""
    for each in inputs:
        batch, length, heads, width = each.shape
        _reshape(nodes, constants, each.name, f"{each.name}_flat", (batch, length, heads * width))


def _reshape(
    nodes: list[NodeProto], constants: list[TensorProto], source: str, target: str, shape: tuple[int, ...]
) -> None:
    """Add a Reshape node to this very shape, in which a 0 is a length."""
    constants.append(numpy_helper.from_array(np.array(shape, np.int64), f"{target}_shape"))
    nodes.append(helper.make_node("Reshape", [source, f"{target}_shape"], [target], allowzero=1))


def _without_tail(names: list[str]) -> list[str]:
    """The names of a node's inputs without the absent ones at the end."""
    while names and not names[-1]:
        names = names[:-1]
    return names
