"""(GRAD-36 to GRAD-42) Mistakes of the backward pass of a merge."""

from __future__ import annotations

import numpy as np

from attention_conformance.conformance.faults.models.merge_gradients import MergeBackward, MergeGrad
from attention_conformance.conformance.faults.models.sdpa import Array
from attention_conformance.conformance.faults.registry import fault

_LN2 = float(np.log(2))


@fault("GRAD-37", "every part gets the gradient of the merged output, without its weight", "cf. NATTEN PR 299")
class MergeGradientUnweighted(MergeBackward):
    """Each part is treated as if it were the result; gradients of log-sum-exps are right."""

    def of_outputs(self, x: MergeGrad, weights: Array, g: Array) -> Array:
        return np.where(np.isneginf(x.lses)[..., None], x.work(0), np.broadcast_to(g, x.outputs.shape))


@fault(
    "GRAD-37",
    "weights of parts taken as constants: log-sum-exps get no gradient from the output",
    "cf. NATTEN PR 299, cf. flash-attention 1817",
)
class MergeWeightsConstant(MergeBackward):
    """The forward kernel's lse is detached or has no backward pass; the gradient of the merged lse gets through."""

    def pulls(self, x: MergeGrad, g: Array, outputs: Array, merged: Array) -> Array:
        return np.zeros(x.lses.shape, x.work)


@fault("GRAD-37", "gradients of log-sum-exps without the merged output subtracted", "cf. flash-attention 1137")
class MergeGradientNotCentered(MergeBackward):
    """The numerator of the softmax is differentiated, the sum in its denominator is not."""

    def pulls(self, x: MergeGrad, g: Array, outputs: Array, merged: Array) -> Array:
        return (g * outputs).sum(axis=-1)


@fault("GRAD-37", "the gradient of the merged lse ignored", "flash-attention 1817, cf. flash-attention 889")
class MergedLseGradientIgnored(MergeBackward):
    """The gradient is silently dropped; calls whose loss does not depend on the lse are right."""

    def grad_lse(self, x: MergeGrad) -> Array:
        return np.zeros(x.lses.shape[1:], x.work)


@fault("GRAD-37", "rows without a gradient of the merged output skipped, with that of lse", "cf. flash-attention 1817")
class MergeGradientRowsSkipped(MergeBackward):
    """Where grad_output is zero, the gradient of the lse is lost as well."""

    def grad_lse(self, x: MergeGrad) -> Array:
        return np.where((x.grad_output == 0).all(axis=-1), x.work(0), super().grad_lse(x))


@fault("GRAD-37", "the gradient of the merged lse subtracted, not added", "cf. flash-attention 1137")
class MergedLseGradientSubtracted(MergeBackward):
    """A kernel subtracts it from delta, and delta from dP; here one sign too many is applied."""

    def grad_lse(self, x: MergeGrad) -> Array:
        return -super().grad_lse(x)


@fault("GRAD-37", "gradients of natural log-sum-exps times ln 2, as of base 2", "cf. attention-gym PR 200")
class MergeGradientInBaseTwo(MergeBackward):
    """A kernel that works with exp2 returns its gradient without converting it."""

    def stored_lses(self, x: MergeGrad, grad_lses: Array) -> Array:
        return grad_lses * grad_lses.dtype.type(_LN2)


@fault("GRAD-37", "gradients of log-sum-exps divided by ln 2", "cf. pytorch 181645")
class MergeGradientConvertedTwice(MergeBackward):
    """Gradients that are natural already are converted from base 2."""

    def stored_lses(self, x: MergeGrad, grad_lses: Array) -> Array:
        return grad_lses / grad_lses.dtype.type(_LN2)


@fault("GRAD-37", "the gradient of the merged lse counted once more at the largest log-sum-exp", "cf. pytorch 49724")
class MergeGradientThroughMaximum(MergeBackward):
    """The subtracted maximum is a constant in the powers, but is differentiated where it is added back."""

    def of_lses(self, x: MergeGrad, weights: Array, pulls: Array, h: Array) -> Array:
        right = super().of_lses(x, weights, pulls, h)
        lses = self.lses(x)
        first = np.arange(len(lses))[:, None, None, None] == lses.argmax(axis=0)
        return right + np.where(first & ~np.isneginf(lses), h, x.work(0))


@fault("GRAD-37", "gradients of the parts in reverse order", "cf. vllm PR 50613")
class MergeGradientPartsSwapped(MergeBackward):
    """The prefix gets the gradients of the suffix, and the suffix those of the prefix."""

    def stored(self, x: MergeGrad, grad_outputs: Array) -> Array:
        return super().stored(x, grad_outputs[::-1])

    def stored_lses(self, x: MergeGrad, grad_lses: Array) -> Array:
        return grad_lses[::-1]


@fault("GRAD-37", "only the first two parts get gradients", "cf. flashinfer PR 4573")
class MergeGradientFirstTwo(MergeBackward):
    """The code is written for a pair of parts; further parts get zeros."""

    def of_outputs(self, x: MergeGrad, weights: Array, g: Array) -> Array:
        found = super().of_outputs(x, weights, g)
        found[2:] = 0
        return found

    def of_lses(self, x: MergeGrad, weights: Array, pulls: Array, h: Array) -> Array:
        found = super().of_lses(x, weights, pulls, h)
        found[2:] = 0
        return found


@fault("GRAD-38", "gradients of NaN where no part has a key", "pytorch 31829, pytorch 49724, jax 6811")
class MergeGradientNoKeysNan(MergeBackward):
    """The derivative of the log of an empty sum is 0 / 0; the forward merge is right."""

    def of_outputs(self, x: MergeGrad, weights: Array, g: Array) -> Array:
        no_key = np.all(np.isneginf(x.lses)[..., None], axis=0)
        return np.where(no_key, x.work(np.nan), super().of_outputs(x, weights, g))

    def of_lses(self, x: MergeGrad, weights: Array, pulls: Array, h: Array) -> Array:
        no_key = np.isneginf(x.lses).all(axis=0)
        return np.where(no_key, x.work(np.nan), super().of_lses(x, weights, pulls, h))


@fault("GRAD-38", "gradients of log-sum-exps of NaN where a part has no key", "cf. jax 6811")
class MergeGradientEmptyNan(MergeBackward):
    """A weight of 0 is multiplied by the derivative at −inf; gradients of outputs are right."""

    def of_lses(self, x: MergeGrad, weights: Array, pulls: Array, h: Array) -> Array:
        return np.where(np.isneginf(x.lses), x.work(np.nan), super().of_lses(x, weights, pulls, h))


@fault("GRAD-38", "a part without a key counts in the backward pass, with a log-sum-exp of 0", "cf. vllm PR 49294")
class MergeGradientEmptyCounts(MergeBackward):
    """The lse buffer is cleared to 0 instead of −inf; gradients of the empty part itself are still zero."""

    def lses(self, x: MergeGrad) -> Array:
        lses = super().lses(x)
        return np.where(np.isneginf(lses), x.work(0), lses)


@fault("GRAD-38", "the gradient of the merged output left as that of a part without a key", "cf. flash-attention 1537")
class MergeGradientEmptyCopied(MergeBackward):
    """Parts with nothing to do are skipped, and their buffers still hold a copy of grad_output."""

    def of_outputs(self, x: MergeGrad, weights: Array, g: Array) -> Array:
        return np.where(np.isneginf(x.lses)[..., None], g, super().of_outputs(x, weights, g))


@fault("GRAD-39", "backward pass of a merge with exp of log-sum-exps as they are", "cf. ring-flash-attention PR 30")
class MergeGradientNoMaximum(MergeBackward):
    """In float32, exp overflows above 88 and is 0 below −104."""

    def largest(self, x: MergeGrad, lses: Array) -> Array:
        return np.zeros_like(lses[0])


@fault("GRAD-40", "gradients of log-sum-exps summed in the dtype of the outputs", "cf. flash-attention PR 2723")
class MergeGradientSumInHalf(MergeBackward):
    """Products and their sum are rounded to half precision; float32 calls are right."""

    def pulls(self, x: MergeGrad, g: Array, outputs: Array, merged: Array) -> Array:
        stored = x.outputs.dtype
        total = np.zeros(x.lses.shape, stored)
        for term in np.moveaxis((g * (outputs - merged)).astype(stored), -1, 0):
            total = total + term
        return total.astype(x.work)


@fault("GRAD-40", "log-sum-exps rounded to float16 in the backward pass of a merge", "cf. tt-metal PR 41683")
class MergeGradientLsesInFloat16(MergeBackward):
    """Only eleven bits of each log-sum-exp are left, whatever the dtype of the outputs."""

    def lses(self, x: MergeGrad) -> Array:
        return super().lses(x).astype(np.float16).astype(x.work)


@fault("GRAD-36", "gradients of log-sum-exps in the dtype of the outputs", "cf. ring-flash-attention 22")
class MergeGradientLsesInDtypeOfOutputs(MergeBackward):
    """Calls in half precision show it."""

    def stored_lses(self, x: MergeGrad, grad_lses: Array) -> Array:
        return grad_lses.astype(x.outputs.dtype)


@fault("GRAD-36", "log-sum-exps read as (S, H) in the backward pass of a merge", "cf. vllm PR 57012")
class MergeGradientLsesTransposed(MergeBackward):
    """The memory of (H, S) is read in the other order, for the log-sum-exps only."""

    def lses(self, x: MergeGrad) -> Array:
        lses = super().lses(x)
        parts, batch, heads, rows = lses.shape
        return np.ascontiguousarray(lses).reshape(parts, batch, rows, heads).swapaxes(2, 3)


@fault("GRAD-41", "NaN hidden in the backward pass of a merge", "cf. aiter PR 4420")
class MergeGradientNanDropped(MergeBackward):
    """nan_to_num, meant for fully masked rows, is applied to all gradients."""

    def of_outputs(self, x: MergeGrad, weights: Array, g: Array) -> Array:
        return np.nan_to_num(super().of_outputs(x, weights, g), nan=0.0)

    def of_lses(self, x: MergeGrad, weights: Array, pulls: Array, h: Array) -> Array:
        return np.nan_to_num(super().of_lses(x, weights, pulls, h), nan=0.0)


@fault("GRAD-42", "gradients of the results of a merge broadcast to their shapes", "cf. transformers PR 39653")
class MergeGradientBroadcast(MergeBackward):
    """One head or fewer rows are repeated for all; the shapes of log-sum-exps are still checked."""

    def check(self, x: MergeGrad) -> None:
        super().check(MergeGrad(x.outputs, x.lses, x.outputs[0], None, x.work))

    def grad_output(self, x: MergeGrad) -> Array:
        return np.resize(super().grad_output(x), x.outputs.shape[1:])

    def grad_lse(self, x: MergeGrad) -> Array:
        return np.resize(super().grad_lse(x), x.lses.shape[1:])
