"""Data of cases: shapes, numbers with a purpose, masks, biases and lengths, each from a random generator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from attention_conformance.impls.envelope import Shape as Shape

#: The default: Sq and Sk differ, and neither is a power of two.
SMALL = Shape()
SQUARE = Shape(sq=7, sk=7)
TALL = Shape(sq=7, sk=5)
ONE_QUERY = Shape(sq=1)
GROUPED = Shape(hq=4, hkv=2)
#: Longer than the tiles of 16 and 32 keys, and one more than 64.
TILES = Shape(b=1, hq=2, hkv=2, sq=17, sk=65, d=16, dv=16)
#: More keys than bfloat16 can count (256).
LONG = Shape(b=1, hq=2, hkv=2, sq=5, sk=520, d=16, dv=16)
#: One key more than the chunks of 512 and 1,024 keys of implementations without kernels of their own.
CHUNKS = Shape(b=1, hq=1, hkv=1, sq=3, sk=1025, d=8, dv=8)

Rng = np.random.Generator
#: Makes q, k, v in float64 from a seed; they are then rounded to the dtype.
Data = Callable[[Rng, Shape], tuple[np.ndarray, np.ndarray, np.ndarray]]
#: Makes a mask, bias or lengths.
Maker = Callable[[Rng, Shape, np.dtype], np.ndarray]


# Data of q, k, v.


def normal(spread: float) -> Data:
    """Independent normal numbers.

    Parameters
    ----------
    spread
        Standard deviation of q and k; that of v is 1.

    Returns
    -------
    Data
        Makes q (B, Hq, Sq, D), k (B, Hkv, Sk, D) and v (B, Hkv, Sk, Dv) in float64 from a generator and a shape.
    """

    def make(rng: Rng, s: Shape) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        q = spread * rng.standard_normal((s.b, s.hq, s.sq, s.d))
        k = spread * rng.standard_normal((s.b, s.hkv, s.sk, s.d))
        return q, k, rng.standard_normal((s.b, s.hkv, s.sk, s.dv))

    return make


def integers(low: int, high: int) -> Data:
    """Small integers, exact in every dtype."""

    def make(rng: Rng, s: Shape) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        shapes = ((s.b, s.hq, s.sq, s.d), (s.b, s.hkv, s.sk, s.d), (s.b, s.hkv, s.sk, s.dv))
        q, k, v = (rng.integers(low, high, shape, endpoint=True).astype(float) for shape in shapes)
        return q, k, v

    return make


def numbered(rng: Rng, s: Shape) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Normal q and k; v[b, h, j, d] encodes its batch, head and key, so that the keys seen can be read off."""
    q, k, _ = normal(1.0)(rng, s)
    b, h, j, d = np.ogrid[: s.b, : s.hkv, : s.sk, : s.dv]
    return q, k, ((j + 1) % 61) + 0.25 * h + 0.125 * b - 0.5 * (d % 2) + 0.0 * d


def pointing(data: Data) -> Data:
    """Data whose queries point at keys, so that at any length and in half precision one key decides a row.

    Two keys of its head are added to each query, which puts their scores about 6 above the others: one at a place where
    implementations go wrong (the first and the last key, the diagonal and its neighbours, the edges of tiles), one
    anywhere.  If a key is wrongly dropped or wrongly counted, the rows that point at it show it.

    Parameters
    ----------
    data
        Data that makes the original q, k and v.

    Returns
    -------
    Data
        The same k and v, and the queries with the two keys added.
    """

    def make(rng: Rng, s: Shape) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        q, k, v = data(rng, s)
        if not q.size or not k.size or s.hq % s.hkv:
            return q, k, v
        rows = np.arange(s.sq)
        edges = [0, s.sk - 1, *(edge + side for edge in (16, 32, 64, 128, 256, 512) for side in (-1, 0))]
        near = rows + rng.integers(-2, 3, (s.b, s.hq, s.sq)) + rng.choice([0, s.sk - s.sq], (s.b, s.hq, s.sq))
        edge = rng.choice([e for e in edges if e < s.sk], (s.b, s.hq, s.sq))
        first = np.clip(np.where(rng.random(near.shape) < 0.5, near, edge), 0, s.sk - 1)
        keys = np.repeat(k, s.hq // s.hkv, axis=1)
        for target in (first, rng.integers(0, s.sk, first.shape)):
            q += 6.0 / np.sqrt(s.d) * np.take_along_axis(keys, target[..., None], axis=2)
        return q, k, v

    return make


def zero_queries(rng: Rng, s: Shape) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Q = 0, so that every allowed key has the same weight and the output is the mean of their values."""
    q, k, v = numbered(rng, s)
    return 0 * q, k, v


def constant_values(value: float, data: Data | None = None) -> Data:
    """V constant: any weights that add up to 1 must reproduce it."""

    def make(rng: Rng, s: Shape) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        q, k, v = (data or normal(1.0))(rng, s)
        return q, k, np.full_like(v, value)

    return make


#: Level of the values in cases of shifted scores, at other sizes than a case's own.
LEVEL = 16.0


def shifted(offset: float, spread: float = 1.0, level: float = 0.0) -> Data:
    """All scores shifted by about ``offset``, a no-op for softmax: the first coordinate of q and k is constant.

    The offset is exact where √D / 16 is: q[0] = offset · √D / 16 and k[0] = 16 with the default scale.  In half
    precision storing such scores loses a normal output entirely; with a ``level`` added to the values, the zeros that a
    maximum that starts too high leaves are still wrong.
    """

    def make(rng: Rng, s: Shape) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        q, k, v = normal(spread)(rng, s)
        q[..., 0], k[..., 0] = offset * np.sqrt(s.d) / 16, 16.0
        return q, k, v + level

    return make


def drawn(spread: float = 1.0, offset: float = 0.0, outlier: float = 1.0, values: float = 1.0) -> Data:
    """Data of random problems, with every option at once.

    Parameters
    ----------
    spread
        Standard deviation of q and k, which are normal.
    offset
        Approximate shift of all q · k / √D, through a first coordinate that is nearly constant.
    outlier
        Factor that lengthens one key of each head, as in trained models.
    values
        Standard deviation of v.

    Returns
    -------
    Data
        Makes q (B, Hq, Sq, D), k (B, Hkv, Sk, D) and v (B, Hkv, Sk, Dv) in float64 from a generator and a shape.
    """

    def make(rng: Rng, s: Shape) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        q, k, v = normal(spread)(rng, s)
        if s.sk:
            k[:, :, rng.integers(s.sk)] *= outlier
        if offset:
            share = np.sqrt(abs(offset) * np.sqrt(s.d))
            q[..., 0], k[..., 0] = np.copysign(share, offset), share
        return q, k, values * v

    return make


def peak(key: int, size: float = 30.0) -> Data:
    """The largest score of every row at one key (negative counts from the end), about ``size`` above the rest."""

    def make(rng: Rng, s: Shape) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        q, k, v = numbered(rng, s)
        q[..., 0] = np.sqrt(s.d)
        k[..., 0] = 0.0
        k[:, :, key, 0] = size
        return q, k, v

    return make


def ascending(step: float = 1.0) -> Data:
    """Scores that grow with the key, so that every tile brings a new maximum to rescale by."""

    def make(rng: Rng, s: Shape) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        q, k, v = normal(0.1)(rng, s)
        q[..., 0] = np.sqrt(s.d)
        k[..., 0] = step * np.arange(s.sk)
        return q, k, v

    return make


def cancelling_values(rng: Rng, s: Shape) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Small q and k, and values of about ±100 in turn: the output is small compared with them."""
    q, k, v = normal(0.1)(rng, s)
    return q, k, v + 100.0 * (-1.0) ** np.arange(s.sk)[:, None]


def repeated_keys(rng: Rng, s: Shape) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All keys equal and all values different: every weight is 1/n."""
    q, k, v = normal(1.0)(rng, s)
    return q, np.repeat(k[:, :, :1], s.sk, axis=2), v


# Makers of masks, biases and lengths.


def random_mask(keep: float, shape: tuple[int | None, ...] = (None, None, None, None)) -> Maker:
    """Each key allowed with probability ``keep``, the first one of each row always; axes of ``shape`` override."""

    def make(rng: Rng, s: Shape, dtype: np.dtype) -> np.ndarray:
        mask = rng.random(_broadcast_shape(s, shape)) < keep
        mask[..., 0] = True
        return mask

    return make


def some_mask(keep: float, shape: tuple[int | None, ...] = (None, None, None, None)) -> Maker:
    """A random mask that masks at least one key: with few keys, at some sizes of a case, chance would mask none."""

    def make(rng: Rng, s: Shape, dtype: np.dtype) -> np.ndarray:
        mask = random_mask(keep, shape)(rng, s, dtype)
        if mask.all() and mask.shape[-1] > 1:
            mask[..., -1] = False
        return mask

    return make


def full_mask(value: bool) -> Maker:
    """One value everywhere, in full shape."""
    return lambda rng, s, dtype: np.full(s.scores, value)


def mask_without(rows: slice = slice(None), keys: slice = slice(None), batch: slice = slice(None)) -> Maker:
    """All True except for a block of rows and keys (of some batches)."""

    def make(rng: Rng, s: Shape, dtype: np.dtype) -> np.ndarray:
        mask = np.ones(s.scores, bool)
        mask[batch, :, rows, keys] = False
        return mask

    return make


def random_bias(spread: float = 1.0, shape: tuple[int | None, ...] = (None, None, None, None)) -> Maker:
    """Normal numbers."""
    return lambda rng, s, dtype: (spread * rng.standard_normal(_broadcast_shape(s, shape))).astype(dtype)


def constant_bias(value: float) -> Maker:
    """One number everywhere, in full shape."""
    return lambda rng, s, dtype: np.full(s.scores, value, dtype)


def bias_from(mask: Maker, value: float | None) -> Maker:
    """0 where the mask allows and ``value`` where it does not; None is the dtype's smallest finite number."""

    def make(rng: Rng, s: Shape, dtype: np.dtype) -> np.ndarray:
        fill = float(ml_dtypes.finfo(dtype).min) if value is None else value
        return np.where(mask(rng, s, dtype), 0.0, fill).astype(dtype)

    return make


def lengths(*values: int, of: int | None = None) -> Maker:
    """One length (or offset) per batch: repeated in turn for more batches, the last ones for fewer.

    Lengths in a cache of ``of`` keys are scaled to the number of keys there is: all stay all, none stay none.
    """
    return lambda rng, s, dtype: _per_batch(values, s, of)


def stated(*values: int) -> Maker:
    """These offsets or lengths, whatever the shape."""
    return lambda rng, s, dtype: np.array(values, np.int64)


def ends(*values: int, of: int | None = None) -> Maker:
    """The offset at which the queries are the last of that many keys: each of ``lengths`` minus Sq."""
    return lambda rng, s, dtype: _per_batch(values, s, of) - s.sq


def bottom_right(rng: Rng, s: Shape, dtype: np.dtype) -> int:
    """Offset Sk − Sq: the last row sees every key."""
    return s.sk - s.sq


def _per_batch(values: tuple[int, ...], s: Any, of: int | None) -> np.ndarray:
    some = values[-s.b :] if 0 < s.b < len(values) else values
    scaled = np.resize(np.array(some, np.int64), max(s.b, 1) if len(values) > 1 or s.b > 1 else 1)
    if of is None or of == s.sk:
        return scaled
    return np.where(scaled > 0, np.maximum(scaled * s.sk // of, 1), scaled)


def _broadcast_shape(s: Shape, shape: tuple[int | None, ...]) -> tuple[int, ...]:
    full = s.scores[len(s.scores) - len(shape) :]
    return tuple(f if n is None else n for f, n in zip(full, shape, strict=True))
