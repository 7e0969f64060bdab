"""Correct attention in other honest ways: tile sizes, tiles from the last to the first, split keys, late division.

The variants that round as a profile says are in conformance/evidence/variants.py.
"""

from __future__ import annotations

import numpy as np

from attention_conformance.conformance.faults.models.ring import Ring
from attention_conformance.conformance.faults.models.sdpa import Array, Attention, Inputs
from attention_conformance.conformance.faults.models.tiles import State, Tiled
from attention_conformance.conformance.faults.sdpa.online_softmax import Split


class SmallTiles(Tiled):
    """Tiles of 7 keys, which divide no usual length."""

    tile = 7


class LargeTiles(Tiled):
    """Tiles of 128 keys."""

    tile = 128


class TilesFromTheEnd(Tiled):
    """Tiles visited from the last to the first, as kernels for causal attention do."""

    def first_keys(self, x: Inputs, keys: int) -> list[int]:
        """First keys of the tiles, in the order of the visits."""
        return super().first_keys(x, keys)[::-1]


class LazyRescaling(Tiled):
    """A maximum that is raised only when it rises by more than 8; until then the old one stays in use."""

    def merged(self, x: Inputs, index: int, s: Array, v: Array, state: State) -> State:
        """The running state after one more tile."""
        top, total, output = state
        highest = np.maximum(top, s.max(axis=3, keepdims=True, initial=-np.inf))
        highest = np.where(highest - top > 8, highest, top)
        base = np.where(np.isneginf(highest), x.work(0), highest)
        shrink, powers = np.exp(top - base), np.exp(s - base)
        return highest, total * shrink + powers.sum(axis=3, keepdims=True), output * shrink + powers @ v


class SplitKeys(Split):
    """Two halves of the keys, each normalised, merged through their lse; applies from two keys on."""

    least = 2


class ScaledQueries(Attention):
    """The whole scale applied to q, whatever its size."""

    def scores(self, x: Inputs, q: Array, k: Array) -> Array:
        """Scaled scores."""
        return (q * x.work(self.scale(x))) @ k.swapaxes(2, 3)


class KeysBackwards(Attention):
    """Every sum over keys taken in the opposite order."""

    def total(self, x: Inputs, powers: Array) -> Array:
        """The denominator."""
        return powers[..., ::-1].sum(axis=3, keepdims=True)

    def summed(self, x: Inputs, weights: Array, allowed: Array, v: Array) -> Array:
        """The output."""
        return super().summed(x, weights[..., ::-1], allowed[..., ::-1], v[:, :, ::-1])


class BaseTwo(Attention):
    """Scores times log2 e with exp2, and lse converted back."""

    def powers(self, x: Inputs, s: Array, top: Array) -> Array:
        """2^((s − top) · log2 e)."""
        return np.exp2((s - top) * x.work(np.log2(np.e)))

    def lse(self, x: Inputs, top: Array, total: Array, allowed: Array) -> Array:
        """The natural logarithm, computed from the logarithm in base 2."""
        logarithm = np.log2(np.where(total == 0, x.work(1), total)) * x.work(np.log(2))
        return np.where(total == 0, x.work(-np.inf), top + logarithm)


plain, tiles, small_tiles, large_tiles = Attention(), Tiled(), SmallTiles(), LargeTiles()
tiles_from_the_end, lazy_rescaling, split_keys = TilesFromTheEnd(), LazyRescaling(), SplitKeys()
scaled_queries, keys_backwards, base_two, ring = ScaledQueries(), KeysBackwards(), BaseTwo(), Ring()
