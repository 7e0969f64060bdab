"""Keys of weight zero: put in among the keys of a problem, and hidden by each of the ways that the spec has."""

from __future__ import annotations

import zlib
from enum import StrEnum

import numpy as np

from conformance.cases.base import Inputs
from conformance.fuzz import transform

#: Standard deviation of the hidden keys and of their values: far from those that count, and far from overflow.
KEY_SPREAD, VALUE_SPREAD = 10.0, 100.0


class Way(StrEnum):
    """What hides a key from every row."""

    MASK = "a mask"
    BIAS = "a bias of −inf"
    LENGTHS = "key lengths"
    CAUSAL = "is_causal"


def ways(x: Inputs, keywords: frozenset[str]) -> list[Way]:
    """How keys can be hidden in this problem by an implementation with these keywords."""
    found = [
        way
        for way, keyword in ((Way.MASK, "mask"), (Way.BIAS, "bias"), (Way.LENGTHS, "kv_lengths"))
        if keyword in keywords
    ]
    # Key j behind the last one is beyond the last row's diagonal.
    if x.keywords.get("is_causal") and x.k.shape[2] >= x.q.shape[2] + transform.largest_offset(x):
        found.append(Way.CAUSAL)
    return found


def added(x: Inputs, way: Way, count: int, name: str) -> tuple[Inputs, np.ndarray]:
    """The problem with ``count`` hidden keys more, and where its own keys now stand.

    Behind the last key, or anywhere if no position matters.  ``name`` seeds what the hidden keys are.
    """
    rng = np.random.default_rng(zlib.crc32(f"{name} hidden".encode()))
    own, dtype = x.k.shape[2], x.q.dtype
    k = KEY_SPREAD * rng.standard_normal((*x.k.shape[:2], count, x.k.shape[3]))
    v = VALUE_SPREAD * rng.standard_normal((*x.v.shape[:2], count, x.v.shape[3]))
    if way is Way.LENGTHS and "kv_lengths" not in x.keywords:
        x = transform.given(x, kv_lengths=np.full(x.q.shape[0], own, np.int64))
    if way is Way.MASK:
        x = transform.given(x, mask=transform.full(x, "mask", True))
    if way is Way.BIAS:
        x = transform.given(x, bias=transform.full(x, "bias", np.zeros((), dtype)))
    more = transform.appended(x, k.astype(dtype), v.astype(dtype))
    if way is Way.MASK:
        more.keywords["mask"][..., own:] = False
    if way is Way.BIAS:
        more.keywords["bias"][..., own:] = -np.inf
    if transform.POSITIONAL & set(more.keywords):
        return more, np.arange(own)
    order = rng.permutation(own + count)
    return transform.keys(more, order), np.argsort(order)[:own]
