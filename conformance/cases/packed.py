"""Packed sequences and paged caches: their shapes, data whose queries point across boundaries, and their cases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import ml_dtypes
import numpy as np

from attention_conformance.conformance.bounds import varlen as bounds
from attention_conformance.conformance.bounds.sdpa import Options
from attention_conformance.conformance.bounds.varlen import PackedBound
from attention_conformance.conformance.cases.base import AnyCase, Blame
from attention_conformance.conformance.spec import varlen as reference
from attention_conformance.conformance.spec.inputs import PackedInputs, PagedInputs
from attention_conformance.conformance.spec.paged import paged
from attention_conformance.conformance.spec.varlen import PackedExpected
from attention_conformance.impls.contract import Profile

Rng = np.random.Generator
Maker = Callable[[Rng, "PackedShape", np.dtype], np.ndarray]


@dataclass(frozen=True)
class PackedShape:
    """Queries and keys of each sequence, heads, widths, and the number of keys behind the last sequence."""

    q_lengths: tuple[int, ...] = (5, 7, 3)
    k_lengths: tuple[int, ...] = (5, 7, 3)
    hq: int = 2
    hkv: int = 2
    d: int = 8
    dv: int = 8
    behind: int = 0

    @property
    def b(self) -> int:
        """N, the number of sequences."""
        return len(self.q_lengths)

    @property
    def sq(self) -> int:
        """Queries of the longest sequence."""
        return max(self.q_lengths, default=0)

    @property
    def sk(self) -> int:
        """Keys of the longest sequence."""
        return max(self.k_lengths, default=0)

    @property
    def scores(self) -> tuple[int, int, int, int]:
        """(N, Hq, Sq, Sk) of the longest sequences, the shape of a bias."""
        return (self.b, self.hq, self.sq, self.sk)

    @property
    def elements(self) -> int:
        """Number of elements of q, k and v."""
        keys = sum(self.k_lengths) + self.behind
        return sum(self.q_lengths) * self.hq * self.d + keys * self.hkv * (self.d + self.dv)

    @property
    def options(self) -> dict[str, Any]:
        """The keywords that every call of this shape has."""
        return {"max_seqlen_q": self.sq, "max_seqlen_k": self.sk}


def boundaries(lengths: tuple[int, ...]) -> np.ndarray:
    """Offsets at which sequences begin and end, (N + 1,)."""
    return np.cumsum([0, *lengths]).astype(np.int32)


def across(rng: Rng, s: PackedShape) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Normal numbers; each query points at a key of its own sequence and at one outside it.

    Their scores are about 6 above the others, so that at any length and in half precision a row shows whether its own
    first and last keys and those around the diagonal count, and whether keys next to its sequence do.
    """
    keys = sum(s.k_lengths) + s.behind
    q = rng.standard_normal((sum(s.q_lengths), s.hq, s.d))
    k, v = rng.standard_normal((keys, s.hkv, s.d)), rng.standard_normal((keys, s.hkv, s.dv))
    if not q.size or not k.size or s.hq % s.hkv:
        return q, k, v
    ends = np.cumsum([0, *s.k_lengths])
    place = np.concatenate([np.arange(n) for n in s.q_lengths])
    sequence = np.repeat(np.arange(len(s.q_lengths)), s.q_lengths)
    first, last = ends[sequence], ends[sequence + 1] - 1
    diagonal = last - (np.array(s.q_lengths)[sequence] - 1 - place)
    inside = np.stack([first, last, first + place, *(diagonal + step for step in (-2, -1, 0, 1, 2))])
    inside = np.clip(inside, first, np.maximum(first, last))
    outside = np.stack([first - 2, first - 1, last + 1, last + 2])
    heads = np.arange(s.hq)
    every = np.repeat(k, s.hq // s.hkv, axis=1)
    for targets in (inside, outside):
        chosen = targets[rng.integers(0, len(targets), (s.hq, len(q))), np.arange(len(q))].T
        q += 6.0 / np.sqrt(s.d) * every[np.clip(chosen, 0, keys - 1), heads]
    return q, k, v


@dataclass(frozen=True)
class PackedCase(AnyCase):
    """A case of varlen."""

    operator: ClassVar[str] = "varlen"
    arguments: ClassVar[type] = PackedInputs
    blame: ClassVar[Blame] = Blame("VARLEN-1", accuracy="VARLEN-9", value="VARLEN-2", of_result={"lse": "VARLEN-10"})
    shape: PackedShape = PackedShape()

    def draw(self, rng: Rng) -> tuple[np.ndarray, ...]:
        """Q, k and v in float64."""
        return (self.data or across)(rng, self.shape)

    def tables(self) -> tuple[np.ndarray, ...]:
        """Offsets at which sequences begin and end."""
        return boundaries(self.shape.q_lengths), boundaries(self.shape.k_lengths)

    def make_expected(self, inputs: PackedInputs) -> PackedExpected:
        """Results of the reference.  Raises InvalidInput for invalid inputs."""
        options = {name: value for name, value in inputs.keywords.items() if name != "return_lse"}
        return reference.varlen(*inputs.arrays.values(), **options)

    def make_bound(self, inputs: Any, expected: PackedExpected, dtype: str, profile: Profile) -> PackedBound:
        """The error bound for inputs under a profile."""
        return bounds.bound(expected, Options.of(inputs.keywords), dtype, profile, "k_scale" in inputs.keywords)

    def axes(self, result: str) -> tuple[str, ...]:
        """Names of the axes of a result."""
        return ("head", "row") if result == "lse" else ("row", "head", "column")

    def __hash__(self) -> int:
        return hash(self.name)


@dataclass(frozen=True)
class PagedShape(PackedShape):
    """Queries and keys of each sequence, and the cache: page size, leading pages that all share, and unused pages."""

    q_lengths: tuple[int, ...] = (3, 1, 7, 1)
    k_lengths: tuple[int, ...] = (9, 14, 7, 4)
    page: int = 4
    #: Leading pages of the first sequence that the others share.
    shared: int = 0
    #: Pages that no sequence has; they lie among and before the others.
    unused: int = 5
    #: Table entries behind a sequence's last page: a number, or None for random pages.
    padding: int | None = None

    @property
    def pages(self) -> int:
        """Number of pages in the cache."""
        own = sum(max(-(-n // self.page) - (self.shared if at else 0), 0) for at, n in enumerate(self.k_lengths))
        return own + self.unused

    @property
    def elements(self) -> int:
        """Number of elements of q and the caches."""
        cache = self.pages * self.page * self.hkv * (self.d + self.dv)
        return sum(self.q_lengths) * self.hq * self.d + cache


def table_of(s: PagedShape) -> np.ndarray:
    """The block table, (N, M): pages in random order, and at least one entry behind the last page of each sequence."""
    free = np.random.default_rng(s.pages).permutation(s.pages).tolist()
    counts = [-(-n // s.page) for n in s.k_lengths]
    table = np.full((len(counts), max(counts, default=0) + 1), -1 if s.padding is None else s.padding, np.int32)
    for n, count in enumerate(counts):
        common = min(s.shared, count) if n else 0
        table[n, :common] = table[0, :common]
        table[n, common:count] = [free.pop() for _ in range(count - common)]
        if s.padding is None:
            table[n, count:] = np.random.default_rng(n).integers(0, s.pages, table.shape[1] - count)
    return table


def over_pages(rng: Rng, s: PagedShape) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Normal numbers; each query points at a key of its own sequence and at a slot that is not its own.

    Its own: the first and last keys, keys around the diagonal, keys on both sides of a page's edge.  Not its own: slots
    behind its last key, slots before and behind its pages in the cache, and slots of its first table entries behind the
    last page.
    """
    q = rng.standard_normal((sum(s.q_lengths), s.hq, s.d))
    k, v = (rng.standard_normal((s.pages, s.page, s.hkv, width)) for width in (s.d, s.dv))
    if s.hq % s.hkv:
        return q, k, v
    table, every = table_of(s), np.repeat(k.reshape(-1, s.hkv, s.d), s.hq // s.hkv, axis=1)
    row = 0
    for n, (queries, length) in enumerate(zip(s.q_lengths, s.k_lengths, strict=True)):
        slots = (np.maximum(table[n], 0)[:, None] % s.pages * s.page + np.arange(s.page)).ravel()
        edges = [j for j in range(length) if j % s.page in (0, s.page - 1)]
        for i in range(queries):
            diagonal = length - queries + i
            own = [j for j in (0, length - 1, *range(diagonal - 2, diagonal + 3), *edges) if 0 <= j < length]
            behind = [*slots[length : length + s.page], slots[0] - 1, slots[max(length - 1, 0)] + s.page]
            for h in range(s.hq):
                targets = [slots[own[rng.integers(len(own))]]] if own else []
                for slot in (*targets, int(behind[rng.integers(len(behind))]) % len(every)):
                    q[row, h] += 6.0 / np.sqrt(s.d) * every[slot, h]
            row += 1
    return q, k, v


def sinks(rng: Rng, s: PackedShape, dtype: np.dtype) -> np.ndarray:
    """One logit per head, about as large as the scores that queries point with."""
    return (3 + 2 * rng.standard_normal(s.hq)).astype(dtype)


def new_rows(width: str) -> Maker:
    """Keys or values of the queries' tokens."""
    return lambda rng, s, dtype: rng.standard_normal((sum(s.q_lengths), s.hkv, getattr(s, width))).astype(dtype)


@dataclass(frozen=True)
class PagedCase(PackedCase):
    """A case of paged."""

    operator: ClassVar[str] = "paged"
    arguments: ClassVar[type] = PagedInputs
    blame: ClassVar[Blame] = Blame("PAGED-1", accuracy="PAGED-9", value="PAGED-2", of_result={"lse": "PAGED-10"})
    shape: PagedShape = PagedShape()
    #: The dtype of caches that are stored with scales (PAGED-14), "" for the dtype of the call.
    stored: str = ""

    def make_inputs(self, dtype: str) -> Any:
        """The inputs, with caches in the dtype that they are stored in."""
        x = super().make_inputs(dtype)
        if not self.stored:
            return x
        kept = np.dtype(getattr(ml_dtypes, self.stored, self.stored))
        return replace(x, k_cache=x.k_cache.astype(kept), v_cache=x.v_cache.astype(kept))

    def draw(self, rng: Rng) -> tuple[np.ndarray, ...]:
        """Q and the caches in float64."""
        return (self.data or over_pages)(rng, self.shape)

    def tables(self) -> tuple[np.ndarray, ...]:
        """Boundaries of the queries, the block table, and the lengths."""
        lengths = np.array(self.shape.k_lengths, np.int32)
        return boundaries(self.shape.q_lengths), table_of(self.shape), lengths

    def make_expected(self, inputs: Any) -> PackedExpected:
        """Results of the reference.  Raises InvalidInput for invalid inputs."""
        options = {name: value for name, value in inputs.keywords.items() if name != "return_lse"}
        return paged(*inputs.arrays.values(), **options)

    def __hash__(self) -> int:
        return hash(self.name)
