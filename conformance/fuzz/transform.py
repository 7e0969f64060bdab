"""Inputs changed as the properties need: keys, rows, a batch or a head taken out, hidden keys put in.

Masks and biases keep the axes that they have: an axis of length 1 still stands for all, as SDPA-8 says.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from conformance.cases.base import Inputs

#: Keywords whose meaning depends on where a key stands.
POSITIONAL = frozenset({"is_causal", "causal_offset", "window", "kv_lengths"})

#: What the next step is given as its past.
PRESENT = {"past_key": "present_key", "past_value": "present_value"}

_BATCH, _HEAD, _ROW, _KEY = -4, -3, -2, -1


def keys(x: Inputs, index: Any) -> Inputs:
    """The keys of an index along their axis, with their values, mask and bias.  Positions are the caller's concern."""
    k, v = (np.take(a, index, axis=2) for a in (x.k, x.v))
    return replace(x, k=k, v=v, keywords=_taken(x, _KEY, x.k.shape[2], index))


def with_past(x: Inputs, count: int) -> Inputs:
    """The first keys and values as a past (DEC-1); without an offset the rows then stand behind it (DEC-2)."""
    past = given(x, past_key=x.k[:, :, :count], past_value=x.v[:, :, :count])
    return replace(past, k=x.k[:, :, count:], v=x.v[:, :, count:])


def rows(x: Inputs, index: Any) -> Inputs:
    """The query rows of an index.  Positions are the caller's concern."""
    return replace(x, q=np.take(x.q, index, axis=2), keywords=_taken(x, _ROW, x.q.shape[2], index))


def batch(x: Inputs, b: int) -> Inputs:
    """One batch alone."""
    keywords = _taken(x, _BATCH, x.q.shape[0], [b])
    for name in ("kv_lengths", "causal_offset"):
        if isinstance(keywords.get(name), np.ndarray):
            keywords[name] = keywords[name][b : b + 1]
    return replace(x, q=x.q[b : b + 1], k=x.k[b : b + 1], v=x.v[b : b + 1], keywords=keywords)


def head(x: Inputs, h: int) -> Inputs:
    """One query head alone, with the key and value head that it reads (SDPA-17)."""
    one = h * x.k.shape[1] // x.q.shape[1]
    k, v = x.k[:, one : one + 1], x.v[:, one : one + 1]
    return replace(x, q=x.q[:, h : h + 1], k=k, v=v, keywords=_taken(x, _HEAD, x.q.shape[1], [h]))


def shifted_keys(x: Inputs, by: int) -> Inputs:
    """Positions counted from key ``by``: offset and lengths are smaller by it (SDPA-10, SDPA-12)."""
    return with_lengths(with_offset(x, by), -by)


def with_offset(x: Inputs, by: int = 0) -> Inputs:
    """With an offset, smaller by a number, where positions matter; the default is 0 (SDPA-9)."""
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
    """With some keywords set."""
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

    A mask allows them and a bias adds 0 to them; where they had one key for all they still have.
    """
    keywords = dict(x.keywords)
    for name, filler in (("mask", True), ("bias", 0.0)):
        array = keywords.get(name)
        if array is not None and array.shape[-1] == x.k.shape[2]:
            more = np.full((*array.shape[:-1], k.shape[2]), filler, array.dtype)
            keywords[name] = np.concatenate([array, more], axis=-1)
    return Inputs(x.q, np.concatenate([x.k, k], axis=2), np.concatenate([x.v, v], axis=2), keywords)


def _taken(x: Inputs, axis: int, length: int, index: Any) -> dict[str, Any]:
    """The keywords with an axis of mask and bias indexed, where it is there and in full."""
    keywords = dict(x.keywords)
    for name in ("mask", "bias"):
        array = keywords.get(name)
        if array is not None and array.ndim >= -axis and array.shape[axis] == length:
            keywords[name] = np.take(array, index, axis=axis)
    return keywords
