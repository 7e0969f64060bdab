"""(SDPA-15, SDPA-20) Fully masked rows that give NaN, the mean of v or another row, some only where options meet."""

from __future__ import annotations

import numpy as np

from attention_conformance.conformance.faults.models.sdpa import Array, Attention, Inputs
from attention_conformance.conformance.faults.registry import fault


def fully_masked(allowed: Array) -> Array:
    """Fully masked rows, (B, Hq, Sq, 1)."""
    return np.logical_not(allowed.any(axis=3, keepdims=True))


def sinkless(x: Inputs) -> Array:
    """Heads without a sink in this call, (Hq, 1, 1): with a sink, the softmax has a score in every row."""
    return np.asarray(np.isneginf(Attention().sinks(x))[:, None, None])


class NanRow(Attention):
    """NaN, as from exp(−inf + inf), in the rows that ``hit`` selects, except in heads with a sink."""

    def hit(self, x: Inputs, allowed: Array) -> Array:
        """Rows that come out NaN, (B, Hq, Sq, 1)."""
        return fully_masked(allowed)

    def normalized(self, x: Inputs, powers: Array, total: Array, allowed: Array) -> Array:
        weights = super().normalized(x, powers, total, allowed)
        return np.where(self.lost(x, allowed), x.work(np.nan), weights)

    def lse(self, x: Inputs, top: Array, total: Array, allowed: Array) -> Array:
        return np.where(self.lost(x, allowed), x.work(np.nan), super().lse(x, top, total, allowed))

    def lost(self, x: Inputs, allowed: Array) -> Array:
        """Rows of ``hit`` in heads without a sink, (B, Hq, Sq, 1): a sink would be their largest score."""
        return self.hit(x, allowed) & sinkless(x)


@fault("SDPA-15", "NaN in fully masked rows", "pytorch 103963, openvino 35959, iree 24175, rten PR 1321")
class EmptyRowNan(NanRow):
    """The largest score of such a row is −inf, and −inf − (−inf) is NaN."""


@fault("SDPA-15", "NaN in fully masked rows, with the right lse", "cf. pytorch 103963")
class EmptyRowNanLseRight(NanRow):
    """The softmax computes −inf − (−inf); the lse is computed apart from it, and is −inf."""

    def lse(self, x: Inputs, top: Array, total: Array, allowed: Array) -> Array:
        return Attention.lse(self, x, top, total, allowed)


@fault("SDPA-15", "NaN in rows that only a bias of −inf empties", "allennlp 890, vllm-fork PR 682")
class EmptyRowNanByBias(NanRow):
    """Boolean masks are guarded; the same mask written as −inf is not."""

    def hit(self, x: Inputs, allowed: Array) -> Array:
        return fully_masked(self.bias_allows(x)) if x.bias is not None else np.zeros_like(fully_masked(allowed))


@fault("SDPA-15", "NaN in batches whose key length is 0", "flash-attention PR 2568")
class EmptyRowNanByLength(NanRow):
    """Samples with any other key length are right, as are rows that other masks empty."""

    def hit(self, x: Inputs, allowed: Array) -> Array:
        return fully_masked(self.lengths_allow(x)) if x.kv_lengths is not None else np.zeros_like(fully_masked(allowed))


@fault(
    "SDPA-15",
    "NaN in rows that causal alone leaves no key (negative offset)",
    "cf. flash-attention 443, cf. vllm 27491",
)
class EmptyRowNanByOffset(NanRow):
    """The first rows stand before the first key, for example with Sq > Sk and an offset of Sk − Sq."""

    def hit(self, x: Inputs, allowed: Array) -> Array:
        return fully_masked(np.broadcast_to(self.causal_allows(x), x.shape))


@fault("SDPA-15", "NaN in rows that mask and causal empty only together", "burn PR 4697")
class EmptyRowNanCombined(NanRow):
    """Mask and causal are each guarded; their combination is not."""

    def hit(self, x: Inputs, allowed: Array) -> Array:
        causal = fully_masked(np.broadcast_to(self.causal_allows(x), x.shape))
        return fully_masked(self.mask_allows(x) & self.causal_allows(x)) & ~fully_masked(self.mask_allows(x)) & ~causal


@fault("SDPA-15", "NaN in every row of a batch that has a fully masked row", "pytorch 41508")
class EmptyRowPoisonsBatch(NanRow):
    """One fully masked row turns every row of every head of its sample into NaN."""

    def hit(self, x: Inputs, allowed: Array) -> Array:
        return np.broadcast_to(fully_masked(allowed).any(axis=(1, 2, 3), keepdims=True), fully_masked(allowed).shape)


@fault("SDPA-15", "the mean of v in fully masked rows", "onnxruntime 28904, onnxscript PR 2654, apex 1390, source 001")
class EmptyRowMean(Attention):
    """Softmax over equal fills gives every key the weight 1/Sk. In heads with a sink the fills weigh nothing."""

    def normalized(self, x: Inputs, powers: Array, total: Array, allowed: Array) -> Array:
        weights = super().normalized(x, powers, total, allowed)
        return np.where(fully_masked(allowed) & sinkless(x), x.work(1 / max(1, x.shape[3])), weights)


@fault("SDPA-15", "the mean of v in rows that mask and causal empty only together", "onnxruntime 28904")
class EmptyRowMeanCombined(Attention):
    """Rows that mask or is_causal empties by itself are zeros; other fully masked rows keep fills of −1e30."""

    def normalized(self, x: Inputs, powers: Array, total: Array, allowed: Array) -> Array:
        weights = super().normalized(x, powers, total, allowed)
        alone = fully_masked(self.mask_allows(x)) | fully_masked(np.broadcast_to(self.causal_allows(x), x.shape))
        empty = fully_masked(allowed) & ~alone & sinkless(x)
        return np.where(empty, x.work(1 / max(1, x.shape[3])), weights)


@fault("SDPA-15", "fully masked rows are not written: they hold the row before", "mlx 2395")
class EmptyRowNotWritten(Attention):
    """The output buffer keeps its old content: here the row before, or ones for the first row."""

    def summed(self, x: Inputs, weights: Array, allowed: Array, v: Array) -> Array:
        output = super().summed(x, weights, allowed, v)
        before = np.concatenate([np.ones_like(output[:, :, :1]), output[:, :, :-1]], axis=2)[:, :, : output.shape[2]]
        return np.where(fully_masked(allowed), before, output)


@fault("SDPA-15", "a finite lse in fully masked rows", "flashinfer 4452")
class EmptyRowLseFinite(Attention):
    """lse is −5e4 instead of −inf, so a merge with other keys still counts the row as a part."""

    def lse(self, x: Inputs, top: Array, total: Array, allowed: Array) -> Array:
        return np.where(fully_masked(allowed), x.work(-5e4), super().lse(x, top, total, allowed))


@fault("SDPA-18", "NaN weights in fully masked rows, beside a right output", "pytorch 41508")
class EmptyRowWeightsNan(Attention):
    """The output is corrected afterwards, but the returned weights are not."""

    def stored_weights(self, x: Inputs, weights: Array) -> Array:
        return np.where(fully_masked(self.allowed(x)), np.nan, weights).astype(x.dtype)


@fault("SDPA-20", "NaN for no keys", "flash-attention PR 2568, pytorch 141219")
class EmptyKeysNan(NanRow):
    """With Sk = 0 the code divides 0 by 0. Rows whose keys are all masked are guarded."""

    def summed(self, x: Inputs, weights: Array, allowed: Array, v: Array) -> Array:
        return np.where(self.lost(x, allowed), x.work(np.nan), super().summed(x, weights, allowed, v))

    def hit(self, x: Inputs, allowed: Array) -> Array:
        return np.full_like(fully_masked(allowed), x.shape[3] == 0)


@fault("SDPA-20", "zeros where queries and keys have width 0", "pytorch 184330")
class EmptyWidthZeros(Attention):
    """A call whose q and k have no elements is treated as one without a result."""

    def summed(self, x: Inputs, weights: Array, allowed: Array, v: Array) -> Array:
        return super().summed(x, weights, allowed, v) * x.work(x.q.shape[3] > 0)


@fault("SDPA-20", "an error for an empty axis", "pytorch 133780, flash-attention 1537")
class EmptyAxesRefused(Attention):
    """A call raises where B, Hq, Sq or Sk is 0: "batch size, heads and lengths must be positive"."""

    def check(self, x: Inputs) -> None:
        super().check(x)
        if 0 in x.shape:
            raise RuntimeError("batch size, heads and lengths must be positive")
