"""(SDPA-25, SDPA-26) Stages computed in too few bits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from attention_conformance.conformance.faults.models.sdpa import Array, Attention, Inputs
from attention_conformance.conformance.faults.registry import fault
from attention_conformance.conformance.spec.sdpa import Expected

#: Most keys for which a sum is added one by one in the storage dtype; more would only take longer.
MOST_KEYS = 4096


def rounded_to(array: Array, bits: int) -> Array:
    """The nearest numbers with ``bits`` significant bits."""
    mantissa, exponent = np.frexp(array)
    return np.ldexp(np.round(np.ldexp(mantissa, bits)), exponent - bits).astype(array.dtype)


def is_half(x: Inputs) -> bool:
    """Whether the storage dtype is float16 or bfloat16."""
    return x.dtype.itemsize == 2


@fault(
    "SDPA-25",
    "the sum of the weights accumulated in the storage dtype",
    "candle 3727, tract PR 2586, executorch PR 20090",
)
class TotalInHalf(Attention):
    """In bfloat16 the sum stops growing at 256."""

    def total(self, x: Inputs, powers: Array) -> Array:
        if not is_half(x) or not 0 < powers.shape[3] <= MOST_KEYS:
            return super().total(x, powers)
        return np.add.accumulate(powers.astype(x.dtype), axis=3)[..., -1:].astype(x.work)


@fault("SDPA-25", "the weighted sum accumulated in the storage dtype", "cf. ml_dtypes 63")
class OutputInHalf(Attention):
    """Every product and every partial sum is rounded to the storage dtype."""

    def summed(self, x: Inputs, weights: Array, allowed: Array, v: Array) -> Array:
        output = super().summed(x, weights, allowed, v)
        if not is_half(x) or not np.isfinite(v).all() or x.shape[3] > MOST_KEYS:
            return output
        output = np.zeros(output.shape, x.dtype)
        for j in range(x.shape[3]):
            output = output + (weights[..., j, None] * v[:, :, None, j]).astype(x.dtype)
        return output.astype(x.work)


@fault("SDPA-26", "q · k kept in the storage dtype before the scale", "pytorch 119131, metal-flash-attention 8")
class ProductOverflows(Attention):
    """In float16 the product overflows at 65504, although the scaled score would be small."""

    def scores(self, x: Inputs, q: Array, k: Array) -> Array:
        return (q @ k.swapaxes(2, 3)).astype(x.dtype).astype(x.work) * x.work(self.scale(x))


@fault("SDPA-26", "q · k kept in the storage dtype where the width is no multiple of 8", "pytorch 110505")
class ProductOverflowsOddWidth(ProductOverflows):
    """Widths that the fast kernel does not take go through a fallback."""

    def scores(self, x: Inputs, q: Array, k: Array) -> Array:
        return super().scores(x, q, k) if x.q.shape[3] % 8 else Attention.scores(self, x, q, k)


@fault("SDPA-26", "the output is stored before it is divided by the sum", "cf. pytorch 116176")
class OutputOverflows(Attention):
    """In float16 large values overflow: n keys of equal weight make the stored sum n times the output."""

    def summed(self, x: Inputs, weights: Array, allowed: Array, v: Array) -> Array:
        largest = weights.max(axis=3, keepdims=True, initial=0)
        largest = np.where(largest > 0, largest, x.work(1))
        raw = super().summed(x, weights / largest, allowed, v)
        return raw.astype(x.dtype).astype(x.work) * largest


@fault("SDPA-25", "float64 computed in float32", "jax PR 34114")
class Float64InFloat32(Attention):
    """The result has the right dtype but half the digits."""

    def attend(self, x: Inputs) -> Expected:
        return super().attend(replace(x, work=np.float32) if x.work is np.float64 and x.dtype == np.float64 else x)

    def results(self, x: Inputs, found: Expected) -> Any:
        wide = {name: getattr(found, name).astype(x.work) for name in ("output", "weights", "lse")}
        return super().results(x, replace(found, **wide))


@fault("SDPA-25", "the scale of a float64 call kept in float32", "cf. mlx PR 3119")
class ScaleInFloat32(Attention):
    """Every score of a float64 call has a relative error of 3e-8."""

    def scale(self, x: Inputs) -> float:
        return float(np.float32(super().scale(x)))


@fault("SDPA-25", "float32 matrix products in TF32", "mlx 3860, mlx 3534")
class Tf32(Attention):
    """The operands are rounded to 11 bits, although the implementation declares full precision."""

    def operands(self, x: Inputs) -> tuple[Array, Array, Array]:
        q, k, v = super().operands(x)
        return (rounded_to(q, 11), rounded_to(k, 11), rounded_to(v, 11)) if x.dtype == np.float32 else (q, k, v)


@fault("SDPA-25", "float32 values rounded to float16 for a batch of one", "mlx 3953")
class ValuesInHalf(Attention):
    """A batched product with a broadcast operand takes a narrower kernel. Larger batches are right."""

    def operands(self, x: Inputs) -> tuple[Array, Array, Array]:
        q, k, v = super().operands(x)
        narrow = x.dtype == np.float32 and x.shape[0] == 1
        return q, k, v.astype(np.float16).astype(x.work) if narrow else v


@fault("SDPA-25", "float32 weights rounded to bfloat16", "pytorch 171190")
class WeightsInBfloat16(Attention):
    """The weights of a float32 call keep only three digits."""

    def normalized(self, x: Inputs, powers: Array, total: Array, allowed: Array) -> Array:
        weights = super().normalized(x, powers, total, allowed)
        return rounded_to(weights, 8) if x.dtype == np.float32 else weights


@fault("SDPA-25", "exp replaced by a polynomial of 12 bits", "tt-metal 51927, tt-metal PR 57180")
class ExpApproximate(Attention):
    """The polynomial is enough for half precision, but 2000 times too coarse for float32."""

    def powers(self, x: Inputs, s: Array, top: Array) -> Array:
        powers = super().powers(x, s, top)
        return rounded_to(powers, 12) if x.dtype.itemsize >= 4 else powers


@fault("SDPA-25", "the reciprocal of the sum rounded to 7 bits", "tt-metal 51927")
class ReciprocalApproximate(Attention):
    """Every output of a row is off by the same factor, which a correlation does not show."""

    def normalized(self, x: Inputs, powers: Array, total: Array, allowed: Array) -> Array:
        return powers * rounded_to(1 / np.where(total == 0, x.work(1), total), 7)
