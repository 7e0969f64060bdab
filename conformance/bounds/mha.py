r"""(MHA-18, SUB-9) Error bounds of the layers: their operators' bounds, each fed with the error of the previous one.

A layer is a sequence of operators, so in every profile what one operator hands to the next is stored in the storage
dtype: the projected q, k and v, the combined heads, the result of the layer, the residual sum, a normalised input.
Profiles differ in what they store within an operator.  Notation as in ``bounds/sdpa.py``: u and w are the unit
roundoffs of the storage dtype and of the accumulator, g(n) is the error of a sum of n terms, η is what underflow may
take; *stored* is u in the profile ``storage`` and 0 in the others.  |δx| is the error that an operand arrives with,
bounded element by element, and X = |x| + |δx| the size that it may have.

1. *Projection* y = x w + b with n inputs (Higham, Accuracy and Stability of Numerical Algorithms, 2002, §3.1 and
   §3.5):

       |δy| ≤ |δx||w| + (g(n) + 2 operand)(X|w| + |b|) + stored (|xw| + |δxw|) + u (|y| + |δy|) + η.

   The bias is one more term of the sum, as an accumulator may start with it; ``storage`` rounds the product before it
   is added, and loses η there.  Without an arriving error x is exact: the inputs and weights of a call are numbers of
   the dtype.
2. *Heads.*  ``bounds.bound_under`` with the |δq|, |δk| and |δv| that step 1 gives: they move the scores, softmax and
   the weighted sum.
3. *Combined heads and output projection*: step 1, with the bound of step 2 as |δx|.  Without w_o the heads are the
   result.
4. *Averaged weights.*  The mean of the bounds of the heads, (H + 1) w p̄ for a sum of positive terms and a division,
   and one rounding where they are stored.
5. *Residual sum* z = x + y: |δz| ≤ |δx| + |δy| + u (|z| + |δz|) + η.
6. *Layer normalisation* of z (n columns), with c = z − mean z, s = √(mean c² + ε) and y = c / s.

   The mean is linear: |δm| ≤ mean |δz| + (n + 1) w mean Z + stored (|m| + |δm|).  The terms may be nearly equal, and
   then their roundings are not mean-independent, so that the sum has the certain bound n w (as in step 3 of
   ``bounds/sdpa.py``).  So

       |δc| ≤ |δz| + |δm| + (w + stored)(|c| + |δz| + |δm|).

   s √n is the Euclidean norm of the vector (c, √(n ε)), so by the triangle inequality it changes by no more than the
   norm of δc does: s is 1-Lipschitz in the root mean square of c, whatever ε.  The sum of squares, which are positive
   and may be nearly equal, its division, the sum with ε and the root (of an argument with relative error θ the root
   has θ/2) add

       |δs| ≤ rms(δc) + ρ (s + rms(δc)) + e / s,   ρ = (n + 4) w / 2 + 6 w + 5/2 stored,

   where 5/2 stored are the square, the variance and the sum with ε, by half, and the root; 6 w covers fast reciprocal
   roots; e is what underflow takes from squares, variance and ε: at most 4 η, and never more than √e of s.  Then,
   exactly,

       |δy| ≤ (|δc| + |y||δs|) / (s − |δs|),   never more than √n (1 + ρ) + |y|, as no |y| exceeds √n,

   plus w |y| for the division, *stored* |y| and underflow; gamma and beta round twice more, and the result is stored.
   A variance computed as mean z² − mean² has an error of n w mean z², which this bound does not have: with a mean of
   many deviations it cancels (Chan, Golub & LeVeque, Amer. Statist. 37(3), 1983).

Nothing is promised where a square that ``storage`` stores exceeds the dtype's largest number (as SDPA-26 says of a
score). BOUNDS.md, "Layers", has the long version.

The reference, computed in float64, has an error of its own: the same bound with float64's roundoff, which is added.
"""

from __future__ import annotations

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
)
from attention_conformance.conformance.spec.mha import LayerExpected, Norm, Projection, SublayerExpected, split
from attention_conformance.impls.contract import Profile

Array = np.ndarray

#: Roundings of sum, division, sum with epsilon and square in the argument of the root, each of a positive number.
ROOT_ROUNDINGS = 4

#: Stored arrays in the argument of the root: squares, variance, variance plus epsilon.
ROOT_STORED = 3

#: Numbers that may underflow in the argument of the root: a square, their mean, epsilon, the sum.
ROOT_UNDERFLOWS = 4


@dataclass(frozen=True)
class LayerBound:
    """Bounds on |result − reference|, in the shapes of the results; a sublayer has the weights of its layer."""

    output: Array
    weights: Array


def bound(expected: LayerExpected | SublayerExpected, options: Options, dtype: str, profile: Profile) -> LayerBound:
    """The bound for one call of ``mha`` or ``sublayer`` under one profile.

    ``options`` are the scale and the bias of the call.  Elements whose reference is not finite are compared by class.

    Parameters
    ----------
    expected
        The reference, float64.
    options
        Scale and bias of the call.
    dtype
        Storage dtype of the results.
    profile
        The intermediates that are rounded to it.

    Returns
    -------
    LayerBound
        |error|, absolute, of every result in its shape.
    """
    with np.errstate(all="ignore"):
        theirs = bound_under(expected, options, rounding(dtype, profile))
        ours = bound_under(expected, options, rounding("float64", Profile.WIDE))
    return LayerBound(theirs.output + ours.output, theirs.weights + ours.weights)


def bound_under(expected: LayerExpected | SublayerExpected, options: Options, r: Rounding) -> LayerBound:
    """The bound of a program with the given roundoffs; the reference's own error is not added.

    Parameters
    ----------
    expected
        The reference, float64.
    options
        Scale and bias of the call.
    r
        Roundoffs of the storage dtype and of the dtype that is computed in.

    Returns
    -------
    LayerBound
        |error|, absolute, of every result in its shape.
    """
    if isinstance(expected, LayerExpected):
        output, weights = _layer(expected, options, r, None)
        return LayerBound(expected.form.output(output), weights)
    arriving = norm_error(expected.norm, None, r) if expected.pre_norm else None
    added, weights = _layer(expected.layer, options, r, arriving)
    error = _stored_error(expected.residual, added, r)
    if not expected.pre_norm:
        error = norm_error(expected.norm, error, r)
    return LayerBound(expected.layer.form.output(error), weights)


def _layer(expected: LayerExpected, options: Options, r: Rounding, arriving: Array | None) -> tuple[Array, Array]:
    """Steps 1 to 4: errors of the output, batch-first, and of the weights as returned; ``arriving`` is |δx_q|."""
    heads = expected.heads.weights.shape[1]
    keys_arriving = arriving if expected.self_attention else None
    q = projection_error(expected.q, arriving, r)
    k = projection_error(expected.k, keys_arriving, r)
    v = projection_error(expected.v, keys_arriving, r)
    operands = OperandErrors(split(q, heads), split(k, heads), split(v, heads))
    attended = bounds.bound_under(expected.heads, options, r, operands)
    batch, _, rows, width = attended.output.shape
    output = np.swapaxes(attended.output, 1, 2).reshape(batch, rows, heads * width)
    if expected.out is not None:
        output = projection_error(expected.out, output, r)
    weights = _averaged(expected, attended.weights, r) if expected.form.averaged else attended.weights
    return output, expected.form.weights(weights)


def projection_error(projection: Projection, arriving: Array | None, r: Rounding) -> Array:
    """Step 1, (B, S, F); ``arriving`` is |δx| (B, S, E), or None where x is exact.

    Parameters
    ----------
    projection
        x (B, S, E), w (E, F) and b (F,).
    arriving
        |error| of x, (B, S, E).
    r
        Roundoffs of the storage dtype and of the dtype that is computed in.

    Returns
    -------
    Array
        |error| of x @ w + b, (B, S, F).
    """
    terms = projection.w.shape[0] + (projection.b is not None)
    size, carried = projection.size, np.zeros_like(projection.result)
    if arriving is not None:
        carried = arriving @ np.abs(projection.w)
        size = size + carried
    error = carried + (growth(terms, r) + 2 * r.operand) * size
    if projection.b is not None and r.score:
        error += r.score * (np.abs(projection.product) + error) + r.underflow
    return _stored_error(projection.result, error, r)


def norm_error(norm: Norm, arriving: Array | None, r: Rounding) -> Array:
    """Step 6, (B, S, E); ``arriving`` is |δz|, or None where z is exact.

    Parameters
    ----------
    norm
        z (B, S, E), gamma and beta (E,), epsilon.
    arriving
        |error| of z, (B, S, E).
    r
        Roundoffs of the storage dtype and of the dtype that is computed in.

    Returns
    -------
    Array
        |error| of the normalised rows, (B, S, E).
    """
    count, w = norm.z.shape[2], r.accumulator
    dz = np.zeros_like(norm.z) if arriving is None else arriving
    dm = _mean(dz) + (count + 1) * w * _mean(np.abs(norm.z) + dz)
    dm += r.score * (np.abs(norm.mean) + dm)
    centred = np.abs(norm.z - norm.mean)
    dc = dz + dm + (w + r.score) * (centred + dz + dm) + (r.underflow if r.score else 0.0)

    s = np.sqrt(norm.var + norm.epsilon)
    rms = np.sqrt(_mean(dc**2))
    rho = (count + ROOT_ROUNDINGS) * w / 2 + FUNCTION_ERROR * w + (ROOT_STORED / 2 + 1) * r.score
    lost = ROOT_UNDERFLOWS * (r.underflow if r.score else r.flushed)
    ds = rms + rho * (s + rms) + np.minimum(lost / s, np.sqrt(lost))

    y = np.abs(norm.normalised)
    dy = np.where(ds < s, (dc + y * ds) / np.where(ds < s, s - ds, 1.0), np.inf)
    dy = np.minimum(dy, np.sqrt(count) * (1 + rho) + y)
    dy += (w + r.score) * (y + dy) + (r.underflow if r.score else r.flushed)
    gamma, result = np.abs(norm.gamma), np.abs(norm.result)
    error = gamma * dy + (w + r.score) * gamma * (y + dy) + (r.underflow if r.score else r.flushed)
    error += w * (result + error)
    return _stored_error(norm.result, error, r)


def _averaged(expected: LayerExpected, per_head: Array, r: Rounding) -> Array:
    """Step 4, (B, Sq, Sk); exactly zero where no head allows the key."""
    heads = per_head.shape[1]
    mean = expected.heads.weights.mean(axis=1)
    error = per_head.mean(axis=1)
    error += (heads + 1) * r.accumulator * (mean + error)
    return np.where(expected.heads.allowed.any(axis=1), _stored_error(mean, error, r), 0.0)


def _stored_error(value: Array, error: Array, r: Rounding) -> Array:
    """The error of a result after it is stored, from its ``error`` before."""
    return error + r.store * (np.abs(value) + error) + r.underflow


def _mean(x: Array) -> Array:
    """The mean over the last axis, which is kept."""
    return x.mean(axis=2, keepdims=True)
