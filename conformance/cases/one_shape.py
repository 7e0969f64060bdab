"""(SDPA-1, 3, 14, 16, 23, 25, 28, 29) Cases of data for one shape: numbers instead of lengths, heads, widths.

A model that was exported with static axes and takes no mask cannot be tested at the edges of tiles, with one key or
with one query.  Data shows the same mistakes at the one shape: a peak at the last key of a tile, keys of zero weight
instead of absent keys, rows and heads that are far apart.  A run tests plugged-in implementations of one shape with
them; named, they run on any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from attention_conformance.conformance.cases.base import Case, case
from attention_conformance.conformance.cases.data import (
    Data,
    Rng,
    Shape,
    ascending,
    cancelling_values,
    normal,
    numbered,
    peak,
    zero_queries,
)
from attention_conformance.conformance.spec.inputs import Inputs

#: Keys at the edges of tiles, where a peak is put; and numbers of first and last keys that count, in a call of more.
PEAKS, FIRST, LAST = (0, 15, 16, 31, 32, 63, 64), (1, 16, 17, 63, 64, 65), (1, 17, 64)

#: How far below the others the scores of a key that does not count are: its weight is zero in every dtype.
BELOW = 1e4

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray]


def cases() -> Iterator[Case]:
    """Every case of this group."""
    for key in PEAKS:
        yield _case(f"peak-key-{key}", "SDPA-1 SDPA-14", f"The largest score at key {key}, at the edge of a tile: its value is the output.", keys=key + 1, data=peak(key))
    for count in FIRST:
        yield _case(f"first-{count}", "SDPA-14 SDPA-1", f"The scores behind key {count - 1} are 1e4 lower: attention over {count} keys.", keys=count + 1, data=_counting(slice(None, count)))
    for count in LAST:
        yield _case(f"last-{count}", "SDPA-14 SDPA-1", f"The last {count} keys' scores are 1e4 higher: a maximum comes late, and what was summed counts no more.", keys=count + 1, data=_counting(slice(-count, None)))
    yield _case("tie", "SDPA-14", "The first and the last key have one largest score: a half each.", keys=65, data=_tie)
    yield _case("own-key", "SDPA-1", "Each row has its own key: an identity, which no other order of rows or keys is.", data=_permutation(lambda rows, keys: rows % keys), needs="Sq > 1")
    yield _case("reversed-keys", "SDPA-1", "Each row has its own key, from the last one down.", data=_permutation(lambda rows, keys: keys - 1 - rows % keys), needs="Sq > 1")
    yield _case("equal-rows", "SDPA-1", "All queries of a head are equal: so are its rows, wherever in a tile they are.", data=_equal_rows, needs="Sq > 1")
    yield _case("rows-apart", "SDPA-14", "Scores of every other row are 1400 lower: a maximum that rows share underflows in half of them.", data=_shifted_scores("row"), needs="Sq > 1")
    yield _case("heads-apart", "SDPA-14", "Scores of every other head are 1400 lower.", data=_shifted_scores("head"), needs="Hq > 1")
    yield _case("heads-differ", "SDPA-1", "The scores of each head are spread further than those of the one before.", data=_heads_differ, needs="Hq > 1")
    yield _case("first-coordinate", "SDPA-3 SDPA-1", "q and k are zero but for the first coordinate: the scale is still that of all D.", data=_coordinate(0))
    yield _case("last-coordinate", "SDPA-1 SDPA-3", "q and k are zero but for the last coordinate.", data=_coordinate(-1))
    yield _case("last-value-column", "SDPA-16", "v is zero but for its last column.", data=_last_column)
    yield _case("zero-queries", "SDPA-14", "Every score is exactly 0, which a maximum may begin with: the mean of v.", data=zero_queries)
    yield _case("zero-values", "SDPA-16", "v is zero: so is the output.", data=_values(0.0), zeros=True)
    yield _case("tiny-values", "SDPA-25", "Values around 1e-30.", data=_values(1e-30))
    yield _case("huge-values", "SDPA-25", "Values around 1e30.", data=_values(1e30))
    yield _case("cancelling-values", "SDPA-25", "Values of ±100 that cancel: the output is small against them.", keys=65, data=cancelling_values)
    yield _case("ascending-steeply", "SDPA-14", "Each score 100 above the one before: every key makes all before it count nothing.", keys=65, data=ascending(100.0))
    yield _case("descending-steeply", "SDPA-14", "Each score 100 below the one before: only the first key counts.", keys=65, data=ascending(-100.0))
    yield _case("nan-last-query", "SDPA-23", "NaN in the last query row, and in no other.", edit=_nan("q", (slice(None), slice(None), -1, 0)))
    yield _case("nan-first-key", "SDPA-23", "NaN in the first key: no later tile drops it.", edit=_nan("k", (slice(None), slice(None), 0)))
    yield _case("nan-last-value", "SDPA-23", "NaN in the last column of the last value reaches that column alone.", edit=_nan("v", (slice(None), slice(None), -1, -1)))
    yield _case("nan-one-head", "SDPA-23", "NaN in the keys of one head reaches no other.", edit=_nan("k", (slice(None), -1)), needs="Hq > 1")
    yield _case("inputs-unchanged", "SDPA-28", "q, k and v are the same after the call.", data=_far_from_zero)
    yield _case("repeat-after-large-scores", "SDPA-29 SDPA-14", "A maximum of 1e5 in the call before does not stay behind.", after="softmax-shift-plus-1e5", repeats=2)


def _case(name: str, clauses: str, why: str, *, keys: int = 7, **rest: Any) -> Case:
    return case(f"data-{name}", clauses, why, replace(Shape(), sk=max(keys, 7)), **rest)


def _counting(keys: slice) -> Data:
    """Scores of all other keys lower by BELOW, so that only these count."""

    def make(rng: Rng, s: Shape) -> Arrays:
        q, k, v = numbered(rng, s)
        q[..., 0], k[..., 0] = np.sqrt(s.d), -BELOW
        k[:, :, keys, 0] = 0.0
        return q, k, v

    return make


def _tie(rng: Rng, s: Shape) -> Arrays:
    q, k, v = peak(0)(rng, s)
    k[:, :, -1] = k[:, :, 0]
    return q, k, v


def _permutation(key_of: Callable[[np.ndarray, int], np.ndarray]) -> Data:
    """Queries along their own key, so far that its weight is 1; all keys have one length."""

    def make(rng: Rng, s: Shape) -> Arrays:
        _, k, v = numbered(rng, s)
        k *= np.sqrt(s.d) / np.sqrt((k * k).sum(3, keepdims=True))
        own = k[:, :, key_of(np.arange(s.sq), s.sk)]
        return 60.0 / np.sqrt(s.d) * np.repeat(own, s.hq // s.hkv, axis=1), k, v

    return make


def _equal_rows(rng: Rng, s: Shape) -> Arrays:
    q, k, v = numbered(rng, s)
    return np.repeat(q[:, :, :1], s.sq, axis=2), k, v


def _shifted_scores(axis: str) -> Data:
    """Scores shifted by −1400 in every other row or head, a no-op for softmax."""

    def make(rng: Rng, s: Shape) -> Arrays:
        q, k, v = normal(1.0)(rng, s)
        of = np.arange(s.sq) if axis == "row" else np.arange(s.hq)[:, None]
        q[..., 0], k[..., 0] = np.where(of % 2, -1400.0 * np.sqrt(s.d) / 16, 0.0), 16.0
        return q, k, v

    return make


def _heads_differ(rng: Rng, s: Shape) -> Arrays:
    q, k, v = numbered(rng, s)
    return q * (1.0 + np.arange(s.hq))[:, None, None], k, v


def _coordinate(d: int) -> Data:
    """Normal q and k in one coordinate, scaled so that scores are as large as over all coordinates."""

    def make(rng: Rng, s: Shape) -> Arrays:
        q, k, v = numbered(rng, s)
        one = np.arange(s.d) == np.arange(s.d)[d]
        return q * one * np.sqrt(np.sqrt(s.d)), k * one * np.sqrt(np.sqrt(s.d)), v

    return make


def _last_column(rng: Rng, s: Shape) -> Arrays:
    q, k, v = numbered(rng, s)
    return q, k, v * (np.arange(s.dv) == s.dv - 1)


def _values(size: float) -> Data:
    def make(rng: Rng, s: Shape) -> Arrays:
        q, k, v = normal(1.0)(rng, s)
        return q, k, size * v

    return make


def _far_from_zero(rng: Rng, s: Shape) -> Arrays:
    """Numbers that no scaling or masking in place leaves unchanged."""
    q, k, v = normal(1.0)(rng, s)
    return q + np.copysign(1.0, q), k + np.copysign(1.0, k), v + np.copysign(1.0, v)


def _nan(name: str, where: tuple[Any, ...]) -> Callable[[Inputs], Inputs]:
    def edit(x: Inputs) -> Inputs:
        array = getattr(x, name).copy()
        array[where] = np.nan
        return replace(x, **{name: array})

    return edit
