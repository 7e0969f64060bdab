"""The multi-head layer with ONNX Runtime's own operators: MultiHeadAttention between MatMuls, and Attention by itself.

Source: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md.  Builders as ``impls.onnx.graph``
describes them: they get a description of each array and return a model, for one shape.  The operators have kernels for
float32 and float16; the value of a masked score is their default, −10000.  No weights are returned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from onnx import ModelProto, TensorProto

from attention_conformance.impls.onnx.graph import MICROSOFT, Graph, Input, float_attribute

#: The standard opset for the nodes around the operator.
OPSET = 21


def multi_head(
    x_q: Input,
    w_q: Input,
    w_k: Input,
    w_v: Input,
    *,
    heads: int,
    x_kv: Input | None = None,
    w_o: Input | None = None,
    b_q: Input | None = None,
    b_k: Input | None = None,
    b_v: Input | None = None,
    b_o: Input | None = None,
    mask: Input | None = None,
    bias: Input | None = None,
    is_causal: bool = False,
    kv_lengths: Input | None = None,
    scale: float | None = None,
    sequence_first: bool = False,
) -> ModelProto:
    """A model of MatMul nodes and one MultiHeadAttention node, to which the biases are given if all three are there.

    ``mask`` becomes key_padding_mask as (B, Sk) or (B, Sq, Sk), ``kv_lengths`` the same input as (B,), ``bias`` becomes
    attention_bias.  Raises NotImplementedError for other masks, for a mask together with lengths, and for a bias that
    repeats rows or keys.
    """
    graph = _Layer()
    sizes = _sizes(x_q, x_kv, sequence_first)
    source = graph.batch_first(x_q, sequence_first)
    target = source if x_kv is None else graph.batch_first(x_kv, sequence_first)
    packed = b_q is not None and b_k is not None and b_v is not None
    projected = [
        graph.project(source, w_q, None if packed else b_q),
        graph.project(target, w_k, None if packed else b_k),
        graph.project(target, w_v, None if packed else b_v),
    ]
    biases = graph.node("Concat", ["b_q", "b_k", "b_v"], "b_qkv", axis=0) if packed else ""
    graph.operator(
        "MultiHeadAttention",
        [*projected, biases, graph.padding(mask, kv_lengths, sizes), graph.additive(bias, sizes)],
        heads,
        is_causal,
        float_attribute("scale", scale, x_q.dtype),
    )
    inputs = (x_q, w_q, w_k, w_v, x_kv, w_o, b_q, b_k, b_v, b_o, mask, bias, kv_lengths)
    return graph.finished(x_q, w_o, b_o, sequence_first, inputs)


def packed(
    x_q: Input,
    w_q: Input,
    w_k: Input,
    w_v: Input,
    *,
    heads: int,
    w_o: Input | None = None,
    b_q: Input | None = None,
    b_k: Input | None = None,
    b_v: Input | None = None,
    b_o: Input | None = None,
    mask: Input | None = None,
    bias: Input | None = None,
    is_causal: bool = False,
    kv_lengths: Input | None = None,
    scale: float | None = None,
    sequence_first: bool = False,
) -> ModelProto:
    """A model of one Attention node on the three weights side by side; only for self-attention.

    ``mask`` and ``kv_lengths`` become mask_index, ``bias`` attention_bias, as in ``multi_head``.  Raises
    NotImplementedError as that does, and for one or two of the three biases.  Without any, the operator's optional
    input is left out, and ONNX Runtime 1.31 crashes on the CPU (microsoft/onnxruntime issue 25005).
    """
    graph = _Layer()
    sizes = _sizes(x_q, None, sequence_first)
    given = [b for b in (b_q, b_k, b_v) if b is not None]
    if len(given) not in (0, 3):
        # "Bias tensor with shape (hidden_size + hidden_size + v_hidden_size) for input projection"
        raise NotImplementedError("the operator has one bias input for q, k and v together")
    source = graph.batch_first(x_q, sequence_first)
    weights = graph.node("Concat", ["w_q", "w_k", "w_v"], "w_qkv", axis=1)
    biases = graph.node("Concat", ["b_q", "b_k", "b_v"], "b_qkv", axis=0) if given else ""
    index, additive = graph.padding(mask, kv_lengths, sizes), graph.additive(bias, sizes)
    attributes = float_attribute("scale", scale, x_q.dtype)
    graph.operator(
        "Attention",
        [source, weights, biases, index, "", additive],
        heads,
        is_causal,
        attributes | {"qkv_hidden_sizes": [w.shape[1] for w in (w_q, w_k, w_v)]},
    )
    inputs = (x_q, w_q, w_k, w_v, w_o, b_q, b_k, b_v, b_o, mask, bias, kv_lengths)
    return graph.finished(x_q, w_o, b_o, sequence_first, inputs)


@dataclass(frozen=True)
class _Sizes:
    batch: int
    queries: int
    keys: int


class _Layer(Graph):
    """The nodes of a layer; a method returns "" for nothing."""

    def batch_first(self, x: Input, sequence_first: bool) -> str:
        """(B, S, E) of an input."""
        if len(x.shape) == 2:
            return self.node("Unsqueeze", [x.name, self.constant(f"{x.name}_axes", (0,))], f"{x.name}_batched")
        if sequence_first:
            return self.node("Transpose", [x.name], f"{x.name}_batch_first", perm=[1, 0, 2])
        return x.name

    def project(self, x: str, w: Input, b: Input | None) -> str:
        """The nodes of x @ w + b."""
        y = self.node("MatMul", [x, w.name], f"{w.name}_product")
        return y if b is None else self.node("Add", [y, b.name], f"{w.name}_sum")

    def padding(self, mask: Input | None, kv_lengths: Input | None, sizes: _Sizes) -> str:
        """The operator's one mask: int32 (B, Sk) or (B, Sq, Sk), 1 where a key may be attended to, or lengths (B,)."""
        if mask is not None and kv_lengths is not None:
            # "Key padding mask with shape (batch_size), (3 * batch_size + 2), (batch_size, kv_sequence_length)"
            raise NotImplementedError("the operator has one input for masks and lengths")
        if kv_lengths is not None:
            return self.node("Cast", ["kv_lengths"], "lengths", to=TensorProto.INT32)
        if mask is None:
            return ""
        shapes: dict[tuple[int, ...], tuple[int, ...]] = {
            (sizes.batch, 1, 1, sizes.keys): (sizes.batch, sizes.keys),
            (sizes.batch, 1, sizes.queries, sizes.keys): (sizes.batch, sizes.queries, sizes.keys),
        }
        shape = shapes.get(_aligned(mask))
        if shape is None:
            # "(batch_size, sequence_length, total_sequence_length)"
            raise NotImplementedError("the operator's mask is (B, Sk) or (B, Sq, Sk), the same for all heads")
        reshaped = self.reshape("mask", "mask_reshaped", shape)
        return self.node("Cast", [reshaped], "padding", to=TensorProto.INT32)

    def additive(self, bias: Input | None, sizes: _Sizes) -> str:
        """attention_bias (B or 1, H or 1, Sq, Sk); other misfits are left to the operator."""
        if bias is None:
            return ""
        shape = _aligned(bias)
        if any(n == 1 != full for n, full in zip(shape[2:], (sizes.queries, sizes.keys), strict=True)):
            # "with shape (batch_size or 1, num_heads or 1, sequence_length, total_sequence_length)"
            raise NotImplementedError("attention_bias is (B or 1, H or 1, Sq, Sk)")
        return self.reshape("bias", "bias_reshaped", shape)

    def operator(self, name: str, inputs: list[str], heads: int, is_causal: bool, attributes: dict[str, Any]) -> None:
        """The contrib operator; its output is called "combined"."""
        self.node(
            name, inputs, "combined", domain=MICROSOFT, num_heads=heads, unidirectional=int(is_causal), **attributes
        )

    def finished(
        self, x_q: Input, w_o: Input | None, b_o: Input | None, sequence_first: bool, inputs: tuple[Input | None, ...]
    ) -> ModelProto:
        """The output projection, the order of the axes, and the model."""
        output = "combined" if w_o is None else self.project("combined", w_o, b_o)
        if len(x_q.shape) == 2:
            self.node("Squeeze", [output, self.constant("output_axes", (0,))], "output")
        elif sequence_first:
            self.node("Transpose", [output], "output", perm=[1, 0, 2])
        else:
            self.node("Identity", [output], "output")
        return self.model(inputs, ("output",), OPSET)


def _sizes(x_q: Input, x_kv: Input | None, sequence_first: bool) -> _Sizes:
    """Batch, queries and keys of the inputs as they are laid out."""
    keys = (x_kv or x_q).shape
    if len(x_q.shape) == 2:
        return _Sizes(1, x_q.shape[0], keys[0])
    length = 0 if sequence_first else 1
    return _Sizes(x_q.shape[1 - length], x_q.shape[length], keys[length])


def _aligned(array: Input) -> tuple[int, ...]:
    """The shape with axes of length 1 in front, as broadcasting to (B, H, Sq, Sk) puts them."""
    return (1,) * (4 - len(array.shape)) + array.shape
