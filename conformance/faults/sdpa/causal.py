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
    """The diagonal ends at the last key. Calls with Sq = Sk are still right."""

    def causal_allows(self, x: Inputs) -> Array:
        return (
            super().causal_allows(x) if not x.is_causal else self.keys(x) <= self.diagonal(x) + x.shape[3] - x.shape[2]
        )


@fault("SDPA-9", "causal mask aligned bottom-right where there are more keys than queries", "mlx 2835")
class CausalBottomRightMoreKeys(Attention):
    """Calls with Sq ≥ Sk keep the correct top-left alignment."""

    def causal_allows(self, x: Inputs) -> Array:
        more = max(0, x.shape[3] - x.shape[2])
        return super().causal_allows(x) if not x.is_causal else self.keys(x) <= self.diagonal(x) + more


@fault("SDPA-9", "causal switched off for one query", "onnxruntime 29020, hip-ep PR 144")
class CausalOffOneQuery(Attention):
    """The code assumes that a step of decoding needs no causal mask."""

    def causal_allows(self, x: Inputs) -> Array:
        return np.ones(x.shape, bool) if x.shape[2] == 1 else super().causal_allows(x)


@fault("SDPA-9", "causal without the diagonal: a row does not see its own key", "cs249r_book PR 1953")
class CausalStrict(Attention):
    """The code tests j < i instead of j ≤ i, so the first row is fully masked."""

    def causal_allows(self, x: Inputs) -> Array:
        return self.keys(x) < self.diagonal(x) if x.is_causal else super().causal_allows(x)


@fault("SDPA-9", "causal lets every row see one key ahead", "octo 75, octo PR 76")
class CausalOneAhead(Attention):
    """The code tests j ≤ i + 1."""

    def causal_allows(self, x: Inputs) -> Array:
        return self.keys(x) <= self.diagonal(x) + 1 if x.is_causal else super().causal_allows(x)


@fault("SDPA-9", "the last row of causal sees every key", "cf. mlx 2835, cf. pytorch 108108")
class CausalLastRowSeesAll(Attention):
    """The last row takes the path for a single query, which has no causal mask."""

    def causal_allows(self, x: Inputs) -> Array:
        if not x.is_causal:
            return super().causal_allows(x)
        return super().causal_allows(x) | (np.arange(x.shape[2])[:, None] == x.shape[2] - 1)


@fault("SDPA-9", "causal reversed: a row sees itself and later keys", "levanter PR 102, LLMs-from-scratch PR 1062")
class CausalReversed(Attention):
    """The upper triangle is allowed."""

    def causal_allows(self, x: Inputs) -> Array:
        return self.keys(x) >= self.diagonal(x) if x.is_causal else super().causal_allows(x)


@fault("SDPA-9", "causal inverted: a row sees the keys behind its own alone", "LLMs-from-scratch 1061")
class CausalInverted(Attention):
    """The mask is True above the diagonal, but the function reads True as allowed."""

    def causal_allows(self, x: Inputs) -> Array:
        return self.keys(x) > self.diagonal(x) if x.is_causal else super().causal_allows(x)


@fault("SDPA-9", "one causal mask for every four rows in half precision", "pytorch 195910")
class CausalFourRows(Attention):
    """Three of every four rows see later keys. Calls in float32 or with a window are right."""

    def diagonal(self, x: Inputs) -> Array:
        rows = np.arange(x.shape[2])[:, None]
        if x.dtype.itemsize == 2 and x.is_causal and x.window is None:
            rows = rows // 4 * 4 + 3
        return rows + self.offset(x)


@fault("SDPA-10", "the causal offset ignored", "onnx 8054, tinygrad PR 15949, flax 5591, hyprstream PR 1521")
class OffsetIgnored(Attention):
    """Each step of decoding attends only to the first keys."""

    def offset(self, x: Inputs) -> Array:
        return np.zeros((1, 1, 1, 1), int)


@fault("SDPA-10", "the offset of the first batch used for all", "candle-vllm PR 140")
class OffsetFirstBatch(Attention):
    """The code reads a single number where the call gives one per sample."""

    def offset(self, x: Inputs) -> Array:
        return super().offset(x)[:1]


@fault("SDPA-10", "a negative causal offset taken as 0", "rten PR 1323")
class OffsetClamped(Attention):
    """Rows that stand before the first key see keys instead of being fully masked."""

    def offset(self, x: Inputs) -> Array:
        return np.maximum(super().offset(x), 0)


@fault("SDPA-10", "a given causal offset is counted from the bottom right: Sk − Sq is added", "cf. mlxcel 75")
class OffsetFromBottomRight(Attention):
    """Calls with offset 0, or with Sq = Sk, are still right."""

    def offset(self, x: Inputs) -> Array:
        given = super().offset(x)
        return np.where(given == 0, 0, given + x.shape[3] - x.shape[2])


@fault("SDPA-10", "the keys before the offset are masked", "onnx PR 7297")
class OffsetMasksPast(Attention):
    """With is_causal, rows do not see the cached earlier keys."""

    def causal_allows(self, x: Inputs) -> Array:
        allowed = super().causal_allows(x)
        return allowed & (self.keys(x) >= self.offset(x)) if x.is_causal else allowed


@fault("SDPA-10", "the offset has the wrong sign", "cf. mlxcel 75")
class OffsetSign(Attention):
    """The code tests j ≤ i − offset."""

    def offset(self, x: Inputs) -> Array:
        return -super().offset(x)


@fault(
    "SDPA-9",
    "causal skips every key tile (of 16) behind the one with the row's own index, whatever the offset",
    "SageAttention PR 372, flash-sparse-attention PR 213",
)
class CausalTilesOfSquare(Attention):
    """Calls with a positive offset lose keys; calls without an offset are right."""

    def causal_allows(self, x: Inputs) -> Array:
        allowed = super().causal_allows(x)
        last = (np.arange(x.shape[2])[:, None] // 16 + 1) * 16
        return allowed & (self.keys(x) < last) if x.is_causal else allowed
