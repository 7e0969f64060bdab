"""(SDPA-7, SDPA-14, SDPA-24) What is written at masked keys, and sentinels that stand for infinity."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from attention_conformance.conformance.faults.models.sdpa import Array, Attention, Inputs
from attention_conformance.conformance.faults.registry import fault


class Filled(Attention):
    """Writes ``value`` at masked keys instead of −inf."""

    def value(self, x: Inputs) -> float:
        """The fill."""
        return -np.inf

    def filled(self, x: Inputs, s: Array, allowed: Array) -> Array:
        return np.where(allowed, s, x.work(self.value(x)))


class Unguarded(Attention):
    """Softmax without a guard: NaN in a row of −inf alone, as −inf − (−inf) is."""

    def top(self, x: Inputs, s: Array) -> Array:
        return self.sink_top(x, s.max(axis=3, keepdims=True, initial=-np.inf))

    def normalized(self, x: Inputs, powers: Array, total: Array, allowed: Array) -> Array:
        return powers / total


@fault("SDPA-7", "masked scores filled with −1e4", "onnxruntime 14363, lattice 361, transformers 14859")
class FillMinus1e4(Filled):
    """Right while the allowed scores are far above −1e4; a fully masked row gives the mean of v."""

    def value(self, x: Inputs) -> float:
        return -1e4


@fault("SDPA-7", "masked scores filled with −1e9", "source 001, annotated-transformer PR 67")
class FillMinus1e9(Filled):
    """Right but for fully masked rows, which give the mean of v."""

    def value(self, x: Inputs) -> float:
        return -1e9


@fault(
    "SDPA-7",
    "masked scores filled with −1e20, which float16 cannot hold",
    "source 004, flax 982, linformer-pytorch PR 19",
)
class FillMinus1e20(Unguarded, Filled):
    """NaN in fully masked rows in float16, where the fill is −inf, and the mean of v in all others."""

    def value(self, x: Inputs) -> float:
        return -np.inf if x.dtype == np.float16 else -1e20


@fault("SDPA-7", "masked scores filled with the smallest number of the dtype", "reformer-pytorch PR 26, darts PR 3087")
class FillSmallest(Filled):
    """−65504 in float16 is not far below scores that overflowed downwards, and fully masked rows give the mean of v."""

    def value(self, x: Inputs) -> float:
        return float(ml_dtypes.finfo(x.dtype).min)


@fault("SDPA-7", "masked scores filled with a tiny negative number", "transformer 10, gluonts PR 1401, RibonanzaNet 5")
class FillMinusEpsilon(Filled):
    """−1e-12 in place of −1e12: the masked keys weigh as much as a score of 0."""

    def value(self, x: Inputs) -> float:
        return -1e-12


@fault("SDPA-7", "the sign of the fill is lost: +inf", "memory-compressed-attention 2")
class FillPlusInf(Filled):
    """−float("−inf"): every row with a masked key is NaN."""

    def value(self, x: Inputs) -> float:
        return np.inf


@fault("SDPA-15", "a float64 fill of −1e308 that float32 turns into −inf", "jax PR 34114")
class FillFloat64(Unguarded, Filled):
    """Fully masked rows: the mean of v in float64, NaN in narrower dtypes."""

    def value(self, x: Inputs) -> float:
        return -1e308 if x.work is np.float64 else -np.inf


@fault("SDPA-13", "fills of mask and causal add up: −1e4 or −2e4", "onnxruntime 14363")
class FillsAddUp(Attention):
    """In a fully masked row the keys masked once win over the keys masked twice."""

    def filled(self, x: Inputs, s: Array, allowed: Array) -> Array:
        for mask in (self.mask_allows(x), self.causal_allows(x), self.lengths_allow(x) & self.window_allows(x)):
            s = s + np.where(mask, x.work(0), x.work(-1e4))
        return np.where(self.bias_allows(x), s, x.work(-np.inf))


@fault("SDPA-7", "a mask added as (1 − mask) · −inf, which is NaN where it allows", "onnx PR 8068")
class FillProduct(Attention):
    """0 · −inf is NaN, at every allowed key of a call with a mask."""

    def filled(self, x: Inputs, s: Array, allowed: Array) -> Array:
        if x.mask is not None:
            s = s + (1 - self.mask_allows(x).astype(x.work)) * x.work(-np.inf)
        return super().filled(x, s, allowed)


@fault("SDPA-13", "(1 − mask) · −inf, only where a mask meets causal", "onnx PR 8068")
class FillProductWithCausal(Attention):
    """A mask alone takes another path, which is right."""

    def filled(self, x: Inputs, s: Array, allowed: Array) -> Array:
        if x.mask is not None and x.is_causal:
            s = s + (1 - self.mask_allows(x).astype(x.work)) * x.work(-np.inf)
        return super().filled(x, s, allowed)


@fault("SDPA-4", "the mask is written before the scale: −inf · scale", "cudnn-frontend PR 804")
class FillBeforeScale(Attention):
    """Right for a positive scale; 0 · −inf is NaN, and a negative scale turns −inf into +inf."""

    def filled(self, x: Inputs, s: Array, allowed: Array) -> Array:
        return np.where(allowed, s, x.work(-np.inf) * x.work(self.scale(x)))


@fault("SDPA-4", "is_causal is written before the scale: −inf · scale", "cudnn-frontend PR 804")
class CausalBeforeScale(Attention):
    """Right for a positive scale, and in the last row of a square, which sees every key."""

    def filled(self, x: Inputs, s: Array, allowed: Array) -> Array:
        s = super().filled(x, s, allowed)
        return np.where(self.causal_allows(x), s, x.work(-np.inf) * x.work(self.scale(x)))


@fault("SDPA-24", "the smallest finite bias is taken for −inf", "torch-xpu-ops PR 5022, pytorch 109517")
class SmallestIsMask(Attention):
    """A row whose biases all equal the smallest number gives zeros instead of a mean."""

    def bias_allows(self, x: Inputs) -> Array:
        if x.bias is None:
            return super().bias_allows(x)
        return self.spread(x, x.bias).astype(np.float64) > float(ml_dtypes.finfo(x.dtype).min)


@fault("SDPA-14", "a running maximum that starts at −5e4: lower rows give zeros", "flashinfer 4267, burn PR 4697")
class SentinelMinus5e4(Attention):
    """A finite "infinity": every power of a row below it underflows."""

    def top(self, x: Inputs, s: Array) -> Array:
        return np.maximum(super().top(x, s), x.work(-5e4))


@fault("SDPA-14", "a maximum that never falls below 0", "flash-attention 2082, oasr PR 101")
class SentinelZero(Attention):
    """Rows whose scores are all far below 0 lose their bits and then everything."""

    def top(self, x: Inputs, s: Array) -> Array:
        return np.maximum(super().top(x, s), x.work(0))


@fault("SDPA-14", "the maximum is not taken off before exp", "vllm-fork 275, DeepLearningExamples 169")
class NoMaximum(Attention):
    """exp overflows for scores above 88 in float32; where all are below −104, a sum of zeros divides zeros."""

    def top(self, x: Inputs, s: Array) -> Array:
        return np.zeros_like(super().top(x, s))

    def normalized(self, x: Inputs, powers: Array, total: Array, allowed: Array) -> Array:
        weights = super().normalized(x, powers, total, allowed)
        return np.where((total == 0) & allowed.any(axis=3, keepdims=True), x.work(np.nan), weights)


@fault("SDPA-14", "1e-6 added to the sum of the powers", "cf. vllm PR 39148, cf. burn PR 4697")
class TotalPlusEpsilon(Attention):
    """A guard against 0/0 that is in every row: a relative error of up to 1e-6."""

    def total(self, x: Inputs, powers: Array) -> Array:
        return super().total(x, powers) + x.work(1e-6)


@fault(
    "SDPA-24",
    "a finite fill for masks, but not for a bias of −inf: NaN where the bias empties a row",
    "cf. allennlp 890, cf. vllm-fork PR 682, cf. flax 982",
)
class FillNotForBias(Unguarded, FillMinus1e9):
    """Rows that masks empty give the mean of v, rows that a bias of −inf empties NaN; both in one row mix."""

    def filled(self, x: Inputs, s: Array, allowed: Array) -> Array:
        others = self.mask_allows(x) & self.causal_allows(x) & self.window_allows(x) & self.lengths_allow(x)
        return np.where(others, s, x.work(self.value(x)))


@fault("SDPA-7", "−1e4 added once to every masked score", "transformers 14859, cf. onnxruntime 14363")
class OneFillAdded(Attention):
    """A fully masked row is the softmax of its scores, as if nothing were masked."""

    def filled(self, x: Inputs, s: Array, allowed: Array) -> Array:
        s = np.where(allowed, s, s + x.work(-1e4))
        return np.where(self.bias_allows(x), s, x.work(-np.inf))


@fault("SDPA-14", "weights below 1e-6 raised to it, masked ones too", "cf. vllm PR 39148, cf. burn PR 4697")
class WeightFloor(Attention):
    """A guard against log 0 that is in every weight."""

    def normalized(self, x: Inputs, powers: Array, total: Array, allowed: Array) -> Array:
        return np.maximum(super().normalized(x, powers, total, allowed), x.work(1e-6))


@fault("SDPA-14", "no softmax: the scores are the weights", "cf. flexflow-train 467")
class NoSoftmax(Attention):
    """Masked keys get the weight 0; lse is right."""

    def softmax(self, x: Inputs, s: Array, allowed: Array) -> tuple[Array, Array]:
        return np.where(allowed, s, x.work(0)), super().softmax(x, s, allowed)[1]
