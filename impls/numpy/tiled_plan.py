"""Which blocks a call of ``numpy-tiled`` is cut into: query rows and heads of each, and the threads that share them.

Large blocks read keys and values seldom and need Python seldom; several of them give threads something to share, and
under a diagonal small ones leave out more of what is hidden.
"""

from __future__ import annotations

from dataclasses import dataclass

from impls.numpy.tiled_block import KEYS, slices
from impls.numpy.tiled_threads import available
from impls.numpy.tiled_visible import Visible

#: Where a block lies: its batch entry, its key/value heads, its query rows.
Place = tuple[int, slice, slice]

#: Scores of a tile: 1.5 MiB in float32.  From product to softmax to product they stay in a cache of the second or third
#: level.
TILE = 3 * 2**17

#: Rows of a block, over all heads of its group: the more, the less often keys and values are read.
ROWS = 1024

#: Rows of a block along a diagonal at least, where a block computes a triangle of hidden scores.  Not less: Python lets
#: one thread go on at a time, and between products each needs Python.
DIAGONAL_ROWS = 256

#: Keys for each row of a block under a long diagonal: its hidden triangles are a sixteenth of a call.
DIAGONAL_KEYS = 16

#: Blocks of a call at least, as long as they have LEAST_ROWS, from so many multiply-adds on: threads need something to
#: share, but with small blocks they mostly wait for each other in Python.  Not by the number of threads, on which no
#: bit of a result may depend.
BLOCKS = ((8, 2**29), (4, 2**27), (2, 2**25))

#: Rows from which on matrix products are near their full speed.
LEAST_ROWS = 128


@dataclass(frozen=True)
class Plan:
    """The blocks in the order in which they are done, the scores of a thread's tile, and how many threads there are."""

    blocks: list[Place]
    tile: int
    threads: int


def plan(seen: Visible, q: tuple[int, ...], v: tuple[int, ...]) -> Plan:
    """What a call is cut into, by the shapes of q (B, Hq, Sq, D) and of all v (B, Hkv, Sk, Dv)."""
    (batch, heads, queries, width), (_, kv_heads, keys, value_width) = q, v
    group, total = heads // kv_heads, batch * heads * queries
    products = total * keys * (width + value_width)
    least = next((count for count, from_here in BLOCKS if products >= from_here), 1)
    rows = _rows(seen)
    while rows > LEAST_ROWS and total < least * rows:
        rows //= 2
    rows = max(1, min(queries, rows // max(1, group)))
    lines = max(1, rows * group)
    together = max(1, min(kv_heads, ROWS // lines, total // (least * lines)))
    # The last rows first: under a diagonal they see the most keys, and whoever has none left waits for the rest.
    row_slices = list(slices(0, queries, rows))[::-1]
    head_slices = list(slices(0, kv_heads if group else 0, together))
    blocks = [(b, some, each) for b in range(batch) for some in head_slices for each in row_slices]
    lines *= together
    tile = lines * max(1, min(KEYS, TILE // lines, keys))
    return Plan(blocks, tile, max(1, min(len(blocks), available() if least > 1 else 1)))


def _rows(seen: Visible) -> int:
    """Rows of a block where there are many."""
    if seen.left is not None:
        return DIAGONAL_ROWS
    return ROWS if seen.right is None else max(DIAGONAL_ROWS, min(ROWS, seen.keys // DIAGONAL_KEYS))
