"""(MERGE-6, 8, 9) Parts without a key, and NaN, that an implementation mistakes for something else."""

from __future__ import annotations

import numpy as np

from attention_conformance.conformance.faults.models.merge import Merge, Merging
from attention_conformance.conformance.faults.models.sdpa import Array
from attention_conformance.conformance.faults.registry import fault


@fault("MERGE-8", "NaN where no part has a key: −inf taken from −inf", "flashinfer 4051, vllm 27491, vllm PR 39148")
class NoKeysNan(Merging):
    """The maximum of the log-sum-exps is −inf there, and exp(−inf − (−inf)) is NaN."""

    def largest(self, x: Merge, lses: Array) -> Array:
        return lses.max(axis=0)


@fault("MERGE-8", "NaN where no part has a key: 0 divided by 0", "flashinfer 4054, cf. aiter PR 4420")
class NoKeysDivided(Merging):
    """The powers are divided by a sum of 0; lse is right."""

    def weights(self, x: Merge, powers: Array, total: Array) -> Array:
        return powers / total


@fault("MERGE-8", "the first part's output where no part has a key", "vllm PR 28181")
class NoKeysCopiesFirst(Merging):
    """The result copies whatever that part's output holds; zeros there hide it."""

    def output(self, x: Merge, weights: Array, outputs: Array) -> Array:
        no_key = np.all(np.isneginf(x.lses)[..., None], axis=0)
        return np.where(no_key, x.outputs[0].astype(outputs.dtype), super().output(x, weights, outputs))


@fault("MERGE-8", "lse of +inf where no part has a key", "flash-attention PR 978, flashinfer PR 3943")
class NoKeysPlusInf(Merging):
    """The merge writes the sentinel that the backward pass of a kernel expects."""

    def lse(self, x: Merge, lses: Array, largest: Array, total: Array) -> Array:
        return np.where(total == 0, np.inf, super().lse(x, lses, largest, total)).astype(lses.dtype)


@fault("MERGE-8", "lse of 0 where no part has a key", "cf. flash-attention PR 2573")
class NoKeysZeroLse(Merging):
    """The memory of lse is cleared first, and such rows are never written."""

    def lse(self, x: Merge, lses: Array, largest: Array, total: Array) -> Array:
        return np.where(total == 0, 0, super().lse(x, lses, largest, total)).astype(lses.dtype)


@fault("MERGE-8", "log-sum-exps of −inf raised to −10,000", "vllm 27491")
class LsesClamped(Merging):
    """Where no part has a key, a floor instead of −inf gives all parts equal weights and a finite lse."""

    def outputs(self, x: Merge) -> Array:
        return x.outputs.astype(x.work)

    def lses(self, x: Merge) -> Array:
        return np.maximum(super().lses(x), -10_000)


@fault("MERGE-6", "a part without a key counts, with a log-sum-exp of 0", "vllm PR 49294")
class EmptyPartCounts(Merging):
    """The finite log-sum-exp gives the part weight, which shrinks the output."""

    def lses(self, x: Merge) -> Array:
        lses = super().lses(x)
        return np.where(np.isneginf(lses), 0, lses).astype(lses.dtype)


@fault("MERGE-6", "the output of a part without a key added in full", "cf. vllm PR 49294")
class EmptyPartAdded(Merging):
    """The part has weight 0 in the denominator, but weight 1 in the numerator."""

    def output(self, x: Merge, weights: Array, outputs: Array) -> Array:
        return super().output(x, np.where(np.isneginf(x.lses), 1, weights), x.outputs.astype(x.work))


@fault("MERGE-6", "two parts at a time by sigmoid, NaN where the first has no key", "ring-flash-attention PR 34")
class FirstPartEmptySigmoid(Merging):
    """The new lse, −inf − log(sigmoid(−inf)), is NaN; the output is right only for two parts, the second with keys."""

    def folded(self, x: Merge) -> tuple[Array, Array]:
        """Output and lse of all parts, folded in one after the other."""
        lses, parts = x.lses.astype(np.float64), x.outputs.astype(np.float64)
        lse, output = lses[0], parts[0]
        for other, part in zip(lses[1:], parts[1:], strict=True):
            output = output - (output - part) / (1 + np.exp(lse - other))[..., None]
            lse = lse + np.logaddexp(0, other - lse)
        return output, lse

    def output(self, x: Merge, weights: Array, outputs: Array) -> Array:
        return self.folded(x)[0].astype(outputs.dtype)

    def lse(self, x: Merge, lses: Array, largest: Array, total: Array) -> Array:
        return self.folded(x)[1].astype(lses.dtype)


@fault("MERGE-6", "NaN where the first part has no key", "cf. flashinfer PR 5262")
class FirstPartEmptyNan(Merging):
    """The running maximum starts at the first part's log-sum-exp, which is −inf."""

    def powers(self, x: Merge, lses: Array, largest: Array) -> Array:
        return super().powers(x, lses, largest) + np.where(np.isneginf(lses[0]), np.nan, 0).astype(lses.dtype)


@fault("MERGE-6", "lse of −inf where the last part has no key", "sgl-kernel-xpu PR 487")
class LastPartOverwritesLse(Merging):
    """A split without keys writes its −inf over the lse of the others."""

    def lse(self, x: Merge, lses: Array, largest: Array, total: Array) -> Array:
        return np.where(np.isneginf(lses[-1]), -np.inf, super().lse(x, lses, largest, total)).astype(lses.dtype)


@fault("MERGE-6", "a row is empty where any part has no key", "cf. flash-attention 2842")
class AnyPartEmpty(Merging):
    """The early exit for one part without keys skips all parts of the row."""

    def total(self, x: Merge, powers: Array) -> Array:
        return np.where(np.isneginf(x.lses).any(axis=0), 0, super().total(x, powers)).astype(powers.dtype)


@fault("MERGE-9", "a log-sum-exp of NaN taken as −inf", "aiter PR 4420")
class NanLseDropped(Merging):
    """A guard against NaN hides that a part went wrong."""

    def lses(self, x: Merge) -> Array:
        lses = super().lses(x)
        return np.where(np.isnan(lses), -np.inf, lses).astype(lses.dtype)


@fault("MERGE-9", "NaN in outputs taken as 0", "cf. ATOM PR 1832")
class NanOutputsDropped(Merging):
    """``nan_to_num`` is applied to all outputs and log-sum-exps, not only to those of empty parts."""

    def outputs(self, x: Merge) -> Array:
        return np.nan_to_num(super().outputs(x), nan=0.0)

    def lses(self, x: Merge) -> Array:
        lses = super().lses(x)
        return np.where(np.isnan(lses), 0, lses).astype(lses.dtype)
