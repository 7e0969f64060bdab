"""Which keys a block of query rows sees: those between its diagonals, up to the length of its sequence."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Visible:
    """Which keys the diagonal and the lengths leave, by batch: j from i + offset − left to i + offset + right."""

    keys: int
    left: int | None
    right: int | None
    offsets: list[int]
    lengths: list[int]

    def span(self, b: int, rows: slice) -> tuple[int, int]:
        """First key, and last key + 1, that any of the rows sees."""
        first, last = 0, min(self.keys, self.lengths[b])
        if self.left is not None:
            first = max(0, rows.start + self.offsets[b] - self.left)
        if self.right is not None:
            last = min(last, rows.stop + self.offsets[b] + self.right)
        return first, last

    def hide(self, scores: np.ndarray, b: int, rows: slice, keys: slice, fill: float) -> None:
        """Put ``fill`` into scores (G, rows, keys) of keys beyond a row's sides; only columns that an edge crosses."""
        count, first = rows.stop - rows.start, rows.start + self.offsets[b]
        if self.right is not None:
            start = max(keys.start, first + self.right + 1)
            if start < keys.stop:
                near = _triangle(count, keys.stop - start, first + self.right - start)
                np.copyto(scores[..., start - keys.start :], fill, where=~near)
        if self.left is not None:
            stop = min(keys.stop, first + count - 1 - self.left)
            if stop > keys.start:
                before = _triangle(count, stop - keys.start, first - self.left - 1 - keys.start)
                np.copyto(scores[..., : stop - keys.start], fill, where=before)


@functools.lru_cache(maxsize=16)
def _triangle(rows: int, columns: int, diagonal: int) -> np.ndarray:
    """True in column j of row i where j ≤ i + diagonal.  Kept, as most blocks of a call have the same edges."""
    triangle = np.tri(rows, columns, diagonal, dtype=bool)
    triangle.flags.writeable = False
    return triangle


def visible(
    keys: int,
    batch: int,
    is_causal: bool,
    offset: int | np.ndarray,
    window: tuple[int | None, int | None] | None,
    kv_lengths: np.ndarray | None,
) -> Visible:
    """What a call's keywords leave of ``keys`` keys; is_causal is a right side of 0 (SDPA-9 to SDPA-12)."""
    left, right = window or (None, None)
    if is_causal:
        right = 0 if right is None else min(right, 0)
    lengths = [keys] * batch if kv_lengths is None else kv_lengths.tolist()
    offsets = [offset] * batch if isinstance(offset, int) else np.broadcast_to(offset, batch).tolist()
    return Visible(keys, left, right, offsets, lengths)
