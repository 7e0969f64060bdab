"""One block of query rows against its keys, tile after tile: scores, softmax and output in memory of one tile.

Softmax is the same whatever is subtracted from a row's scores.  So a block is first computed with nothing
subtracted, which spares the passes over the scores that find and subtract a maximum.  That is accurate where a row's
Σ exp(s) is no tiny number (LEAST; it is at least 1 with the maximum subtracted): nothing that counts underflows then.
Where a row has less, or anything is not finite, the block is computed again with the running maximum of the online
softmax (Milakov & Gimelshein 2018, https://arxiv.org/abs/1805.02867).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.lib import introspect

from impls.numpy.parts import add_special, finite_part
from impls.numpy.tiled_products import product, transposed
from impls.numpy.tiled_visible import Visible

#: Keys of a tile at most.
KEYS = 768

#: Least Σ exp(s) of a row for which nothing has to be subtracted.  Numbers below 2⁻¹²⁶ are lost: of such a sum over n
#: keys n · 2⁻¹⁰⁶, and of the products with values of size |v| n · 2⁻¹³⁰ ÷ |v|.  The first rows of causal attention have
#: few keys, so that half of them have sums below 1.
LEAST = 2.0**-20


@dataclass(frozen=True)
class Heads:
    """What blocks of query rows need of N key/value heads, and of the G query heads that read them."""

    #: (N, Sk, D) and (N, Sk, Dv) in the dtype that is computed in, rows contiguous.
    keys: np.ndarray
    values: np.ndarray
    #: (G, Sq, Sk).
    mask: np.ndarray | None
    bias: np.ndarray | None
    #: What query rows are multiplied by before the product and scores after it, and what caps them then.
    before: float
    after: float
    softcap: float | None
    #: (G,).
    sinks: np.ndarray | None
    visible: Visible
    batch: int


def attend(q: np.ndarray, rows: slice, heads: Heads, scratch: np.ndarray, output: np.ndarray, lse: np.ndarray) -> None:
    """Fill output (G, R, Dv) and lse (G, R) for a block of query rows (G, R, D), with a tile of scores in scratch."""
    block = _Block(q, rows, heads, scratch, output, lse)
    # A bias or a sink is there to make scores differ much, so that the first attempt would often be the first of two.
    if heads.bias is not None or heads.sinks is not None or not block.plain():
        block.online()


@dataclass(frozen=True)
class _Block:
    """Query rows (G, R, D), the rows R that they are of each head, what they attend to, and where that goes."""

    q: np.ndarray
    rows: slice
    heads: Heads
    scratch: np.ndarray
    output: np.ndarray
    lse: np.ndarray

    def plain(self) -> bool:
        """Output and lse with nothing subtracted; False, and neither, where that is not accurate."""
        parts = self._parts()
        first = next(parts, None)
        if first is None:
            return False
        total, output = first
        for sums, added in parts:
            total += sums
            output += added
        if not (total.min() >= LEAST and total.max() < np.inf):  # nor NaN, which the comparisons are false for
            return False
        if not np.isfinite(np.vdot(output, output)):  # a sum of squares, which also leaves out numbers beyond 1e17
            return False
        # In one pass, with the rounding to half precision in it.
        shape = self.output.shape
        np.divide(output.reshape(shape), total.reshape(*shape[:2], 1), out=self.output, casting="unsafe")
        self.lse[...] = np.log(total).reshape(shape[:2])
        return True

    def _parts(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Σ exp(s) (G · R,) and Σ exp(s) v (G · R, Dv) over the keys of each tile."""
        power, unit = _power()
        q = self._scaled(unit if self.heads.softcap is None else 1.0)
        for keys in self._tiles():
            weights = self._scores(q, keys, unit)
            power(weights, out=weights)
            self._hide(weights, keys, 0)  # not before: the vector loop of 2^x leaves −inf to a slow path
            yield _sums(weights), product(weights, self.heads.values[:, keys])

    def online(self) -> None:
        """Output and lse with the running maximum m: total and output hold Σ exp(s − m) and Σ exp(s − m) v."""
        heads, q = self.heads, self._scaled(1.0)
        top = np.full((len(q), 1), -np.inf, q.dtype)
        total = np.zeros((len(q), 1), q.dtype)
        output = np.zeros((len(q), heads.values.shape[2]), q.dtype)
        if heads.sinks is not None:  # SDPA-38: as if a key of this score and value 0 had been seen
            top = np.repeat(heads.sinks, self.q.shape[1])[:, None]
            total = np.where(np.isneginf(top), total, 1)
        special: list[tuple[np.ndarray, np.ndarray]] = []
        for keys in self._tiles():
            scores, values = self._scores(q, keys), heads.values[:, keys]
            self._hide(scores, keys, -np.inf)
            if not np.isfinite(values).all():
                special.append((~np.isneginf(scores), values))
                values = finite_part(values)
            highest = np.maximum(top, scores.max(axis=1, keepdims=True))
            # −inf − (−inf) is NaN; a row without a key keeps its zeros
            scores -= np.where(np.isneginf(highest), 0, highest)
            np.exp(scores, out=scores)
            shrink = np.exp(top - np.where(np.isneginf(highest), 0, highest))
            total = total * shrink + _sums(scores)[:, None]
            output *= shrink
            output += product(scores, values)
            top = highest
        empty = total == 0
        np.copyto(total, 1, where=empty)
        output /= total
        for allowed, values in special:
            stacked = (len(values), len(output) // len(values), -1)
            add_special(output.reshape(stacked), allowed.reshape(stacked), values)
        self.output[...] = output.reshape(self.output.shape)
        self.lse[...] = (top + np.log(total)).reshape(self.lse.shape)

    def _scaled(self, unit: float) -> np.ndarray:
        """Query rows (G · R, D) in the dtype that is computed in, times what comes before the product, and ``unit``."""
        work, (groups, count, width) = self.heads.keys.dtype, self.q.shape
        scaled = self.q.astype(work, copy=False) * work.type(self.heads.before * unit)
        return scaled.reshape(groups * count, width)

    def _tiles(self) -> Iterator[slice]:
        """The tiles of keys that any of the rows sees."""
        groups, count, _ = self.q.shape
        size = min(KEYS, len(self.scratch) // max(1, groups * count))
        return slices(*self.heads.visible.span(self.heads.batch, self.rows), max(1, size))

    def _scores(self, q: np.ndarray, keys: slice, unit: float = 1.0) -> np.ndarray:
        """Scores (G · R, keys) of one tile, in ``scratch``, of hidden keys too.

        Capped scores are multiplied by ``unit``; others have it from ``q``.
        """
        heads, count = self.heads, keys.stop - keys.start
        scores = self.scratch[: len(q) * count].reshape(len(q), count)
        product(q, transposed(heads.keys[:, keys], len(q)), scores)
        if heads.after != 1:
            scores *= heads.after
        if heads.softcap is not None:
            scores /= heads.softcap
            np.tanh(scores, out=scores)
            scores *= heads.softcap * unit
        if heads.bias is not None:
            cube = scores.reshape(len(self.q), -1, count)
            bias = heads.bias[:, self.rows, keys]
            cube += bias.astype(cube.dtype, copy=False)
            np.copyto(cube, -np.inf, where=bias == -np.inf)  # a NaN or inf of a hidden key stays hidden
        return scores

    def _hide(self, scores: np.ndarray, keys: slice, fill: float) -> None:
        """Put ``fill`` where a key is hidden from a row."""
        heads, cube = self.heads, scores.reshape(len(self.q), -1, scores.shape[1])
        if heads.mask is not None:
            np.copyto(cube, fill, where=~heads.mask[:, self.rows, keys])
        heads.visible.hide(cube, heads.batch, self.rows, keys, fill)


@functools.cache
def _power() -> tuple[np.ufunc, float]:
    """A power, and what a score is multiplied by to be its exponent: 2^x where NumPy has it as a vector loop.

    On AVX-512 that takes half the time of e^x, and elsewhere 18 times as much (measured in float32).
    """
    loops = introspect.opt_func_info(func_name="^exp2$", signature="float32").get("exp2", {})
    is_vector = any(not loop["current"].startswith("baseline") for loop in loops.values())
    return (np.exp2, 1 / math.log(2)) if is_vector else (np.exp, 1.0)


def _sums(weights: np.ndarray) -> np.ndarray:
    """Σ of each row, by the BLAS: a third of the time of ``weights.sum(axis=1)``."""
    return weights @ np.ones(weights.shape[1], weights.dtype)


def slices(start: int, stop: int, size: int) -> Iterator[slice]:
    """Consecutive slices of at most ``size`` from start to stop."""
    for first in range(start, stop, size):
        yield slice(first, min(first + size, stop))
