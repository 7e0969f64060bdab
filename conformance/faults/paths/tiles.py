"""Mistakes of tiles: their tails, their rows, what is carried from one to the next, and the width of a bucket."""

from __future__ import annotations

import math

import numpy as np

from attention_conformance.conformance.faults.models.on_path import Mistake, mistake
from attention_conformance.conformance.faults.models.sdpa import Array, Inputs

#: Buckets of head widths.
BUCKETS = (32, 64, 96, 128, 192, 256, 512)


def bucket(width: int) -> int:
    """The smallest bucket that a width fits into."""
    return next((each for each in BUCKETS if width <= each), width)


@mistake("SDPA-1", "the last, partial tile of keys dropped")
class KeyTailDropped(Mistake):
    """Keys behind the last full tile get no weight, unless no tile is full."""

    def filled(self, x: Inputs, s: Array, allowed: Array) -> Array:
        full = x.shape[3] // self.tile * self.tile
        s = super().filled(x, s, allowed)
        return np.where(self.keys(x) < full, s, x.work(-np.inf)) if full else s


@mistake("SDPA-1", "the last key dropped where it is alone in its tile")
class LoneKeyDropped(Mistake):
    """Only calls with one key more than whole tiles show it."""

    def filled(self, x: Inputs, s: Array, allowed: Array) -> Array:
        s = super().filled(x, s, allowed)
        lone = x.shape[3] > self.tile and x.shape[3] % self.tile == 1
        return np.where(self.keys(x) < x.shape[3] - 1, s, x.work(-np.inf)) if lone else s


@mistake("SDPA-1", "padding behind the last key counts as keys of score 0")
class KeyTailCounts(Mistake):
    """The sum gets exp(0 − maximum) for every key that the last tile lacks."""

    def softmax(self, x: Inputs, s: Array, allowed: Array) -> tuple[Array, Array]:
        top = self.top(x, s)
        powers = self.powers(x, s, top)
        padding = x.work(-x.shape[3] % self.tile) * np.exp(-top)
        total = self.total(x, powers) + self.sink_power(x, top) + padding
        return self.normalized(x, powers, total, allowed), self.lse(x, top, total, allowed)[..., 0]


@mistake("SDPA-1", "the rows of the last, partial tile not written")
class RowTailNotWritten(Mistake):
    """Rows behind the last full tile of rows stay zero."""

    def stored(self, x: Inputs, output: Array) -> Array:
        output = super().stored(x, output)
        full = x.shape[2] // self.rows * self.rows
        if full:
            output[:, :, full:] = 0
        return output


@mistake("SDPA-1", "rows of a later tile are written from the tile before")
class RowTailRepeated(Mistake):
    """The rows of the last, partial tile repeat rows of the tile before it."""

    def stored(self, x: Inputs, output: Array) -> Array:
        output = super().stored(x, output)
        full = x.shape[2] // self.rows * self.rows
        if full:
            output[:, :, full:] = output[:, :, full - self.rows : x.shape[2] - self.rows]
        return output


@mistake("SDPA-19", "lse of a later tile of rows is that of the first")
class LseOfFirstTile(Mistake):
    """lse is read by the index of the row within its tile."""

    def lse(self, x: Inputs, top: Array, total: Array, allowed: Array) -> Array:
        lse = super().lse(x, top, total, allowed)
        return lse[:, :, np.arange(lse.shape[2]) % self.rows]


@mistake("SDPA-19", "lse in base 2")
class LseBaseTwo(Mistake):
    """The kernel computes with exp2 and does not convert lse back."""

    def lse(self, x: Inputs, top: Array, total: Array, allowed: Array) -> Array:
        return super().lse(x, top, total, allowed) / x.work(math.log(2))


@mistake("SDPA-14", "NaN where the first tile of keys is masked for a row")
class FirstTileNan(Mistake):
    """The running maximum is still −inf after the first tile, and exp(−inf + inf) is NaN."""

    def normalized(self, x: Inputs, powers: Array, total: Array, allowed: Array) -> Array:
        weights = super().normalized(x, powers, total, allowed)
        nan = (x.shape[3] > self.tile) & ~allowed[..., : self.tile].any(axis=3, keepdims=True)
        return np.where(nan, x.work(np.nan), weights)


@mistake("SDPA-14", "the output of the first tile of keys is not rescaled when the maximum rises")
class OutputNotRescaled(Mistake):
    """The sum is rescaled, but the output of the first tile stays relative to that tile's maximum."""

    def normalized(self, x: Inputs, powers: Array, total: Array, allowed: Array) -> Array:
        weights = super().normalized(x, powers, total, allowed)
        if x.shape[3] <= self.tile:
            return weights
        highest = powers[..., : self.tile].max(axis=3, keepdims=True)
        first = weights[..., : self.tile] / np.where(highest > 0, highest, x.work(1))
        return np.concatenate([first, weights[..., self.tile :]], axis=3)


@mistake("SDPA-2", "columns of q and k behind the last full 32 left out of q · k")
class ColumnTailDropped(Mistake):
    """A tile holds 32 columns, so that a width of 40 or 80 loses the rest."""

    def scores(self, x: Inputs, q: Array, k: Array) -> Array:
        full = q.shape[3] // 32 * 32 or q.shape[3]
        return super().scores(x, q[..., :full], k[..., :full])


@mistake("SDPA-3", "the default scale is of the bucket's width")
class ScaleOfBucket(Mistake):
    """A width of 40 gets the scale 1/√64."""

    def default_scale(self, x: Inputs) -> float:
        return 1 / math.sqrt(bucket(x.q.shape[3]))


@mistake("SDPA-16", "the second half of the columns of v repeats the first")
class ValueColumnsRepeated(Mistake):
    """The columns of v are split over two passes, and both passes read the first half."""

    def stored(self, x: Inputs, output: Array) -> Array:
        output, half = super().stored(x, output), x.v.shape[3] // 2
        output[..., half : 2 * half] = output[..., :half]
        return output


@mistake("SDPA-16", "columns of the output from 128 on not written")
class ValueColumnsNotWritten(Mistake):
    """Only the first tile of columns is written."""

    def stored(self, x: Inputs, output: Array) -> Array:
        output = super().stored(x, output)
        output[..., 128:] = 0
        return output


@mistake("SDPA-16", "the rows of v are read with the stride of k")
class ValueStrideOfKeys(Mistake):
    """Calls with Dv = D are right."""

    def operands(self, x: Inputs) -> tuple[Array, Array, Array]:
        q, k, v = super().operands(x)
        b, h, keys, width = v.shape
        at = (np.arange(keys)[:, None] * k.shape[3] + np.arange(width)) % (keys * width)
        return q, k, v.reshape(b, h, keys * width)[:, :, at]
