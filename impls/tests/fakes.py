"""Tiny implementations for tests of the machinery: right, wrong, crashing, hanging, printing."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import numpy as np


def right(
    q: Any, k: Any, v: Any, *, scale: float | None = None, is_causal: bool = False, return_lse: bool = False
) -> Any:
    """Correct for full and causal attention in any dtype, computed in float64."""
    q64, k64, v64 = (a.astype(np.float64) for a in (q, k, v))
    if q.shape[1] != k.shape[1]:
        raise NotImplementedError("grouped heads")
    scores = q64 @ k64.swapaxes(2, 3) * (q.shape[3] ** -0.5 if scale is None else scale)
    if is_causal:
        scores = np.where(np.tri(*scores.shape[2:]) > 0, scores, -np.inf)
    top = scores.max(3, keepdims=True)
    powers = np.exp(scores - top)
    total = powers.sum(3, keepdims=True)
    output = (powers / total @ v64).astype(q.dtype)
    lse = (top + np.log(total))[..., 0].astype(np.float64 if q.dtype == np.float64 else np.float32)
    return (output, lse) if return_lse else output


def wrong(q: Any, k: Any, v: Any) -> Any:
    """Scale by 1/D instead of 1/√D."""
    return right(q, k, v, scale=1 / q.shape[3])


def masked_nan_leaks(q: Any, k: Any, v: Any, *, is_causal: bool = False) -> Any:
    """Correct for finite inputs; 0 · NaN lets masked values through."""
    return right(q, k, v, is_causal=is_causal)


def base_two(q: Any, k: Any, v: Any, *, return_lse: bool = False) -> Any:
    """The log-sum-exp in base 2."""
    output, lse = right(q, k, v, return_lse=True)
    return (output, (lse / np.log(2)).astype(lse.dtype)) if return_lse else output


def slightly_wrong(q: Any, k: Any, v: Any) -> Any:
    """Off by one part in ten thousand in one element."""
    output = right(q, k, v)
    output[..., -1] *= 1.0001
    return output


def too_wide(q: Any, k: Any, v: Any) -> Any:
    """Returns float64 for any dtype."""
    return right(q, k, v).astype(np.float64)


def transposed(q: Any, k: Any, v: Any) -> Any:
    """Returns (B, S, H, D)."""
    return right(q, k, v).transpose(0, 2, 1, 3)


def a_list(q: Any, k: Any, v: Any) -> Any:
    """Returns a list, which is no array."""
    return right(q, k, v).tolist()


def nan(q: Any, k: Any, v: Any) -> Any:
    """Returns NaN in one element."""
    output = right(q, k, v)
    output[0, 0, 0, 0] = np.nan
    return output


def modifies(q: Any, k: Any, v: Any) -> Any:
    """Scales q in place, and leaves it scaled."""
    output = right(q, k, v)
    q *= 0.5
    return output


_CALLS = 0


def unrepeatable(q: Any, k: Any, v: Any) -> Any:
    """The last bit depends on how often the function was called."""
    global _CALLS
    _CALLS += 1
    output = right(q, k, v)
    return output if _CALLS % 2 else np.nextafter(output, output.dtype.type(np.inf))


_BUFFERS: dict[tuple[int, ...], np.ndarray] = {}


def unrepeatable_in_a_buffer(q: Any, k: Any, v: Any) -> Any:
    """The same, in a buffer that every call returns."""
    output = unrepeatable(q, k, v)
    buffer = _BUFFERS.setdefault(output.shape, np.empty_like(output))
    buffer[:] = output
    return buffer


def random_in_a_buffer(q: Any, k: Any, v: Any) -> Any:
    """Adds a random number, in a buffer that every call returns."""
    output = right(q, k, v)
    buffer = _BUFFERS.setdefault(output.shape, np.empty_like(output))
    buffer[:] = output + output.dtype.type(np.random.random())
    return buffer


def raises(q: Any, k: Any, v: Any) -> Any:
    """Raises on a valid input."""
    raise RuntimeError("no kernel for you")


def refuses(q: Any, k: Any, v: Any) -> Any:
    """Raises NotImplementedError."""
    raise NotImplementedError("only on Tuesdays")


def careless(q: Any, k: Any, v: Any) -> Any:
    """Accepts everything and returns zeros."""
    return np.zeros_like(q)


def aborts(q: Any, k: Any, v: Any) -> Any:
    """Kills its process."""
    os.abort()


def exits(q: Any, k: Any, v: Any) -> Any:
    """Ends its process with ``sys.exit``."""
    sys.exit(3)


def hangs(q: Any, k: Any, v: Any) -> Any:
    """Never returns."""
    while True:
        time.sleep(1)


def prints(q: Any, k: Any, v: Any) -> Any:
    """Correct, but prints on both streams."""
    print("x" * 100_000)
    print("y" * 100_000, file=sys.stderr)
    os.write(1, b"z" * 100_000)
    return right(q, k, v)


def crashes_on_one_query(q: Any, k: Any, v: Any) -> Any:
    """Correct, but kills its process for a single query."""
    if q.shape[2] == 1:
        os.abort()
    return right(q, k, v)
