"""The spec a second time: attention in 50-digit arithmetic, one number at a time, used to check the reference.

It is written from the formulas of SPEC.md and shares nothing with ``reference.py``: no arrays are combined,
no maximum is subtracted, no row is treated together with another.  With 50 digits and an unbounded exponent
none of that is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mpmath
import numpy as np

DIGITS = 50

Index = tuple[int, ...]


@dataclass(frozen=True)
class Row:
    """One query row: weight of each key, the output, and the natural log-sum-exp (None for minus infinity)."""

    weights: tuple[Any, ...]
    output: tuple[Any, ...]
    lse: Any | None


def sdpa(q: np.ndarray, k: np.ndarray, v: np.ndarray, **options: Any) -> dict[Index, Row]:
    """Every row of scaled dot-product attention, by (batch, query head, row); options as in SPEC.md.

    Inputs must be finite, except for a bias of −inf.
    """
    batches, heads, queries, _ = q.shape
    with mpmath.workdps(DIGITS):
        return {
            (b, h, i): _row(q, k, v, (b, h, i), options)
            for b in range(batches)
            for h in range(heads)
            for i in range(queries)
        }


def _row(q: np.ndarray, k: np.ndarray, v: np.ndarray, row: Index, options: dict[str, Any]) -> Row:
    b, h, i = row
    keys, width = k.shape[2], v.shape[3]
    kv_head = h // (q.shape[1] // k.shape[1])  # SDPA-17
    allowed = [j for j in range(keys) if is_allowed(row, j, q.shape[:3] + k.shape[2:3], options)]
    powers = {}
    for j in allowed:
        product = mpmath.mpf(0)
        start = int(np.ravel(options.get("causal_offset", 0))[b % np.size(options.get("causal_offset", 0))])
        query, key = _turned(q[b, h, i], i + start, options), _turned(k[b, kv_head, j], j, options)
        for one, other in zip(query, key, strict=True):  # SDPA-2
            product += one * other
        powers[j] = mpmath.exp(_score(product, q.shape[3], (*row, j), options))
    if not allowed:  # SDPA-15
        return Row((mpmath.mpf(0),) * keys, (mpmath.mpf(0),) * width, None)
    total = mpmath.mpf(0)
    for power in powers.values():
        total += power
    weights = tuple(powers[j] / total if j in powers else mpmath.mpf(0) for j in range(keys))  # SDPA-14
    output = []
    for d in range(width):  # SDPA-16
        number = mpmath.mpf(0)
        for j in allowed:
            number += weights[j] * _mpf(v[b, kv_head, j, d])
        output.append(number)
    return Row(weights, tuple(output), mpmath.log(total))  # SDPA-19


def _turned(numbers: np.ndarray, place: int, options: dict[str, Any]) -> list[Any]:
    """(SDPA-44) A query or key, rotated by the angles of its place."""
    found = [_mpf(number) for number in numbers]
    if options.get("rotary_cos") is None:
        return found
    given = list(found)
    half = options["rotary_cos"].shape[1]
    for d in range(half):
        first, second = (2 * d, 2 * d + 1) if options.get("rotary_interleaved") else (d, d + half)
        c, s = (_mpf(options[name][place, d]) for name in ("rotary_cos", "rotary_sin"))
        found[first] = given[first] * c - given[second] * s
        found[second] = given[first] * s + given[second] * c
    return found


def _score(product: Any, width: int, place: Index, options: dict[str, Any]) -> Any:
    """(SDPA-3 to SDPA-6, SDPA-42, SDPA-43) Scaling, then softcap, then bias and ALiBi."""
    scale = options.get("scale")
    score = product / mpmath.sqrt(width) if scale is None else product * _mpf(scale)
    b, h, i, j = place
    if options.get("head_scale") is not None:
        score *= _mpf(options["head_scale"][h])
    if options.get("softcap") is not None:
        cap = _mpf(options["softcap"])
        score = cap * mpmath.tanh(score / cap)
    if options.get("bias") is not None:
        score += _mpf(entry(options["bias"], place))
    if options.get("alibi_slopes") is not None:
        offset = np.ravel(options.get("causal_offset", 0))
        distance = abs(i + int(offset[b % len(offset)]) - j)
        score -= _mpf(options["alibi_slopes"][h]) * distance
    return score


def is_allowed(row: Index, j: int, shape: Index, options: dict[str, Any]) -> bool:
    """(SDPA-7 to SDPA-13) Whether row (b, h, i) may attend to key j of an input of shape (B, Hq, Sq, Sk)."""
    b, _, i = row
    place = (*row, j)
    if options.get("mask") is not None and not entry(options["mask"], place):
        return False
    if options.get("bias") is not None and entry(options["bias"], place) == float("-inf"):
        return False
    offset = options.get("causal_offset", 0)
    position = i + int(offset[b] if isinstance(offset, np.ndarray) else offset)
    if options.get("is_causal") and j > position:
        return False
    left, right = options.get("window") or (None, None)
    if left is not None and j < position - left:
        return False
    if right is not None and j > position + right:
        return False
    if options.get("block_mask") is not None:
        size = options["block_size"]
        if not entry(options["block_mask"], (*row[:2], i // size[0], j // size[1])):
            return False
    if options.get("tree_parents") is not None and j >= position - i:
        parents = np.broadcast_to(options["tree_parents"], (shape[0], shape[2]))[b]
        node = i
        while node >= 0 and position - i + node != j:
            node = int(parents[node])
        if node < 0:
            return False
    lengths = options.get("kv_lengths")
    return lengths is None or j < lengths[b]


def entry(array: np.ndarray, place: Index) -> Any:
    """(SDPA-8) The element of a mask or bias at ``place`` (b, h, i, j)."""
    index = []
    for axis in range(1, array.ndim + 1):
        index.append(0 if array.shape[-axis] == 1 else place[-axis])
    return array[tuple(reversed(index))]


#: float64 to mpf is exact.
_mpf: Callable[[Any], Any] = mpmath.mpf
