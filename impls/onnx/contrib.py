"""ONNX Runtime's own operators, which its transformer models use: MultiHeadAttention and GroupQueryAttention.

Source: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md.  They take
(B, S, H · D), so the layout here is (B, S, H, D), another view of it.  They have kernels for float32 and float16, no
type for float64, and no CPU kernel for bfloat16.  A model is for one shape.
"""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, TensorProto

from attention_conformance.impls.onnx.graph import MICROSOFT, Graph, Input, float_attribute

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
        # "Key with shape (batch_size, kv_sequence_length, hidden_size)", as wide as the queries
        raise NotImplementedError("the operator has no grouped heads")
    _refuse_repeated(bias, q.shape[1], k.shape[1])
    if mask is not None and kv_lengths is not None:
        # "Key padding mask with shape (batch_size), (3 * batch_size + 2), (batch_size, kv_sequence_length)"
        raise NotImplementedError("the operator has one key_padding_mask input for masks and lengths")
    graph = Graph()
    flat = _flatten(graph, q, k, v)
    allowed = ""
    if mask is not None:
        allowed = graph.reshape("mask", "mask_2d", _padding_shape(mask, q, k))
    if kv_lengths is not None:
        allowed = "kv_lengths"
    padding = graph.node("Cast", [allowed], "padding", to=TensorProto.INT32) if allowed else ""
    graph.node(
        "MultiHeadAttention",
        [*flat, "", padding, "bias" if bias else ""],
        "flat",
        domain=MICROSOFT,
        num_heads=q.shape[2],
        unidirectional=int(is_causal),
        **float_attribute("scale", scale, q.dtype),
    )
    graph.reshape("flat", "output", (*q.shape[:3], v.shape[3]))
    return graph.model((q, k, v, mask, bias, kv_lengths), ("output",), OPSET)


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
    that repeats rows or keys, and key lengths together with a past: the operator expects the new keys of a batch
    directly after its own last one.
    """
    if q.shape[1] != k.shape[1]:
        # says "query and key must have the same sequence length when past_key is not provided"
        raise NotImplementedError("the operator needs as many queries as new keys")
    if kv_lengths is not None and past_key is not None:
        # "Equivalent to (total_sequence_lengths - 1)."
        raise NotImplementedError("with seqlens_k the new keys lie behind the last one of each batch, not of the past")
    if past_key is not None and q.shape[0] != 1 != q.shape[1]:
        # "`sequence_length > 1` requires `batch_size == 1`"
        raise NotImplementedError("with a past the operator takes several new tokens for a batch of one only")
    if v.shape[3] != k.shape[3]:
        # "Value with shape (batch_size, kv_sequence_length, kv_hidden_size)", as wide as the keys
        raise NotImplementedError("the operator has one width for keys and values")
    if q.shape[3] % 8:
        # says "head_size must be a multiple of 8"
        raise NotImplementedError("the operator needs a head width that is a multiple of 8")
    total = k.shape[1] + (past_key.shape[2] if past_key else 0)
    _refuse_repeated(bias, q.shape[1], total)
    left = _local_window(window, is_causal)
    graph = Graph()
    one, count = graph.constant("one", 1, np.int32), graph.constant("total", total, np.int32)
    flat = _flatten(graph, q, k, v)
    if kv_lengths is not None:
        lengths = graph.node("Cast", ["kv_lengths"], "lengths", to=TensorProto.INT32)
        last = graph.node("Sub", [lengths, one], "last")
    else:
        last = graph.constant("last", [total - 1] * q.shape[0], np.int32)
    extra = ["bias" if bias else "", "sinks" if sinks else ""]
    past = ["past_key" if past_key else "", "past_value" if past_value else ""]
    outputs = ["flat", "present_key", "present_value"]
    attributes = float_attribute("scale", scale, q.dtype) | float_attribute("softcap", softcap, q.dtype)
    if return_weights:
        outputs.append("weights")
        attributes["qk_output"] = AFTER_SOFTMAX
    if not is_causal:  # an attribute that older versions do not have
        attributes["causal"] = 0
    graph.node(
        "GroupQueryAttention",
        [*flat, *past, last, count, "", "", "", *extra],
        *outputs,
        domain=MICROSOFT,
        num_heads=q.shape[2],
        kv_num_heads=k.shape[2],
        local_window_size=left,
        **attributes,
    )
    graph.reshape("flat", "output", (*q.shape[:3], v.shape[3]))
    results = ["output", *(["weights"] if return_weights else [])]
    if past_key or past_value:
        results += ["present_key", "present_value"]
    return graph.model((q, k, v, bias, kv_lengths, sinks, past_key, past_value), results, OPSET)


def _refuse_repeated(bias: Input | None, queries: int, keys: int) -> None:
    """attention_bias is documented as (B or 1, H or 1, Sq, Sk); other misfits are left to the operator."""
    if bias is None:
        return
    last = bias.shape[-2:]
    if len(bias.shape) < 4 or any(n == 1 != full for n, full in zip(last, (queries, keys), strict=True)):
        # "with shape (batch_size or 1, num_heads or 1, sequence_length, total_sequence_length)"
        raise NotImplementedError("attention_bias is (B or 1, H or 1, Sq, Sk)")


def _padding_shape(mask: Input, q: Input, k: Input) -> tuple[int, ...]:
    """The shape in which key_padding_mask takes a mask that is the same for all heads."""
    batch, queries, keys = q.shape[0], q.shape[1], k.shape[1]
    if mask.shape == (batch, 1, 1, keys):
        return (batch, keys)
    if mask.shape == (batch, 1, queries, keys):
        return (batch, queries, keys)
    # "(batch_size, sequence_length, total_sequence_length)"
    raise NotImplementedError("key_padding_mask is (B, Sk) or (B, Sq, Sk), the same for all heads")


def _local_window(window: tuple[int | None, int | None] | None, is_causal: bool) -> int:
    """Attribute local_window_size: how many keys, the row's own included; −1 for no limit."""
    left, right = window or (None, None)
    if left is None and (right is None or is_causal):
        return -1
    if not is_causal:
        # "Must be -1 when causal is 0."
        raise NotImplementedError("local_window_size needs a causal mask")
    return -1 if left is None else left + 1


def _flatten(graph: Graph, *inputs: Input) -> list[str]:
    """(B, S, H, D) to (B, S, H · D) for each input."""
    return [graph.reshape(i.name, f"{i.name}_flat", (*i.shape[:2], i.shape[2] * i.shape[3])) for i in inputs]
