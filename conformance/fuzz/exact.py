"""Inputs that are changed without a rounding: scores of a row moved by one number, values added up.

The numbers are multiples of a power of two, few enough for the 8 significant bits of bfloat16, so that what the
property says of the real numbers holds of the very inputs.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from conformance.cases.base import Inputs
from conformance.fuzz import transform

#: What a shift of scores is: the inputs before and after, the number by row (B, Hq, Sq), and what was done.
Shift = tuple[Inputs, Inputs, np.ndarray, str]

#: Biases become multiples of 1/4 of at most 8; moved by at most 24 they need 7 bits.
BIAS_STEP, BIAS_LARGEST, BIAS_SHIFT = 0.25, 8.0, 24
#: In dtypes of more bits they can be moved farther.
WIDE_SHIFT = 1000

#: The extra coordinate of every key, and the largest one of a query: up to 1024 before the scale, exact.
KEY_COORDINATE, QUERY_COORDINATE = 16.0, 64

#: Values become multiples of 1/8 of at most 2; a·v + b·w with these factors is a multiple of 1/16 of at most 8.
VALUE_STEP, VALUE_LARGEST = 0.125, 2.0
FACTORS = (1.0, -1.0, 2.0, -2.0, 0.5, -0.5)


def shifted_by_coordinate(x: Inputs, draw: Callable[[Any], Any]) -> Shift:
    """The first coordinate is one number in all keys, and 0 in the queries, then ± a number by turns of the rows.

    Needs scores without a softcap, which is not linear.
    """
    size = draw(st.integers(1, QUERY_COORDINATE))
    q, k = x.q.copy(), x.k.copy()
    q[..., 0], k[..., 0] = 0, KEY_COORDINATE
    before = replace(x, q=q, k=k)
    number = size * _signs(x)
    moved = q.copy()
    moved[..., 0] = number
    scale = x.keywords.get("scale")
    by = (1 / np.sqrt(q.shape[3]) if scale is None else scale) * KEY_COORDINATE * number
    return before, replace(before, q=moved), by, f"its rows moved by scale · {KEY_COORDINATE:g} · ±{size}"


def shifted_by_bias(x: Inputs, draw: Callable[[Any], Any]) -> Shift:
    """The bias in full shape, rounded, then ± a number added by turns of the rows."""
    size = draw(st.integers(1, BIAS_SHIFT if x.q.dtype.itemsize == 2 else WIDE_SHIFT))
    bias = transform.full(x, "bias", np.zeros((), x.q.dtype)).astype(np.float64)
    bias = on_grid(bias, BIAS_STEP, BIAS_LARGEST)
    by = size * _signs(x)
    before = transform.given(x, bias=bias.astype(x.q.dtype))
    after = transform.given(x, bias=(bias + by[..., None]).astype(x.q.dtype))
    return before, after, by, f"its bias moved by ±{size}"


def two_values(x: Inputs, name: str) -> tuple[np.ndarray, np.ndarray]:
    """The values of the problem on the grid, and others from the problem's name; both (B, Hkv, Sk, Dv)."""
    other = np.random.default_rng(zlib.crc32(f"{name} w".encode())).standard_normal(x.v.shape)
    v, w = (on_grid(a.astype(np.float64), VALUE_STEP, VALUE_LARGEST).astype(x.v.dtype) for a in (x.v, other))
    return v, w


def combined(a: float, v: np.ndarray, b: float, w: np.ndarray) -> np.ndarray:
    """The array a·v + b·w in the dtype of v, exactly."""
    return (a * v.astype(np.float64) + b * w.astype(np.float64)).astype(v.dtype)


def on_grid(array: np.ndarray, step: float, largest: float) -> np.ndarray:
    """The nearest multiples of a step within ± the largest."""
    return np.clip(np.round(array / step) * step, -largest, largest)


def _signs(x: Inputs) -> np.ndarray:
    """+1 and −1 by turns of the rows, heads and batches, (B, Hq, Sq)."""
    b, h, i = np.ogrid[: x.q.shape[0], : x.q.shape[1], : x.q.shape[2]]
    return np.where((b + h + i) % 2, -1.0, 1.0)
