"""The layers a second time: in 50-digit arithmetic, one number at a time, used to check their reference.

Written from the formulas of SPEC.md over ``fifty_digits.sdpa``; arrays of numbers of 50 digits have dtype object.
"""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np

from attention_conformance.conformance.tests import fifty_digits

Array = np.ndarray

#: Keywords that ``fifty_digits.sdpa`` takes unchanged.
_OF_SDPA = ("mask", "bias", "is_causal", "kv_lengths", "scale")


def mha(x_q: Array, w_q: Array, w_k: Array, w_v: Array, *, heads: int, **o: Any) -> tuple[Array, Array]:
    """Output (B, Sq, Eo) and weights (B, H, Sq, Sk), or averaged (B, Sq, Sk), of batched batch-first inputs."""
    with mpmath.workdps(fifty_digits.DIGITS):
        x_kv = x_q if o.get("x_kv") is None else o["x_kv"]
        q, k, v = (
            _split(_project(x, w, o.get(f"b_{name}")), heads)
            for name, x, w in (("q", x_q, w_q), ("k", x_kv, w_k), ("v", x_kv, w_v))
        )
        rows = fifty_digits.sdpa(q, k, v, **{name: o[name] for name in _OF_SDPA if name in o})
        batch, _, queries, width = *q.shape[:3], v.shape[3]
        combined = np.empty((batch, queries, heads * width), object)
        weights = np.empty((batch, heads, queries, k.shape[2]), object)
        for (b, h, i), row in rows.items():
            for d in range(width):
                combined[b, i, h * width + d] = row.output[d]
            for j, weight in enumerate(row.weights):
                weights[b, h, i, j] = weight
        output = combined if o.get("w_o") is None else _project(combined, o["w_o"], o.get("b_o"))
        return output, weights.sum(axis=1) / heads if o.get("average_weights") else weights


def sublayer(x_q: Array, *, gamma: Array, beta: Array, epsilon: float, pre_norm: bool = False, **layer: Any) -> Array:
    """The output of the sublayer, (B, Sq, E)."""
    with mpmath.workdps(fifty_digits.DIGITS):
        affine = (gamma, beta, epsilon)
        if pre_norm:
            return _exact(x_q) + mha(_normalised(_exact(x_q), *affine), **layer)[0]
        return _normalised(_exact(x_q) + mha(x_q, **layer)[0], *affine)


def _project(x: Array, w: Array, b: Array | None) -> Array:
    result = np.empty((*x.shape[:2], w.shape[1]), object)
    for place in np.ndindex(*result.shape):
        number = mpmath.mpf(0) if b is None else mpmath.mpf(b[place[2]])
        for e in range(x.shape[2]):
            number += mpmath.mpf(x[place[0], place[1], e]) * mpmath.mpf(w[e, place[2]])
        result[place] = number
    return result


def _split(x: Array, heads: int) -> Array:
    width = x.shape[2] // heads
    result = np.empty((x.shape[0], heads, x.shape[1], width), object)
    for b, h, i, d in np.ndindex(*result.shape):
        result[b, h, i, d] = x[b, i, h * width + d]
    return result


def _normalised(z: Array, gamma: Array, beta: Array, epsilon: float) -> Array:
    result = np.empty(z.shape, object)
    width = z.shape[2]
    for b, i in np.ndindex(*z.shape[:2]):
        mean = sum(z[b, i]) / width
        var = sum((number - mean) ** 2 for number in z[b, i]) / width
        root = mpmath.sqrt(var + mpmath.mpf(epsilon))
        for e in range(width):
            result[b, i, e] = (z[b, i, e] - mean) / root * mpmath.mpf(gamma[e]) + mpmath.mpf(beta[e])
    return result


def _exact(x: Array) -> Array:
    result = np.empty(x.shape, object)
    for place in np.ndindex(*x.shape):
        result[place] = mpmath.mpf(x[place])
    return result
