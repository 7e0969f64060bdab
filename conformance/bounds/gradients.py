r"""(GRAD-9) Error bounds of the gradients of sdpa, element by element; continues the derivation of bounds/sdpa.py.

Notation as there, for one query row: p_j the weights, ε_j ≥ |δs_j| the error of a score, w and u the unit roundoffs
of the accumulator and of the storage dtype, g(n) the error of a sum of n terms, η what underflow takes; further g the
row of ``grad_output``, a_j = dP_j = Σ_d g_d v_jd, δ = Σ_m p_m a_m = Σ_d g_d o_d, and dS_j = p_j (a_j − δ). p̂ is a
perturbed weight.

1. *Weights.* A backward pass keeps the weights, or recomputes them as exp(s_j − L) from the stored log-sum-exp L.
   Then a score is computed twice and L has an error of its own, so that with ε'_j = ε_j + 6 w (1 + |L| + max |s|)

       p_j exp(−ε'_j) / Σ p_m exp(ε_m) ≤ p̂_j ≤ p_j exp(ε'_j) / Σ p_m exp(−ε_m);

   with n w for the sum of powers, and what underflow takes, this gives π_j ≥ |δp_j|.  Recomputed weights need not add
   up to 1 and may exceed it, so π_j ≤ max(p_j, 1 − p_j) in ``storage`` only, where weights are kept.
2. *dP.* A product of Dv terms: |δa_j| ≤ (g(Dv) + 2 · operand) Σ_d |g_d v_jd|, and one rounding where it is stored.
3. *δ.* Perturbed scores move both of its forms, as Σ p_m (a_m − δ) = 0, by at most Σ p_m (exp(ε_m) − 1) |a_m − δ| /
   Σ p_m exp(−ε_m), and never by more than max |a_m − δ|.  The larger of two errors is added:
   As Σ p̂_m â_m: Σ p̂_m |δa_m|, the sum, g(n) Σ p̂_m |a_m|, and where weights do not add up to 1, (n w + …) |δ|.
   As Σ g_d ô_d, as flash kernels compute it, with the output *as it was stored*: Σ_d |g_d| times the error of o_d by
   step 3 of BOUNDS.md, with one rounding to storage in ``fused`` and ``storage`` (w in ``wide``), and g(Dv) Σ_d |g_d
   o_d|.  Rounded weights enter every o_d alike, so that they give u Σ_m p̂_m |a_m| and not u Σ_d |g_d| Σ_m p̂_m
   |v_md|.
4. *dS.* |δdS_j| ≤ π_j |a_j − δ| + p̂_j (|δa_j| + |δδ|) + 6 w p̂_j (|a_j| + |δ|): p (a − δ) and p a − p δ are both in
   use.  ``fused`` rounds it before the products; ``storage`` rounds every array, 4 u instead of 6 w.  A program that
   differentiates exp(s − max s) as written adds the derivative of the shift, −Σ_j dS_j, at the largest score.  It is 0
   except for roundings: those of all elements of the row, of δ, and g(n) Σ_j |dS_j| of its own sum.
5. *Softcap.* The slope t = 1 − tanh² falls as |raw| grows, so its error is the larger of its changes to |raw| ± e;
   computed from tanh it has an absolute error of 2 tanh² times the relative one of tanh, and one rounding.
6. *Sums.* dQ = scale Σ_j dS_j k_j with errors E_j of dS_j: scale Σ_j E_j |k_j|, (g(n) + 3 w + 2 · operand) Σ |terms|,
   and n w |dQ|, since terms of one sign may all be rounded one way (BOUNDS.md, step 3). dK, dV and dbias likewise; n is
   the number of pairs that are summed, of key, row and query head.  Terms summed over a group may have been stored for
   each query head: u Σ_h |dK_h|.  Where n = 0 the gradient is exactly zero, and so is its bound (GRAD-7, GRAD-8).
7. *Storing.* One rounding, and η; in ``storage`` also for the product before and after it is scaled.
8. *Operands that are results*, as q, k, v and ``grad_output`` are in a layer, with errors |δq|, |δk|, |δv| and |δg|.
   Scores take those of q and k into ε (BOUNDS.md, step 5). dP moves by
   μ_j = Σ_d |δg_d||v_jd| + (|g_d| + |δg_d|)|δv_jd|, and δ, in both of its forms, by Σ p̂_m μ_m, for
   Σ_d ĝ_d Σ_m p̂_m v̂_md and Σ_m p̂_m Σ_d ĝ_d v̂_md are one sum. The derivative of the shift does not see this: Σ_j dS_j
   is 0 for any operands. In the sums of step 6 each term is the product of dS_j + E_j with k_j + δk_j, off by
   E_j |k_j| + (|dS_j| + E_j) |δk_j|; with q and g likewise. These errors need not be small compared with the values, so
   every rounding is relative to the sum of both.

Profiles: ``wide`` rounds nothing but results; ``fused`` the output before δ, the weights before Pᵀ dO, and dS before
its products; ``storage``, a backward pass in the storage precision, every array between two operations.  The
reference's own error, the same bound with float64's roundoff, is added.  BOUNDS.md, "Gradients", has the long version.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from attention_conformance.conformance.bounds import sdpa as bounds
from attention_conformance.conformance.bounds.sdpa import (
    FUNCTION_ERROR,
    OperandErrors,
    Options,
    Rounding,
    growth,
    rounding,
    score_error,
)
from attention_conformance.conformance.spec.gradients import GradExpected, over_groups, sum_to
from attention_conformance.conformance.spec.sdpa import Expected
from attention_conformance.impls.contract import Profile

Array = np.ndarray

#: Roundings of a softmax's derivative in units of w, against p (|a| + |δ|): two products, two sums, and the divisions
#: of a and of the sum by the sum of the powers, where a program differentiates the division.
SOFTMAX_ROUNDINGS = 6

#: Arrays of this derivative that ``storage`` rounds, against the same: a / Σ, p a, p δ and their difference, or fewer.
SOFTMAX_STORED = 4

#: Number of times that underflow may take η from an element of it in ``storage``: in those arrays, in the sum of the
#: row, and where the derivative of the shift is added.  A power is at most 1: a product with it loses no more.
SOFTMAX_LOST = 6


@dataclass(frozen=True)
class GradOperandErrors(OperandErrors):
    """|δq|, |δk| and |δv| as for sdpa, one key head per query head, and |δg| of grad_output (B, Hq, Sq, Dv)."""

    grad_output: np.ndarray


@dataclass(frozen=True)
class Errors:
    """Bounds on the errors of the weights, of dS and of dS_raw, (B, Hq, Sq, Sk); 0 at keys that are not allowed."""

    weights: Array
    d_scores: Array
    d_raw: Array


@dataclass(frozen=True)
class _Sizes:
    """Sizes that operands may have: |g| + |δg| and |v| + |δv|; ``moved`` is how far their errors move dP (step 8)."""

    g: Array
    v: Array
    moved: Array | float
    #: |δv|, 0 for exact operands.
    off: Array | float = 0.0


def intermediates(x: GradExpected, options: Options, r: Rounding, operands: GradOperandErrors | None = None) -> Errors:
    """Steps 1 to 5 and 8 for one input and the roundings of a profile; without ``operands`` they are exact.

    Parameters
    ----------
    x
        The reference, float64.
    options
        Scale, softcap and bias of the call.
    r
        Roundoffs, relative to the storage dtype and the dtype that is computed in.
    operands
        |error| of q, k, v and grad_output, one key head per query head; None: they are exact.

    Returns
    -------
    Errors
        |error| of the weights, dS and dS_raw, each (B, Hq, Sq, Sk).
    """
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
    """Σ p exp(−ε) and Σ p exp(ε), 1 in fully masked rows."""
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
    """Step 3: how far perturbed scores move both forms of δ."""
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
        # Underflow of each stored term p a; or of a (p / Σ) and of p / Σ before it, where Σ is the sum of powers, by
        # which the derivative of the division then multiplies again.
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

    ``error`` is the error of dS where it is no longer small compared with dS.  Errors of operands sum to zero over a
    row.
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
    # The error of the scaled score, including the error of exp, which makes it larger.
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


def bound(expected: GradExpected, options: Options, dtype: str, profile: Profile) -> dict[str, Array]:
    """Bounds on |result − reference| by the name of the gradient, each in its shape.

    ``options`` are those of bounds/sdpa.py.  An element whose reference is not finite is compared by class.

    Parameters
    ----------
    expected
        The reference, float64.
    options
        Scale, softcap and bias of the call.
    dtype
        Storage dtype of the results.
    profile
        The intermediates that are rounded to it.

    Returns
    -------
    dict[str, Array]
        |error|, absolute and in the unit of the gradient, by the name of the gradient.
    """
    return both(lambda r: bound_under(expected, options, r), dtype, profile)


def both(under: Callable[[Rounding], dict[str, Array]], dtype: str, profile: Profile) -> dict[str, Array]:
    """Bounds on a program's roundings plus those of the float64 reference.

    Parameters
    ----------
    under
        Function that gives the bounds of a program with some roundoffs, |error| by the name of the gradient.
    dtype
        Storage dtype of the gradients.
    profile
        The intermediates that are rounded to it.

    Returns
    -------
    dict[str, Array]
        The sums of both.
    """
    with np.errstate(all="ignore"):
        theirs, ours = under(rounding(dtype, profile)), under(rounding("float64", Profile.WIDE))
    return {name: theirs[name] + ours[name] for name in theirs}


def bound_under(
    x: GradExpected, options: Options, r: Rounding, operands: GradOperandErrors | None = None
) -> dict[str, Array]:
    """Steps 1 to 8 for a program with the given roundoffs; the reference's own error is not added.

    ``operands`` are the errors of the program's q, k, v and grad_output, which are exact without it.

    Parameters
    ----------
    x
        The reference, float64.
    options
        Scale, softcap and bias of the call.
    r
        Roundoffs, relative to the storage dtype and the dtype that is computed in.
    operands
        |error| of q, k, v and grad_output, one key head per query head; None: they are exact.

    Returns
    -------
    dict[str, Array]
        |error|, absolute, by the name of the gradient, each in its shape.
    """
    errors, f, heads = intermediates(x, options, r, operands), x.forward, x.grad_k.shape[1]
    scale, by_key = abs(x.scale), np.swapaxes(f.allowed, 2, 3)
    # dS is stored before the products, and in ``storage`` once more when dS, or else an element of q or k, is scaled.
    scaled = r.weight + 2 * r.score
    lost = max(1.0, scale) * (r.flushed + (r.underflow if r.weight else 0.0))

    off = (None, None, None) if operands is None else (operands.q, operands.k, operands.grad_output)
    q, k, g = (_Operand(_finite(a), e) for a, e in zip((f.q, f.k, x.grad_output), off, strict=True))
    grad_q = scale * _summed(x.d_raw, errors.d_raw, k, f.allowed, f.q.shape[1], scaled, r)
    grad_q += lost * _sums(f.allowed, k.size, f.q.shape[1])
    d_raw, d_raw_error = np.swapaxes(x.d_raw, 2, 3), np.swapaxes(errors.d_raw, 2, 3)
    grad_k = scale * _summed(d_raw, d_raw_error, q, by_key, heads, scaled, r)
    grad_k += lost * _sums(by_key, q.size, heads)
    if r.score:
        grad_k += lost * _sums(np.abs(d_raw) + (0.0 if operands is None else d_raw_error), np.ones_like(q.x), heads)
    weights, weights_error = np.swapaxes(np.where(f.allowed, f.weights, 0.0), 2, 3), np.swapaxes(errors.weights, 2, 3)
    grad_v = _summed(weights, weights_error, g, by_key, heads, r.weight, r)
    grad_v += (r.flushed + (r.underflow if r.weight else 0.0)) * _sums(by_key, g.size, heads)

    some = over_groups(by_key.sum(axis=3), heads) > 0
    found = {"grad_q": (grad_q, f.allowed.sum(axis=3) > 0), "grad_k": (grad_k, some), "grad_v": (grad_v, some)}
    # Each head's own gradient, where it is stored, may underflow, and so may the sum; in ``storage`` unscaled, too.
    least = r.underflow * (1 + max(1.0, scale) * (r.score > 0)) + lost * (f.q.shape[1] // heads if heads else 1)
    results = {name: _where(where[..., None], array + least) for name, (array, where) in found.items()}
    if x.grad_bias is not None:
        results["grad_bias"] = _of_bias(x, errors, x.grad_bias.shape, r, exact=operands is None)
    return results


@dataclass(frozen=True)
class _Operand:
    """Factor of a term, and its error: None for no error."""

    x: Array
    error: Array | None

    @property
    def size(self) -> Array:
        """Largest size that it may have."""
        return np.abs(self.x) if self.error is None else np.abs(self.x) + self.error


def _summed(
    terms: Array, error: Array, other: _Operand, allowed: Array, heads: int, rounded: float, r: Rounding
) -> Array:
    """Steps 6 and 8: Σ_c terms[…, a, c] · other[…, c, :] over the allowed pairs, summed over groups: (B, heads, A, X).

    ``rounded`` is the relative rounding of each term before the product.
    """
    product, moved = terms @ other.x, error @ np.abs(other.x)
    if other.error is not None:
        moved = moved + (np.abs(terms) + error) @ other.error
    size = np.abs(terms) @ np.abs(other.x) + moved
    grouped = heads != terms.shape[1]
    stored = over_groups(np.abs(product) + moved, heads) if grouped else 0.0
    n = over_groups(allowed.sum(axis=3), heads)[..., None]
    relative = growth(n, r) + 3 * r.accumulator + 2 * r.operand + rounded
    total = np.abs(over_groups(product, heads)) + (0.0 if other.error is None else over_groups(moved, heads))
    result = over_groups(moved, heads) + relative * over_groups(size, heads) + r.weight * stored
    return result + (n * r.accumulator + r.store + 2 * r.score) * total


def _of_bias(x: GradExpected, errors: Errors, shape: tuple[int, ...], r: Rounding, exact: bool) -> Array:
    """Steps 6 and 7 for dS summed over the axes along which bias is broadcast; step 8 unless operands are ``exact``."""
    n = sum_to(x.forward.allowed.astype(float), shape)
    size = sum_to(np.abs(x.d_scores) + errors.d_scores, shape)
    total = np.abs(sum_to(x.d_scores, shape)) + (0.0 if exact else sum_to(errors.d_scores, shape))
    result = sum_to(errors.d_scores, shape) + (growth(n, r) + r.weight) * size
    result += (n * r.accumulator + r.store + r.score) * total
    result += n * (r.flushed + (r.underflow if r.weight else 0.0)) + r.underflow
    return _where(n > 0, result)


def _sums(terms: Array, other: Array, heads: int) -> Array:
    """Σ |terms| |other| over the groups, (B, heads, A, X)."""
    return over_groups(np.abs(terms.astype(float)) @ np.abs(other), heads)


def _where(some: Array, array: Array) -> Array:
    """The bound, infinite where it is NaN, and exactly 0 where nothing is summed."""
    return np.where(some, np.nan_to_num(array, nan=np.inf, posinf=np.inf), 0.0)


def _finite(array: Array) -> Array:
    """The array with 0 for NaN and infinities."""
    return np.where(np.isfinite(array), array, 0.0)
