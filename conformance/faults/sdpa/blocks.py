"""(BLOCK-1 to BLOCK-5) Block masks that are ignored, read with the wrong block size, or taken for the only mask."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attention_conformance.conformance.faults.models.sdpa import Array, Attention, Inputs
from attention_conformance.conformance.faults.registry import fault
from attention_conformance.conformance.spec.sdpa import Expected


@fault("BLOCK-1", "the block mask is ignored", "pytorch 188322, pytorch PR 188484, sglang PR 20278")
class BlockMaskIgnored(Attention):
    """Every block takes part, whether or not the call has another mask."""

    def blocks_allow(self, x: Inputs) -> Array:
        return np.ones(x.shape, bool)


@fault("BLOCK-1", "the block mask is ignored where there is no other mask", "pytorch 188322, pytorch PR 188484")
class BlockMaskIgnoredAlone(Attention):
    """A call with neither a mask nor is_causal is treated as dense."""

    def blocks_allow(self, x: Inputs) -> Array:
        alone = x.mask is None and not x.is_causal
        return np.ones(x.shape, bool) if alone else super().blocks_allow(x)


@fault("BLOCK-2", "blocks are taken to be of 128", "bd3lms 23, pytorch 133562")
class BlocksOf128(Attention):
    """The kernel uses its default block size instead of the one that the table was made for."""

    def block_size(self, x: Inputs) -> tuple[int, int]:
        return 128, 128


@fault("BLOCK-2", "blocks have as many keys as rows", "cf. bd3lms 23, cf. attention-gym 71")
class BlocksSquare(Attention):
    """bq is used for both sides of a block."""

    def block_size(self, x: Inputs) -> tuple[int, int]:
        return (super().block_size(x)[0],) * 2


@fault("BLOCK-2", "the sizes of a block are exchanged", "cf. attention-gym 71")
class BlockSizesExchanged(Attention):
    """block_size is read as (bk, bq). Square blocks are still right."""

    def block_size(self, x: Inputs) -> tuple[int, int]:
        rows, keys = super().block_size(x)
        return keys, rows


@fault("BLOCK-2", "blocks of rows are one row longer", "cf. bd3lms 23")
class BlocksOneRowLonger(Attention):
    """Row i is looked up in block ⌊i / (bq + 1)⌋, so block n begins n rows too late."""

    def block_size(self, x: Inputs) -> tuple[int, int]:
        rows, keys = super().block_size(x)
        return rows + 1, keys


@fault("BLOCK-1", "the block mask is transposed", "cf. torch-blocksparse PR 3")
class BlockMaskTransposed(Attention):
    """Only tables with as many blocks of rows as of keys are transposed."""

    def block_mask(self, x: Inputs) -> Array:
        table = super().block_mask(x)
        return table.swapaxes(2, 3) if table.shape[2] == table.shape[3] else table


@fault("BLOCK-1", "the block mask of the first head is used for all", "cf. yalis PR 53")
class BlockMaskFirstHead(Attention):
    """The head stride of the table is taken as 0."""

    def block_mask(self, x: Inputs) -> Array:
        table = super().block_mask(x)
        return np.broadcast_to(table[:, :1], table.shape)


@fault("BLOCK-1", "the block mask of the first batch is used for all", "yalis PR 53")
class BlockMaskFirstBatch(Attention):
    """The kernel reads the table as if it had no batch axis."""

    def block_mask(self, x: Inputs) -> Array:
        table = super().block_mask(x)
        return np.broadcast_to(table[:1], table.shape)


@fault("BLOCK-1", "the block mask is inverted", "cf. speculators PR 897")
class BlockMaskInverted(Attention):
    """Blocks marked True are skipped, and those marked False take part."""

    def block_mask(self, x: Inputs) -> Array:
        return ~super().block_mask(x)


@fault("BLOCK-3", "partial blocks are taken for full ones: a mask inside of blocks is ignored", "AttentionEngine PR 8")
class BlocksWithoutMask(Attention):
    """A call with a block mask loses its mask, but keeps is_causal."""

    def attend(self, x: Inputs) -> Expected:
        return super().attend(x if x.block_mask is None else replace(x, mask=None))


@fault("BLOCK-3", "partial blocks are taken for full ones: causal skips whole blocks alone", "AttentionEngine PR 8")
class BlocksCausalByBlock(Attention):
    """In a block on the diagonal, rows also see the keys after their own."""

    def causal_allows(self, x: Inputs) -> Array:
        if x.block_size is None or not x.is_causal:
            return super().causal_allows(x)
        rows, keys = x.block_size
        last = (np.arange(x.shape[2])[:, None] // rows + 1) * rows - 1 + self.offset(x)
        return self.keys(x) // keys <= last // keys


@fault("BLOCK-2", "the last block of keys is left out where it is cut off", "cf. pytorch PR 133019")
class BlocksWithoutLastKeys(Attention):
    """The number of key blocks is Sk / bk rounded down instead of up."""

    def blocks_allow(self, x: Inputs) -> Array:
        keys = self.block_size(x)[1]
        return super().blocks_allow(x) & (self.keys(x) < x.shape[3] // keys * keys)


@fault("BLOCK-2", "the last block of rows is left out where it is cut off", "LMCache PR 3092")
class BlocksWithoutLastRows(Attention):
    """The table row of a partial last block is never filled, so its query rows give zeros."""

    def blocks_allow(self, x: Inputs) -> Array:
        rows = self.block_size(x)[0]
        return super().blocks_allow(x) & (np.arange(x.shape[2])[:, None] < x.shape[2] // rows * rows)


@fault("BLOCK-2", "what lies behind the keys in their last block counts as keys of score 0", "cf. pytorch 153799")
class BlocksPadded(Attention):
    """The last block is padded to bk keys, which take weight from every row and add no value."""

    def sinks(self, x: Inputs) -> Array:
        missing = 0 if x.block_size is None else -x.shape[3] % x.block_size[1]
        return np.logaddexp(super().sinks(x), x.work(np.log(missing))) if missing else super().sinks(x)


@fault("BLOCK-4", "NaN in rows without a block", "LMCache PR 3092, cf. vllm 48364")
class BlockRowsNan(Attention):
    """The loop visits no block, and the kernel then divides 0 by 0."""

    def normalized(self, x: Inputs, powers: Array, total: Array, allowed: Array) -> Array:
        weights = super().normalized(x, powers, total, allowed)
        return weights if x.block_mask is None else np.where(total == 0, x.work(np.nan), weights)


@fault("BLOCK-4", "rows without a block see every key", "cf. pytorch 188322")
class BlockRowsSeeAll(Attention):
    """An empty list of blocks is read as if no list were given."""

    def block_mask(self, x: Inputs) -> Array:
        table = super().block_mask(x)
        return table | ~table.any(axis=3, keepdims=True)


@fault("BLOCK-4", "rows without a block see the first one", "cf. LMCache PR 3092")
class BlockRowsSeeFirst(Attention):
    """The loop over blocks runs once before it checks how many there are."""

    def block_mask(self, x: Inputs) -> Array:
        table = super().block_mask(x).copy()
        table[..., :1] |= ~table.any(axis=3, keepdims=True)
        return table


@fault("BLOCK-4", "lse is 0 in rows without a block", "cf. LMCache PR 3092")
class BlockRowsLseZero(Attention):
    """The sum is set to 1 to avoid a division by 0, and its logarithm is returned."""

    def lse(self, x: Inputs, top: Array, total: Array, allowed: Array) -> Array:
        lse = super().lse(x, top, total, allowed)
        return lse if x.block_mask is None else np.where(total == 0, x.work(0), lse)


@fault("BLOCK-5", "a block mask that does not fit is read as if it did", "cf. attention-gym 31")
class BlockMaskUnchecked(Attention):
    """Rows and keys past the table use its last block, a missing size is (16, 16), and extra heads are dropped."""

    def check_masks(self, x: Inputs) -> None:
        pass

    def block_size(self, x: Inputs) -> tuple[int, int]:
        return x.block_size or (16, 16)

    def block_mask(self, x: Inputs) -> Array:
        assert x.block_mask is not None
        table = x.block_mask[: x.shape[0], : x.shape[1]]
        return np.broadcast_to(table, (*x.shape[:2], *table.shape[-2:]))
