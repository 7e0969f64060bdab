"""Honest variants of layers: fused projections, head by head, stored results, a bias that changes nothing.

Like conformance.evidence.variants they can be plugged in.  Those that store nothing between two operations declare
``wide``; ``Handed`` stores what every profile may store, the result of each operator within the layer.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from attention_conformance.conformance.evidence import variants
from attention_conformance.conformance.evidence.variants import HALVES, Storage, eleven_bits, rounded
from attention_conformance.conformance.faults.models.mha import Layer, LayerCall, Sublayer
from attention_conformance.conformance.faults.models.sdpa import Array
from attention_conformance.conformance.spec.mha import LayerExpected, Norm, Projection, SublayerExpected

#: Computed in float32 throughout in half precision, and rounded once.
WIDE = dict.fromkeys(HALVES, "wide")


class Plain(Layer):
    """The model unchanged."""

    profiles = WIDE


class Fused(Layer):
    """One product for q, k and v where they share an input; in the heads, tile after tile of keys."""

    attention = variants.Online
    profiles = WIDE

    def projections(self, x: LayerCall, queries: Array, keys: Array) -> tuple[Projection, Projection, Projection]:
        """Three parts of one product."""
        separate = super().projections(x, queries, keys)
        if queries is not keys:
            return separate
        product = queries @ np.concatenate([p.w for p in separate], axis=1)
        ends = np.cumsum([p.w.shape[1] for p in separate])[:2]
        parts = zip(separate, np.split(product, ends, axis=2), strict=True)
        q, k, v = (replace(p, product=part, result=part if p.b is None else part + p.b) for p, part in parts)
        return q, k, v


class HeadByHead(Layer):
    """The output projection as a sum over heads that starts with its bias, as with one device per head."""

    profiles = WIDE

    def out(self, x: LayerCall, combined: Array) -> Projection | None:
        """b_o + Σ head · (its rows of w_o)."""
        projection = super().out(x, combined)
        if projection is None:
            return None
        total = np.zeros_like(projection.result) if projection.b is None else projection.b
        rows = np.split(projection.w, x.heads)
        for head, w in zip(np.split(combined, x.heads, axis=2), rows, strict=True):
            total = total + head @ w
        return replace(projection, result=total)


class ScaledWeight(Layer):
    """The scale is folded into the weight and bias of queries."""

    profiles = WIDE

    def attend(self, x: LayerCall) -> LayerExpected | SublayerExpected:
        """All results, from a call with scale 1."""
        scale = 1 / math.sqrt(x.w_q.shape[1] // x.heads) if x.scale is None else x.scale
        w_q, b_q = (None if a is None else a.astype(x.work) * x.work(scale) for a in (x.w_q, x.b_q))
        assert w_q is not None
        return super().attend(replace(x, w_q=w_q, b_q=b_q, scale=1.0))


class WithoutKeyBias(Layer):
    """The bias of keys adds the same to all scores of a row, and is left out."""

    profiles = WIDE

    def bias(self, x: LayerCall, name: str) -> Array | None:
        """(outputs,), or None."""
        return None if name == "k" else super().bias(x, name)


class Stored(Layer):
    """Every array between two operations is in the storage dtype; sums within one are in float32."""

    attention = Storage
    dtypes = HALVES
    profiles = dict.fromkeys(HALVES, "storage")

    def project(self, x: LayerCall, name: str, array: Array) -> Projection:
        """The operand, the product and its sum with the bias are stored."""
        found = super().project(x, name, rounded(x, array))
        product = rounded(x, found.product)
        return replace(found, product=product, result=product if found.b is None else rounded(x, product + found.b))


class Handed(Layer):
    """Storage dtype between operators: arrays handed from one to the next are stored, and none within one."""

    profiles = WIDE

    def project(self, x: LayerCall, name: str, array: Array) -> Projection:
        """The result is stored."""
        found = super().project(x, name, array)
        return replace(found, result=rounded(x, found.result))

    def combine(self, x: LayerCall, output: Array) -> Array:
        """The heads are stored."""
        return rounded(x, super().combine(x, output))


class Flash(Handed):
    """Heads as flash kernels compute them: powers are stored before the product with v."""

    attention = variants.Flash
    dtypes = HALVES
    profiles = dict.fromkeys(HALVES, "fused")


class Tf32(Handed):
    """The operands of every product are rounded to 11 significant bits."""

    attention = variants.Tf32
    dtypes = ("float32",)
    profiles = {"float32": "tf32"}  # noqa: RUF012

    def product(self, x: LayerCall, array: Array, w: Array) -> Array:
        """Rounded input and weight."""
        return eleven_bits(array) @ eleven_bits(w)


class Sequential(Handed):
    """Every product adds one term after the other: the most roundings that a sum can have."""

    attention = variants.Sequential

    def product(self, x: LayerCall, array: Array, w: Array) -> Array:
        """Term by term."""
        total = np.zeros((*array.shape[:2], w.shape[1]), x.work)
        for term in range(w.shape[0]):
            total += array[..., term, None] * w[term]
        return total


class PlainSublayer(Plain, Sublayer):
    """The model unchanged."""


class HandedSublayer(Handed, Sublayer):
    """The sum and the normalised row are stored, too."""

    def sum(self, x: LayerCall, queries: Array, norm: Norm | None, added: Array) -> Array:
        """The residual sum is stored."""
        return rounded(x, super().sum(x, queries, norm, added))

    def norm(self, x: LayerCall, z: Array) -> Norm:
        """The result is stored."""
        found = super().norm(x, z)
        return replace(found, result=rounded(x, found.result))


class FlashSublayer(Flash, HandedSublayer):
    """The same with the heads of flash kernels."""


class Tf32Sublayer(Tf32, HandedSublayer):
    """The same with products of rounded operands."""


class SequentialSublayer(Sequential, HandedSublayer):
    """The same, and the mean and variance are sums of one term after the other."""

    def mean(self, array: Array) -> Array:
        """Column by column."""
        return np.add.accumulate(array, axis=2)[..., -1:] / array.dtype.type(array.shape[2])


class StoredSublayer(Stored, Sublayer):
    """The same with a stored sum, mean, variance and normalised row."""

    def sum(self, x: LayerCall, queries: Array, norm: Norm | None, added: Array) -> Array:
        """The residual sum is stored."""
        return rounded(x, super().sum(x, queries, norm, added))

    def moments(self, x: LayerCall, z: Array) -> tuple[Array, Array]:
        """Mean, difference, square and variance are stored."""
        mean = rounded(x, self.mean(z))
        return mean, rounded(x, self.mean(rounded(x, rounded(x, z - mean) ** 2)))

    def deviation(self, x: LayerCall, var: Array) -> Array:
        """Sum and root are stored, but not a sum with an epsilon too small for float16, which may be all of it."""
        inside = var + x.work(self.epsilon(x))
        return rounded(x, np.sqrt(rounded(x, inside) if self.epsilon(x) > 1e-6 else inside))

    def affine(self, x: LayerCall, normalised: Array, gamma: Array, beta: Array) -> Array:
        """The results of both operations are stored."""
        return rounded(x, rounded(x, rounded(x, normalised) * gamma) + beta)


class FusedSublayer(Fused, Sublayer):
    """1 / √(var + ε) as a factor, and gamma multiplied into it."""

    def norm(self, x: LayerCall, z: Array) -> Norm:
        """The norm, in another order of multiplication."""
        found = super().norm(x, z)
        factor = x.work(1) / self.deviation(x, found.var) * found.gamma
        return replace(found, result=(z - found.mean) * factor + found.beta)


plain, fused, head_by_head, scaled_weight = Plain(), Fused(), HeadByHead(), ScaledWeight()
without_key_bias, handed, flash, tf32 = WithoutKeyBias(), Handed(), Flash(), Tf32()
sequential, stored = Sequential(), Stored()
plain_sublayer, fused_sublayer, handed_sublayer = PlainSublayer(), FusedSublayer(), HandedSublayer()
flash_sublayer, tf32_sublayer, sequential_sublayer = FlashSublayer(), Tf32Sublayer(), SequentialSublayer()
stored_sublayer = StoredSublayer()
