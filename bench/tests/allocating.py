"""Wrong attention that takes a known amount of memory, for tests of what measures it.

Each function writes the memory that it takes: unwritten memory would not count.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import numpy as np

MEBIBYTE = 2**20

#: Data that the implementations keep between calls.
KEPT: list[Any] = []


def _take(count: int) -> np.ndarray:
    return np.ones(count * MEBIBYTE, np.uint8)


def takes_40(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """40 MiB in one array."""
    _take(40)
    return v.copy()


def takes_24_twice(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """24 MiB, freed, and 24 MiB again."""
    _take(24)
    _take(24)
    return v.copy()


def takes_many(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """32 MiB in 256 arrays at once."""
    parts = [np.ones(MEBIBYTE // 8, np.uint8) for _ in range(256)]
    return v + np.float32(len(parts))


def only_asks(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """A GiB that is never written."""
    np.empty(1024 * MEBIBYTE, np.uint8)
    return v.copy()


def keeps(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """A workspace of the size of the scores, kept for all later calls that fit in it, like an arena."""
    needed = q[..., 0].size * k.shape[2] * q.itemsize
    if not KEPT or KEPT[0].nbytes < needed:
        KEPT[:] = [np.ones(needed, np.uint8)]
    return v.copy()


def compiles_40(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """40 MiB temporarily, in the first call with these lengths."""
    if q.shape not in KEPT:
        _take(40)
        KEPT.append(q.shape)
    return v.copy()


def square(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """All scores at once."""
    scores = q @ k.swapaxes(2, 3)
    return scores @ v


def linear(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Scores of 64 rows at a time."""
    output = np.empty_like(v)
    for first in range(0, q.shape[2], 64):
        rows = slice(first, first + 64)
        output[:, :, rows] = q[:, :, rows] @ k.swapaxes(2, 3) @ v
    return output


@functools.cache
def planned() -> Any:
    """Product, softmax and product, jitted; a ``where`` keeps XLA from one kernel with memory outside its plan."""
    import jax
    import jax.numpy as jnp

    def program(q: Any, k: Any, v: Any) -> Any:
        scores = jnp.einsum("bhid,bhjd->bhij", q, k)
        top = scores.max(axis=3, keepdims=True)
        powers = jnp.exp(scores - jnp.where(jnp.isneginf(top), 0.0, top))
        total = powers.sum(axis=3, keepdims=True)
        return jnp.einsum("bhij,bhjd->bhid", powers / jnp.where(total == 0, 1.0, total), v)

    return jax.jit(program)


def takes_what_is_planned(q: Any, k: Any, v: Any) -> Any:
    """As much as the compiler says."""
    return planned()(q, k, v)


def raises(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Nothing: it raises."""
    raise ValueError("no kernel for you\nand more")


def crashes(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Nothing: it kills its process."""
    os.abort()
