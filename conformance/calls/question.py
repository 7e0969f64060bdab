"""Question: the parts of a call and its results that are compared, and the case of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attention_conformance.conformance.cases.data import Shape
from attention_conformance.conformance.cases.parts import odd_rows
from attention_conformance.impls.calls import Reply
from attention_conformance.impls.contract import Profile

#: Scores (B, Hq, Sq, Sk) up to which every row is recomputed, about a second on one core; fewest rows of every head
#: that are sampled beyond it; and scores of the key heads whose gradients are computed.
WHOLE, FEWEST_ROWS, GRADIENT_SCORES = 2**20, 8, 2**21

#: Where tiles of kernels end.
TILES = (16, 32, 64, 128, 256)


@dataclass(frozen=True)
class Part:
    """A case, its results, and a note on what was checked."""

    case: Any
    reply: Reply
    note: str = ""


@dataclass(frozen=True)
class Question:
    """Everything that is compared: the parts, and the sampled rows and heads."""

    parts: tuple[Part, ...]
    dtype: str
    profile: Profile
    rows: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        """Refuse a question without results, such as that of a function that returns None."""
        if not self.parts:
            raise TypeError("nothing to compare: output is None, and no other result is given")


def shapes_of(s: Shape) -> dict[str, tuple[int, ...]]:
    """The shape of each result of sdpa."""
    return {
        "output": (s.b, s.hq, s.sq, s.dv),
        "weights": s.scores,
        "lse": s.scores[:3],
        "present_key": (s.b, s.hkv, s.sk, s.d),
        "present_value": (s.b, s.hkv, s.sk, s.dv),
    }


def rows_of(scores: int, length: int) -> int:
    """Number of rows that are checked by default: all for few scores, else as many as make up WHOLE."""
    return length if scores <= WHOLE else max(FEWEST_ROWS, WHOLE * length // scores)


def sample_rows(
    length: int, wanted: int, output: np.ndarray, seed: int, boundaries: Sequence[int] | None = None
) -> np.ndarray:
    """Sorted rows: all, or the first, the last, conspicuous ones, edges of tiles and random ones, ``wanted`` in all.

    ``boundaries``, where sequences begin, replace edges of tiles.
    """
    if length <= wanted:
        return np.arange(length)
    if wanted < 1:
        raise ValueError(f"rows is {wanted}; expected 1 or more")
    rng = np.random.default_rng(seed)
    starts = boundaries or [first for tile in TILES for first in range(tile, length, tile)]
    edges = sorted({at for first in starts for at in (first - 1, first) if 0 <= at < length})
    fits = output.ndim == 4 and output.shape[2] == length and output.size
    odd = [row for _, _, row in odd_rows(output)] if fits else []
    chosen = [0, length - 1, *odd, *rng.permutation(edges)[: wanted // 4].tolist()]
    chosen += rng.permutation(length)[:wanted].tolist()
    return np.sort(list(dict.fromkeys(chosen))[: max(wanted, 2)])
