"""Sharding: the part of each array of a call of sdpa or of its gradients that a rank gets, and results joined again.

A rank has some of the rows and some of the keys, or some of the heads.  A mask or a bias follows the queries and has
all keys, in their order; numbers per batch are whole, and so are arrays that are broadcast along the sharded axis.
Sinks are whole unless heads are sharded.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

#: Arrays with rows and with keys, and the axis of these from the end; the past; and arrays with the axes of scores.
ROWS = {"q": -2, "output": -2, "grad_output": -2, "grad_q": -2, "weights": -2, "lse": -1}
KEYS = {"k": -2, "v": -2, "grad_k": -2, "grad_v": -2}
PAST = ("past_key", "past_value", "present_key", "present_value")
SCORES = ("mask", "bias", "grad_bias")

#: Attributes by which a function declares its ranks, and what it gets in addition to the keywords of its operator, each
#: if it has the parameter: the process group, or a mesh or the name of its axis; and Sq and Sk over all ranks.
DECLARED = ("ranks", "sharding", "uneven", "replicated", "rank_seconds")
GIVEN = ("group", "mesh", "axis", "lengths")

Indices = list[np.ndarray]


def _contiguous(length: int, ranks: int) -> Indices:
    size = -(-length // ranks)
    return [np.arange(length)[rank * size : (rank + 1) * size] for rank in range(ranks)]


def _striped(length: int, ranks: int) -> Indices:
    return [np.arange(rank, length, ranks) for rank in range(ranks)]


def _zigzag(length: int, ranks: int) -> Indices:
    parts = _contiguous(length, 2 * ranks)
    return [np.concatenate([parts[rank], parts[-1 - rank]]) for rank in range(ranks)]


@dataclass(frozen=True)
class Sharding:
    """A way to share out a sequence: the places that each rank has, and how many parts a length must divide into."""

    places: Callable[[int, int], Indices]
    parts: int = 1


#: Ways by the name that a function declares; the last one shares out heads instead of a sequence.
HEADS = "heads"
SHARDINGS = {
    "contiguous": Sharding(_contiguous),
    "striped": Sharding(_striped),
    "zigzag": Sharding(_zigzag, 2),
    HEADS: Sharding(_contiguous),
}


@dataclass(frozen=True)
class Distribution:
    """Distribution of an implementation over several ranks.

    Parameters
    ----------
    ranks
        Number of ranks; with several numbers each call uses one, by its shapes and options.
    sharding
        A name of SHARDINGS.
    uneven
        Lengths (or heads) need not divide by the ranks: the last ranks have less, or nothing.
    padded
        Shards are equal nevertheless: a sequence that does not divide is padded with zeros at its end.
    replicated
        Every rank returns whole results, which must be equal.
    seconds
        Time that the ranks have for a call.
    prepare, layout
        Preparation and layout of the function in each rank, as an Implementation has them.
    """

    ranks: tuple[int, ...]
    sharding: str = "contiguous"
    uneven: bool = False
    padded: bool = False
    replicated: bool = False
    seconds: float = 60.0
    prepare: str = "attention_conformance.impls.contract:partial"
    layout: str = "BHSD"

    def __post_init__(self) -> None:
        if self.sharding not in SHARDINGS:
            raise ValueError(f"sharding {self.sharding!r} is none of {', '.join(SHARDINGS)}")
        if not self.ranks or any(not isinstance(n, int) or n < 1 for n in self.ranks):
            raise ValueError(f"ranks {self.ranks!r} are not numbers of ranks")

    @property
    def multiple(self) -> int:
        """Divisor that a length, or a number of heads, must have so that all shards are equal.

        Lengths must divide only by the fewest ranks: each call has a number of ranks that its lengths allow.
        """
        parts = SHARDINGS[self.sharding].parts
        return 1 if self.uneven else math.lcm(*self.ranks) if self.sharding == HEADS else parts * min(self.ranks)

    def of_call(self, shapes: Mapping[str, tuple[int, ...]], options: Mapping[str, Any]) -> int:
        """Number of ranks of a call, by its shapes and options: one that divides its lengths or heads, if any does.

        Large numbers are taken more often, as fewer calls allow them.
        """
        sizes = (shapes["q"][-3],) if self.sharding == HEADS else (shapes["q"][-2], shapes["k"][-2])
        parts = SHARDINGS[self.sharding].parts
        able = [n for n in self.ranks if self.uneven or not any(size % (n * parts) for size in sizes)] or self.ranks
        weighted = [n for n in able for _ in range(n)]
        text = repr((sorted(shapes.items()), sorted(options.items())))
        return weighted[zlib.crc32(text.encode()) % len(weighted)]

    def axis(self, name: str, shape: Sequence[int], query: Sequence[int]) -> int | None:
        """The axis, from the end, along which an array of a call is shared out; None if it is whole.

        ``query`` is the shape of q, (…, Hq, Sq, D).
        """
        if self.sharding == HEADS:
            if name in ("sinks", "alibi_slopes", "head_scale"):
                return -1
            if name in SCORES:
                return -3 if len(shape) > 2 and shape[-3] == query[-3] > 1 else None
            return -2 if name == "lse" else -3 if name in ROWS or name in KEYS or name in PAST else None
        if name in PAST:
            raise NotImplementedError("a past over several ranks is split only by heads")
        if name in SCORES:
            return -2 if len(shape) > 1 and shape[-2] == query[-2] > 1 else None
        return ROWS.get(name, KEYS.get(name))

    def places(self, name: str, length: int, query: Sequence[int], key: Sequence[int], ranks: int) -> Indices:
        """The places along the axis of an array that each rank has.

        Raises NotImplementedError where shards must be equal and cannot be, or a rank would have only some heads of a
        group.
        """
        of_keys = self.sharding == HEADS and name in (*KEYS, *PAST)
        if not (self.uneven or of_keys) and length % (ranks * SHARDINGS[self.sharding].parts):
            what = "heads" if self.sharding == HEADS else "queries" if name in ROWS else "keys"
            raise NotImplementedError(f"{length} {what} do not divide over {ranks} ranks, {self.sharding}")
        if self.padded:
            length = self.filled(length, ranks)
        if of_keys and key[-3]:
            group = max(query[-3] // key[-3], 1)
            found = [_heads_of(places // group) for places in _contiguous(query[-3], ranks)]
            if any(len(places) and places[-1] >= length for places in found):
                raise NotImplementedError(f"{name} has {length} heads, fewer than the shards of the ranks have")
            return found
        return SHARDINGS[self.sharding].places(length, ranks)

    def filled(self, length: int, ranks: int) -> int:
        """A length, padded so that it divides."""
        parts = ranks * SHARDINGS[self.sharding].parts
        return -(-length // parts) * parts if self.padded else length


def _heads_of(read: np.ndarray) -> np.ndarray:
    """The key heads that query heads read, each once."""
    heads, counts = np.unique(read, return_counts=True)
    if len(set(counts.tolist())) > 1:
        raise NotImplementedError("the query heads of a group are on two ranks")
    return heads


@dataclass(frozen=True)
class Part:
    """Part of one array for each rank: its axis, the size of that axis, and the places of each rank; or all of it.

    The axis is padded with zeros to ``filled``, where shards must be equal and its size does not divide.
    """

    axis: int | None = None
    size: int = 0
    places: tuple[np.ndarray, ...] = ()
    filled: int = 0

    def of(self, array: np.ndarray, rank: int) -> np.ndarray:
        """A rank's part of an array."""
        return array if self.axis is None else np.take(self._filled(array), self.places[rank], axis=self.axis)

    def together(self, array: np.ndarray) -> np.ndarray:
        """The parts of all ranks side by side."""
        if self.axis is None:
            return array
        return np.take(self._filled(array), np.concatenate(self.places), axis=self.axis)

    def _filled(self, array: np.ndarray) -> np.ndarray:
        assert self.axis is not None
        missing = [(0, 0)] * array.ndim
        missing[self.axis] = (0, max(0, self.filled - self.size))
        return np.pad(array, missing) if self.filled > self.size else array

    def apart(self, array: np.ndarray) -> list[np.ndarray]:
        """The parts that are side by side in an array."""
        assert self.axis is not None
        ends = np.cumsum([len(each) for each in self.places])
        if array.ndim < -self.axis or array.shape[self.axis] != ends[-1]:
            raise ValueError(f"has shape {array.shape}, where {ends[-1]} entries are expected in axis {self.axis}")
        return np.split(array, ends[:-1], axis=self.axis)

    def joined(self, pieces: Sequence[np.ndarray]) -> np.ndarray:
        """The array joined from the ranks' parts; entries that several ranks have are added, as gradients are."""
        assert self.axis is not None
        wide = np.result_type(pieces[0].dtype, np.float32) if len(pieces) > 1 else pieces[0].dtype
        shape = list(pieces[0].shape)
        shape[self.axis] = max(self.size, self.filled)
        whole = np.zeros(shape, wide)
        for rank, (piece, places) in enumerate(zip(pieces, self.places, strict=True)):
            expected = [*shape]
            expected[self.axis] = len(places)
            if piece.shape != tuple(expected):
                raise ValueError(f"rank {rank} has shape {piece.shape}, expected {tuple(expected)}")
            at = [slice(None)] * piece.ndim
            at[self.axis] = places  # type: ignore[call-overload]
            whole[tuple(at)] += piece.astype(wide)
        return np.take(whole, np.arange(self.size), axis=self.axis).astype(pieces[0].dtype)


def parts(
    distribution: Distribution, ranks: int, shapes: Mapping[str, tuple[int, ...]], results: Sequence[str] = ()
) -> dict[str, Part]:
    """Parts of the arrays of a call, by their shapes, and of its results.

    Raises NotImplementedError for arrays that cannot be shared out.
    """
    query, key = shapes["q"], shapes["k"]
    if distribution.padded and key[-2] != shapes.get("v", key)[-2]:
        raise NotImplementedError("k and v of unequal lengths, which shards that are filled up would not show")
    of_scores = shapes.get("bias", ())
    like = {"grad_k": key, "grad_v": key, "grad_bias": of_scores, "lse": query[:-1]}
    every: dict[str, Any] = {name: like.get(name, query) for name in results} | dict(shapes)
    found = {}
    for name, shape in every.items():
        axis = distribution.axis(name, shape, query)
        if axis is None or len(shape) < -axis or (distribution.replicated and name in results):
            found[name] = Part()
            continue
        size = shape[axis]
        places = tuple(distribution.places(name, size, query, key, ranks))
        found[name] = Part(axis, size, places, distribution.filled(size, ranks))
    return found
