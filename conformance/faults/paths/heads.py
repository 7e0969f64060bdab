"""Mistakes of heads: groups mapped, packed or swapped wrongly, and grids that are too small."""

from __future__ import annotations

import numpy as np

from attention_conformance.conformance.faults.models.on_path import Mistake, mistake
from attention_conformance.conformance.faults.models.sdpa import Array, Inputs

#: One more than the second and third axes of a CUDA grid can hold.
LIMIT = 65536


@mistake("SDPA-17", "a group rounded up to a power of two")
class GroupRoundedUp(Mistake):
    """A group of 3 is read as 4: head 3 reads key head 0."""

    def heads(self, x: Inputs, array: Array) -> Array:
        group = 1 << max(x.group - 1, 0).bit_length()
        return array[:, np.minimum(np.arange(x.shape[1]) // group, array.shape[1] - 1)]


@mistake("SDPA-17", "the last head of a group reads the next key head")
class LastOfGroup(Mistake):
    """The code uses h + 1 instead of h."""

    def heads(self, x: Inputs, array: Array) -> Array:
        return array[:, (np.arange(x.shape[1]) + 1) // x.group % array.shape[1]]


@mistake("SDPA-17", "heads of a group beyond the eighth read the next key head")
class BeyondEight(Mistake):
    """A tile holds eight heads; groups of up to eight are still right."""

    def heads(self, x: Inputs, array: Array) -> Array:
        head = np.arange(x.shape[1])
        return array[:, np.where(head % x.group < 8, head // x.group, (head // x.group + 1) % array.shape[1])]


@mistake("SDPA-17", "the heads of the output in the order of the swapped rows")
class HeadsSwapped(Mistake):
    """The output is written as (group, Hkv) instead of (Hkv, group); one key head hides it."""

    def stored(self, x: Inputs, output: Array) -> Array:
        output, group = super().stored(x, output), x.group
        order = np.arange(x.shape[1]).reshape(-1, group).T.ravel()
        return np.ascontiguousarray(output[:, order])


@mistake("SDPA-9", "heads that became rows are masked as rows")
class CausalOfHeads(Mistake):
    """The g-th head of a group sees the keys that row g may see."""

    def causal_allows(self, x: Inputs) -> Array:
        head = (np.arange(x.shape[1]) % x.group)[:, None, None]
        return self.keys(x) <= self.diagonal(x) + head if x.is_causal else super().causal_allows(x)


@mistake("SDPA-8", "the heads of a group share the mask of the first")
class MaskOfFirstInGroup(Mistake):
    """One mask is read for all rows of the packed tile."""

    def mask_allows(self, x: Inputs) -> Array:
        return super().mask_allows(x)[:, np.arange(x.shape[1]) // x.group * x.group]


@mistake("SDPA-8", "the heads of a group share the bias of the first")
class BiasOfFirstInGroup(Mistake):
    """One bias is read for all rows of the packed tile."""

    def added(self, x: Inputs, s: Array) -> Array:
        if x.bias is None:
            return s
        bias = self.spread(x, x.bias)[:, np.arange(x.shape[1]) // x.group * x.group]
        return s + bias.astype(x.work)


@mistake("SDPA-38", "the sink of the first head of a group used for all")
class SinkOfFirstInGroup(Mistake):
    """Groups of one head, or equal sinks within each group, hide it."""

    def sinks(self, x: Inputs) -> Array:
        return super().sinks(x)[np.arange(x.shape[1]) // x.group * x.group]


@mistake("SDPA-1", "batch times heads wraps at 65,536")
class GridWraps(Mistake):
    """Heads are numbered over all batches; from number 65,536 on they repeat the output of the first ones."""

    def stored(self, x: Inputs, output: Array) -> Array:
        output = super().stored(x, output)
        flat = output.reshape(x.shape[0] * x.shape[1], *output.shape[2:])
        flat[LIMIT:] = flat[: max(len(flat) - LIMIT, 0)]
        return output
