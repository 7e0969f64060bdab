"""(BLOCK-1 to BLOCK-5) Block masks that are ignored, read with other blocks, or taken for all that there is to mask."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attention_conformance.conformance.faults.models.sdpa import Array, Attention, Inputs
from attention_conformance.conformance.faults.registry import fault
from attention_conformance.conformance.spec.sdpa import Expected


@fault("BLOCK-1", "the block mask is ignored", "pytorch 188322, pytorch PR 188484, sglang PR 20278")
class BlockMaskIgnored(Attention):
    """Every block takes part: what decides is whether there is a mask beside the table."""

    def blocks_allow(self, x: Inputs) -> Array:
        return np.ones(x.shape, bool)


@fault("BLOCK-1", "the block mask is ignored where there is no other mask", "pytorch 188322, pytorch PR 188484")
class BlockMaskIgnoredAlone(Attention):
    """A trivial mask within the blocks is taken for no sparsity."""

    def blocks_allow(self, x: Inputs) -> Array:
        alone = x.mask is None and not x.is_causal
        return np.ones(x.shape, bool) if alone else super().blocks_allow(x)


@fault("BLOCK-2", "blocks are taken to be of 128", "bd3lms 23, pytorch 133562")
class BlocksOf128(Attention):
    """The default size in the place of the one that the table was made for."""

    def block_size(self, x: Inputs) -> tuple[int, int]:
        return 128, 128


@fault("BLOCK-2", "blocks have as many keys as rows", "cf. bd3lms 23, cf. attention-gym 71")
class BlocksSquare(Attention):
    """One size is read for both."""

    def block_size(self, x: Inputs) -> tuple[int, int]:
        return (super().block_size(x)[0],) * 2


@fault("BLOCK-2", "the sizes of a block are exchanged", "cf. attention-gym 71")
class BlockSizesExchanged(Attention):
    """(bk, bq): blocks that are square hide it."""

    def block_size(self, x: Inputs) -> tuple[int, int]:
        rows, keys = super().block_size(x)
        return keys, rows


@fault("BLOCK-2", "blocks of rows are one row longer", "cf. bd3lms 23")
class BlocksOneRowLonger(Attention):
    """Each block of rows begins later than the one before by as much."""

    def block_size(self, x: Inputs) -> tuple[int, int]:
        rows, keys = super().block_size(x)
        return rows + 1, keys


@fault("BLOCK-1", "the block mask is transposed", "cf. torch-blocksparse PR 3")
class BlockMaskTransposed(Attention):
    """Shows where there are as many blocks of rows as of keys."""

    def block_mask(self, x: Inputs) -> Array:
        table = super().block_mask(x)
        return table.swapaxes(2, 3) if table.shape[2] == table.shape[3] else table


@fault("BLOCK-1", "the block mask of the first head is used for all", "cf. yalis PR 53")
class BlockMaskFirstHead(Attention):
    """The stride over heads is lost."""

    def block_mask(self, x: Inputs) -> Array:
        table = super().block_mask(x)
        return np.broadcast_to(table[:, :1], table.shape)


@fault("BLOCK-1", "the block mask of the first batch is used for all", "yalis PR 53")
class BlockMaskFirstBatch(Attention):
    """It was made without a batch axis, and is read as if it had none."""

    def block_mask(self, x: Inputs) -> Array:
        table = super().block_mask(x)
        return np.broadcast_to(table[:1], table.shape)


@fault("BLOCK-1", "the block mask is inverted", "cf. speculators PR 897")
class BlockMaskInverted(Attention):
    """True is taken for blocks that are skipped."""

    def block_mask(self, x: Inputs) -> Array:
        return ~super().block_mask(x)


@fault("BLOCK-3", "partial blocks are taken for full ones: a mask inside of blocks is ignored", "AttentionEngine PR 8")
class BlocksWithoutMask(Attention):
    """No mask is applied within a block."""

    def attend(self, x: Inputs) -> Expected:
        return super().attend(x if x.block_mask is None else replace(x, mask=None))


@fault("BLOCK-3", "partial blocks are taken for full ones: causal skips whole blocks alone", "AttentionEngine PR 8")
class BlocksCausalByBlock(Attention):
    """A block on the diagonal is seen whole, with the keys behind the row."""

    def causal_allows(self, x: Inputs) -> Array:
        if x.block_size is None or not x.is_causal:
            return super().causal_allows(x)
        rows, keys = x.block_size
        last = (np.arange(x.shape[2])[:, None] // rows + 1) * rows - 1 + self.offset(x)
        return self.keys(x) // keys <= last // keys


@fault("BLOCK-2", "the last block of keys is left out where it is cut off", "cf. pytorch PR 133019")
class BlocksWithoutLastKeys(Attention):
    """The number of blocks is rounded down."""

    def blocks_allow(self, x: Inputs) -> Array:
        keys = self.block_size(x)[1]
        return super().blocks_allow(x) & (self.keys(x) < x.shape[3] // keys * keys)


@fault("BLOCK-2", "the last block of rows is left out where it is cut off", "LMCache PR 3092")
class BlocksWithoutLastRows(Attention):
    """Its row of the table is never filled: zeros."""

    def blocks_allow(self, x: Inputs) -> Array:
        rows = self.block_size(x)[0]
        return super().blocks_allow(x) & (np.arange(x.shape[2])[:, None] < x.shape[2] // rows * rows)


@fault("BLOCK-2", "what lies behind the keys in their last block counts as keys of score 0", "cf. pytorch 153799")
class BlocksPadded(Attention):
    """Keys that a block of the table has and k has not."""

    def sinks(self, x: Inputs) -> Array:
        missing = 0 if x.block_size is None else -x.shape[3] % x.block_size[1]
        return np.logaddexp(super().sinks(x), x.work(np.log(missing))) if missing else super().sinks(x)


@fault("BLOCK-4", "NaN in rows without a block", "LMCache PR 3092, cf. vllm 48364")
class BlockRowsNan(Attention):
    """0 / 0 behind a loop over no block."""

    def normalized(self, x: Inputs, powers: Array, total: Array, allowed: Array) -> Array:
        weights = super().normalized(x, powers, total, allowed)
        return weights if x.block_mask is None else np.where(total == 0, x.work(np.nan), weights)


@fault("BLOCK-4", "rows without a block see every key", "cf. pytorch 188322")
class BlockRowsSeeAll(Attention):
    """No block in the list is taken for no list."""

    def block_mask(self, x: Inputs) -> Array:
        table = super().block_mask(x)
        return table | ~table.any(axis=3, keepdims=True)


@fault("BLOCK-4", "rows without a block see the first one", "cf. LMCache PR 3092")
class BlockRowsSeeFirst(Attention):
    """The loop runs once before it looks at the number of blocks."""

    def block_mask(self, x: Inputs) -> Array:
        table = super().block_mask(x).copy()
        table[..., :1] |= ~table.any(axis=3, keepdims=True)
        return table


@fault("BLOCK-4", "lse is 0 in rows without a block", "cf. LMCache PR 3092")
class BlockRowsLseZero(Attention):
    """The log of a sum that was set to 1 against a division by 0."""

    def lse(self, x: Inputs, top: Array, total: Array, allowed: Array) -> Array:
        lse = super().lse(x, top, total, allowed)
        return lse if x.block_mask is None else np.where(total == 0, x.work(0), lse)


@fault("BLOCK-5", "a block mask that does not fit is read as if it did", "cf. attention-gym 31")
class BlockMaskUnchecked(Attention):
    """What is missing is taken from the last block, and a size from the lengths; a head more is left out."""

    def check_masks(self, x: Inputs) -> None:
        pass

    def block_size(self, x: Inputs) -> tuple[int, int]:
        return x.block_size or (16, 16)

    def block_mask(self, x: Inputs) -> Array:
        assert x.block_mask is not None
        table = x.block_mask[: x.shape[0], : x.shape[1]]
        return np.broadcast_to(table, (*x.shape[:2], *table.shape[-2:]))
