"""(SDPA-1, SDPA-18, SDPA-19, SDPA-27) Wrong dtype, shape or axis order of the results."""

from __future__ import annotations

import math

import numpy as np

from attention_conformance.conformance.faults.models.sdpa import Array, Attention, Inputs
from attention_conformance.conformance.faults.registry import fault


@fault("SDPA-27", "half precision returned as float32", "flash-attention-jax PR 13, tinygrad PR 5100")
class OutputFloat32(Attention):
    """The accumulator is returned without conversion."""

    def stored(self, x: Inputs, output: Array) -> Array:
        return output


@fault("SDPA-27", "a bias widens the output to float32", "transformers PR 16901")
class BiasWidens(Attention):
    """Adding a bias of another dtype promotes the result."""

    def stored(self, x: Inputs, output: Array) -> Array:
        return output if x.bias is not None else super().stored(x, output)


@fault("SDPA-27", "weights returned in float32", "flash-attention-jax PR 13")
class WeightsFloat32(Attention):
    """The softmax is returned in the dtype that it is computed in."""

    def stored_weights(self, x: Inputs, weights: Array) -> Array:
        return weights


@fault("SDPA-1", "the output in layout (B, S, H, D)", "xformers 677, xformers 932")
class OutputSequenceFirst(Attention):
    """With Sq = Hq the shape is right, but the values are not."""

    def stored(self, x: Inputs, output: Array) -> Array:
        return super().stored(x, output).transpose(0, 2, 1, 3)


@fault("SDPA-1", "the output has D columns where Dv differs", "pytorch 176767")
class OutputWidthOfKeys(Attention):
    """The output is cut, or filled up with zeros."""

    def stored(self, x: Inputs, output: Array) -> Array:
        wide = np.zeros((*output.shape[:3], x.q.shape[3]), x.dtype)
        columns = min(wide.shape[3], output.shape[3])
        wide[..., :columns] = super().stored(x, output)[..., :columns]
        return wide


@fault("SDPA-1", "an error for Dv ≠ D", "coreai-torch PR 117, pytorch 128348, tt-metal PR 42423")
class ValueWidthRefused(Attention):
    """The call fails with an error instead of being refused as unsupported."""

    def check(self, x: Inputs) -> None:
        super().check(x)
        if x.v.shape[3] != x.q.shape[3]:
            raise RuntimeError("head widths of k and v differ")


@fault("SDPA-1", "the row axis squeezed away for one query", "flash-attention 1537")
class OneQuerySqueezed(Attention):
    """A step of decoding returns (B, Hq, Dv)."""

    def stored(self, x: Inputs, output: Array) -> Array:
        output = super().stored(x, output)
        return output[:, :, 0] if x.shape[2] == 1 else output


@fault("SDPA-1", "the value width cut to a multiple of 8", "tiny-flash-attention 12")
class ValueColumnsLost(Attention):
    """Columns past the last multiple of 8 are zero. Calls with Dv ≤ 8 are right."""

    def stored(self, x: Inputs, output: Array) -> Array:
        output = super().stored(x, output)
        if output.shape[3] > 8:
            output[..., output.shape[3] // 8 * 8 :] = 0
        return output


@fault("SDPA-19", "lse in base 2", "sglang PR 35045, vllm PR 28840, flashinfer 2113")
class LseBaseTwo(Attention):
    """The kernel computes with exp2 and returns its lse without conversion."""

    def stored_lse(self, x: Inputs, lse: Array) -> Array:
        return (lse / math.log(2)).astype(lse.dtype)


@fault("SDPA-19", "lse in the storage dtype of half-precision calls", "cf. ring-flash-attention 22")
class LseInStorage(Attention):
    """A bfloat16 lse keeps only three digits. Calls in float32 and wider are right."""

    def stored_lse(self, x: Inputs, lse: Array) -> Array:
        return lse.astype(x.dtype)


@fault("SDPA-19", "lse multiplied by ln 2", "pytorch 181645, FlashMLA PR 106")
class LseTimesLogTwo(Attention):
    """A natural lse is converted as if it were in base 2."""

    def stored_lse(self, x: Inputs, lse: Array) -> Array:
        return (lse * math.log(2)).astype(lse.dtype)


@fault("SDPA-19", "lse without the maximum", "aiter PR 3334, flash-attention 404")
class LseWithoutMaximum(Attention):
    """The code returns log Σ exp(s − m) and does not add the maximum m."""

    def lse(self, x: Inputs, top: Array, total: Array, allowed: Array) -> Array:
        return super().lse(x, top, total, allowed) - top


@fault("SDPA-19", "lse of the wrong heads with grouped heads", "flash-attention 648, vllm-flash-attention PR 87")
class LseGroupedHeads(Attention):
    """The heads of lse are ordered as if head h read key head h mod Hkv; the output is right."""

    def stored_lse(self, x: Inputs, lse: Array) -> Array:
        b, h, s = lse.shape
        return lse.reshape(b, -1, x.group, s).swapaxes(1, 2).reshape(b, h, s) if x.group > 1 else lse


@fault("SDPA-19", "lse adds the unscaled maximum to the log of the scaled sum", "cf. aiter PR 3334")
class LseUnscaled(Attention):
    """The scale is applied inside exp but not outside it. Calls with a scale of 1 are right."""

    def lse(self, x: Inputs, top: Array, total: Array, allowed: Array) -> Array:
        scale = x.work(self.scale(x) or 1.0)
        return super().lse(x, top / scale, total, allowed)


@fault("SDPA-18", "weights averaged over the heads", "fairseq 3365")
class WeightsAveraged(Attention):
    """The weights are (B, Sq, Sk), whatever is requested."""

    def stored_weights(self, x: Inputs, weights: Array) -> Array:
        return super().stored_weights(x, weights.mean(axis=1))


@fault("SDPA-18", "scores returned as weights", "flash-attention 902, emx-onnx-cgen PR 731")
class WeightsBeforeSoftmax(Attention):
    """The code returns the scaled product q · k, as another output mode of the operator does."""

    def stored_weights(self, x: Inputs, weights: Array) -> Array:
        q, k, _ = self.operands(x)
        return super().stored_weights(x, self.scores(x, q, k))


@fault("SDPA-18", "weights returned without the mask", "keras 23038")
class WeightsBeforeMask(Attention):
    """A separate softmax over all keys computes the returned weights."""

    def stored_weights(self, x: Inputs, weights: Array) -> Array:
        q, k, _ = self.operands(x)
        s = self.added(x, self.capped(x, self.scores(x, q, k)))
        return super().stored_weights(x, self.softmax(x, s, np.ones(x.shape, bool))[0])
