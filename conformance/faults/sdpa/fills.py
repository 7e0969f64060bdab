"""(SDPA-7, SDPA-14, SDPA-24) Values written at masked keys, and finite sentinels that stand for infinity."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from attention_conformance.conformance.faults.models.sdpa import Array, Attention, Inputs
from attention_conformance.conformance.faults.registry import fault


class Filled(Attention):
    """Writes ``value`` at masked keys instead of −inf."""

    def value(self, x: Inputs) -> float:
        """The number written at masked keys."""
        return -np.inf

    def filled(self, x: Inputs, s: Array, allowed: Array) -> Array:
        return np.where(allowed, s, x.work(self.value(x)))


class Unguarded(Attention):
    """Softmax without a guard: a row of only −inf gives NaN, because −inf − (−inf) is NaN."""

    def top(self, x: Inputs, s: Array) -> Array:
        return self.sink_top(x, s.max(axis=3, keepdims=True, initial=-np.inf))

    def normalized(self, x: Inputs, powers: Array, total: Array, allowed: Array) -> Array:
        return powers / total


@fault("SDPA-7", "masked scores filled with −1e4", "onnxruntime 14363, lattice 361, transformers 14859")
class FillMinus1e4(Filled):
    """Rows whose allowed scores are far above −1e4 are right; a fully masked row gives the mean of v."""

    def value(self, x: Inputs) -> float:
        return -1e4


@fault("SDPA-7", "masked scores filled with −1e9", "source 001, annotated-transformer PR 67")
class FillMinus1e9(Filled):
    """Only fully masked rows are wrong: they give the mean of v."""

    def value(self, x: Inputs) -> float:
        return -1e9


@fault(
    "SDPA-7",
    "masked scores filled with −1e20, which float16 cannot hold",
    "source 004, flax 982, linformer-pytorch PR 19",
)
class FillMinus1e20(Unguarded, Filled):
    """Fully masked rows give NaN in float16, where the fill is −inf, and the mean of v in other dtypes."""

    def value(self, x: Inputs) -> float:
        return -np.inf if x.dtype == np.float16 else -1e20


@fault("SDPA-7", "masked scores filled with the smallest number of the dtype", "reformer-pytorch PR 26, darts PR 3087")
class FillSmallest(Filled):
    """In float16 the fill is −65504, and scores can be lower still; fully masked rows give the mean of v."""

    def value(self, x: Inputs) -> float:
        return float(ml_dtypes.finfo(x.dtype).min)


@fault("SDPA-7", "masked scores filled with a tiny negative number", "transformer 10, gluonts PR 1401, RibonanzaNet 5")
class FillMinusEpsilon(Filled):
    """The fill is −1e-12 instead of −1e12, so a masked key weighs as much as a score of 0."""

    def value(self, x: Inputs) -> float:
        return -1e-12


@fault("SDPA-7", "the sign of the fill is lost: +inf", "memory-compressed-attention 2")
class FillPlusInf(Filled):
    """The fill is −float("−inf"), so every row with a masked key is NaN."""

    def value(self, x: Inputs) -> float:
        return np.inf


@fault("SDPA-15", "a float64 fill of −1e308 that float32 turns into −inf", "jax PR 34114")
class FillFloat64(Unguarded, Filled):
    """Fully masked rows give the mean of v in float64 and NaN in narrower dtypes."""

    def value(self, x: Inputs) -> float:
        return -1e308 if x.work is np.float64 else -np.inf


@fault("SDPA-13", "fills of mask and causal add up: −1e4 or −2e4", "onnxruntime 14363")
class FillsAddUp(Attention):
    """In a fully masked row, keys masked once outweigh keys masked twice."""

    def filled(self, x: Inputs, s: Array, allowed: Array) -> Array:
        for mask in (self.mask_allows(x), self.causal_allows(x), self.lengths_allow(x) & self.window_allows(x)):
            s = s + np.where(mask, x.work(0), x.work(-1e4))
        return np.where(self.bias_allows(x), s, x.work(-np.inf))


@fault("SDPA-7", "a mask added as (1 − mask) · −inf, which is NaN where it allows", "onnx PR 8068")
class FillProduct(Attention):
    """Every allowed key of a call with a mask gets 0 · −inf added, which is NaN."""

    def filled(self, x: Inputs, s: Array, allowed: Array) -> Array:
        if x.mask is not None:
            s = s + (1 - self.mask_allows(x).astype(x.work)) * x.work(-np.inf)
        return super().filled(x, s, allowed)


@fault("SDPA-13", "(1 − mask) · −inf, only where a mask meets causal", "onnx PR 8068")
class FillProductWithCausal(Attention):
    """Calls with a mask but without is_causal take another path and are right."""

    def filled(self, x: Inputs, s: Array, allowed: Array) -> Array:
        if x.mask is not None and x.is_causal:
            s = s + (1 - self.mask_allows(x).astype(x.work)) * x.work(-np.inf)
        return super().filled(x, s, allowed)


@fault("SDPA-4", "the mask is written before the scale: −inf · scale", "cudnn-frontend PR 804")
class FillBeforeScale(Attention):
    """Calls with a positive scale are right. A scale of 0 turns −inf into NaN, and a negative one into +inf."""

    def filled(self, x: Inputs, s: Array, allowed: Array) -> Array:
        return np.where(allowed, s, x.work(-np.inf) * x.work(self.scale(x)))


@fault("SDPA-4", "is_causal is written before the scale: −inf · scale", "cudnn-frontend PR 804")
class CausalBeforeScale(Attention):
    """Calls with a positive scale are right, and for Sq = Sk so is the last row, which sees every key."""

    def filled(self, x: Inputs, s: Array, allowed: Array) -> Array:
        s = super().filled(x, s, allowed)
        return np.where(self.causal_allows(x), s, x.work(-np.inf) * x.work(self.scale(x)))


@fault("SDPA-24", "the smallest finite bias is taken for −inf", "torch-xpu-ops PR 5022, pytorch 109517")
class SmallestIsMask(Attention):
    """A row whose biases all equal the smallest number is treated as fully masked and gives zeros."""

    def bias_allows(self, x: Inputs) -> Array:
        if x.bias is None:
            return super().bias_allows(x)
        return self.spread(x, x.bias).astype(np.float64) > float(ml_dtypes.finfo(x.dtype).min)


@fault("SDPA-14", "a running maximum that starts at −5e4: lower rows give zeros", "flashinfer 4267, burn PR 4697")
class SentinelMinus5e4(Attention):
    """In a row whose scores are all well below −5e4, every power underflows."""

    def top(self, x: Inputs, s: Array) -> Array:
        return np.maximum(super().top(x, s), x.work(-5e4))


@fault("SDPA-14", "a maximum that never falls below 0", "flash-attention 2082, oasr PR 101")
class SentinelZero(Attention):
    """Rows whose scores are all far below 0 lose precision, and further down they give zeros."""

    def top(self, x: Inputs, s: Array) -> Array:
        return np.maximum(super().top(x, s), x.work(0))


@fault("SDPA-14", "the maximum is not taken off before exp", "vllm-fork 275, DeepLearningExamples 169")
class NoMaximum(Attention):
    """In float32 exp overflows for scores above 88; a row with all scores below −104 divides 0 by 0."""

    def top(self, x: Inputs, s: Array) -> Array:
        return np.zeros_like(super().top(x, s))

    def normalized(self, x: Inputs, powers: Array, total: Array, allowed: Array) -> Array:
        weights = super().normalized(x, powers, total, allowed)
        return np.where((total == 0) & allowed.any(axis=3, keepdims=True), x.work(np.nan), weights)


@fault("SDPA-14", "1e-6 added to the sum of the powers", "cf. vllm PR 39148, cf. burn PR 4697")
class TotalPlusEpsilon(Attention):
    """The guard against 0/0 gives every row a relative error of up to 1e-6."""

    def total(self, x: Inputs, powers: Array) -> Array:
        return super().total(x, powers) + x.work(1e-6)


@fault(
    "SDPA-24",
    "a finite fill for masks, but not for a bias of −inf: NaN where the bias empties a row",
    "cf. allennlp 890, cf. vllm-fork PR 682, cf. flax 982",
)
class FillNotForBias(Unguarded, FillMinus1e9):
    """Rows emptied by masks give the mean of v, by a bias NaN; by both, the mean over the keys that masks drop."""

    def filled(self, x: Inputs, s: Array, allowed: Array) -> Array:
        others = self.mask_allows(x) & self.causal_allows(x) & self.window_allows(x) & self.lengths_allow(x)
        return np.where(others, s, x.work(self.value(x)))


@fault("SDPA-7", "−1e4 added once to every masked score", "transformers 14859, cf. onnxruntime 14363")
class OneFillAdded(Attention):
    """A fully masked row gets the softmax of its scores, as if nothing were masked."""

    def filled(self, x: Inputs, s: Array, allowed: Array) -> Array:
        s = np.where(allowed, s, s + x.work(-1e4))
        return np.where(self.bias_allows(x), s, x.work(-np.inf))


@fault("SDPA-14", "weights below 1e-6 raised to it, masked ones too", "cf. vllm PR 39148, cf. burn PR 4697")
class WeightFloor(Attention):
    """A guard against log 0 is applied to every weight."""

    def normalized(self, x: Inputs, powers: Array, total: Array, allowed: Array) -> Array:
        return np.maximum(super().normalized(x, powers, total, allowed), x.work(1e-6))


@fault("SDPA-14", "no softmax: the scores are the weights", "cf. flexflow-train 467")
class NoSoftmax(Attention):
    """Masked keys get the weight 0; lse is right."""

    def softmax(self, x: Inputs, s: Array, allowed: Array) -> tuple[Array, Array]:
        return np.where(allowed, s, x.work(0)), super().softmax(x, s, allowed)[1]
