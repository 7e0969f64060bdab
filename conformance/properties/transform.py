"""Transformations of inputs, all exact: scores shifted, values added up, keys hidden, parts taken out.

Shifts and values are multiples of a power of two, few enough for the 8 significant bits of bfloat16, so that what a
property says about real numbers holds for the inputs exactly.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from typing import Any

import numpy as np
from hypothesis import strategies as st

from attention_conformance.conformance.spec.inputs import Inputs

#: A shift of scores: the inputs before and after, the number by row (B, Hq, Sq), and what was done.
Shift = tuple[Inputs, Inputs, np.ndarray, str]

#: Biases become multiples of 1/4 of at most 8; moved by at most 24 they need 7 bits.
BIAS_STEP, BIAS_LARGEST, BIAS_SHIFT = 0.25, 8.0, 24
#: In dtypes of more bits they can be moved farther.
WIDE_SHIFT = 1000

#: The extra coordinate of every key, and the largest one of a query: up to 1024 before the scale, exact.
KEY_COORDINATE, QUERY_COORDINATE = 16.0, 64

#: Values become multiples of 1/8 of at most 2; a·v + b·w with these factors is a multiple of 1/16 of at most 8.
VALUE_STEP, VALUE_LARGEST = 0.125, 2.0
FACTORS = (1.0, -1.0, 2.0, -2.0, 0.5, -0.5)


#: Standard deviation of the hidden keys and of their values: far from those that count, and far from overflow.
KEY_SPREAD, VALUE_SPREAD = 10.0, 100.0

#: Keywords whose meaning depends on the position of a key.
POSITIONAL = frozenset({"is_causal", "causal_offset", "window", "kv_lengths"})

#: The past of the next step, and the present that it is taken from.
PRESENT = {"past_key": "present_key", "past_value": "present_value"}

_BATCH, _HEAD, _ROW, _KEY = -4, -3, -2, -1


def shifted_by_coordinate(x: Inputs, draw: Callable[[Any], Any]) -> Shift:
    """Scores shifted by the first coordinate: one number in all keys, and in queries 0, then ± a number by row.

    Needs scores without a softcap, which is not linear.
    """
    size = draw(st.integers(1, QUERY_COORDINATE))
    q, k = x.q.copy(), x.k.copy()
    q[..., 0], k[..., 0] = 0, KEY_COORDINATE
    before = replace(x, q=q, k=k)
    number = size * _signs(x)
    moved = q.copy()
    moved[..., 0] = number
    scale = x.keywords.get("scale")
    by = (1 / np.sqrt(q.shape[3]) if scale is None else scale) * KEY_COORDINATE * number
    return before, replace(before, q=moved), by, f"its rows moved by scale · {KEY_COORDINATE:g} · ±{size}"


def shifted_by_bias(x: Inputs, draw: Callable[[Any], Any]) -> Shift:
    """Scores shifted by the bias: in full shape and rounded, then with ± a number added, alternating by row."""
    size = draw(st.integers(1, BIAS_SHIFT if x.q.dtype.itemsize == 2 else WIDE_SHIFT))
    bias = full(x, "bias", np.zeros((), x.q.dtype)).astype(np.float64)
    bias = on_grid(bias, BIAS_STEP, BIAS_LARGEST)
    by = size * _signs(x)
    before = given(x, bias=bias.astype(x.q.dtype))
    after = given(x, bias=(bias + by[..., None]).astype(x.q.dtype))
    return before, after, by, f"its bias moved by ±{size}"


def two_values(x: Inputs, name: str) -> tuple[np.ndarray, np.ndarray]:
    """The values of the problem on the grid, and others from the problem's name; both (B, Hkv, Sk, Dv)."""
    other = np.random.default_rng(zlib.crc32(f"{name} w".encode())).standard_normal(x.v.shape)
    v, w = (on_grid(a.astype(np.float64), VALUE_STEP, VALUE_LARGEST).astype(x.v.dtype) for a in (x.v, other))
    return v, w


def combined(a: float, v: np.ndarray, b: float, w: np.ndarray) -> np.ndarray:
    """The array a·v + b·w in the dtype of v, exactly."""
    return (a * v.astype(np.float64) + b * w.astype(np.float64)).astype(v.dtype)


def on_grid(array: np.ndarray, step: float, largest: float) -> np.ndarray:
    """The nearest multiples of a step within ± the largest."""
    return np.clip(np.round(array / step) * step, -largest, largest)


def _signs(x: Inputs) -> np.ndarray:
    """+1 and −1, alternating over rows, heads and batches, (B, Hq, Sq)."""
    b, h, i = np.ogrid[: x.q.shape[0], : x.q.shape[1], : x.q.shape[2]]
    return np.where((b + h + i) % 2, -1.0, 1.0)


# Keys of weight zero: inserted among the keys of a problem, and hidden in each way that the spec has.


class Way(StrEnum):
    """Way to hide a key from every row."""

    MASK = "a mask"
    BIAS = "a bias of −inf"
    LENGTHS = "key lengths"
    CAUSAL = "is_causal"


def ways(x: Inputs, keywords: frozenset[str]) -> list[Way]:
    """Ways to hide keys in this problem from an implementation with these keywords."""
    found = [
        way
        for way, keyword in ((Way.MASK, "mask"), (Way.BIAS, "bias"), (Way.LENGTHS, "kv_lengths"))
        if keyword in keywords
    ]
    # Key j behind the last one is beyond the last row's diagonal.
    if x.keywords.get("is_causal") and x.k.shape[2] >= x.q.shape[2] + largest_offset(x):
        found.append(Way.CAUSAL)
    return found


def added(x: Inputs, way: Way, count: int, name: str) -> tuple[Inputs, np.ndarray]:
    """The problem with ``count`` more keys, which are hidden, and the new places of its own keys.

    The hidden keys are behind the last key, or anywhere if no position matters.  ``name`` seeds them.
    """
    rng = np.random.default_rng(zlib.crc32(f"{name} hidden".encode()))
    own, dtype = x.k.shape[2], x.q.dtype
    k = KEY_SPREAD * rng.standard_normal((*x.k.shape[:2], count, x.k.shape[3]))
    v = VALUE_SPREAD * rng.standard_normal((*x.v.shape[:2], count, x.v.shape[3]))
    if way is Way.LENGTHS and "kv_lengths" not in x.keywords:
        x = given(x, kv_lengths=np.full(x.q.shape[0], own, np.int64))
    if way is Way.MASK:
        x = given(x, mask=full(x, "mask", True))
    if way is Way.BIAS:
        x = given(x, bias=full(x, "bias", np.zeros((), dtype)))
    more = appended(x, k.astype(dtype), v.astype(dtype))
    if way is Way.MASK:
        more.keywords["mask"][..., own:] = False
    if way is Way.BIAS:
        more.keywords["bias"][..., own:] = -np.inf
    if POSITIONAL & set(more.keywords):
        return more, np.arange(own)
    order = rng.permutation(own + count)
    return keys(more, order), np.argsort(order)[:own]


# Inputs changed as the properties need: keys, rows, a batch or a head taken out, hidden keys inserted.


def keys(x: Inputs, index: Any) -> Inputs:
    """The keys of an index along their axis, with their values, mask and bias.  Positions are the caller's concern."""
    k, v = (np.take(a, index, axis=2) for a in (x.k, x.v))
    return replace(x, k=k, v=v, keywords=_indexed_masks(x, _KEY, x.k.shape[2], index))


def with_past(x: Inputs, count: int) -> Inputs:
    """The first keys and values as a past (DEC-1); without an offset the rows then come after it (DEC-2)."""
    past = given(x, past_key=x.k[:, :, :count], past_value=x.v[:, :, :count])
    return replace(past, k=x.k[:, :, count:], v=x.v[:, :, count:])


def rows(x: Inputs, index: Any) -> Inputs:
    """The query rows of an index.  Positions are the caller's concern."""
    return replace(x, q=np.take(x.q, index, axis=2), keywords=_indexed_masks(x, _ROW, x.q.shape[2], index))


def batch(x: Inputs, b: int) -> Inputs:
    """One batch alone."""
    keywords = _indexed_masks(x, _BATCH, x.q.shape[0], [b])
    for name in ("kv_lengths", "causal_offset"):
        if isinstance(keywords.get(name), np.ndarray):
            keywords[name] = keywords[name][b : b + 1]
    parents = keywords.get("tree_parents")
    if parents is not None and np.ndim(parents) == 2:
        keywords["tree_parents"] = parents[b : b + 1]
    return replace(x, q=x.q[b : b + 1], k=x.k[b : b + 1], v=x.v[b : b + 1], keywords=keywords)


def head(x: Inputs, h: int) -> Inputs:
    """One query head alone, with the key and value head that it reads (SDPA-17)."""
    one = h * x.k.shape[1] // x.q.shape[1]
    k, v = x.k[:, one : one + 1], x.v[:, one : one + 1]
    keywords = _indexed_masks(x, _HEAD, x.q.shape[1], [h])
    if "sinks" in keywords:
        keywords["sinks"] = keywords["sinks"][h : h + 1]
    return replace(x, q=x.q[:, h : h + 1], k=k, v=v, keywords=keywords)


def shifted_keys(x: Inputs, by: int) -> Inputs:
    """Positions counted from key ``by``: offset and lengths are smaller by it (SDPA-10, SDPA-12)."""
    return with_lengths(with_offset(x, by), -by)


def with_offset(x: Inputs, by: int = 0) -> Inputs:
    """The call with an offset, smaller by a number, where positions matter; the default is 0 (SDPA-9)."""
    if not x.keywords.get("is_causal") and x.keywords.get("window") is None:
        return x
    return given(x, causal_offset=x.keywords.get("causal_offset", 0) - by)


def with_lengths(x: Inputs, by: int = 0) -> Inputs:
    """Key lengths moved by a number, and kept between 0 and the number of keys."""
    lengths = x.keywords.get("kv_lengths")
    if lengths is None:
        return x
    return given(x, kv_lengths=np.clip(lengths + by, 0, x.k.shape[2]))


def given(x: Inputs, **keywords: Any) -> Inputs:
    """The call with some keywords set."""
    return replace(x, keywords={**x.keywords, **keywords})


def largest_offset(x: Inputs) -> int:
    """The largest causal offset of any batch."""
    return int(np.max(x.keywords.get("causal_offset", 0)))


def full(x: Inputs, name: str, default: Any) -> np.ndarray:
    """The mask or bias with all its axes in full, (B, Hq, Sq, Sk); ``default`` everywhere if there is none."""
    array = x.keywords.get(name)
    shape = (*x.q.shape[:3], x.k.shape[2])
    if array is None:
        return np.full(shape, default)
    return np.ascontiguousarray(np.broadcast_to(array, shape))


def appended(x: Inputs, k: np.ndarray, v: np.ndarray) -> Inputs:
    """More keys behind the last one, k (B, Hkv, n, D) and v (B, Hkv, n, Dv).

    A mask allows them and a bias adds 0 to them; one with a single entry for all keys keeps it.
    """
    keywords = dict(x.keywords)
    for name, filler in (("mask", True), ("bias", 0.0)):
        array = keywords.get(name)
        if array is not None and array.shape[-1] == x.k.shape[2]:
            more = np.full((*array.shape[:-1], k.shape[2]), filler, array.dtype)
            keywords[name] = np.concatenate([array, more], axis=-1)
    return Inputs(x.q, np.concatenate([x.k, k], axis=2), np.concatenate([x.v, v], axis=2), keywords)


def _indexed_masks(x: Inputs, axis: int, length: int, index: Any) -> dict[str, Any]:
    """The keywords with an axis of mask, bias and block mask indexed, where it is there and in full."""
    keywords = dict(x.keywords)
    blocks = ("block_mask",) if axis in (_BATCH, _HEAD) else ()  # its other axes are of blocks
    for name in ("mask", "bias", *blocks):
        array = keywords.get(name)
        if array is not None and array.ndim >= -axis and array.shape[axis] == length:
            keywords[name] = np.take(array, index, axis=axis)
    return keywords
