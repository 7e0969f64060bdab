"""(MERGE-10, 12, 13) Precision: log-sum-exps and sums in half precision, and results in the wrong dtype."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from attention_conformance.conformance.faults.models.merge import Merge, Merging
from attention_conformance.conformance.faults.models.sdpa import Array
from attention_conformance.conformance.faults.registry import fault


@fault("MERGE-12", "log-sum-exps rounded to bfloat16", "tt-metal PR 41683, ring-flash-attention 42")
class LsesInBfloat16(Merging):
    """Each log-sum-exp keeps eight significant bits, whatever the dtype of the outputs."""

    def lses(self, x: Merge) -> Array:
        lses = super().lses(x)
        return lses.astype(ml_dtypes.bfloat16).astype(lses.dtype)


@fault("MERGE-12", "log-sum-exps rounded to float16", "cf. tt-metal PR 41683")
class LsesInFloat16(Merging):
    """Each log-sum-exp keeps eleven significant bits."""

    def lses(self, x: Merge) -> Array:
        lses = super().lses(x)
        return lses.astype(np.float16).astype(lses.dtype)


@fault("MERGE-12", "lse rounded to the dtype of the outputs, and returned in float32", "cf. ring-flash-attention 22")
class LseRounded(Merging):
    """The next merge gets an lse that has lost digits."""

    def stored_lse(self, x: Merge, lse: Array) -> Array:
        return lse.astype(x.outputs.dtype).astype(lse.dtype)


@fault("MERGE-13", "lse returned in the dtype of the outputs", "cf. ring-flash-attention 22")
class LseInDtypeOfOutputs(Merging):
    """Only half precision shows it."""

    def stored_lse(self, x: Merge, lse: Array) -> Array:
        return lse.astype(x.outputs.dtype)


@fault("MERGE-13", "output returned in float32, where the outputs are in half precision", "cf. tpu-inference PR 3212")
class OutputPromoted(Merging):
    """float32 weights promote half-precision outputs, and the result is not converted back."""

    def stored(self, x: Merge, output: Array) -> Array:
        return output


@fault(
    "MERGE-10", "the weighted sum kept in the dtype of the outputs before it is divided", "cf. flash-attention PR 2723"
)
class SumInDtypeOfOutputs(Merging):
    """In float16 the sum overflows where the outputs are large."""

    def output(self, x: Merge, weights: Array, outputs: Array) -> Array:
        largest = weights.max(axis=0)
        largest = np.where(largest == 0, 1, largest)
        total = (weights / largest)[..., None] * outputs
        return total.sum(axis=0).astype(x.outputs.dtype).astype(x.work) * largest[..., None]
