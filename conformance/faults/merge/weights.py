"""(MERGE-2, 3, 10, 11) Weights of parts: another base, no maximum, no weights at all, or an extra sink."""

from __future__ import annotations

import numpy as np

from attention_conformance.conformance.faults.models.merge import Merge, Merging
from attention_conformance.conformance.faults.models.sdpa import Array
from attention_conformance.conformance.faults.registry import fault

_LN2 = float(np.log(2))


@fault("MERGE-3", "log-sum-exps taken as base 2", "cf. flashinfer 4485")
class LseTakenAsBaseTwo(Merging):
    """The merge applies exp2 and log2 to natural log-sum-exps."""

    def powers(self, x: Merge, lses: Array, largest: Array) -> Array:
        return np.exp2(lses - largest)

    def lse(self, x: Merge, lses: Array, largest: Array, total: Array) -> Array:
        return np.where(total == 0, -np.inf, largest + np.log2(total)).astype(lses.dtype)


@fault("MERGE-3", "natural log-sum-exps multiplied by ln 2, as if they were base 2", "cf. flashinfer PR 4547")
class LseConvertedTwice(Merging):
    """Values that are natural already are converted from base 2."""

    def lses(self, x: Merge) -> Array:
        lses = super().lses(x)
        return lses * lses.dtype.type(_LN2)


@fault(
    "MERGE-3",
    "natural log-sum-exps multiplied by log₂ e before a natural merge",
    "sglang 40903, vllm PR 47079, vllm PR 28840",
)
class LseConvertedToBaseTwo(Merging):
    """The values are converted to base 2, but the merge uses exp."""

    def lses(self, x: Merge) -> Array:
        lses = super().lses(x)
        return lses / lses.dtype.type(_LN2)


@fault("MERGE-3", "lse returned in base 2", "flashinfer 4485, cf. flashinfer PR 5257")
class LseReturnedInBaseTwo(Merging):
    """The weights are right; the next merge gets an lse that is log₂ e times too large."""

    def lse(self, x: Merge, lses: Array, largest: Array, total: Array) -> Array:
        natural = super().lse(x, lses, largest, total)
        return natural / natural.dtype.type(_LN2)


@fault(
    "MERGE-10",
    "exp of log-sum-exps without taking off their maximum",
    "ring-flash-attention PR 30, ring-flash-attention PR 34",
)
class NoMaximumOfLses(Merging):
    """In float32, exp(lse) overflows above 88 and is 0 below −104."""

    def largest(self, x: Merge, lses: Array) -> Array:
        return np.zeros_like(lses[0])


@fault("MERGE-10", "maximum of log-sum-exps started at 0", "cf. flashinfer PR 5262")
class MaximumOfLsesFromZero(Merging):
    """Where all log-sum-exps are far below 0, all powers underflow to 0."""

    def largest(self, x: Merge, lses: Array) -> Array:
        return np.maximum(super().largest(x, lses), 0).astype(lses.dtype)


@fault("MERGE-10", "maximum of log-sum-exps started at −100", "cf. flashinfer PR 5262, cf. vllm PR 39148")
class MaximumOfLsesFromFloor(Merging):
    """Real log-sum-exps can lie far below this floor, so that all powers underflow to 0."""

    def largest(self, x: Merge, lses: Array) -> Array:
        return np.maximum(super().largest(x, lses), -100).astype(lses.dtype)


@fault("MERGE-2", "log-sum-exps added up", "ring-flash-attention 20")
class LsesAdded(Merging):
    """lse is the sum of the parts' log-sum-exps; the weights are right."""

    def lse(self, x: Merge, lses: Array, largest: Array, total: Array) -> Array:
        return lses.sum(axis=0)


@fault("MERGE-3", "lse is the largest of the parts'", "cf. flashinfer PR 58")
class LseOfMaximum(Merging):
    """The code does not add the log of the sum."""

    def lse(self, x: Merge, lses: Array, largest: Array, total: Array) -> Array:
        return lses.max(axis=0)


@fault("MERGE-3", "lse without the maximum that was taken off", "cf. ring-flash-attention PR 34")
class MergedLseWithoutMaximum(Merging):
    """lse is only the log of the sum of the shifted powers."""

    def lse(self, x: Merge, lses: Array, largest: Array, total: Array) -> Array:
        return np.where(total == 0, -np.inf, np.log(total)).astype(lses.dtype)


@fault("MERGE-2", "parts averaged without weights", "cf. flashinfer PR 50")
class PartsAveraged(Merging):
    """The log-sum-exps that the weights need were not stored."""

    def weights(self, x: Merge, powers: Array, total: Array) -> Array:
        has_keys = powers > 0
        return has_keys / np.fmax(has_keys.sum(axis=0), 1).astype(powers.dtype)


@fault("MERGE-2", "parts added up without weights", "cf. flash-attention 1647")
class PartsAdded(Merging):
    """Outputs that are normalised already are added up as if they were not."""

    def weights(self, x: Merge, powers: Array, total: Array) -> Array:
        return np.where(np.isnan(powers), powers, 1).astype(powers.dtype)


@fault("MERGE-2", "the weighted sum not divided by the sum of the weights", "cf. aiter PR 4420")
class SumNotDivided(Merging):
    """The final division of the merge is missing."""

    def weights(self, x: Merge, powers: Array, total: Array) -> Array:
        return powers


@fault("MERGE-2", "weights of the parts in reverse order", "cf. vllm PR 50613")
class WeightsReversed(Merging):
    """The prefix gets the weight of the suffix, and vice versa."""

    def weights(self, x: Merge, powers: Array, total: Array) -> Array:
        return super().weights(x, powers, total)[::-1]


@fault("MERGE-2", "an older sum not rescaled when a part brings a larger maximum", "cf. aprender 2753")
class NotRescaled(Merging):
    """Each part's power is relative to the maximum of the parts up to it, not of all."""

    def powers(self, x: Merge, lses: Array, largest: Array) -> Array:
        so_far = np.maximum.accumulate(lses, axis=0)
        return np.exp(lses - np.where(np.isneginf(so_far), lses.dtype.type(0), so_far))


@fault("MERGE-11", "a sink of 0 counted once more in the merge", "rocm-libraries 12227")
class SinkCountedAgain(Merging):
    """The merge adds exp(0) to the sum, although the parts already contain the sink."""

    def total(self, x: Merge, powers: Array) -> Array:
        lses = self.lses(x)
        return super().total(x, powers) + np.exp(-self.largest(x, lses)).astype(powers.dtype)


@fault("MERGE-11", "a sink of 0 counted once for each part", "rocm-libraries 12227")
class SinkCountedForEachPart(Merging):
    """exp(0) is added to the sum in each part's log-sum-exp."""

    def lses(self, x: Merge) -> Array:
        lses = super().lses(x)
        return np.logaddexp(lses, lses.dtype.type(0))
