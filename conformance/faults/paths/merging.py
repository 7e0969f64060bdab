"""Mistakes of split keys: parts of the keys computed separately, and merged by their lse."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attention_conformance.conformance.faults.models.on_path import Mistake, mistake
from attention_conformance.conformance.faults.models.sdpa import Array, Attention, Inputs


class Merged(Mistake):
    """Attention over parts of one tile of keys each, which are normalised and then merged by their lse."""

    def mixed(self, x: Inputs, s: Array, allowed: Array, v: Array) -> tuple[Array, Array, Array]:
        """Output, weights and lse, merged from the parts; a single part stays unchanged."""
        starts = range(0, x.shape[3], self.tile)
        if len(starts) < 2:
            return super().mixed(x, s, allowed, v)
        parts = []
        for index, first in enumerate(starts):
            part = slice(first, first + self.tile)
            each = self.part(x, index)
            parts.append(Attention.mixed(self, each, s[..., part], allowed[..., part], v[:, :, part]))
        lse = np.stack([each[2][..., None] for each in parts])
        share = self.shares(x, lse)
        output = sum(w * each[0] for w, each in zip(share, parts, strict=True))
        weights = np.concatenate([w * each[1] for w, each in zip(share, parts, strict=True)], axis=3)
        return np.asarray(output, x.work), weights, self.whole(x, lse)[..., 0]

    def part(self, x: Inputs, index: int) -> Inputs:
        """The call of a part; only the first part has the sink."""
        return x if index == 0 else replace(x, sinks=None)

    def shares(self, x: Inputs, lse: Array) -> Array:
        """The weight of each part, (parts, B, Hq, Sq, 1)."""
        top = lse.max(axis=0)
        powers = np.exp(lse - np.where(np.isneginf(top), x.work(0), top))
        total = powers.sum(axis=0)
        return powers / np.where(total == 0, x.work(1), total)

    def whole(self, x: Inputs, lse: Array) -> Array:
        """The lse of all parts."""
        top = lse.max(axis=0)
        base = np.where(np.isneginf(top), x.work(0), top)
        total = np.exp(lse - base).sum(axis=0)
        return np.where(total == 0, x.work(-np.inf), base + np.log(np.where(total == 0, x.work(1), total)))


@mistake("SDPA-14", "split keys averaged, whatever their lse")
class PartsAveraged(Merged):
    """Every part gets the same weight."""

    def shares(self, x: Inputs, lse: Array) -> Array:
        return np.full_like(lse, 1 / len(lse))


@mistake("SDPA-14", "split keys merged as if their lse were in base 2")
class PartsInBaseTwo(Merged):
    """The merge takes exp2 of a natural lse."""

    def shares(self, x: Inputs, lse: Array) -> Array:
        return super().shares(x, lse * x.work(np.log(2)))


@mistake("SDPA-1", "the last of the split keys' parts lost")
class LastPartLost(Merged):
    """The number of parts is rounded down, so that a partial last part is lost."""

    def shares(self, x: Inputs, lse: Array) -> Array:
        if x.shape[3] % self.tile == 0:
            return super().shares(x, lse)
        return super().shares(x, np.concatenate([lse[:-1], np.full_like(lse[-1:], -np.inf)]))


@mistake("SDPA-14", "a part of the split keys without an allowed key gives NaN")
class EmptyPartNan(Merged):
    """The softmax of the part computes −inf − (−inf)."""

    def shares(self, x: Inputs, lse: Array) -> Array:
        return np.where(np.isneginf(lse).any(axis=0), x.work(np.nan), super().shares(x, lse))


@mistake("SDPA-38", "the sink counted in every part of the split keys")
class SinkInEveryPart(Merged):
    """Each part adds the sink to its own sum."""

    def part(self, x: Inputs, index: int) -> Inputs:
        return x


@mistake("SDPA-19", "lse is that of the last part of the split keys")
class LseOfLastPart(Merged):
    """Each part overwrites lse in turn."""

    def whole(self, x: Inputs, lse: Array) -> Array:
        return lse[-1]
