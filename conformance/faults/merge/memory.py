"""(MERGE-14) Memory: inputs that are written to."""

from __future__ import annotations

import numpy as np

from attention_conformance.conformance.faults.models.merge import Merge, Merging
from attention_conformance.conformance.faults.models.sdpa import Array
from attention_conformance.conformance.faults.registry import fault


@fault("MERGE-14", "output merged into the first part's memory", "vllm PR 50613")
class OutputMergedInPlace(Merging):
    """After the call, the first part's output holds the result."""

    def stored(self, x: Merge, output: Array) -> Array:
        x.outputs[0] = output
        return super().stored(x, output)


@fault("MERGE-14", "lse merged into the first part's memory", "local-inference-lab-vllm PR 468")
class LseMergedInPlace(Merging):
    """After the call, the first part's log-sum-exp holds the result."""

    def stored_lse(self, x: Merge, lse: Array) -> Array:
        x.lses[0] = lse
        return lse


@fault(
    "MERGE-14", "fully masked rows set to 0 in the memory of their part", "vllm PR 49294, cf. vllm-xpu-kernels PR 479"
)
class EmptyRowsFilledInPlace(Merging):
    """The outputs are masked in place; such rows show it if they held anything but zeros."""

    def outputs(self, x: Merge) -> Array:
        x.outputs[np.isneginf(x.lses)] = 0
        return super().outputs(x)
