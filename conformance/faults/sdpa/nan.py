"""(SDPA-21, SDPA-23) NaN that is hidden or that spreads, and masked keys that affect the result."""

from __future__ import annotations

import numpy as np

from attention_conformance.conformance.faults.models.sdpa import Array, Attention, Inputs
from attention_conformance.conformance.faults.models.tiles import State, Tiled
from attention_conformance.conformance.faults.registry import fault


@fault("SDPA-23", "a NaN query gives zeros", "pytorch 141128, pytorch PR 188147")
class NanQueryZero(Attention):
    """A guard for fully masked rows also applies to a sum that is NaN."""

    def normalized(self, x: Inputs, powers: Array, total: Array, allowed: Array) -> Array:
        weights = super().normalized(x, powers, total, allowed)
        return np.where(np.isnan(total), x.work(0), weights)


@fault("SDPA-23", "a NaN key is dropped from its rows", "lattice 740, torch-xpu-ops PR 5022")
class NanKeyDropped(Attention):
    """The maximum and the sum of a row skip NaN."""

    def filled(self, x: Inputs, s: Array, allowed: Array) -> Array:
        s = super().filled(x, s, allowed)
        return np.where(np.isnan(s), x.work(-np.inf), s)


@fault("SDPA-23", "NaN replaced by 0 in the output", "rten PR 1321")
class NanToZero(Attention):
    """The remedy for fully masked rows is applied to the whole output."""

    def stored(self, x: Inputs, output: Array) -> Array:
        return super().stored(x, np.nan_to_num(output, nan=0.0))


@fault("SDPA-23", "NaN is dropped where there is more than one tile of keys", "cf. lattice 740, cf. pytorch PR 188147")
class NanDroppedInLaterTiles(Tiled):
    """The code uses fmax, which drops NaN. Calls with up to 16 keys are right."""

    def merged(self, x: Inputs, index: int, s: Array, v: Array, state: State) -> State:
        if index:
            top, total, output = (np.where(np.isnan(array), x.work(0), array) for array in state)
            s = np.where(np.isnan(s), x.work(-np.inf), s)
            state = np.where(np.isnan(state[0]), x.work(-np.inf), top), total, output
        return super().merged(x, index, s, v, state)


@fault("SDPA-23", "NaN in one batch reaches all of them", "pytorch 41508")
class NanSpreadsOverBatch(Attention):
    """The code checks for NaN over the whole tensor."""

    def stored(self, x: Inputs, output: Array) -> Array:
        return super().stored(x, np.full_like(output, np.nan) if np.isnan(output).any() else output)


@fault("SDPA-23", "NaN in one row reaches the rows of its tile", "cf. pytorch 119320")
class NanSpreadsOverRows(Attention):
    """Eight rows share one maximum."""

    def stored(self, x: Inputs, output: Array) -> Array:
        bad = np.isnan(output).any(axis=3, keepdims=True)
        for first in range(0, x.shape[2], 8):
            bad[:, :, first : first + 8] |= bad[:, :, first : first + 8].any(axis=2, keepdims=True)
        return super().stored(x, np.where(bad, np.nan, output))


@fault(
    "SDPA-21",
    "the maximum is taken over masked keys too: one far above the allowed ones makes all powers underflow",
    "allennlp PR 437",
)
class MaskedKeysWeigh(Attention):
    """The mask multiplies the powers. Rows whose masked scores are not far above the allowed ones are right."""

    def filled(self, x: Inputs, s: Array, allowed: Array) -> Array:
        self._allowed = allowed
        return s

    def powers(self, x: Inputs, s: Array, top: Array) -> Array:
        return super().powers(x, s, top) * self._allowed


@fault("SDPA-21", "masked values leak with the weight 2^-20", "tt-metal 51927")
class MaskedValuesLeak(Attention):
    """The error is invisible until a masked value is large."""

    def summed(self, x: Inputs, weights: Array, allowed: Array, v: Array) -> Array:
        leak = np.where(allowed, x.work(0), x.work(2.0**-20))
        return super().summed(x, weights, allowed, v) + leak @ np.where(np.isfinite(v), v, x.work(0))
