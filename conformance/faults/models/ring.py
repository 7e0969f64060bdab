"""Attention over ranks: each has a block of rows, attends to the blocks of keys in turn, and merges the results.

Source: Liu, Zaharia & Abbeel 2023 (ring attention).  Nothing is sent here: an error in what a ring sends shows only
in its results.  Two ranks have contiguous blocks, and the last block may be shorter.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attention_conformance.conformance.faults.models.sdpa import Array, Attention, Inputs
from attention_conformance.impls.numpy.parts import add_special, finite_part

RANKS = 2

#: Output (B, Hq, rows, Dv) and lse (B, Hq, rows, 1) over some of the keys.
State = tuple[Array, Array]


def size(length: int) -> int:
    """Rows or keys of a rank."""
    return -(-length // RANKS)


def blocks(length: int) -> list[slice]:
    """The rows or keys of each rank."""
    return [slice(rank * size(length), (rank + 1) * size(length)) for rank in range(RANKS)]


def zigzag(length: int) -> Array:
    """The rows or keys of the first rank, then those of the second, each with a part of both halves."""
    parts = np.split(np.arange(length), [min(length, i * -(-length // (2 * RANKS))) for i in range(1, 2 * RANKS)])
    return np.concatenate([part for rank in range(RANKS) for part in (parts[rank], parts[-1 - rank])])


class Ring(Attention):
    """Correct attention over two ranks."""

    def mixed(self, x: Inputs, s: Array, allowed: Array, v: Array) -> tuple[Array, Array, Array]:
        """Output, weights (from the final lse) and lse."""
        values, parts = finite_part(v), blocks(s.shape[3])
        merged = []
        for rank, rows in enumerate(blocks(s.shape[2])):
            met = [parts[source] for source in self.met(x, rank)]
            states = [self.state(x, s[:, :, rows, keys], allowed[:, :, rows, keys], values[:, :, keys]) for keys in met]
            merged.append(self.merged(x, [*states, *self.sink(x, states[0])]))
        output, lse = (np.concatenate(each, axis=2) for each in zip(*merged, strict=True))
        if not np.isfinite(v).all():
            add_special(output, allowed, v)
        return output, np.exp(s - np.where(np.isneginf(lse), x.work(0), lse)), lse[..., 0]

    def met(self, x: Inputs, rank: int) -> list[int]:
        """The ranks whose keys a rank meets, in order; its own come first."""
        return [(rank - step) % RANKS for step in range(RANKS)]

    def state(self, x: Inputs, s: Array, allowed: Array, v: Array) -> State:
        """Output and lse over one block of keys."""
        output, _, lse = super().mixed(replace(x, sinks=None), s, allowed, v)
        return output, lse[..., None]

    def sink(self, x: Inputs, like: State) -> list[State]:
        """SDPA-38: the sink as an additional state, whose value is 0."""
        lse = np.broadcast_to(self.sinks(x)[:, None, None], like[1].shape)
        return [] if x.sinks is None else [(np.zeros_like(like[0]), lse)]

    def merged(self, x: Inputs, states: list[State]) -> State:
        """MERGE-2, MERGE-3: output and lse over all states."""
        outputs, lses = (np.stack(each) for each in zip(*states, strict=True))
        top = lses.max(axis=0)
        powers = np.exp(lses - np.where(np.isneginf(top), x.work(0), top))
        total = powers.sum(axis=0)
        divisor = np.where(total == 0, x.work(1), total)
        return (powers * outputs).sum(axis=0) / divisor, np.where(total == 0, x.work(-np.inf), top + np.log(divisor))
