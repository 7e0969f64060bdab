"""Packed sequences: the shape of a pack, numbers whose queries point across its boundaries, and cases of varlen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from attention_conformance.conformance.bounds import varlen as bounds
from attention_conformance.conformance.bounds.sdpa import Options
from attention_conformance.conformance.bounds.varlen import PackedBound
from attention_conformance.conformance.cases.base import AnyCase, Blame
from attention_conformance.conformance.spec import varlen as reference
from attention_conformance.conformance.spec.inputs import PackedInputs
from attention_conformance.conformance.spec.varlen import PackedExpected
from attention_conformance.impls.contract import Profile

Rng = np.random.Generator
Maker = Callable[[Rng, "PackedShape", np.dtype], np.ndarray]


@dataclass(frozen=True)
class PackedShape:
    """Queries and keys of each sequence, heads, widths, and the keys behind the last sequence."""

    q_lengths: tuple[int, ...] = (5, 7, 3)
    k_lengths: tuple[int, ...] = (5, 7, 3)
    hq: int = 2
    hkv: int = 2
    d: int = 8
    dv: int = 8
    behind: int = 0

    @property
    def b(self) -> int:
        """N, the sequences."""
        return len(self.q_lengths)

    @property
    def sq(self) -> int:
        """The queries of the longest sequence."""
        return max(self.q_lengths, default=0)

    @property
    def sk(self) -> int:
        """The keys of the longest sequence."""
        return max(self.k_lengths, default=0)

    @property
    def elements(self) -> int:
        """How many numbers q, k and v have."""
        keys = sum(self.k_lengths) + self.behind
        return sum(self.q_lengths) * self.hq * self.d + keys * self.hkv * (self.d + self.dv)

    @property
    def options(self) -> dict[str, Any]:
        """The keywords that every call of this shape has."""
        return {"max_seqlen_q": self.sq, "max_seqlen_k": self.sk}


def boundaries(lengths: tuple[int, ...]) -> np.ndarray:
    """Where sequences begin and end, (N + 1,)."""
    return np.cumsum([0, *lengths]).astype(np.int32)


def across(rng: Rng, s: PackedShape) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Normal numbers; each query points at a key of its own sequence and at one that is not its own.

    Their scores are about 6 over the others, so that at any length and in half precision a row tells whether its own
    first and last keys and those around the diagonal count, and whether those next to its sequence do.
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
        """Where sequences begin and end."""
        return boundaries(self.shape.q_lengths), boundaries(self.shape.k_lengths)

    def make_expected(self, inputs: PackedInputs) -> PackedExpected:
        """What the reference says of inputs.  Raises InvalidInput for invalid ones."""
        options = {name: value for name, value in inputs.keywords.items() if name != "return_lse"}
        return reference.varlen(*inputs.arrays.values(), **options)

    def make_bound(self, inputs: Any, expected: PackedExpected, dtype: str, profile: Profile) -> PackedBound:
        """The error bound for inputs under a profile."""
        return bounds.bound(expected, Options.of(inputs.keywords), dtype, profile)

    def axes(self, result: str) -> tuple[str, ...]:
        """Names of the axes of a result."""
        return ("head", "row") if result == "lse" else ("row", "head", "column")

    def __hash__(self) -> int:
        return hash(self.name)
