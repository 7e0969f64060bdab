"""Mistakes of masks by tiles: causal, windows, lengths, masks and biases in tiles beyond the first."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from attention_conformance.conformance.faults.models.on_path import Mistake, mistake
from attention_conformance.conformance.faults.models.sdpa import Array, Inputs


@mistake("SDPA-11", "the window ignored from the second tile of keys on")
class WindowLaterTiles(Mistake):
    """Only the first tile of keys is compared with the window."""

    def window_allows(self, x: Inputs) -> Array:
        return super().window_allows(x) | (self.keys(x) >= self.tile)


@mistake("SDPA-11", "the left side of the window rounded down to a tile of keys")
class WindowToTile(Mistake):
    """Tiles before the window are skipped, but keys left of it in its first tile are still seen."""

    def window_allows(self, x: Inputs) -> Array:
        left, _ = self.window(x)
        if left is None:
            return super().window_allows(x)
        start = np.maximum(self.diagonal(x) - left, 0) // self.tile * self.tile
        right = super().window_allows(replace(x, window=(None, self.window(x)[1])))
        return right & (self.keys(x) >= start)


@mistake("SDPA-11", "the first tile of the window skipped")
class WindowSkipsTile(Mistake):
    """The start of the window is rounded up to a whole tile of keys."""

    def window_allows(self, x: Inputs) -> Array:
        allowed, (left, _) = super().window_allows(x), self.window(x)
        if left is None:
            return allowed
        start = -(-np.maximum(self.diagonal(x) - left, 0) // self.tile) * self.tile
        return allowed & (self.keys(x) >= np.minimum(start, np.maximum(self.diagonal(x), 0)))


@mistake("SDPA-11", "the window one key too wide at the left")
class WindowOneMore(Mistake):
    """W + 1 is used instead of W."""

    def window(self, x: Inputs) -> tuple[int | None, int | None]:
        left, right = super().window(x)
        return None if left is None else left + 1, right


@mistake("SDPA-9", "causal in whole tiles of keys from the second tile of rows on")
class CausalByTile(Mistake):
    """Later tiles of rows see all of the tile that the diagonal crosses."""

    def causal_allows(self, x: Inputs) -> Array:
        allowed = super().causal_allows(x)
        if not x.is_causal:
            return allowed
        rows = np.arange(x.shape[2])[:, None]
        return allowed | ((rows >= self.rows) & (self.keys(x) // self.tile <= self.diagonal(x) // self.tile))


@mistake("SDPA-9", "the diagonal not applied in the last, partial tile of keys")
class CausalTailOpen(Mistake):
    """Rows whose diagonal reaches the last tile see all of it."""

    def causal_allows(self, x: Inputs) -> Array:
        allowed, full = super().causal_allows(x), x.shape[3] // self.tile * self.tile
        return allowed | ((self.keys(x) >= full) & (self.diagonal(x) >= full - 1)) if x.is_causal else allowed


@mistake("SDPA-10", "tiles of keys skipped for causal without the offset")
class CausalSkipsWithoutOffset(Mistake):
    """The last tile of keys is computed only from the row; only positive offsets show it."""

    def causal_allows(self, x: Inputs) -> Array:
        allowed = super().causal_allows(x)
        rows = np.arange(x.shape[2])[:, None]
        last = (rows // self.rows + 1) * self.rows
        return allowed & (self.keys(x) < -(-last // self.tile) * self.tile) if x.is_causal else allowed


@mistake("SDPA-9", "one tile of keys too few where causal skips tiles")
class CausalSkipsOneMore(Mistake):
    """The tile that the diagonal crosses is skipped, unless it is the first one or lies behind the last key."""

    def causal_allows(self, x: Inputs) -> Array:
        allowed = super().causal_allows(x)
        if not x.is_causal:
            return allowed
        last = self.diagonal(x) // self.tile * self.tile
        return allowed & ((self.keys(x) < last) | (last == 0) | (x.shape[3] <= last))


@mistake("SDPA-9", "the diagonal counted over the packed rows of a group")
class DiagonalOfPackedRows(Mistake):
    """Row i of the g-th head of a group is masked as row i · group + g."""

    def diagonal(self, x: Inputs) -> Array:
        head = (np.arange(x.shape[1]) % x.group)[:, None, None]
        return np.arange(x.shape[2])[None, :, None] * x.group + head + self.offset(x)


@mistake("SDPA-12", "lengths rounded up to a tile of keys")
class LengthsToTile(Mistake):
    """All keys of the tile in which the length ends are allowed."""

    def lengths_allow(self, x: Inputs) -> Array:
        if x.kv_lengths is None:
            return super().lengths_allow(x)
        return super().lengths_allow(replace(x, kv_lengths=-(-np.asarray(x.kv_lengths) // self.tile) * self.tile))


@mistake("SDPA-12", "the length of the first batch used for all")
class LengthsOfFirstBatch(Mistake):
    """The kernel reads one length instead of one per sample."""

    def lengths_allow(self, x: Inputs) -> Array:
        if x.kv_lengths is None:
            return super().lengths_allow(x)
        return super().lengths_allow(replace(x, kv_lengths=np.asarray(x.kv_lengths)[:1].repeat(x.shape[0])))


@mistake("SDPA-7", "a row of the mask read within the first tile of rows")
class MaskRowsOfFirstTile(Mistake):
    """Row i of the scores reads row (i mod the tile's rows) of the mask."""

    def mask_allows(self, x: Inputs) -> Array:
        return super().mask_allows(x)[:, :, np.arange(x.shape[2]) % self.rows]


@mistake("SDPA-7", "a key of the mask read within the first tile of keys")
class MaskKeysOfFirstTile(Mistake):
    """Key j reads column (j mod the tile's keys) of the mask."""

    def mask_allows(self, x: Inputs) -> Array:
        return super().mask_allows(x)[..., np.arange(x.shape[3]) % self.tile]


@mistake("SDPA-7", "the mask not applied in the last, partial tile of keys")
class MaskTailOpen(Mistake):
    """That tile is bounded by the number of keys, but its mask is not read."""

    def mask_allows(self, x: Inputs) -> Array:
        return super().mask_allows(x) | (self.keys(x) >= x.shape[3] // self.tile * self.tile)


@mistake("SDPA-7", "a block of the mask that is partly masked taken as full")
class MaskBlockFull(Mistake):
    """A block of rows and keys with any True in it is not masked, unless it is the one at the top left."""

    def mask_allows(self, x: Inputs) -> Array:
        mask = super().mask_allows(x)
        if x.mask is None:
            return mask
        mask = mask.copy()
        for row in range(0, x.shape[2], self.rows):
            for key in range(0, x.shape[3], self.tile):
                block = mask[:, :, row : row + self.rows, key : key + self.tile]
                if row or key:
                    block[...] = block.any(axis=(2, 3), keepdims=True)
        return mask


@mistake("SDPA-8", "the mask read with a stride rounded up to a multiple of 8")
class MaskStrideAligned(Mistake):
    """Calls with Sk a multiple of 8 are still right."""

    def mask_allows(self, x: Inputs) -> Array:
        mask = super().mask_allows(x)
        if x.mask is None:
            return mask
        b, h, rows, keys = mask.shape
        at = (np.arange(rows)[:, None] * (-(-keys // 8) * 8) + np.arange(keys)) % max(rows * keys, 1)
        return mask.reshape(b, h, rows * keys)[:, :, at]


@mistake("SDPA-6", "the bias not added from the second tile of keys on")
class BiasFirstTile(Mistake):
    """Only the first tile of keys gets the bias."""

    def added(self, x: Inputs, s: Array) -> Array:
        return np.where(self.keys(x) < self.tile, super().added(x, s), s)


@mistake("SDPA-6", "a row of the bias read within the first tile of rows")
class BiasRowsOfFirstTile(Mistake):
    """Row i of the scores reads row (i mod the tile's rows) of the bias."""

    def added(self, x: Inputs, s: Array) -> Array:
        if x.bias is None:
            return s
        bias = self.spread(x, x.bias)[:, :, np.arange(x.shape[2]) % self.rows]
        return s + bias.astype(x.work)


@mistake("SDPA-6", "the bias added without the scale of base 2")
class BiasBaseTwo(Mistake):
    """Scores are multiplied by log₂ e for exp2, but the bias is not."""

    def added(self, x: Inputs, s: Array) -> Array:
        return s if x.bias is None else s + self.spread(x, x.bias).astype(x.work) * x.work(math.log(2))


@mistake("SDPA-5", "the softcap not applied from the second tile of keys on")
class SoftcapFirstTile(Mistake):
    """Later tiles run in a separate loop that has no softcap."""

    def capped(self, x: Inputs, s: Array) -> Array:
        return np.where(self.keys(x) < self.tile, super().capped(x, s), s)
