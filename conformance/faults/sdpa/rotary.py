"""(SDPA-44) Rotations of the wrong columns or at the wrong positions, and rotations that are left out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attention_conformance.conformance.faults.models.sdpa import Array, Attention, Inputs
from attention_conformance.conformance.faults.registry import fault


@fault("SDPA-44", "rotary pairs are always halves", "vllm-ascend 12765, vllm-ascend PR 12820, tt-metal 46507")
class RotaryAlwaysHalves(Attention):
    """The flag for interleaved pairs is not read."""

    def interleaved(self, x: Inputs) -> bool:
        return False


@fault("SDPA-44", "rotary pairs are always interleaved", "cf. vllm-ascend 12765")
class RotaryAlwaysInterleaved(Attention):
    """The flag for interleaved pairs is taken as always set."""

    def interleaved(self, x: Inputs) -> bool:
        return True


@fault("SDPA-44", "queries are turned as if they were the first tokens", "cf. equinox PR 799")
class RotaryWithoutOffset(Attention):
    """Calls with causal offset 0 are right."""

    def rotary_rows(self, x: Inputs) -> Array:
        return np.arange(x.shape[2])[None]


@fault("SDPA-44", "rotation is ignored", "cf. vllm-ascend 12765")
class RotaryIgnored(Attention):
    """The tables are accepted and never read."""

    def turned(self, x: Inputs, rows: Array, place: Array) -> Array:
        return rows


@fault("SDPA-44", "rows are turned by the number of their head", "open_lm 4")
class RotaryByHead(Attention):
    """The head and token axes are exchanged. Without grouped heads the result is as if nothing were rotated."""

    def operands(self, x: Inputs) -> tuple[Array, Array, Array]:
        q, k, v = super().operands(replace(x, rotary_cos=None, rotary_sin=None))
        if x.rotary_cos is None:
            return q, k, v
        head = np.arange(q.shape[1])
        return self.by_head(x, q, head), self.by_head(x, k, head // x.group), v

    def by_head(self, x: Inputs, rows: Array, head: Array) -> Array:
        """Rows (B, Hq, S, D), rotated by the numbers of their heads (Hq,)."""
        place = head[None] % len(self.tables(x)[0])
        return self.turned(x, rows.swapaxes(1, 2), place).swapaxes(1, 2)


@fault("SDPA-44", "the angles of interleaved pairs are read two columns apart", "onnxruntime PR 26390")
class RotaryTablesTwice(Attention):
    """The tables are read as if they had one column for each column of q."""

    def tables(self, x: Inputs) -> tuple[Array, Array]:
        cos, sin = super().tables(x)
        columns = np.minimum(2 * np.arange(cos.shape[1]), cos.shape[1] - 1)
        return (cos[:, columns], sin[:, columns]) if x.rotary_interleaved else (cos, sin)
