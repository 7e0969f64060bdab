"""(SDPA-9, SDPA-10) The causal diagonal in the wrong place."""

from __future__ import annotations

import numpy as np

from attention_conformance.conformance.faults.models.sdpa import Array, Attention, Inputs
from attention_conformance.conformance.faults.registry import fault


@fault("SDPA-9", "is_causal ignored", "keras 23038, xformers 103")
class CausalIgnored(Attention):
    """Every row sees every key."""

    def causal_allows(self, x: Inputs) -> Array:
        return np.ones(x.shape, bool)


@fault("SDPA-9", "causal mask aligned bottom-right", "mlx 2835, executorch 22426, pytorch 108108, cutlass 2336")
class CausalBottomRight(Attention):
    """The diagonal ends at the last key; equal lengths hide it."""

    def causal_allows(self, x: Inputs) -> Array:
        return (
            super().causal_allows(x) if not x.is_causal else self.keys(x) <= self.diagonal(x) + x.shape[3] - x.shape[2]
        )


@fault("SDPA-9", "causal mask aligned bottom-right where there are more keys than queries", "mlx 2835")
class CausalBottomRightMoreKeys(Attention):
    """Top-left where there are more queries."""

    def causal_allows(self, x: Inputs) -> Array:
        more = max(0, x.shape[3] - x.shape[2])
        return super().causal_allows(x) if not x.is_causal else self.keys(x) <= self.diagonal(x) + more


@fault("SDPA-9", "causal switched off for one query", "onnxruntime 29020, hip-ep PR 144")
class CausalOffOneQuery(Attention):
    """A step of decoding is thought to need no mask."""

    def causal_allows(self, x: Inputs) -> Array:
        return np.ones(x.shape, bool) if x.shape[2] == 1 else super().causal_allows(x)


@fault("SDPA-9", "causal without the diagonal: a row does not see its own key", "cs249r_book PR 1953")
class CausalStrict(Attention):
    """j < i in the place of j ≤ i: the first row is empty."""

    def causal_allows(self, x: Inputs) -> Array:
        return self.keys(x) < self.diagonal(x) if x.is_causal else super().causal_allows(x)


@fault("SDPA-9", "causal lets every row see one key ahead", "octo 75, octo PR 76")
class CausalOneAhead(Attention):
    """j ≤ i + 1."""

    def causal_allows(self, x: Inputs) -> Array:
        return self.keys(x) <= self.diagonal(x) + 1 if x.is_causal else super().causal_allows(x)


@fault("SDPA-9", "the last row of causal sees every key", "cf. mlx 2835, cf. pytorch 108108")
class CausalLastRowSeesAll(Attention):
    """The row that is generated from takes the path of one query, which has no causal mask."""

    def causal_allows(self, x: Inputs) -> Array:
        if not x.is_causal:
            return super().causal_allows(x)
        return super().causal_allows(x) | (np.arange(x.shape[2])[:, None] == x.shape[2] - 1)


@fault("SDPA-9", "causal reversed: a row sees itself and later keys", "levanter PR 102, LLMs-from-scratch PR 1062")
class CausalReversed(Attention):
    """The other triangle."""

    def causal_allows(self, x: Inputs) -> Array:
        return self.keys(x) >= self.diagonal(x) if x.is_causal else super().causal_allows(x)


@fault("SDPA-9", "causal inverted: a row sees the keys behind its own alone", "LLMs-from-scratch 1061")
class CausalInverted(Attention):
    """True above the diagonal, for a function that takes True for allowed."""

    def causal_allows(self, x: Inputs) -> Array:
        return self.keys(x) > self.diagonal(x) if x.is_causal else super().causal_allows(x)


@fault("SDPA-9", "one causal mask for every four rows in half precision", "pytorch 195910")
class CausalFourRows(Attention):
    """Three of four rows see the future; float32 takes another kernel."""

    def diagonal(self, x: Inputs) -> Array:
        rows = np.arange(x.shape[2])[:, None]
        if x.dtype.itemsize == 2 and x.is_causal and x.window is None:
            rows = rows // 4 * 4 + 3
        return rows + self.offset(x)


@fault("SDPA-10", "the causal offset ignored", "onnx 8054, tinygrad PR 15949, flax 5591, hyprstream PR 1521")
class OffsetIgnored(Attention):
    """Each step of decoding attends to the first keys only."""

    def offset(self, x: Inputs) -> Array:
        return np.zeros((1, 1, 1, 1), int)


@fault("SDPA-10", "the offset of the first batch used for all", "candle-vllm PR 140")
class OffsetFirstBatch(Attention):
    """One number is read where there is one per sample."""

    def offset(self, x: Inputs) -> Array:
        return super().offset(x)[:1]


@fault("SDPA-10", "a negative causal offset taken as 0", "rten PR 1323")
class OffsetClamped(Attention):
    """Rows before the first key see the first key."""

    def offset(self, x: Inputs) -> Array:
        return np.maximum(super().offset(x), 0)


@fault("SDPA-10", "a given causal offset is counted from the bottom right: Sk − Sq is added", "cf. mlxcel 75")
class OffsetFromBottomRight(Attention):
    """Right without an offset; with one, Sk − Sq is added."""

    def offset(self, x: Inputs) -> Array:
        given = super().offset(x)
        return np.where(given == 0, 0, given + x.shape[3] - x.shape[2])


@fault("SDPA-10", "the keys before the offset are masked", "onnx PR 7297")
class OffsetMasksPast(Attention):
    """The cache of earlier keys is not seen."""

    def causal_allows(self, x: Inputs) -> Array:
        allowed = super().causal_allows(x)
        return allowed & (self.keys(x) >= self.offset(x)) if x.is_causal else allowed


@fault("SDPA-10", "the offset has the wrong sign", "cf. mlxcel 75")
class OffsetSign(Attention):
    """j ≤ i − offset."""

    def offset(self, x: Inputs) -> Array:
        return -super().offset(x)


@fault(
    "SDPA-9",
    "causal skips every key tile (of 16) behind the one with the row's own index, whatever the offset",
    "SageAttention PR 372, flash-sparse-attention PR 213",
)
class CausalTilesOfSquare(Attention):
    """Tiles of keys beyond the rows' own tile are skipped: shows for Sq < Sk with an offset."""

    def causal_allows(self, x: Inputs) -> Array:
        allowed = super().causal_allows(x)
        last = (np.arange(x.shape[2])[:, None] // 16 + 1) * 16
        return allowed & (self.keys(x) < last) if x.is_causal else allowed
