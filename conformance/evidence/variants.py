"""Honest variants: correct attention that uses up what a profile allows, and no more.

Libraries round where they like; these variants round exactly where their profile says (conformance.bounds.sdpa), add in
the worst order, or use the coarsest exp that still counts as correct.  Each can be plugged in like a user's function:
``pytest conformance --impl attention_conformance.conformance.evidence.variants:storage``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from attention_conformance.conformance.faults.models.mha import LayerCall
from attention_conformance.conformance.faults.models.sdpa import Array, Attention, Inputs
from attention_conformance.conformance.faults.models.tiles import State, Tiled
from attention_conformance.impls.contract import DTYPES
from attention_conformance.impls.numpy.parts import split_scale

HALVES = ("float16", "bfloat16")


class Variant(Attention):
    """Variant with the declarations of a plug-in: its dtypes and the profile of each."""

    dtypes: tuple[str, ...] = DTYPES
    profiles: Mapping[str, str] = dict.fromkeys(DTYPES, "wide")


class Storage(Variant):
    """Every array between two operations is in the storage dtype; sums within one are in float32."""

    dtypes = HALVES
    profiles = dict.fromkeys(HALVES, "storage")

    def scores(self, x: Inputs, q: Array, k: Array) -> Array:
        """Scaled q, product and scaled product are stored."""
        before, after = split_scale(x.scale, x.q.shape[3])
        return rounded(x, rounded(x, rounded(x, q * x.work(before)) @ k.swapaxes(2, 3)) * x.work(after))

    def capped(self, x: Inputs, s: Array) -> Array:
        """Three operations, three stored arrays."""
        if x.softcap is None:
            return s
        return rounded(x, x.work(x.softcap) * rounded(x, np.tanh(rounded(x, s / x.work(x.softcap)))))

    def added(self, x: Inputs, s: Array) -> Array:
        """The sum with the bias is stored."""
        return rounded(x, super().added(x, s))

    def powers(self, x: Inputs, s: Array, top: Array) -> Array:
        """The difference and its exponential are stored."""
        return rounded(x, np.exp(rounded(x, s - top)))

    def total(self, x: Inputs, powers: Array) -> Array:
        """The complete sum is stored."""
        return rounded(x, super().total(x, powers))

    def normalized(self, x: Inputs, powers: Array, total: Array, allowed: Array) -> Array:
        """The weights are stored."""
        return rounded(x, super().normalized(x, powers, total, allowed))

    def lse(self, x: Inputs, top: Array, total: Array, allowed: Array) -> Array:
        """The logarithm and its sum with the maximum are stored, and returned in float32."""
        logarithm = np.where(total == 0, x.work(-np.inf), np.log(np.where(total == 0, x.work(1), total)))
        return rounded(x, top + rounded(x, logarithm))


class Fused(Variant):
    """Scores and their sum are in float32; the weights are stored before the product with v."""

    dtypes = HALVES
    profiles = dict.fromkeys(HALVES, "fused")

    def normalized(self, x: Inputs, powers: Array, total: Array, allowed: Array) -> Array:
        """The weights are stored."""
        return rounded(x, super().normalized(x, powers, total, allowed))


class Flash(Tiled, Variant):
    """Tile after tile; the powers are stored before the product with v, which is divided by their unrounded sum."""

    dtypes = HALVES
    profiles = dict.fromkeys(HALVES, "fused")
    tile = 64

    def merged(self, x: Inputs, index: int, s: Array, v: Array, state: State) -> State:
        """The state as in float32, with the product of stored powers."""
        top, total, output = state
        highest = np.maximum(top, s.max(axis=3, keepdims=True, initial=-np.inf))
        base = np.where(np.isneginf(highest), x.work(0), highest)
        shrink, powers = np.exp(top - base), np.exp(s - base)
        total = total * shrink + powers.sum(axis=3, keepdims=True)
        return highest, total, output * shrink + rounded(x, powers) @ v


class Online(Tiled, Variant):
    """Tile after tile in the working dtype."""

    tile = 64


class Tf32(Variant):
    """The operands of both products are rounded to 11 significant bits, as tensor cores do with float32."""

    dtypes = ("float32",)
    profiles: Mapping[str, str] = {"float32": "tf32"}

    def scores(self, x: Inputs, q: Array, k: Array) -> Array:
        """Rounded q and k; the scale is applied in float32, to q or to the product."""
        before, after = split_scale(x.scale, x.q.shape[3])
        return eleven_bits(q * x.work(before)) @ eleven_bits(k).swapaxes(2, 3) * x.work(after)

    def summed(self, x: Inputs, weights: Array, allowed: Array, v: Array) -> Array:
        """Rounded weights and values."""
        return super().summed(x, eleven_bits(weights), allowed, eleven_bits(v))


class Sequential(Variant):
    """Every sum is one term after the other, in order: the most roundings that a sum can have."""

    def scores(self, x: Inputs, q: Array, k: Array) -> Array:
        """The terms of a dot product one by one."""
        before, after = split_scale(x.scale, x.q.shape[3])
        q = q * x.work(before)
        s = np.zeros(x.shape, x.work)
        for d in range(q.shape[3]):
            s += q[..., d, None] * k[..., None, :, d]
        return s * x.work(after)

    def total(self, x: Inputs, powers: Array) -> Array:
        """The powers one by one."""
        return np.add.accumulate(powers, axis=3)[..., -1:] if powers.shape[3] else super().total(x, powers)

    def summed(self, x: Inputs, weights: Array, allowed: Array, v: Array) -> Array:
        """The weighted values one by one."""
        output = np.zeros((*x.shape[:3], v.shape[3]), x.work)
        for j in range(v.shape[2]):
            output += weights[..., j, None] * v[:, :, None, j]
        return output


class Coarse(Variant):
    """A base-2 exp whose result has 20 bits, as polynomial approximations in kernels do."""

    dtypes = ("float32", *HALVES)
    profiles = dict.fromkeys(dtypes, "wide")

    def powers(self, x: Inputs, s: Array, top: Array) -> Array:
        """exp(s − top) as 2^((s − top) · log2 e), cut after 20 bits."""
        powers = np.exp2((s - top) * x.work(np.log2(np.e)))
        return (powers.view(np.uint32) & np.uint32(0xFFFFFFF0)).view(np.float32)


class Tiles(Tiled, Variant):
    """Tiles of rows, and within each tiles of keys; the tiles of rows are independent."""

    rows = 64
    tile = 64

    def mixed(self, x: Inputs, s: Array, allowed: Array, v: Array) -> tuple[Array, Array, Array]:
        """One tile of rows after the other."""
        parts = [slice(first, first + self.rows) for first in range(0, max(s.shape[2], 1), self.rows)]
        found = [super(Tiles, self).mixed(x, s[:, :, p], allowed[:, :, p], v) for p in parts]
        output, weights, lse = (np.concatenate(each, axis=2) for each in zip(*found, strict=True))
        return output, weights, lse


class Tiles128(Tiles):
    """Tiles of 128 rows and 128 keys."""

    rows = 128
    tile = 128


class Tiles176(Tiles):
    """Tiles of 64 rows and 176 keys."""

    tile = 176


class SplitKeys(Variant):
    """Parts of 128 keys, each normalised on its own, and merged by their lse; the sink is in the first."""

    part = 128

    def mixed(self, x: Inputs, s: Array, allowed: Array, v: Array) -> tuple[Array, Array, Array]:
        """Output, weights and lse, merged from the parts."""
        if s.shape[3] <= self.part:
            return super().mixed(x, s, allowed, v)
        found = []
        for first in range(0, s.shape[3], self.part):
            keys = slice(first, first + self.part)
            each = x if first == 0 else replace(x, sinks=None)
            found.append(super().mixed(each, s[..., keys], allowed[..., keys], v[:, :, keys]))
        parts = np.stack([lse[..., None] for _, _, lse in found])
        top = parts.max(axis=0)
        powers = np.exp(parts - np.where(np.isneginf(top), x.work(0), top))
        total = powers.sum(axis=0)
        divisor = np.where(total == 0, x.work(1), total)
        share = powers / divisor
        lse = np.where(total == 0, x.work(-np.inf), top + np.log(divisor))
        # A part without an allowed key has zeros, whatever its values are: no 0 · NaN.
        terms = [np.where(w == 0, x.work(0), w * each[0]) for w, each in zip(share, found, strict=True)]
        output = np.add.reduce(terms)
        weights = np.concatenate([w * each[1] for w, each in zip(share, found, strict=True)], axis=3)
        if not np.isfinite(v).all():  # a non-finite value counts wherever it is allowed, even at a weight of 0
            special = np.add.reduce([each[0] for each in found])
            output = np.where(np.isfinite(special), output, special)
        return output, weights, lse[..., 0]


class BaseTwo(Variant):
    """exp2 of scores multiplied by log2 e."""

    def powers(self, x: Inputs, s: Array, top: Array) -> Array:
        """exp(s − top) as 2^(s · log2 e − top · log2 e)."""
        return np.exp2((s - top) * x.work(np.log2(np.e)))


class ScaledQuery(Variant):
    """q is multiplied by the scale and stored before the product with k."""

    dtypes = HALVES
    profiles = dict.fromkeys(HALVES, "storage")

    def scores(self, x: Inputs, q: Array, k: Array) -> Array:
        """The product of stored, scaled queries."""
        before, after = split_scale(x.scale, x.q.shape[3])
        return (rounded(x, q * x.work(before)) @ k.swapaxes(2, 3)) * x.work(after)


def rounded(x: Inputs | LayerCall, array: Array) -> Array:
    """The array rounded to the storage dtype, and back in the working dtype."""
    return array.astype(x.dtype).astype(x.work)


def eleven_bits(array: Array) -> Array:
    """Float32 numbers rounded to 11 significant bits, halves away from zero, as ``cvt.rna.tf32`` does."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    return ((bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)


storage, fused, flash, online = Storage(), Fused(), Flash(), Online()
tf32, sequential, coarse = Tf32(), Sequential(), Coarse()
tiles, tiles128, tiles176, split_keys = Tiles(), Tiles128(), Tiles176(), SplitKeys()
base_two, scaled_query = BaseTwo(), ScaledQuery()

#: Correct ways to compute attention that kernels have, by the names of their plug-ins: none may fail any case, at its
#: own sizes or inside an envelope.
CORRECT: dict[str, Variant] = {
    "tiles": tiles,
    "tiles128": tiles128,
    "tiles176": tiles176,
    "split_keys": split_keys,
    "base_two": base_two,
    "scaled_query": scaled_query,
    "storage": storage,
    "flash": flash,
}
