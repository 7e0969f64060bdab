"""(MERGE-1, 4, 5, 15) Indexing: parts, sequences, heads and columns that are skipped or mixed up."""

from __future__ import annotations

import numpy as np

from attention_conformance.conformance.faults.models.merge import Merge, Merging
from attention_conformance.conformance.faults.models.sdpa import Array
from attention_conformance.conformance.faults.registry import fault


class _Some(Merging):
    """Merges only the first ``most`` parts."""

    most: int

    def lses(self, x: Merge) -> Array:
        lses = super().lses(x)
        kept = np.arange(len(lses)) < self.most
        return np.where(kept[:, None, None, None], lses, -np.inf).astype(lses.dtype)


@fault("MERGE-4", "only the first two parts merged", "cf. flashinfer PR 4573")
class FirstTwoParts(_Some):
    """Code written for a prefix and a suffix ignores any further part."""

    most = 2


@fault("MERGE-4", "only the first 32 parts merged", "flashinfer PR 4573")
class First32Parts(_Some):
    """Each of the 32 lanes of a warp takes one part."""

    most = 32


@fault("MERGE-4", "the last part skipped, where there are more than two", "cf. flashinfer PR 5262")
class LastPartSkipped(Merging):
    """The loop over parts ends one part too early."""

    def lses(self, x: Merge) -> Array:
        lses = super().lses(x)
        skipped = (np.arange(len(lses)) == len(lses) - 1) & (len(lses) > 2)
        return np.where(skipped[:, None, None, None], -np.inf, lses).astype(lses.dtype)


@fault("MERGE-5", "a part with a smaller log-sum-exp than one before it skipped", "cf. aprender 2753")
class SmallerPartsSkipped(Merging):
    """A part is added only if it reaches the maximum of the parts before it."""

    def lses(self, x: Merge) -> Array:
        lses = super().lses(x)
        before = np.concatenate([np.full_like(lses[:1], -np.inf), np.maximum.accumulate(lses, axis=0)[:-1]])
        return np.where(lses < before, -np.inf, lses).astype(lses.dtype)


@fault("MERGE-1", "log-sum-exps read as (S, H) in memory of (H, S)", "vllm PR 57012, vllm-xpu-kernels PR 479")
class LsesTransposed(Merging):
    """With one head or one row the result is right."""

    def lses(self, x: Merge) -> Array:
        lses = super().lses(x)
        parts, batch, heads, rows = lses.shape
        return np.ascontiguousarray(lses).reshape(parts, batch, rows, heads).swapaxes(2, 3)


@fault("MERGE-1", "log-sum-exps of the first sequence for all", "vllm-flash-attention PR 176")
class LsesOfFirstSequence(Merging):
    """The code uses a batch stride of 0."""

    def lses(self, x: Merge) -> Array:
        lses = super().lses(x)
        return np.broadcast_to(lses[:, :1], lses.shape)


@fault("MERGE-1", "log-sum-exps of the first head for all", "cf. flash-attention PR 2388")
class LsesOfFirstHead(Merging):
    """The code uses a head stride of 0."""

    def lses(self, x: Merge) -> Array:
        lses = super().lses(x)
        return np.broadcast_to(lses[:, :, :1], lses.shape)


@fault("MERGE-1", "columns behind the last multiple of 8 are the first part's", "cf. vllm PR 40924")
class TailColumnsNotMerged(Merging):
    """Columns are merged in packs of 8; those of an incomplete last pack keep what was there."""

    def output(self, x: Merge, weights: Array, outputs: Array) -> Array:
        merged = super().output(x, weights, outputs)
        tail = np.arange(merged.shape[-1]) >= merged.shape[-1] // 8 * 8
        return np.where(tail, outputs[0], merged)


@fault("MERGE-15", "what does not fit together is cut to what both have", "cf. vllm PR 57012")
class ShapesCut(Merging):
    """The shapes are never checked."""

    def check(self, x: Merge) -> None:
        return None

    def lses(self, x: Merge) -> Array:
        lses = super().lses(x)
        return np.resize(lses, x.outputs.shape[:-1]) if lses.shape != x.outputs.shape[:-1] else lses

    def outputs(self, x: Merge) -> Array:
        return np.where(np.isneginf(self.lses(x))[..., None], x.work(0), x.outputs.astype(x.work))
