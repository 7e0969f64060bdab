"""Attention tile by tile with the online softmax, for faults that only tiles can have.

Source: Milakov & Gimelshein 2018, Dao et al. 2022 (FlashAttention).  A running maximum, sum and output are updated
with one tile of keys after the other; a tile that reaches past the last key is padded with keys of score −inf and
value 0.
"""

from __future__ import annotations

import numpy as np

from attention_conformance.conformance.faults.models.sdpa import Array, Attention, Inputs
from attention_conformance.impls.numpy.parts import add_special, finite_part

#: Running maximum, sum (both (B, Hq, Sq, 1)) and output.
State = tuple[Array, Array, Array]


class Tiled(Attention):
    """Correct attention over tiles of ``tile`` keys."""

    #: Keys of a tile.
    tile = 16

    def mixed(self, x: Inputs, s: Array, allowed: Array, v: Array) -> tuple[Array, Array, Array]:
        """Output, weights (from the final lse, as a kernel recomputes them) and lse."""
        s, values = self.padded(x, s, allowed, finite_part(v))
        state = self.start(x, (*s.shape[:3], 1), v.shape[3])
        for index, first in enumerate(self.first_keys(x, s.shape[3])):
            part = slice(first, first + self.tile)
            state = self.merged(x, index, s[..., part], values[:, :, part], state)
        output, lse = self.finished(x, state)
        if not np.isfinite(v).all():
            add_special(output, allowed, v)
        weights = np.exp(s[..., : x.shape[3]] - np.where(np.isneginf(lse), x.work(0), lse))
        return output, weights, lse[..., 0]

    def padded(self, x: Inputs, s: Array, allowed: Array, v: Array) -> tuple[Array, Array]:
        """Scores and values with the last tile padded."""
        missing = -s.shape[3] % self.tile
        s = np.concatenate([s, np.full((*s.shape[:3], missing), self.padding(x), s.dtype)], axis=3)
        return s, np.concatenate([v, np.zeros((*v.shape[:2], missing, v.shape[3]), v.dtype)], axis=2)

    def padding(self, x: Inputs) -> float:
        """The score of a key behind the last one."""
        return -np.inf

    def first_keys(self, x: Inputs, keys: int) -> list[int]:
        """First key of each tile, in the order in which the tiles are processed."""
        return list(range(0, keys, self.tile))

    def start(self, x: Inputs, shape: tuple[int, ...], width: int) -> State:
        """The running state before the first tile: empty, or the sink, whose value is 0 (SDPA-38)."""
        top = np.broadcast_to(self.sinks(x)[:, None, None], shape)
        total = np.where(np.isneginf(top), x.work(0), x.work(1))
        return top, total, np.zeros((*shape[:3], width), x.work)

    def merged(self, x: Inputs, index: int, s: Array, v: Array, state: State) -> State:
        """The running state after one more tile, the ``index``-th."""
        top, total, output = state
        highest = np.maximum(top, s.max(axis=3, keepdims=True, initial=-np.inf))
        base = np.where(np.isneginf(highest), x.work(0), highest)  # −inf − (−inf) is NaN
        shrink = self.shrink(x, index, top, base)
        powers = np.exp(s - base)
        return highest, total * shrink + powers.sum(axis=3, keepdims=True), output * shrink + powers @ v

    def shrink(self, x: Inputs, index: int, top: Array, base: Array) -> Array:
        """Factor that rescales the state so far when the maximum rises."""
        return np.exp(top - base)

    def finished(self, x: Inputs, state: State) -> tuple[Array, Array]:
        """Output and lse (B, Hq, Sq, 1) from the last state."""
        top, total, output = state
        divisor = np.where(total == 0, x.work(1), total)
        return output / divisor, np.where(total == 0, x.work(-np.inf), top + np.log(divisor))


def _tiled(size: int) -> type[Tiled]:
    return type(f"TiledBy{size}", (Tiled,), {"tile": size, "__module__": __name__})


#: Correct attention by the keys of a tile: the sizes of kernels, of which the faults have the smallest.
TILED: dict[int, type[Tiled]] = {Tiled.tile: Tiled, **{size: _tiled(size) for size in (32, 64, 128, 256)}}
