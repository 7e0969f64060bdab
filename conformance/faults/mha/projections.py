"""(MHA-2 to MHA-4, MHA-12) Projections of a layer: weights, biases and inputs that are confused or ignored."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from attention_conformance.conformance.faults.models.mha import Layer, LayerCall
from attention_conformance.conformance.faults.models.sdpa import Array
from attention_conformance.conformance.faults.registry import fault
from attention_conformance.conformance.spec.mha import LayerExpected, Projection, SublayerExpected


@fault(
    "MHA-2",
    "weights of q, k and v used as their transpose, as a Linear layer holds them",
    "AutoGPTQ PR 139, cf. mlxcel PR 926, cf. tiny-llm PR 60",
)
class WeightsTransposed(Layer):
    """Only square weights are affected; others do not fit transposed and are used unchanged."""

    def weight(self, x: LayerCall, name: str) -> Array:
        w = super().weight(x, name)
        return w.T if name != "o" and w.shape[0] == w.shape[1] else w


@fault("MHA-12", "the output weight used as its transpose", "source 001, AutoGPTQ PR 139")
class OutputWeightTransposed(Layer):
    """The article prints W^O transposed; only a square weight is affected."""

    def weight(self, x: LayerCall, name: str) -> Array:
        w = super().weight(x, name)
        return w.T if name == "o" and w.shape[0] == w.shape[1] else w


@fault("MHA-2", "values projected with the weight and bias of keys", "AnnotatedTransformer 1")
class ValuesByKeyWeight(Layer):
    """The copied line still says ``k_proj(value)``; D ≠ Dv gives a wrong shape or an error."""

    def project(self, x: LayerCall, name: str, array: Array) -> Projection:
        return super().project(x, "k" if name == "v" else name, array)


@fault("MHA-2", "keys projected with the weight and bias of values", "transformers PR 40257")
class KeysByValueWeight(Layer):
    """The slice of the fused weight for k is one block too far along; D ≠ Dv gives an error."""

    def project(self, x: LayerCall, name: str, array: Array) -> Projection:
        return super().project(x, "v" if name == "k" else name, array)


@fault("MHA-2", "biases of q, k and v ignored", "ANEForge PR 253, candle-vllm PR 167")
class BiasesIgnored(Layer):
    """The weights are loaded without their biases; models without biases are still right."""

    def bias(self, x: LayerCall, name: str) -> Array | None:
        return super().bias(x, name) if name == "o" else None


@fault("MHA-2", "biases used all together or not at all", "cf. pytorch 97128, cf. ANEForge PR 253")
class BiasesAllOrNone(Layer):
    """One flag covers all four biases: where one is not given, the others are ignored."""

    def bias(self, x: LayerCall, name: str) -> Array | None:
        given = (x.b_q, x.b_k, x.b_v, x.b_o if x.w_o is not None else x.b_v)
        return None if any(b is None for b in given) else super().bias(x, name)


@fault("MHA-2", "the bias of values ignored", "cf. ANEForge PR 253")
class ValueBiasIgnored(Layer):
    """Queries and keys still get their biases."""

    def bias(self, x: LayerCall, name: str) -> Array | None:
        return None if name == "v" else super().bias(x, name)


@fault("MHA-12", "the output bias added twice", "text-generation-inference 1036")
class OutputBiasTwice(Layer):
    """Each of two devices adds the bias to its part of the sum."""

    def bias(self, x: LayerCall, name: str) -> Array | None:
        b = super().bias(x, name)
        return 2 * b if name == "o" and b is not None else b


@fault("MHA-12", "the output bias added before the output projection", "cf. ml-ane-transformers PR 2")
class OutputBiasBeforeProjection(Layer):
    """The code computes (combined + b_o) · w_o; calls whose widths do not allow that are right."""

    def out(self, x: LayerCall, combined: Array) -> Projection | None:
        if x.b_o is None or len(x.b_o) != combined.shape[2]:
            return super().out(x, combined)
        return super().out(replace(x, b_o=None), combined + x.b_o.astype(x.work))


@fault("MHA-12", "no output projection", "Kyubyong-transformer 117, sequence_labeling_tf PR 83")
class OutputProjectionMissing(Layer):
    """The combined heads are returned as the output even where w_o is given."""

    def out(self, x: LayerCall, combined: Array) -> Projection | None:
        return None


@fault("MHA-2", "ReLU after the projections of q, k and v", "Kyubyong-transformer 49, Kyubyong-transformer 53")
class ProjectionsRectified(Layer):
    """A dense layer is used with its activation left on."""

    def project(self, x: LayerCall, name: str, array: Array) -> Projection:
        projection = super().project(x, name, array)
        return projection if name == "o" else replace(projection, result=np.maximum(projection.result, x.work(0)))


@fault("MHA-4", "keys and values always of x_q: x_kv ignored", "feedback-transformer-pytorch 2")
class CrossIgnored(Layer):
    """Cross-attention becomes self-attention; an x_kv of another width gives an error."""

    def inputs(self, x: LayerCall) -> tuple[Array, Array]:
        queries, _ = super().inputs(x)
        return queries, queries


@fault("MHA-4", "in cross-attention keys come from x_q, and only values from x_kv", "ml-cvnets 81")
class KeysOfQueryInput(Layer):
    """Calls with Sq = Sk give a wrong result; all others raise an error."""

    def projections(self, x: LayerCall, queries: Array, keys: Array) -> tuple[Projection, Projection, Projection]:
        q, _, v = super().projections(x, queries, keys)
        return q, self.project(x, "k", queries), v


@fault("MHA-18", "projections summed in half precision", "executorch PR 20090, ml_dtypes 63")
class ProjectionsSummedInHalf(Layer):
    """float16 and bfloat16 sums accumulate term by term in their own dtype; a few columns hide it."""

    def product(self, x: LayerCall, array: Array, w: Array) -> Array:
        if x.dtype.itemsize != 2:
            return super().product(x, array, w)
        total = np.zeros((*array.shape[:2], w.shape[1]), x.dtype)
        for column in range(w.shape[0]):
            total = (total + array[:, :, column, None] * w[column]).astype(x.dtype)
        return total.astype(x.work)


@fault("MHA-23", "the scale multiplied into w_q in place, and taken out again", "cf. ARENA_3.0 PR 225")
class WeightScaledInPlace(Layer):
    """After the call, the caller's w_q differs by a rounding error or two."""

    def __call__(self, x_q: Array, w_q: Array, w_k: Array, w_v: Array, **keywords: Any) -> Any:
        results = super().__call__(x_q, w_q, w_k, w_v, **keywords)
        if w_q.flags.writeable:
            w_q *= w_q.dtype.type(0.3)
            w_q /= w_q.dtype.type(0.3)
        return results


class Lenient(Layer):
    """Trims the call with ``fitted`` so that it fits, and then computes."""

    def fitted(self, x: LayerCall) -> LayerCall:
        """The call as it would be read: one that fits."""
        return x

    def check(self, x: LayerCall) -> None:
        super().check(self.fitted(x))

    def attend(self, x: LayerCall) -> LayerExpected | SublayerExpected:
        return super().attend(self.fitted(x))


def to_width(b: Array | None, width: int) -> Array | None:
    """A bias cut to a width, or with its last number repeated."""
    return None if b is None else b[np.minimum(np.arange(width), len(b) - 1)]


@fault("MHA-20", "weights and biases that do not fit accepted", "cf. AiDotNet.Tensors PR 270")
class WeightsUnchecked(Lenient):
    """The smaller of two sizes is used, and a short bias is read past its end."""

    def fitted(self, x: LayerCall) -> LayerCall:
        columns = min(x.w_q.shape[1], x.w_k.shape[1])
        rows = min(x.x_q.shape[-1], x.w_q.shape[0])
        x = replace(x, x_q=x.x_q[..., :rows], w_q=x.w_q[:rows, :columns], w_k=x.w_k[:, :columns])
        if x.x_kv is None:
            x = replace(x, w_k=x.w_k[:rows], w_v=x.w_v[:rows])
        return replace(x, b_q=to_width(x.b_q, columns), b_k=to_width(x.b_k, columns))


@fault("MHA-23", "strides of inputs and weights ignored", "pytorch PR 187506, pytorch 195320, pytorch 181133")
class LayerStridesIgnored(Lenient):
    """Each array is read from its first element on as if it were contiguous."""

    def fitted(self, x: LayerCall) -> LayerCall:
        x_q, w_q, w_k, w_v = (as_contiguous(array) for array in (x.x_q, x.w_q, x.w_k, x.w_v))
        return replace(x, x_q=x_q, w_q=w_q, w_k=w_k, w_v=w_v)


def as_contiguous(array: Array) -> Array:
    """The memory from the first element on, in the array's shape; arrays that repeat elements stay unchanged."""
    if array.base is None or 0 in array.strides:
        return array
    strides = np.empty(array.shape, array.dtype).strides
    return np.lib.stride_tricks.as_strided(array, strides=strides, writeable=False)
