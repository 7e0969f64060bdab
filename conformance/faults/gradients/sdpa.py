"""(GRAD-2 to GRAD-6 and GRAD-10 to GRAD-14) Mistakes of the backward pass over a forward pass that is right."""

from __future__ import annotations

import numpy as np

from attention_conformance.conformance.faults.models.gradients import Backward
from attention_conformance.conformance.faults.models.ring import RANKS, blocks, size
from attention_conformance.conformance.faults.models.sdpa import Array, Inputs
from attention_conformance.conformance.faults.registry import fault
from attention_conformance.conformance.spec.sdpa import Expected

#: Keys per tile, in the faults about the last keys.
TILE = 16


@fault("GRAD-3", "the subtracted sum δ is missing from the gradient of the softmax", "Odyssey 2134, cTensor PR 31")
class DeltaMissing(Backward):
    """dS is p · dP: the Jacobian keeps only its diagonal, as if the weights were not normalised."""

    def delta(self, x: Inputs, found: Expected, g: Array) -> Array:
        return np.zeros_like(super().delta(x, found, g))


@fault("GRAD-3", "dP cut to the width of q where v is wider", "native-sparse-attention-triton 27")
class ValueColumnsCutFromGradient(Backward):
    """The pointers to v and grad_output are declared D wide; calls with Dv > D show it."""

    def d_weights(self, x: Inputs, found: Expected, g: Array) -> Array:
        width = x.q.shape[3]
        return g[..., :width] @ found.v[..., :width].swapaxes(2, 3)


@fault("GRAD-4", "the slope of softcap is missing", "cf. flash-attention PR 2402, cf. flash-attention PR 1033")
class SlopeMissing(Backward):
    """The backward pass is that of attention without a softcap."""

    def slope(self, x: Inputs, found: Expected) -> Array:
        return np.ones_like(found.raw)


@fault("GRAD-4", "the slope of softcap taken at the score after the bias", "cf. tokamax PR 1121")
class SlopeAfterBias(Backward):
    """Calls without a bias are right."""

    def slope(self, x: Inputs, found: Expected) -> Array:
        return self.slope_at(x, found.raw if x.bias is None else found.raw + self.inner.spread(x, x.bias))


@fault("GRAD-5", "the slope of softcap reaches the gradient of bias", "cf. tokamax PR 1121")
class SlopeReachesBias(Backward):
    """The bias is added after the softcap, but gets the gradient of the score before it."""

    def grad_bias(self, x: Inputs, d_scores: Array, d_raw: Array) -> Array:
        return super().grad_bias(x, d_raw, d_raw)


@fault("GRAD-4", "the gradient of q lacks the scale", "cf. flash-attention 2651")
class QueryGradientUnscaled(Backward):
    """Calls with a scale of 1 are right."""

    def grad_q(self, x: Inputs, found: Expected, d_raw: Array) -> Array:
        return d_raw @ found.k


@fault("GRAD-4", "the gradient of k lacks the scale", "flash-attention 2651")
class KeyGradientUnscaled(Backward):
    """Calls with a scale of 1 are right."""

    def grad_k(self, x: Inputs, found: Expected, d_raw: Array) -> Array:
        return self.over_groups(x, d_raw.swapaxes(2, 3) @ found.q)


@fault("GRAD-4", "the gradient of q scaled twice", "flash-sparse-attention PR 203")
class QueryGradientScaledTwice(Backward):
    """The scale is applied in the loop over tiles, and again after it."""

    def grad_q(self, x: Inputs, found: Expected, d_raw: Array) -> Array:
        return super().grad_q(x, found, d_raw) * x.work(self.inner.scale(x))


@fault("GRAD-6", "gradients of k and v of one query head of the group only", "levanter PR 449, AiDotNet.Tensors PR 633")
class GroupNotSummed(Backward):
    """Key heads were repeated for the product, but their gradients are not summed over the group."""

    def of_group(self, grouped: Array) -> Array:
        return grouped[:, :, 0]


@fault("GRAD-6", "gradients of k and v summed over every Hkv-th query head", "native-sparse-attention-triton 27")
class GroupInterleaved(Backward):
    """The backward pass assumes that query head h reads key head h mod Hkv; one key head hides it."""

    def over_groups(self, x: Inputs, array: Array) -> Array:
        return array.reshape(len(array), x.group, x.k.shape[1], *array.shape[2:]).sum(axis=1)


@fault("GRAD-5", "the gradient of bias not summed over the batch", "cf. flash-sparse-attention PR 193, jax 30593")
class BiasBatchNotSummed(Backward):
    """A bias that all samples share gets the gradient of the first sample only."""

    def along(self, d_scores: Array, axis: int, missing: bool) -> Array:
        return d_scores[:1] if axis == 0 else super().along(d_scores, axis, missing)


@fault("GRAD-5", "the gradient of bias not summed over heads", "flash-sparse-attention PR 193, cf. jax PR 36702")
class BiasHeadsNotSummed(Backward):
    """A bias that all heads share gets the gradient of the first head only."""

    def along(self, d_scores: Array, axis: int, missing: bool) -> Array:
        return d_scores[:, :1] if axis == 1 else super().along(d_scores, axis, missing)


@fault("GRAD-5", "the gradient of bias not summed over rows", "flash-sparse-attention PR 199")
class BiasRowsNotSummed(Backward):
    """A bias per key gets the gradient of the first row only."""

    def along(self, d_scores: Array, axis: int, missing: bool) -> Array:
        return d_scores[:, :, :1] if axis == 2 else super().along(d_scores, axis, missing)


@fault("GRAD-5", "the gradient of bias averaged over axes that bias lacks", "cf. flash-sparse-attention PR 199")
class BiasMissingAxesAveraged(Backward):
    """Axes of length 1 are summed correctly; calls with a bias of rank 4 are right."""

    def along(self, d_scores: Array, axis: int, missing: bool) -> Array:
        return d_scores.mean(axis=axis, keepdims=True) if missing else super().along(d_scores, axis, missing)


@fault("GRAD-5", "the gradient of bias scaled like that of q and k", "cf. flash-sparse-attention PR 203")
class BiasGradientScaled(Backward):
    """The bias is added after scaling, so its gradient needs no scale."""

    def grad_bias(self, x: Inputs, d_scores: Array, d_raw: Array) -> Array:
        return super().grad_bias(x, d_scores * x.work(self.inner.scale(x)), d_raw)


@fault("GRAD-3", "a NaN gradient of q where a sample has one key", "flash-attention 334, flash-attention 443")
class OneKeyGradientNan(Backward):
    """The only weight is 1, and the gradient of its score should be zero."""

    def grad_q(self, x: Inputs, found: Expected, d_raw: Array) -> Array:
        keys = np.broadcast_to(x.shape[3] if x.kv_lengths is None else x.kv_lengths, len(x.q))
        return np.where((keys == 1)[:, None, None, None], x.work(np.nan), super().grad_q(x, found, d_raw))


@fault("GRAD-2", "keys behind the last full tile have gradients of zero", "cf. FlagGems PR 3607, cf. jax 27224")
class TailGradientDropped(Backward):
    """Calls with more than one tile of 16 keys show it, unless 16 divides Sk."""

    def gradients(self, x: Inputs, g: Array) -> list[Array]:
        grads = super().gradients(x, g)
        for grad in grads[1:3] if x.shape[3] > TILE else ():
            grad[:, :, x.shape[3] // TILE * TILE :] = 0
        return grads


@fault("GRAD-10", "gradients of half precision returned as float32", "cf. flash-attention-jax PR 13")
class GradientsFloat32(Backward):
    """The float32 accumulators are returned without a cast."""

    def stored(self, x: Inputs, grads: list[Array]) -> tuple[Array, ...]:
        return tuple(grads)


@fault(
    "GRAD-11", "an error in the backward pass where an axis is empty", "flash-attention 2562, flash-attention PR 2568"
)
class EmptyAxisRefusedBackward(Backward):
    """Calls without queries or without keys end in an illegal memory access."""

    def gradients(self, x: Inputs, g: Array) -> list[Array]:
        if 0 in x.shape:
            raise RuntimeError("illegal memory access")
        return super().gradients(x, g)


def made_to_fit(g: Array, shape: tuple[int, ...], dtype: np.dtype) -> Array:
    """A gradient in another shape and dtype: missing elements are zero, surplus ones are dropped."""
    fitted = np.zeros(shape, dtype)
    part = tuple(slice(min(a, b)) for a, b in zip(shape, g.shape, strict=True))
    fitted[part] = g[part]
    return fitted


@fault("GRAD-12", "a grad_output that does not fit accepted", "cf. AiDotNet.Tensors PR 270")
class GradOutputUnchecked(Backward):
    """Missing elements count as zero, surplus ones are dropped, and the dtype is converted."""

    def checked(self, x: Inputs, g: Array) -> Array:
        return super().checked(x, made_to_fit(g, (*x.q.shape[:3], x.v.shape[-1]), x.dtype))


@fault("GRAD-13", "grad_output is overwritten", "apex 1430")
class GradOutputOverwritten(Backward):
    """The kernel writes to the buffer that it reads from."""

    def checked(self, x: Inputs, g: Array) -> Array:
        copy = super().checked(x, g).copy()
        g[...] = 0
        return copy


@fault("GRAD-14", "parts of the gradient of q are added in a random order", "pytorch 123656, flash-attention 429")
class GradientOrderRandom(Backward):
    """Atomic additions make equal calls differ in the last bits."""

    def __init__(self) -> None:
        super().__init__()
        self.random = np.random.default_rng(0)

    def grad_q(self, x: Inputs, found: Expected, d_raw: Array) -> Array:
        parts = np.array_split(self.random.permutation(x.shape[3]), 3)
        grad = sum((d_raw[..., p] @ found.k[:, :, p] for p in parts), np.zeros(found.q.shape, x.work))
        return grad * x.work(self.inner.scale(x))


class OverRanks(Backward):
    """The gradients of two ranks, each with a block of the rows and a block of the keys."""

    def rows(self, array: Array, rank: int) -> Array:
        """A score array with zeros in the rows of other ranks."""
        return self._kept(array, 2, rank)

    def keys(self, array: Array, rank: int) -> Array:
        """A score array with zeros at the keys of other ranks."""
        return self._kept(array, 3, rank)

    def _kept(self, array: Array, axis: int, rank: int) -> Array:
        kept = np.zeros_like(array)
        part = tuple(slice(None) if each != axis else blocks(array.shape[axis])[rank] for each in range(4))
        kept[part] = array[part]
        return kept


@fault("GRAD-4", "a rank's own keys used in every step of the backward ring", "diffusers 14265, Automodel PR 3157")
class StaleKeysInRing(OverRanks):
    """The blocks that travel round the ring are not read; each step computes from the rank's own block again."""

    def grad_q(self, x: Inputs, found: Expected, d_raw: Array) -> Array:
        own = sum(self.rows(self.keys(d_raw, rank), rank) for rank in range(RANKS))
        return RANKS * super().grad_q(x, found, np.asarray(own))


@fault("GRAD-4", "gradients of k and v added up over the ranks twice", "Megatron-LM 673, DeepSpeed PR 5555")
class KeyGradientsReducedTwice(OverRanks):
    """With two ranks the gradients are twice as large."""

    def over_groups(self, x: Inputs, array: Array) -> Array:
        return RANKS * super().over_groups(x, array)


@fault("GRAD-4", "gradients of k of the own rows alone: those of other ranks are not sent", "TransformerEngine 2484")
class KeyGradientNotSent(OverRanks):
    """With a causal mask the gradients of the last block of keys are right."""

    def grad_k(self, x: Inputs, found: Expected, d_raw: Array) -> Array:
        own = sum(self.rows(self.keys(d_raw, rank), rank) for rank in range(RANKS))
        return super().grad_k(x, found, np.asarray(own))


@fault("GRAD-4", "gradients of k copied over those of the rank before", "TransformerEngine 1054")
class KeyGradientCopied(OverRanks):
    """Only what the last rank of the ring computed is left."""

    def grad_k(self, x: Inputs, found: Expected, d_raw: Array) -> Array:
        last = sum(self.rows(self.keys(d_raw, rank), (rank - 1) % RANKS) for rank in range(RANKS))
        return super().grad_k(x, found, np.asarray(last))


@fault("GRAD-4", "gradients of k and v left with the next rank", "cf. TransformerEngine 2484")
class KeyGradientsOfNextRank(OverRanks):
    """The ring rotates the gradients once less than there are ranks."""

    def over_groups(self, x: Inputs, array: Array) -> Array:
        return np.roll(super().over_groups(x, array), size(x.shape[3]), axis=2)


@fault("GRAD-3", "each block's own log-sum-exp and output in the backward ring", "tt-metal PR 53216")
class BlockLseInBackward(OverRanks):
    """The weights of each block, not of the whole row, add up to 1."""

    def weights(self, x: Inputs, found: Expected) -> Array:
        weights = super().weights(x, found)
        totals = (self.keys(weights, rank).sum(axis=3, keepdims=True) for rank in range(RANKS))
        shares = sum(self.keys(weights, rank) / np.where(t == 0, 1, t) for rank, t in enumerate(totals))
        return np.asarray(shares).astype(weights.dtype)


@fault(
    "GRAD-3", "natural log-sum-exps of the merged blocks read in base 2 in the backward ring", "attention-gym PR 200"
)
class MergedLseInBaseTwo(OverRanks):
    """The weights of a row are wrong by the factor exp(lse · (1 − ln 2))."""

    def weights(self, x: Inputs, found: Expected) -> Array:
        lse = np.where(np.isneginf(found.lse), x.work(0), found.lse)[..., None]
        return super().weights(x, found) * np.exp(lse * x.work(1 - np.log(2)))
