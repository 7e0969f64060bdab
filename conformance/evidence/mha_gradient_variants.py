"""Honest backward passes of a layer: sums row by row, weights side by side, stored results."""

from __future__ import annotations

import numpy as np

from attention_conformance.conformance.evidence.mha_variants import WIDE
from attention_conformance.conformance.evidence.variants import rounded
from attention_conformance.conformance.faults.models.mha import LayerCall
from attention_conformance.conformance.faults.models.mha_gradients import Gradients, LayerBackward
from attention_conformance.conformance.faults.models.sdpa import Array
from attention_conformance.conformance.spec.mha import LayerExpected


class Plain(LayerBackward):
    """The model unchanged."""

    profiles = WIDE


class RowByRow(Plain):
    """Every sum over rows adds one after the other, from the last row to the first."""

    def of_weight(self, x: LayerCall, name: str, array: Array, d: Array) -> Array:
        """Outer products, one after the other."""
        total = np.zeros((array.shape[2], d.shape[2]), x.work)
        rows = zip(array.reshape(-1, array.shape[2])[::-1], d.reshape(-1, d.shape[2])[::-1], strict=True)
        for one, other in rows:
            total += np.outer(one, other)
        return total

    def of_bias(self, x: LayerCall, name: str, d: Array) -> Array:
        """Rows, one after the other."""
        total = np.zeros(d.shape[2], x.work)
        for row in d.reshape(-1, d.shape[2])[::-1]:
            total += row
        return total


class SideBySide(Plain):
    """One product with the three weights side by side, in self-attention."""

    def of_inputs(self, x: LayerCall, d: Gradients) -> Gradients:
        """One sum over all columns."""
        if x.x_kv is not None:
            return super().of_inputs(x, d)
        weights = np.concatenate([self.layer.weight(x, name).astype(x.work) for name in "qkv"], axis=1)
        return {"x_q": np.concatenate([d[name] for name in "qkv"], axis=2) @ weights.T}


class WithoutKeyBias(Plain):
    """The gradient of b_k is zero, and is not computed."""

    def of_bias(self, x: LayerCall, name: str, d: Array) -> Array:
        """The sum of rows, except for b_k."""
        return super().of_bias(x, name, d * x.work(name != "k"))


class Stored(LayerBackward):
    """Storage dtype between operators: arrays handed from one to the next are stored; the forward pass is not."""

    profiles = WIDE

    def d_combined(self, x: LayerCall, dy: Array) -> Array:
        """DC, stored."""
        return rounded(x, super().d_combined(x, dy))

    def combined(self, x: LayerCall, found: LayerExpected) -> Array:
        """C, stored."""
        return rounded(x, super().combined(x, found))

    def combine(self, x: LayerCall, name: str, d: Array) -> Array:
        """DQ, dK and dV, stored."""
        return rounded(x, super().combine(x, name, d))

    def through(self, x: LayerCall, name: str, d: Array) -> Array:
        """The parts of the gradient of an input, stored."""
        return rounded(x, super().through(x, name, d))

    def added(self, x: LayerCall, parts: Gradients) -> Array:
        """Sum of the parts, stored."""
        return rounded(x, rounded(x, parts["v"] + parts["k"]) + parts["q"])


plain, row_by_row, side_by_side = Plain(), RowByRow(), SideBySide()
without_key_bias, stored = WithoutKeyBias(), Stored()
