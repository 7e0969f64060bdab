"""Parts of a call that is too large to be judged whole: some of its batches, heads and rows, and their options."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

#: Every batch, head or query.
ALL = slice(None)


def sample(length: int, count: int, seed: int) -> np.ndarray:
    """Sorted indices: all of them if there are few, else the first, the last and random ones in between.

    Parameters
    ----------
    length
        Number of elements.
    count
        Number of indices to take, at least two if ``length`` is larger.
    seed
        Seed of the choice.

    Returns
    -------
    np.ndarray
        ``min(length, count)`` different indices below ``length``.
    """
    if length <= count:
        return np.arange(length)
    between = np.random.default_rng(seed).choice(np.arange(1, length - 1), count - 2, replace=False)
    return np.sort(np.concatenate([[0, length - 1], between]))


def sample_heads(heads: int, count: int, seed: int) -> np.ndarray:
    """Sorted head indices: the first, the last and random ones in between; for a count of one, the first or the last.

    Parameters
    ----------
    heads
        Number of heads.
    count
        Number of heads to take.
    seed
        Seed of the choice; for a count of one, an even seed takes the first head.

    Returns
    -------
    np.ndarray
        ``min(heads, count)`` different indices below ``heads``.
    """
    if count == 1:
        return np.array([0 if seed % 2 == 0 else heads - 1])
    return sample(heads, count, seed)


def query_heads(heads: np.ndarray, group: int) -> np.ndarray:
    """The query heads of some key heads.

    Parameters
    ----------
    heads
        Indices of key heads.
    group
        Query heads per key head.

    Returns
    -------
    np.ndarray
        ``group`` indices for each key head, in its order.
    """
    return (heads[:, None] * group + np.arange(group)).ravel()


def part_of(name: str, value: Any, batches: Any = ALL, heads: Any = ALL, queries: Any = ALL) -> Any:
    """An option of sdpa for some batches and heads.

    Parameters
    ----------
    name, value
        A keyword of sdpa and its value; a value that is not an array is the same for all.
    batches, heads, queries
        Indices or slices of batches, key heads and query heads.

    Returns
    -------
    Any
        The chosen part, a view or a copy; lengths and offsets have one axis, the batch.  A value that is the same for
        all is returned unchanged.
    """
    if not isinstance(value, np.ndarray):
        return value
    if name in ("past_key", "past_value"):
        return value[batches][:, heads]
    if name in ("sinks", "alibi_slopes", "head_scale"):
        return value[queries]
    if name in ("mask", "bias", "block_mask"):
        for axis, chosen in ((value.ndim - 4, batches), (value.ndim - 3, queries)):
            if axis >= 0 and value.shape[axis] > 1:
                value = value[(*[ALL] * axis, chosen)]
        return value
    if name in ("rotary_cos", "rotary_sin"):  # by position, the same for all batches and heads
        return value
    if name == "tree_parents":
        return value if value.ndim == 1 else value[batches]
    return value if value.size == 1 else value.reshape(-1)[batches]


def odd_rows(output: np.ndarray) -> list[tuple[int, int, int]]:
    """Conspicuous rows (batch, head, row) of a whole output (B, H, S, D).

    Parameters
    ----------
    output
        Output of one call, (B, H, S, D) in any dtype.

    Returns
    -------
    list[tuple[int, int, int]]
        The first row that is not finite, the smallest, which is a row of zeros if there is one, and the largest;
        sorted.
    """
    size = np.empty(output.shape[:3])
    with np.errstate(all="ignore"):
        for b, one in enumerate(output):  # batch by batch: no second copy of a large output
            size[b] = np.abs(one).max(-1).astype(np.float64)
    found = (np.argmin(np.isfinite(size)), np.argmin(np.nan_to_num(size, nan=np.inf)), np.argmax(np.nan_to_num(size)))
    return sorted({(int(b), int(h), int(row)) for b, h, row in (np.unravel_index(at, size.shape) for at in found)})


def forms(shapes: Mapping[str, tuple[int, ...]]) -> SimpleNamespace:
    """Results of these shapes by name, as attributes that take no memory, for checking the form of a whole answer.

    Parameters
    ----------
    shapes
        Shape of each result, by its name.

    Returns
    -------
    SimpleNamespace
        Zeros in float64, broadcast from one number.
    """
    return SimpleNamespace(**{name: np.broadcast_to(np.float64(0), shape) for name, shape in shapes.items()})
