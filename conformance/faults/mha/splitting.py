"""(MHA-5, MHA-7, MHA-11, MHA-16, MHA-17) Splitting into heads, their scale, combining them, and the forms of a call."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from attention_conformance.conformance.faults.models.mha import Layer, LayerCall
from attention_conformance.conformance.faults.models.sdpa import Array, Attention, Inputs
from attention_conformance.conformance.faults.registry import fault
from attention_conformance.conformance.faults.sdpa.scaling import ScaleIgnored, ScaleOfModelWidth, ScaleTwice
from attention_conformance.conformance.spec.mha import Form, LayerExpected, Projection
from attention_conformance.impls.validate import check_layer


@fault(
    "MHA-5",
    "heads split by a view of (S, H·D) as (H, S, D)",
    "FuxiCTR 30, Chinese-Text-Classification-Pytorch 53, onnx 7118",
)
class HeadsSplitByView(Layer):
    """The shape is right, but rows are mixed; one head or one row hides it."""

    def split(self, x: LayerCall, name: str, array: Array) -> Array:
        batch, length, width = array.shape
        return array.reshape(batch, x.heads, length, width // x.heads)


@fault("MHA-5", "heads interleaved: column d·H + h belongs to head h", "cf. slapo PR 46, cf. tt-metal 6243")
class HeadsInterleaved(Layer):
    """Columns are read as (D, H) instead of (H, D); one head, or a head width of 1, hides it."""

    def split(self, x: LayerCall, name: str, array: Array) -> Array:
        batch, length, width = array.shape
        return array.reshape(batch, length, width // x.heads, x.heads).transpose(0, 3, 1, 2)


@fault("MHA-5", "heads of the values interleaved, those of q and k not", "cf. tt-metal 6243")
class ValueHeadsInterleaved(HeadsInterleaved):
    """The attention weights are still right."""

    def split(self, x: LayerCall, name: str, array: Array) -> Array:
        return super().split(x, name, array) if name == "v" else Layer.split(self, x, name, array)


@fault(
    "MHA-11",
    "heads combined by a view of (H, S, Dv) as (S, H·Dv)",
    "opacus PR 825, transformer-from-scratch PR 6, attention-is-all-you-need-pytorch 7, onnx 7118",
)
class HeadsCombinedByView(Layer):
    """The shape is right, but rows and heads are mixed; one head or one row hides it."""

    def combine(self, x: LayerCall, output: Array) -> Array:
        batch, heads, length, width = output.shape
        return output.reshape(batch, length, heads * width)


@fault("MHA-11", "combined heads (B, S, H·Dv) viewed as (S, B, H·Dv)", "source 002, cf. opacus PR 825")
class CombinedScrambled(Layer):
    """A batch of one is still right; in larger batches, samples get each other's rows."""

    def combine(self, x: LayerCall, output: Array) -> Array:
        combined = super().combine(x, output)
        batch, length, width = combined.shape
        return combined.reshape(length, batch, width).swapaxes(0, 1)


@fault("MHA-17", "the sequence-first output is a view of the batch-first one", "source 002, cf. opacus PR 825")
class SequenceFirstByView(Layer):
    """Only sequence-first calls with a batch of two or more show it."""

    def returned(self, x: LayerCall, output: Array) -> Array:
        if x.unbatched or not x.sequence_first:
            return super().returned(x, output)
        return output.reshape(output.shape[1], output.shape[0], output.shape[2])


class CrossedBatches(Attention):
    """Multiplies q (S, …, B, D) with k (B, …, D, S)."""

    def scores(self, x: Inputs, q: Array, k: Array) -> Array:
        mixed = q.transpose(2, 1, 0, 3) @ k.swapaxes(2, 3)  # broadcasts where B = 1, pairs wrong batches where B = S
        return mixed.transpose(2, 1, 0, 3) * x.work(self.scale(x))


@fault("MHA-6", "k permuted to (B, D, S) while q stays (S, B, D)", "source 002")
class KeysPermuted(Layer):
    """A batch of one is right, a batch as large as Sq gives a wrong result, and all others raise an error."""

    attention = CrossedBatches


@fault(
    "MHA-7",
    "the default scale of a layer is of all heads together, 1/√(H·D)",
    "source 002, vit-pytorch 65, ng-video-lecture PR 6, TMUnet 13",
)
class LayerScaleOfAllHeads(Layer):
    """With a single head the result is right."""

    attention = ScaleOfModelWidth


@fault("MHA-7", "the default scale of a layer is of the input's width, 1/√E", "source 004, ng-video-lecture PR 6")
class LayerScaleOfInputWidth(Layer):
    """A single head with D = E is still right."""

    def inputs_of_heads(self, x: LayerCall, q: Array, k: Array, v: Array) -> Inputs:
        inputs = super().inputs_of_heads(x, q, k, v)
        return replace(inputs, scale=1 / math.sqrt(x.x_q.shape[-1]) if x.scale is None else x.scale)


@fault("MHA-7", "the default scale applied by the layer and again by its attention", "transformers 38277")
class LayerScaleTwice(Layer):
    """Scores are scaled by 1/D instead of 1/√D."""

    attention = ScaleTwice


@fault("MHA-7", "the scale given to a layer ignored", "transformers 44380, pytorch 174049")
class LayerScaleIgnored(Layer):
    """The inner attention always uses the default scale."""

    attention = ScaleIgnored


@fault("MHA-16", "rows of an unbatched input taken for batches of one row", "cf. TDANet 3")
class UnbatchedAsBatch(Layer):
    """In unbatched calls every row attends only to itself."""

    def layer(self, x: LayerCall, queries: Array, keys: Array) -> LayerExpected:
        if not x.unbatched:
            return super().layer(x, queries, keys)
        return super().layer(x, queries.swapaxes(0, 1), keys.swapaxes(0, 1))

    def returned(self, x: LayerCall, output: Array) -> Array:
        return output[:, 0] if x.unbatched else super().returned(x, output)

    def weights(self, x: LayerCall, weights: Array) -> Array:
        return super().weights(x, weights.swapaxes(0, 3)) if x.unbatched else super().weights(x, weights)


@fault("MHA-17", "sequence_first ignored: attention goes over the batch", "AEMatter 3, OmDet 19, TDANet 3")
class SequenceFirstIgnored(Layer):
    """The sequence and batch axes are swapped; the shapes still fit, except those of masks and lengths."""

    def batch_first(self, x: LayerCall, array: Array) -> Array:
        return super().batch_first(replace(x, sequence_first=False), array)

    def returned(self, x: LayerCall, output: Array) -> Array:
        return super().returned(replace(x, sequence_first=False), output)

    def form(self, x: LayerCall) -> Form:
        return super().form(replace(x, sequence_first=False))


@fault("MHA-19", "heads that do not divide the width accepted: the rest of the columns is cut", "TiSASRec.pytorch 3")
class HeadsRemainderCut(Layer):
    """The code never checks that H · ⌊width / H⌋ equals the width."""

    def check(self, x: LayerCall) -> None:
        names = ("w_q", "w_k", "w_v", "w_o", "b_q", "b_k", "b_v", "b_o", "gamma", "beta")
        check_layer(1, x.x_q, x.x_kv, **{name: getattr(x, name) for name in names})

    def split(self, x: LayerCall, name: str, array: Array) -> Array:
        return super().split(x, name, array[:, :, : array.shape[2] // x.heads * x.heads])

    def out(self, x: LayerCall, combined: Array) -> Projection | None:
        return super().out(x if x.w_o is None else replace(x, w_o=x.w_o[: combined.shape[2]]), combined)


@fault(
    "MHA-14",
    "weights per head viewed as (B, H, …) although they are (H, B, …)",
    "cf. attention-is-all-you-need-pytorch 120",
)
class WeightsOfWrongHead(Layer):
    """Heads are folded before the batch. The output is right; one batch or one head hides it."""

    def weights(self, x: LayerCall, weights: Array) -> Array:
        return super().weights(x, np.ascontiguousarray(weights.swapaxes(0, 1)).reshape(weights.shape))


@fault("MHA-14", "weights averaged over the heads where those of each head are requested", "fairseq 3365")
class WeightsAlwaysAveraged(Layer):
    """A fast path always returns the mean over heads."""

    def weights(self, x: LayerCall, weights: Array) -> Array:
        return weights.mean(axis=1)

    def form(self, x: LayerCall) -> Form:
        return super().form(replace(x, average_weights=True))


@fault("MHA-15", "weights of the heads summed in the place of their mean", "cf. Informer2020 23")
class WeightsSummed(Layer):
    """With a single head the result is right."""

    def weights(self, x: LayerCall, weights: Array) -> Array:
        return weights.sum(axis=1) if x.average_weights else weights
