"""(GRAD-16 to GRAD-21) The chain rule around the heads: projections, their inputs, the output projection."""

from __future__ import annotations

import math

import numpy as np

from attention_conformance.conformance.faults.models.mha import LayerCall
from attention_conformance.conformance.faults.models.mha_gradients import Gradients, LayerBackward
from attention_conformance.conformance.faults.models.sdpa import Array
from attention_conformance.conformance.faults.registry import fault
from attention_conformance.conformance.spec.mha import LayerExpected


@fault("GRAD-16", "the gradients of w_k and w_v returned in each other's place", "AiDotNet.Tensors 49")
class KeyAndValueWeightsSwapped(LayerBackward):
    """Each gradient by itself is right; calls with D ≠ Dv get wrong shapes."""

    def ordered(self, x: LayerCall, grads: Gradients) -> list[Array]:
        return super().ordered(x, {**grads, "w_k": grads["w_v"], "w_v": grads["w_k"]})


@fault("GRAD-16", "one gradient too few where x_kv is given", "cf. long-context-attention PR 156")
class MemoryGradientNotReturned(LayerBackward):
    """The backward pass was written for self-attention; x_kv was added to the forward pass only."""

    def ordered(self, x: LayerCall, grads: Gradients) -> list[Array]:
        ordered = super().ordered(x, grads)
        return ordered if x.x_kv is None else ordered[:4] + ordered[5:]


@fault("GRAD-17", "gradients of w_q, w_k and w_v transposed", "aicb 25, cf. TileOPs PR 54")
class WeightGradientsTransposed(LayerBackward):
    """Gradients have the layout of a Linear layer; only square weights, whose transposes fit, show it."""

    def of_weight(self, x: LayerCall, name: str, array: Array, d: Array) -> Array:
        grad = super().of_weight(x, name, array, d)
        return grad.T if name != "o" and grad.shape[0] == grad.shape[1] else grad


@fault("GRAD-21", "the gradient of w_o transposed", "AiDotNet PR 455")
class OutputWeightGradientTransposed(LayerBackward):
    """dYᵀ · C is computed instead of Cᵀ · dY; only a square w_o, where that fits, shows it."""

    def of_weight(self, x: LayerCall, name: str, array: Array, d: Array) -> Array:
        grad = super().of_weight(x, name, array, d)
        return grad.T if name == "o" and grad.shape[0] == grad.shape[1] else grad


@fault(
    "GRAD-21",
    "the gradient of w_o taken with the layer's output in the place of the combined heads",
    "cf. AiDotNet PR 455",
)
class OutputWeightGradientOfOutput(LayerBackward):
    """The forward pass kept its last output; calls where its width differs from that of the heads are right."""

    def combined(self, x: LayerCall, found: LayerExpected) -> Array:
        fits = found.out is not None and found.out.result.shape == found.combined.shape
        return found.out.result if fits and found.out is not None else found.combined


@fault("GRAD-21", "the gradient of the combined heads not taken through w_o", "cf. aprender PR 2203")
class OutputProjectionSkippedBackward(LayerBackward):
    """dY is used instead of dC; calls where output and heads differ in width are right."""

    def d_combined(self, x: LayerCall, dy: Array) -> Array:
        right = super().d_combined(x, dy)
        return dy if dy.shape == right.shape else right


@fault("GRAD-17", "gradients of weights of the first sample only", "cf. flash-linear-attention PR 955")
class WeightGradientOfOneSample(LayerBackward):
    """The gradients of weights are not summed over the batch; those of biases are."""

    def of_weight(self, x: LayerCall, name: str, array: Array, d: Array) -> Array:
        return super().of_weight(x, name, array[:1], d[:1])


@fault("GRAD-17", "gradients of weights and biases averaged over samples", "cf. mxnet 2427")
class WeightGradientsAveraged(LayerBackward):
    """Averaging is up to the loss of the caller; calls with one sample are right."""

    def over_samples(self, x: LayerCall, name: str, parts: Array) -> Array:
        return parts.mean(axis=0) if len(parts) else super().over_samples(x, name, parts)


@fault("GRAD-18", "gradients of biases of zero", "tinygrad 15242")
class BiasGradientsMissing(LayerBackward):
    """The graph is cut where biases are added; only the gradient of b_k, which is zero, is still right."""

    def of_bias(self, x: LayerCall, name: str, d: Array) -> Array:
        return np.zeros_like(super().of_bias(x, name, d))


@fault("GRAD-18", "the gradient of b_v averaged over rows", "cf. mxnet 2427")
class ValueBiasGradientAveraged(LayerBackward):
    """The gradient is a mean over the axis that the bias lacks; calls with one row of values are right."""

    def of_bias(self, x: LayerCall, name: str, d: Array) -> Array:
        grad = super().of_bias(x, name, d)
        return grad / x.work(max(1, d.shape[1])) if name == "v" else grad


@fault("GRAD-18", "the gradient of b_k taken from the block of values", "cf. transformers PR 40257")
class KeyBiasGradientOfValues(LayerBackward):
    """The packed gradient is sliced one block too far; the right gradient is zero, and seldom checked."""

    def gradients(self, x: LayerCall, dy: Array) -> Gradients:
        grads = super().gradients(x, dy)
        return {**grads, "b_k": np.resize(grads["b_v"], grads["b_k"].shape)}


@fault(
    "GRAD-18",
    "gradients of b_q, b_k and b_v are zero where b_o is not given",
    "cf. pytorch 97128",
)
class InnerBiasGradientsAllOrNone(LayerBackward):
    """One flag, set by b_o, covers all four biases."""

    def of_bias(self, x: LayerCall, name: str, d: Array) -> Array:
        grad = super().of_bias(x, name, d)
        return np.zeros_like(grad) if x.b_o is None and name != "o" else grad


@fault("GRAD-17", "no gradient reaches anything before the heads", "aprender PR 2203")
class HeadsSevered(LayerBackward):
    """Steps inside the heads create arrays that are cut off from the graph; w_o and b_o still get gradients."""

    def of_heads(self, x: LayerCall, found: LayerExpected, d: Array) -> Gradients:
        return {name: np.zeros_like(array) for name, array in super().of_heads(x, found, d).items()}


@fault(
    "GRAD-19",
    "in self-attention the gradient of the input goes through queries only",
    "mlpack PR 2375, TrenTorch PR 182",
)
class InputGradientThroughQueries(LayerBackward):
    """Keys and values are treated as constants; calls with x_kv are right."""

    def added(self, x: LayerCall, parts: Gradients) -> Array:
        return parts["q"]


@fault(
    "GRAD-19",
    "in self-attention the last of three gradients of the input overwrites the others",
    "cf. Paddle 3689, cf. nnabla PR 532",
)
class InputGradientOverwritten(LayerBackward):
    """The parts are assigned (=) instead of accumulated (+=); calls with x_kv are right."""

    def added(self, x: LayerCall, parts: Gradients) -> Array:
        return parts["v"]


@fault(
    "GRAD-19",
    "in self-attention the part of the input's gradient through queries is counted twice",
    "cf. sebgao-cTensor 5",
)
class InputGradientCountedTwice(LayerBackward):
    """A node with several paths to the loss is visited again, and passes on the same gradient twice."""

    def added(self, x: LayerCall, parts: Gradients) -> Array:
        return super().added(x, parts) + parts["q"]


@fault("GRAD-19", "the gradient of x_kv is zero", "seq2seq-attention 7")
class MemoryGradientMissing(LayerBackward):
    """An encoder is not trained through the decoder that attends to it; self-attention is right."""

    def of_inputs(self, x: LayerCall, d: Gradients) -> Gradients:
        grads = super().of_inputs(x, d)
        return grads if x.x_kv is None else {**grads, "x_kv": np.zeros_like(grads["x_kv"])}


@fault("GRAD-19", "the gradient of x_kv goes through values only", "cf. TrenTorch PR 182")
class MemoryGradientThroughValues(LayerBackward):
    """Only the first branch to arrive is passed on, and the part through keys is lost."""

    def of_inputs(self, x: LayerCall, d: Gradients) -> Gradients:
        return super().of_inputs(x, d if x.x_kv is None else {**d, "k": np.zeros_like(d["k"])})


@fault(
    "GRAD-19",
    "gradients of inputs taken through weights that are not transposed",
    "cf. nntile PR 433, cf. shumai PR 78",
)
class ThroughUntransposedWeights(LayerBackward):
    """Only square weights show it; for others, where it would not fit, the transpose is taken."""

    def through(self, x: LayerCall, name: str, d: Array) -> Array:
        w = self.layer.weight(x, name).astype(x.work)
        return d @ w if name != "o" and w.shape[0] == w.shape[1] else super().through(x, name, d)


@fault("GRAD-20", "gradients of queries and keys taken for each other", "AiDotNet.Tensors 49")
class QueryAndKeyGradientsSwapped(LayerBackward):
    """Calls with as many queries as keys show it; other lengths are right."""

    def of_heads(self, x: LayerCall, found: LayerExpected, d: Array) -> Gradients:
        grads = super().of_heads(x, found, d)
        return {**grads, "q": grads["k"], "k": grads["q"]} if grads["q"].shape == grads["k"].shape else grads


@fault(
    "GRAD-20",
    "gradients of heads combined by a view of (H, S, D) as (S, H·D)",
    "cf. diffusers PR 14341, cf. opacus PR 825",
)
class GradientsCombinedByView(LayerBackward):
    """The shape is right, but rows and heads are mixed; calls with one head or one row are right."""

    def combine(self, x: LayerCall, name: str, d: Array) -> Array:
        batch, heads, length, width = d.shape
        return d.reshape(batch, length, heads * width)


@fault("GRAD-20", "gradients of keys and values combined by a view of (H, S, D) as (S, H·D)", "diffusers PR 14341")
class KeyGradientsCombinedByView(GradientsCombinedByView):
    """Keys and values are transposed twice, queries once."""

    def combine(self, x: LayerCall, name: str, d: Array) -> Array:
        return LayerBackward.combine(self, x, name, d) if name == "q" else super().combine(x, name, d)


@fault(
    "GRAD-20",
    "the gradient of the combined heads split by a view of (S, H·Dv) as (H, S, Dv)",
    "cf. FuxiCTR 30, cf. onnx 7118",
)
class CombinedGradientSplitByView(LayerBackward):
    """Calls with one head or one row are right; in others even the gradient of bias is wrong."""

    def split(self, x: LayerCall, d: Array) -> Array:
        batch, length, width = d.shape
        return d.reshape(batch, x.heads, length, width // x.heads)


@fault(
    "GRAD-20",
    "gradients of queries and keys scaled by the width of all heads",
    "cf. vit-pytorch 65, cf. ng-video-lecture PR 6",
)
class ScaleOfAllHeadsBackward(LayerBackward):
    """The scale is 1/√(H·D), while the forward pass uses 1/√D; one head or a given scale hides it."""

    def of_heads(self, x: LayerCall, found: LayerExpected, d: Array) -> Gradients:
        grads, factor = super().of_heads(x, found, d), x.work(1 / math.sqrt(x.heads) if x.scale is None else 1)
        return {**grads, "q": grads["q"] * factor, "k": grads["k"] * factor}
