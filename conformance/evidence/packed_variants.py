"""Honest variants of packed attention: six correct ways that programs use, which must pass every case.

Each can be plugged in like a user's function.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from attention_conformance.conformance.evidence.variants import Storage
from attention_conformance.conformance.faults.models.sdpa import Array
from attention_conformance.conformance.faults.models.tiles import Tiled
from attention_conformance.conformance.faults.models.varlen import Packed
from attention_conformance.impls.contract import DTYPES
from attention_conformance.impls.numpy.eager import attention
from attention_conformance.impls.numpy.varlen import varlen as loop
from attention_conformance.impls.validate import check_pack_bias


class PackedInTiles(Packed):
    """Each sequence by an online softmax over tiles of keys."""

    attention = Tiled
    profiles = dict.fromkeys(DTYPES, "wide")


class PackedStored(Packed):
    """Every array between two operations is in the storage dtype."""

    attention = Storage
    dtypes, profiles = Storage.dtypes, Storage.profiles


def _allowed(lengths: tuple[Array, Array], causal: bool, offset: Any, window: Any) -> Array:
    """Allowed keys of a pack, (Tq, Tk), by the sequence and the position of every row and key."""
    (of_row, i), (of_key, j) = (
        (np.repeat(np.arange(len(n)), n), np.concatenate([np.arange(0), *map(np.arange, n)])) for n in lengths
    )
    queries, keys = lengths
    shift = keys - queries if offset is None else np.broadcast_to(offset, len(queries))
    diagonal = (i + shift[of_row])[:, None]
    allowed = of_row[:, None] == of_key
    left, right = window or (None, None)
    if causal:
        allowed &= j <= diagonal
    if left is not None:
        allowed &= j >= diagonal - left
    if right is not None:
        allowed &= j <= diagonal + right
    return allowed


def _checked_bias(q: Array, cu_seqlens_q: Array, keywords: dict[str, Any]) -> Array | None:
    """The bias of a call, after checking that it fits."""
    check_pack_bias(keywords.get("bias"), q, cu_seqlens_q, keywords.get("max_seqlen_q"), keywords.get("max_seqlen_k"))
    return keywords.get("bias")


def dense(q: Array, k: Array, v: Array, cu_seqlens_q: Array, cu_seqlens_k: Array, **keywords: Any) -> Any:
    """The whole pack as one sequence under a block-diagonal mask."""
    taken, options = _split(keywords)
    allowed = _allowed(lengths := (np.diff(cu_seqlens_q), np.diff(cu_seqlens_k)), *taken)
    used = int(cu_seqlens_k[-1])
    bias = _checked_bias(q, cu_seqlens_q, keywords)
    if bias is not None:
        options["bias"] = np.zeros((1, bias.shape[1], *allowed.shape), q.dtype)
        for n, (i, j) in enumerate(zip(*lengths, strict=True)):
            rows, keys = slice(cu_seqlens_q[n], cu_seqlens_q[n + 1]), slice(cu_seqlens_k[n], cu_seqlens_k[n + 1])
            options["bias"][0, :, rows, keys] = bias[n % len(bias), :, :i, :j]
    one = [array.swapaxes(0, 1)[None] for array in (q, k[:used], v[:used])]
    return _unpacked(attention(*one, mask=allowed, **options), lambda a: a[0], options)


def padded(q: Array, k: Array, v: Array, cu_seqlens_q: Array, cu_seqlens_k: Array, **keywords: Any) -> Any:
    """A batch of sequences padded to the longest, under a mask."""
    taken, options = _split(keywords)
    rows, keys = ([np.arange(a, b) for a, b in itertools.pairwise(cu)] for cu in (cu_seqlens_q, cu_seqlens_k))
    sq, sk = max(map(len, rows)), max(map(len, keys))
    batch = [
        np.zeros((len(rows), array.shape[1], length, array.shape[2]), array.dtype)
        for array, length in ((q, sq), (k, sk), (v, sk))
    ]
    mask = np.zeros((len(rows), 1, sq, sk), bool)
    bias = _checked_bias(q, cu_seqlens_q, keywords)
    options |= {} if bias is None else {"bias": bias[:, :, :sq, :sk]}
    whole = _allowed((np.diff(cu_seqlens_q), np.diff(cu_seqlens_k)), *taken)
    for n, (own, seen) in enumerate(zip(rows, keys, strict=True)):
        for target, array, where in zip(batch, (q, k, v), (own, seen, seen), strict=True):
            target[n, :, : len(where)] = array[where].swapaxes(0, 1)
        mask[n, 0, : len(own), : len(seen)] = whole[np.ix_(own, seen)]

    def unpadded(array: Array) -> Array:
        return np.concatenate([array[n, :, : len(own)] for n, own in enumerate(rows)], axis=1)

    return _unpacked(attention(*batch, mask=mask, **options), unpadded, options)


def backwards(q: Array, k: Array, v: Array, cu_seqlens_q: Array, cu_seqlens_k: Array, **keywords: Any) -> Any:
    """The last sequence first."""

    def turned(cu: Array) -> tuple[Array, Array]:
        pieces = [np.arange(a, b) for a, b in itertools.pairwise(cu)][::-1]
        return np.concatenate(pieces), np.concatenate([[0], np.cumsum(np.diff(cu)[::-1])]).astype(np.int32)

    (rows, cu_q), (keys, cu_k) = turned(cu_seqlens_q), turned(cu_seqlens_k)
    if isinstance(keywords.get("causal_offset"), np.ndarray):
        keywords["causal_offset"] = keywords["causal_offset"][::-1]
    if keywords.get("bias") is not None:
        keywords["bias"] = keywords["bias"][::-1]
    found = loop(q[rows], k[keys], v[keys], cu_q, cu_k, **keywords)
    back = np.argsort(rows)
    return (found[0][back], found[1][:, back]) if isinstance(found, tuple) else found[back]


def _split(keywords: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Options that decide which keys a row attends to, and the others."""
    names = ("is_causal", "causal_offset", "window")
    others = {n: value for n, value in keywords.items() if n not in (*names, "max_seqlen_q", "max_seqlen_k")}
    return tuple(keywords.get(name) for name in names), others


def _unpacked(found: Any, rows: Callable[[Array], Array], options: dict[str, Any]) -> Any:
    if not options.get("return_lse"):
        return rows(found).swapaxes(0, 1)
    return rows(found[0]).swapaxes(0, 1), rows(found[1])


in_tiles, stored = PackedInTiles(), PackedStored()

for _each in (dense, padded, backwards):
    _each.operator, _each.profiles = "varlen", PackedInTiles.profiles  # type: ignore[attr-defined]

#: The variants by name; numpy-varlen is the loop itself.
PACKED: dict[str, Callable[..., Any]] = {
    "loop": loop,
    "in_tiles": in_tiles,
    "stored": stored,
    "dense": dense,
    "padded": padded,
    "backwards": backwards,
}


def over_pages(packed: Callable[..., Any]) -> Callable[..., Any]:
    """A variant of paged attention: keys and values gathered page by page for a variant of packed attention."""

    def paged(
        q: Array, k_cache: Array, v_cache: Array, cu_seqlens_q: Array, block_table: Array, kv_lengths: Array, **o: Any
    ) -> Any:
        new = o.pop("k_new", None), o.pop("v_new", None)
        dtype, scales = q.dtype, (o.pop("k_scale", None), o.pop("v_scale", None))
        if scales[0] is not None:  # the caches are dequantised, in float32 or wider
            wide = np.dtype(np.float64 if dtype == np.float64 else np.float32)
            k_cache, v_cache = (c.astype(wide) * s for c, s in zip((k_cache, v_cache), scales, strict=True))
            q, o = q.astype(wide), o | ({"sinks": o["sinks"].astype(wide)} if o.get("sinks") is not None else {})
        gathered = []
        for cache, added in zip((k_cache, v_cache), new, strict=True):
            pieces = []
            for n, length in enumerate(kv_lengths.tolist()):
                pages = block_table[n, : -(-length // cache.shape[1])]
                own = cache[pages].reshape(-1, *cache.shape[2:])[:length]
                rows = slice(cu_seqlens_q[n], cu_seqlens_q[n + 1])
                count = int(rows.stop - rows.start)
                pieces.append(own if added is None else np.concatenate([own[: length - count], added[rows]]))
            gathered.append(np.concatenate(pieces))
        ends = np.concatenate([[0], np.cumsum(kv_lengths)]).astype(np.int32)
        found = packed(q, *gathered, cu_seqlens_q, ends, **o)
        return (found[0].astype(dtype), found[1]) if isinstance(found, tuple) else found.astype(dtype)

    return paged
