"""(SDPA-1, SDPA-14) Mistakes that only tiles can have: in their tails, maximum and rescaling, and in merging parts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attention_conformance.conformance.faults.models.sdpa import Array, Attention, Inputs
from attention_conformance.conformance.faults.models.tiles import State, Tiled
from attention_conformance.conformance.faults.registry import fault


@fault(
    "SDPA-1",
    "padding behind the last key counts as a key of score 0",
    "flashinfer PR 5090, zml PR 563, NNkernels.jl PR 16",
)
class TailCounts(Tiled):
    """Every key missing from the last tile adds exp(0) = 1 to the sum."""

    def padding(self, x: Inputs) -> float:
        return 0.0


@fault("SDPA-1", "keys behind the last full tile dropped", "TransformerEngine 3331, jax 27224")
class TailDropped(Tiled):
    """Only calls with more than 16 keys, whose number is not a multiple of 16, are wrong."""

    def first_keys(self, x: Inputs, keys: int) -> list[int]:
        return super().first_keys(x, keys)[: max(1, x.shape[3] // self.tile)]


@fault("SDPA-1", "the last tile reads past its end: the first keys of the sequence again", "pytorch PR 169222")
class TailReadsOn(Tiled):
    """Memory past the last key is read as keys, up to a full tile of 32."""

    tile = 32

    def padded(self, x: Inputs, s: Array, allowed: Array, v: Array) -> tuple[Array, Array]:
        missing = min(-s.shape[3] % self.tile, s.shape[3])
        s, v = np.concatenate([s, s[..., :missing]], axis=3), np.concatenate([v, v[:, :, :missing]], axis=2)
        return super().padded(x, s, allowed, v)


@fault("SDPA-1", "the last key lost where one key is left for the last tile", "pytorch 191937")
class TailOfOneLost(Tiled):
    """Only Sk = 33, 65, 97, … is wrong."""

    tile = 32

    def first_keys(self, x: Inputs, keys: int) -> list[int]:
        tiles = super().first_keys(x, keys)
        return tiles[:-1] if x.shape[3] % self.tile == 1 and len(tiles) > 1 else tiles


@fault(
    "SDPA-30",
    "the last key lost where keys are expanded (stride 0) and one is left for the last tile",
    "pytorch 191937",
)
class TailOfOneLostExpanded(TailOfOneLost):
    """Calls whose keys have no stride of 0 are right."""

    def first_keys(self, x: Inputs, keys: int) -> list[int]:
        return super().first_keys(x, keys) if 0 in x.k.strides else Tiled.first_keys(self, x, keys)


@fault(
    "SDPA-1", "query rows behind the last full tile not written", "lightning-attention PR 28, tiny-flash-attention 12"
)
class QueryTailNotWritten(Attention):
    """Rows from ⌊Sq / 16⌋ · 16 on stay zero. Calls with at most 16 rows are right."""

    #: Query rows of a tile.
    rows = 16

    def stored(self, x: Inputs, output: Array) -> Array:
        output = super().stored(x, output)
        if x.shape[2] > self.rows:
            output[:, :, x.shape[2] // self.rows * self.rows :] = 0
        return output


@fault("SDPA-14", "exp(−inf + inf) where the first tile is masked", "pytorch 127055, vllm 48364")
class FirstTileNan(Tiled):
    """The maximum is still −inf after the first tile. Rows with an allowed key in that tile are right."""

    def merged(self, x: Inputs, index: int, s: Array, v: Array, state: State) -> State:
        top, total, output = super().merged(x, index, s, v, state)
        nan = (index == 0) & self.is_unguarded(x) & np.isneginf(top)
        return top, np.where(nan, x.work(np.nan), total), np.where(nan, x.work(np.nan), output)

    def is_unguarded(self, x: Inputs) -> bool:
        """Whether this call computes exp(−inf + inf) in a first tile without a key."""
        return True


@fault("SDPA-14", "exp(−inf + inf) where the first chunk of 512 keys is masked", "executorch PR 10466")
class FirstChunkNan(FirstTileNan):
    """Calls with up to 512 keys have a single chunk, in which fully masked rows are guarded."""

    tile = 512

    def is_unguarded(self, x: Inputs) -> bool:
        return x.shape[3] > self.tile


@fault("SDPA-14", "a masked tile leaves a maximum of 0 behind", "flash-attention 2082, flash-attention PR 2174")
class MaskedTileMaximumZero(Tiled):
    """Rows whose later scores are far below 0 come out as zeros."""

    def merged(self, x: Inputs, index: int, s: Array, v: Array, state: State) -> State:
        top, total, output = super().merged(x, index, s, v, state)
        return np.where(np.isneginf(top), x.work(0), top), total, output


@fault("SDPA-14", "the running output is not rescaled when the maximum rises", "aprender 2753")
class OutputNotRescaled(Tiled):
    """The sum is rescaled. Rows whose scores fall from tile to tile are right."""

    def merged(self, x: Inputs, index: int, s: Array, v: Array, state: State) -> State:
        top, total, _ = super().merged(x, index, s, v, state)
        base = np.where(np.isneginf(top), x.work(0), top)
        return top, total, state[2] + np.exp(s - base) @ v


@fault("SDPA-14", "the running sum is not rescaled when the maximum rises", "aprender 2753")
class TotalNotRescaled(Tiled):
    """The output is rescaled. Rows whose scores fall from tile to tile are right."""

    def merged(self, x: Inputs, index: int, s: Array, v: Array, state: State) -> State:
        top, _, output = super().merged(x, index, s, v, state)
        base = np.where(np.isneginf(top), x.work(0), top)
        return top, state[1] + np.exp(s - base).sum(axis=3, keepdims=True), output


@fault("SDPA-14", "a rise of the maximum below 8 is not rescaled", "rocm-libraries PR 6498, tilelang PR 2360")
class SmallRisesNotRescaled(Tiled):
    """Kernels may skip small rescalings if they keep the old maximum; this code replaces it."""

    def shrink(self, x: Inputs, index: int, top: Array, base: Array) -> Array:
        return np.where(base - top < 8, x.work(1), super().shrink(x, index, top, base))


@fault("SDPA-14", "the maximum of the last tile overwrites the running one", "aprender 2753")
class MaximumOverwritten(Tiled):
    """The old maximum is overwritten before the rescaling reads it, so the state is never rescaled."""

    def shrink(self, x: Inputs, index: int, top: Array, base: Array) -> Array:
        return np.ones_like(base)


class Split(Attention):
    """Two halves of the keys, each normalised, merged by their lse; ``part_weights`` gives the weight of each half."""

    #: Fewer keys than this are not split.
    least = 64

    def part_weights(self, x: Inputs, lse: Array) -> Array:
        """Weights of the parts, (parts, B, Hq, Sq, 1), from their lse."""
        top = lse.max(axis=0)
        powers = np.exp(lse - np.where(np.isneginf(top), x.work(0), top))
        total = powers.sum(axis=0)
        return powers / np.where(total == 0, x.work(1), total)

    def mixed(self, x: Inputs, s: Array, allowed: Array, v: Array) -> tuple[Array, Array, Array]:
        output, weights, lse = super().mixed(x, s, allowed, v)
        half = x.shape[3] // 2
        if x.shape[3] < self.least:
            return output, weights, lse
        parts = [  # the sink is in the first part only
            super(Split, self).mixed(each, s[..., p], allowed[..., p], v[:, :, p])
            for each, p in ((x, slice(half)), (replace(x, sinks=None), slice(half, None)))
        ]
        merged = self.part_weights(x, np.stack([part[2][..., None] for part in parts]))
        return sum(w * part[0] for w, part in zip(merged, parts, strict=True)), weights, lse


@fault("SDPA-14", "two parts of the keys averaged, whatever their lse", "cf. attention-gym PR 205")
class SplitAveraged(Split):
    """Calls with fewer than 64 keys are right."""

    def part_weights(self, x: Inputs, lse: Array) -> Array:
        return np.full_like(lse, 0.5)


@fault(
    "SDPA-14",
    "two parts of the keys merged as if their lse were in base 2",
    "sglang PR 35045, vllm PR 28840, attention-gym PR 205",
)
class SplitMergedInBaseTwo(Split):
    """The merge takes exp2 of a natural lse. Parts with equal lse are merged correctly."""

    def part_weights(self, x: Inputs, lse: Array) -> Array:
        return super().part_weights(x, lse * x.work(np.log(2)))


@fault("SDPA-14", "two parts of the keys merged by lse that lack their maximum", "aiter PR 3334")
class SplitMergedWithoutMaximum(Split):
    """Only the logarithm of each part's sum is kept."""

    def lse(self, x: Inputs, top: Array, total: Array, allowed: Array) -> Array:
        lse = super().lse(x, top, total, allowed)
        return lse if total.shape[2] == 0 or allowed.shape[3] == x.shape[3] else lse - top


@fault("SDPA-15", "merging two empty parts gives NaN", "vllm PR 39148, flashinfer 4051, vllm PR 28181")
class SplitEmptyNan(Split):
    """The merge, not the softmax, computes −inf − (−inf)."""

    def part_weights(self, x: Inputs, lse: Array) -> Array:
        powers = np.exp(lse - lse.max(axis=0))
        return powers / powers.sum(axis=0)
