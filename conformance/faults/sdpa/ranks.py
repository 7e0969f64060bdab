"""(SDPA-6, SDPA-9, SDPA-11, SDPA-12, SDPA-14) Mistakes in results that only attention over ranks can have."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attention_conformance.conformance.faults.models.ring import RANKS, Ring, State, size, zigzag
from attention_conformance.conformance.faults.models.sdpa import Array, Attention, Inputs
from attention_conformance.conformance.faults.registry import fault


@fault("SDPA-9", "keys of later ranks seen: causal holds in a rank's own block alone", "ring-flash-attention 54")
class LaterRanksSeen(Attention):
    """With two ranks, rows of the first attend to all keys of the second."""

    def causal_allows(self, x: Inputs) -> Array:
        own = np.arange(x.shape[2])[:, None] // size(x.shape[2]) == self.keys(x) // max(size(x.shape[3]), 1)
        return super().causal_allows(x) | ~own


@fault("SDPA-9", "the causal diagonal of the first rank used on every rank", "cf. TensorRT-LLM PR 13821")
class DiagonalOfFirstRank(Attention):
    """Rows are counted from the start of their shard, so only the first rank is right."""

    def causal_allows(self, x: Inputs) -> Array:
        rows = np.arange(x.shape[2])[:, None] % max(size(x.shape[2]), 1)
        return self.keys(x) <= rows + self.offset(x) if x.is_causal else super().causal_allows(x)


@fault("SDPA-9", "shards in zigzag masked as if they were contiguous", "slime 1871")
class ZigzagMaskedAsContiguous(Attention):
    """Each rank holds a part of both halves, but causal takes its rows and keys to be contiguous."""

    def causal_allows(self, x: Inputs) -> Array:
        allowed = np.broadcast_to(super().causal_allows(x), (*super().causal_allows(x).shape[:-2], *x.shape[2:]))
        rows, keys = np.argsort(zigzag(x.shape[2])), np.argsort(zigzag(x.shape[3]))
        return allowed[..., rows[:, None], keys]


@fault("SDPA-9", "rows left in the order of zigzag shards", "cf. slime 1871")
class RowsLeftInZigzag(Attention):
    """The results of the ranks are concatenated without undoing the zigzag order."""

    def stored(self, x: Inputs, output: Array) -> Array:
        return super().stored(x, output)[:, :, zigzag(x.shape[2])]


@fault("SDPA-14", "the results of two ranks swapped", "cf. slime 1871")
class RanksSwapped(Attention):
    """The second half of the rows is returned first."""

    def stored(self, x: Inputs, output: Array) -> Array:
        return np.roll(super().stored(x, output), size(x.shape[2]), axis=2)


@fault(
    "SDPA-11",
    "the window counted from the beginning of a shard",
    "lm-engine PR 447, cf. TransformerEngine PR 1810, cf. accelerate PR 4177",
)
class WindowOfShard(Attention):
    """Every key block is windowed as if it were the rank's own. That block and calls without a window are right."""

    def window_allows(self, x: Inputs) -> Array:
        left, right = self.window(x)
        rows = np.arange(x.shape[2])[:, None] % max(size(x.shape[2]), 1) + self.offset(x)
        distance = self.keys(x) % max(size(x.shape[3]), 1) - rows
        allowed = np.ones(x.shape, bool)
        return (
            allowed
            & (distance >= (-np.inf if left is None else -left))
            & (distance <= (np.inf if right is None else right))
        )


@fault("SDPA-12", "key lengths counted from the beginning of a shard", "vllm-omni PR 6995")
class LengthsOfShard(Attention):
    """Padding in the last shard counts as keys."""

    def lengths_allow(self, x: Inputs) -> Array:
        if x.kv_lengths is None:
            return super().lengths_allow(x)
        return np.broadcast_to(
            self.keys(x) % max(size(x.shape[3]), 1) < np.reshape(x.kv_lengths, (-1, 1, 1, 1)), x.shape
        )


@fault(
    "SDPA-12",
    "lengths rounded down to what divides by the ranks: the last keys are lost",
    "TransformerEngine 1930, Megatron-LM 1669",
)
class LengthsRoundedDown(Attention):
    """With two ranks, every even number of keys is right."""

    def lengths_allow(self, x: Inputs) -> Array:
        lengths = np.full(x.shape[0], x.shape[3]) if x.kv_lengths is None else np.asarray(x.kv_lengths)
        return np.broadcast_to(self.keys(x) < np.reshape(lengths // RANKS * RANKS, (-1, 1, 1, 1)), x.shape)


@fault(
    "SDPA-6",
    "the bias of the first rank's heads used on every rank",
    "Megatron-DeepSpeed 227, cf. flashinfer 1606",
)
class BiasOfFirstHeads(Attention):
    """The heads are divided between two ranks, and each rank counts its heads from 0."""

    def joined(self, x: Inputs) -> Inputs:
        x = super().joined(x)
        if x.bias is None or x.bias.ndim < 3 or x.bias.shape[-3] != x.shape[1]:
            return x
        return replace(x, bias=np.take(x.bias, np.arange(x.shape[1]) % max(size(x.shape[1]), 1), axis=-3))


@fault("SDPA-9", "zigzag: the tile that holds keys of both halves of a rank is skipped", "tt-metal PR 42582")
class TileOfBothHalvesSkipped(Attention):
    """Rows of the first rank skip the tile in which the early keys of the second end. Tiles have four keys."""

    def causal_allows(self, x: Inputs) -> Array:
        part = -(-x.shape[3] // (2 * RANKS))
        skipped = (self.keys(x) >= part + part // 4 * 4) & (self.keys(x) < 2 * part)
        rows = np.zeros((x.shape[2], 1), bool)
        rows[zigzag(x.shape[2])[: size(x.shape[2])]] = True
        return super().causal_allows(x) & ~(rows & skipped) if x.is_causal else super().causal_allows(x)


@fault("SDPA-14", "the last rotation missing: a rank never meets the keys of one other", "cf. TransformerEngine 2484")
class RotationShort(Ring):
    """Rows for which that rank's keys are all masked are right."""

    def met(self, x: Inputs, rank: int) -> list[int]:
        return super().met(x, rank)[:-1]


@fault("SDPA-14", "blocks behind a rank's own skipped, also without causal", "cf. pytorch 141429")
class LaterRanksSkipped(Ring):
    """Every call uses the schedule of causal attention."""

    def met(self, x: Inputs, rank: int) -> list[int]:
        return [source for source in super().met(x, rank) if source <= rank]


@fault("SDPA-14", "a rank's own block of keys counted twice", "cf. TransformerEngine 1054")
class OwnBlockTwice(Ring):
    """The block is counted before the first rotation and again at the end of the rotations."""

    def met(self, x: Inputs, rank: int) -> list[int]:
        return [rank, *super().met(x, rank)]


@fault("SDPA-14", "only the last block that a rank met is kept", "cf. TransformerEngine 1054")
class LastBlockAlone(Ring):
    """Each block's result overwrites the one that it should be merged with."""

    def merged(self, x: Inputs, states: list[State]) -> State:
        return super().merged(x, states[-1:])


@fault(
    "SDPA-14", "blocks merged with powers of 2 of natural log-sum-exps", "cf. tokenspeed PR 571, cf. sycl-tla PR 848"
)
class BlocksMergedInBaseTwo(Ring):
    """Rows whose blocks all weigh the same are nearly right."""

    def merged(self, x: Inputs, states: list[State]) -> State:
        outputs, lses = (np.stack(each) for each in zip(*states, strict=True))
        output, lse = super().merged(x, list(zip(outputs, lses * x.work(np.log(2)), strict=True)))
        return output, lse / x.work(np.log(2))


@fault("SDPA-14", "the log-sum-exps of blocks added", "cf. ring-flash-attention 20")
class BlockLsesAdded(Ring):
    """The code computes log a + log b instead of log (a + b)."""

    def merged(self, x: Inputs, states: list[State]) -> State:
        output, lse = states[0]
        for other, block in states[1:]:
            whole = lse + block
            base = np.where(np.isneginf(whole), x.work(0), whole)
            output, lse = np.exp(lse - base) * output + np.exp(block - base) * other, whole
        return output, lse


@fault("SDPA-38", "the sink counted on every rank", "cf. prime-rl PR 3397")
class SinkOnEveryRank(Ring):
    """Each rank's state already contains the sink when the states are merged."""

    def sink(self, x: Inputs, like: State) -> list[State]:
        return super().sink(x, like) * RANKS


@fault(
    "SDPA-26",
    "blocks merged by exp of their log-sum-exps, without a maximum",
    "ring-flash-attention PR 30, ring-flash-attention PR 34",
)
class BlocksMergedUnshifted(Ring):
    """In float32 the merge overflows for scores from 89 on and underflows below −104."""

    def merged(self, x: Inputs, states: list[State]) -> State:
        outputs, lses = (np.stack(each) for each in zip(*states, strict=True))
        powers = np.exp(lses)
        total = powers.sum(axis=0)
        divisor = np.where(np.isneginf(lses).all(axis=0), x.work(1), total)
        return (powers * outputs).sum(axis=0) / divisor, np.log(total)


@fault("SDPA-11", "too few rotations for the window: their number rounded down", "cf. lm-engine PR 447")
class RotationsOfWindowRoundedDown(Ring):
    """Causal windows that are shorter than a shard but reach into the one before are wrong."""

    def met(self, x: Inputs, rank: int) -> list[int]:
        left = self.window(x)[0]
        if left is None or not x.is_causal:
            return super().met(x, rank)
        return [source for source in super().met(x, rank) if rank - source <= left // max(size(x.shape[3]), 1)]
