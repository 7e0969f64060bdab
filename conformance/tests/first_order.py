"""Limits on how far two evaluations of the spec in one precision may differ, to first order, for small inputs.

Used to compare the float64 reference with other evaluations: 50 digits, and values that other projects ship.
With unit roundoff u, a score is D products, their sum and the scaling, split or not (D + 6 roundings of at most
scale · Σ |q_d k_d|), softcap and bias (2 roundings each of at most its size) and the subtraction of the row's
maximum: δ_j in all.  A weight p_j then has the relative error δ_j + max δ from its scores, and at most Sk + 8
roundings of exp, sum and division.  In the output o the errors of scores are weighed by |v_j − o|, as an error that
all scores share has no effect; the weights' roundings and Sk + 1 of its own sum apply to Σ p_j |v_j|.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_conformance.conformance.spec.sdpa import Expected

#: The most that underflow may take from a number.
TINY = 2.0**-1022


def limits(expected: Expected, unit: float, exact_scores: bool = False, **options: Any) -> dict[str, np.ndarray]:
    """Limits for raw (scaled scores of all keys), scores, weights, output and lse, in their shapes.

    ``unit`` is the unit roundoff of the compared evaluation, ``options`` are those of the call.
    ``exact_scores``: the precision holds every score exactly, so that scores add no error.
    """
    width, keys = expected.q.shape[3], expected.k.shape[2]
    scale = options.get("scale")
    scale = 1 / np.sqrt(width) if scale is None else abs(scale)
    allowed = expected.allowed
    scale = scale * np.abs(options.get("head_scale", np.ones(1)))[:, None, None]
    sizes = scale * (np.abs(_finite(expected.q)) @ np.abs(_finite(expected.k)).swapaxes(2, 3))
    finals = np.abs(np.where(allowed, _finite(expected.scores), 0.0))
    biases = np.abs(_finite(np.asarray(options.get("bias", 0.0), np.float64)))
    if expected.alibi is not None:
        biases = biases + 2 * np.abs(expected.alibi)
    turns: np.ndarray | float = 0.0
    if expected.rotary is not None:
        (turned_q, turned_k), q, k = expected.rotary, np.abs(expected.q), np.abs(expected.k)
        turns = 4 * scale * (turned_q @ k.swapaxes(2, 3) + q @ turned_k.swapaxes(2, 3))
    sizes = sizes + turns
    roundings = (width + 7) * sizes + 2 * (finals + biases)
    top = np.max(finals, axis=3, keepdims=True, initial=0.0)
    delta = np.where(allowed, unit * (roundings + 2 * top), 0.0) * (not exact_scores)
    worst = np.max(delta, axis=3, initial=0.0)
    relative = delta + worst[..., None] + (keys + 8) * unit
    values = _finite(expected.v)
    distance = np.abs(values[:, :, None] - _finite(expected.output)[:, :, :, None])  # (B, Hq, Sq, Sk, Dv)
    output = np.sum((expected.weights * delta)[..., None] * distance, axis=3)
    output += (2 * keys + 9) * unit * (expected.weights @ np.abs(values))
    lse = worst + unit * (keys + 8 + np.abs(_finite(expected.lse)))
    raw = unit * (width + 7) * sizes
    weights = expected.weights * relative
    scores = np.maximum(raw, delta)
    return {"raw": raw, "scores": scores, "weights": weights + TINY, "output": output + TINY, "lse": lse}


def _finite(array: np.ndarray) -> np.ndarray:
    """The array with 0 for everything that is not finite: those elements are compared exactly."""
    return np.where(np.isfinite(array), array, 0.0)


def agree(a: np.ndarray, b: np.ndarray, limit: np.ndarray) -> bool:
    """Whether shapes are equal and every element is within its limit, or the same infinity or NaN in both."""
    if a.shape != b.shape:
        return False
    with np.errstate(invalid="ignore"):  # inf − inf
        near = np.abs(a - b) <= limit
    return bool(np.all(near | (a == b) | (np.isnan(a) & np.isnan(b))))
