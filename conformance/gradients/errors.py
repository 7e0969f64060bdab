"""Errors of what a backward pass computes on its way to the gradients: weights, δ, the gradients of the scores.

Steps 1 to 5 of the derivation in ``conformance.gradients.bounds``, whose notation the comments use, with the errors of
operands of its step 8.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from conformance import bounds
from conformance.bounds import FUNCTION_ERROR, OperandErrors, Options, Rounding, growth, score_error
from conformance.gradients.reference import GradExpected
from conformance.reference import Expected

Array = np.ndarray

#: Roundings of a softmax's derivative in units of w, against p (|a| + |δ|): two products, two sums, and the divisions
#: of a and of the sum by the sum of the powers, where a program differentiates the division.
SOFTMAX_ROUNDINGS = 6

#: Arrays of it that ``storage`` rounds, against the same: a / Σ, p a, p δ and their difference, or fewer.
SOFTMAX_STORED = 4

#: How often underflow may take η from an element of it in ``storage``: from those arrays, from the sum of the row, and
#: where the derivative of the shift is added.  A power is at most 1: what is multiplied by it has lost no more.
SOFTMAX_LOST = 6


@dataclass(frozen=True)
class GradOperandErrors(OperandErrors):
    """|δq|, |δk| and |δv| as of sdpa, one key head per query head, and |δg| of grad_output (B, Hq, Sq, Dv)."""

    grad_output: np.ndarray


@dataclass(frozen=True)
class Errors:
    """Bounds on the errors of the weights, of dS and of dS_raw, (B, Hq, Sq, Sk); 0 at keys that are not allowed."""

    weights: Array
    d_scores: Array
    d_raw: Array


@dataclass(frozen=True)
class _Sizes:
    """How large operands may be: |g| + |δg| and |v| + |δv|; ``moved`` is what their errors do to dP (step 8)."""

    g: Array
    v: Array
    moved: Array | float
    #: |δv|, 0 for exact operands.
    off: Array | float = 0.0


def intermediates(x: GradExpected, options: Options, r: Rounding, operands: GradOperandErrors | None = None) -> Errors:
    """Steps 1 to 5 and 8 for one input and the roundings of a profile; without ``operands`` they are exact."""
    f = x.forward
    epsilon = score_error(f, options, r, operands)
    low, high = _denominators(f, epsilon)
    weights = _weights(f, epsilon, low, high, r)
    most = np.where(f.allowed, f.weights, 0.0) + weights
    sizes = _sizes(x, operands)
    exact, a, delta = operands is None, np.abs(x.d_weights), np.abs(x.delta)
    distance = np.where(f.allowed, np.abs(x.d_weights - x.delta), 0.0)

    a_rounded = (growth(f.v.shape[3], r) + 2 * r.operand) * (sizes.g @ np.swapaxes(sizes.v, 2, 3))
    a_rounded += r.score * (a + sizes.moved + r.underflow) + r.flushed
    a_rounded = np.where(f.allowed, a_rounded, 0.0)
    a_error = a_rounded + sizes.moved
    a = a if exact else a + a_error
    carried = np.sum(most * sizes.moved, axis=3, keepdims=True)
    of_weights = _delta_of_weights(x, most, a, a_rounded, delta + carried, r)
    delta_error = np.maximum(of_weights, _delta_of_output(x, weights, most, a, sizes, r)) + carried
    delta_error += _delta_moved(f, epsilon, low, distance)
    delta = delta if exact else delta + delta_error

    rounded = (SOFTMAX_ROUNDINGS * r.accumulator + SOFTMAX_STORED * r.score) * most * (a + delta)
    rounded = np.where(f.allowed, rounded + 2 * r.flushed + (SOFTMAX_LOST * r.underflow if r.score else 0.0), 0.0)
    d_scores = weights * distance + most * (a_error + delta_error) + rounded
    d_scores += _shift(x, epsilon, rounded, of_weights, 0.0 if exact else d_scores, r)
    d_scores = np.where(f.allowed, np.nan_to_num(d_scores, nan=np.inf), 0.0)
    return Errors(weights, d_scores, _through_softcap(x, options, d_scores, r, operands))


def _sizes(x: GradExpected, operands: GradOperandErrors | None) -> _Sizes:
    """Step 8: the sizes of g and v, and Σ_d |δg||v| + (|g| + |δg|)|δv|, 0 at keys that are not allowed."""
    g, v = np.abs(x.grad_output), _size(x.forward.v)
    if operands is None:
        return _Sizes(g, v, 0.0)
    off = _size(operands.v)
    moved = operands.grad_output @ np.swapaxes(v, 2, 3) + (g + operands.grad_output) @ np.swapaxes(off, 2, 3)
    return _Sizes(g + operands.grad_output, v + off, np.where(x.forward.allowed, moved, 0.0), off)


def _size(array: Array) -> Array:
    """|array|, with 0 for NaN and infinities, which are compared by class."""
    return np.abs(np.where(np.isfinite(array), array, 0.0))


def _keys(f: Expected) -> Array:
    """n, (B, Hq, Sq, 1)."""
    return f.allowed.sum(axis=3, keepdims=True)


def _powers(f: Expected, r: Rounding) -> Array:
    """Relative error of the sum of powers and of the division by it, as step 3 of BOUNDS.md, (B, Hq, Sq, 1)."""
    n = _keys(f)
    return (n + 3) * r.accumulator + (r.underflow * n if r.score else 0.0) + 2 * r.score


def _denominators(f: Expected, epsilon: Array) -> tuple[Array, Array]:
    """Σ p exp(−ε) and Σ p exp(ε), 1 in rows without a key."""
    low, high = (bounds._weights_moved(f, sign * epsilon).sum(axis=3, keepdims=True) for sign in (-1, 1))
    some = f.allowed.any(axis=3, keepdims=True)
    return np.where(some, low, 1.0), np.where(some, high, 1.0)


def _weights(f: Expected, epsilon: Array, low: Array, high: Array, r: Rounding) -> Array:
    """Step 1: π."""
    lse = np.where(np.isfinite(f.lse), np.abs(f.lse), 0.0)[..., None]
    top = np.where(f.allowed, np.abs(f.scores), 0.0).max(axis=3, keepdims=True, initial=0.0)
    twice = epsilon + FUNCTION_ERROR * r.accumulator * (1 + lse + top)
    raised, lowered = bounds._weights_moved(f, twice) / low, bounds._weights_moved(f, -twice) / high
    farther = np.nan_to_num(np.maximum(raised - f.weights, f.weights - lowered), nan=np.inf)
    error = farther + (f.weights + farther) * _powers(f, r)
    if r.score:
        error = np.minimum(error, np.maximum(f.weights, 1 - f.weights)) + 2 * r.underflow
    return np.where(f.allowed, error + r.flushed, 0.0)


def _delta_moved(f: Expected, epsilon: Array, low: Array, distance: Array) -> Array:
    """Step 3: what perturbed scores do to both forms of δ."""
    raised = bounds._weights_moved(f, epsilon)
    pull = np.where(epsilon < 1, f.weights * np.expm1(epsilon), raised - f.weights) / low
    moved = np.where(distance > 0, pull * distance, 0.0).sum(axis=3, keepdims=True)
    farthest = distance.max(axis=3, keepdims=True, initial=0.0)
    return np.where(np.isfinite(moved), np.minimum(moved, farthest), farthest)


def _delta_of_weights(x: GradExpected, most: Array, a: Array, a_error: Array, delta: Array, r: Rounding) -> Array:
    """Step 3: δ, of the size ``delta``, as Σ p a, with the roundings ``a_error`` of dP."""
    f = x.forward
    relative = growth(_keys(f), r) + 3 * r.accumulator + r.weight + r.score
    sums = np.sum(most * (a_error + relative * a), axis=3, keepdims=True)
    sums += (_powers(f, r) + r.score) * delta
    if r.score:
        # Of each term p a, stored; or of a (p / Σ) and of p / Σ before it, where Σ is the sum of powers, by which the
        # derivative of the division then multiplies again.
        powers = np.where(np.isfinite(f.lse), np.exp(f.lse - f.scores.max(axis=3, initial=-np.inf)), 1.0)[..., None]
        sums += r.underflow + r.underflow * powers * np.sum(f.allowed * (a + 2), axis=3, keepdims=True)
    return sums


def _delta_of_output(x: GradExpected, weights: Array, most: Array, a: Array, sizes: _Sizes, r: Rounding) -> Array:
    """Step 3: δ as Σ g o, with the output as it was stored between the passes."""
    f, v, g, o = x.forward, sizes.v, sizes.g, _size(x.forward.output)
    if np.ndim(sizes.off):
        o = o + np.nan_to_num(weights @ v + np.where(f.allowed, f.weights, 0.0) @ sizes.off, nan=np.inf)
    values = np.minimum(np.nan_to_num(most @ v, nan=np.inf), v.max(axis=2, keepdims=True, initial=0.0))
    kept, lost = (r.store, r.underflow) if r.weight else (r.accumulator, r.flushed)
    error = (growth(_keys(f), r) + 3 * r.accumulator + 2 * r.operand) * values + (_powers(f, r) + kept) * o + lost
    error += (r.flushed + ((r.weight > 0) + (r.score > 0)) * r.underflow) * (f.allowed.astype(float) @ v)
    error += (growth(o.shape[3], r) + 2 * r.score) * o
    return np.sum(g * error, axis=3, keepdims=True) + r.weight * np.sum(most * a, axis=3, keepdims=True)


def _shift(
    x: GradExpected, epsilon: Array, rounded: Array, of_weights: Array, error: Array | float, r: Rounding
) -> Array:
    """Step 4: the roundings of a row and of its δ, at every key whose score may be the largest.

    ``error`` is that of dS where it is no longer small against it.  Errors of operands add up to nothing over a row.
    """
    f = x.forward
    row = of_weights + np.sum(rounded + growth(_keys(f), r) * (np.abs(x.d_scores) + error), axis=3, keepdims=True)
    least = np.max(f.scores - epsilon, axis=3, keepdims=True, initial=-np.inf)
    return np.where(f.allowed & (f.scores + epsilon >= least), row, 0.0)


def _through_softcap(
    x: GradExpected, options: Options, d_scores: Array, r: Rounding, operands: GradOperandErrors | None
) -> Array:
    """Step 5: the error of dS_raw from that of dS."""
    cap = options.softcap
    if cap is None:
        return d_scores
    # The error of the scaled score, with that of exp in it, which makes it larger.
    e = score_error(x.forward, Options(scale=options.scale), r, operands)
    raw = np.where(x.forward.allowed, np.abs(x.forward.raw), 0.0)
    e += (2 * r.accumulator + r.score) * raw

    def slope(score: Array) -> Array:
        return 1 - np.tanh(score / cap) ** 2

    t = slope(raw)
    steep, flat = slope(np.maximum(raw - e, 0.0)), slope(raw + e)
    tanh_error = 2 * (FUNCTION_ERROR * r.accumulator + 2 * r.score) * (1 - t)
    error = np.maximum(steep - t, t - flat) + tanh_error + 2 * r.accumulator + r.score * t
    found = (t + error) * d_scores + error * np.abs(x.d_scores) + 3 * (r.accumulator + r.score) * np.abs(x.d_raw)
    found += r.flushed + (r.underflow * (1 + 2 / cap) if r.score else 0.0)
    return np.where(x.forward.allowed, np.nan_to_num(found, nan=np.inf), 0.0)
