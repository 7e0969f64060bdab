r"""(GRAD-40) Error bounds of the gradients of a merge, element by element; continues the derivation of bounds/merge.py.

Notation as there, for one row: P parts with keys, l_p, w_p and o_p, o = Σ w_p o_p, L = max |l_p| + log P, w and u the
unit roundoffs of the dtype that is computed in and of the storage dtype, ε the error of an l_p as a weight sees it;
further g the row of ``grad_output``, h its number of ``grad_lse``, a_p = Σ_d g_d o_pd, b = Σ_d g_d o_d, A_d = max
|o_pd|, and G = Σ_d |g_d| A_d.  The gradients are w_p g and w_p (a_p − b + h).

1. *Weights.*  Computed at once, relative to lse as it is stored, ŵ_p = w_p (1 + θ) with |θ| ≤ exp(3 ε) − 1.  A program
   that joins two parts at a time has a product of at most P shares σ(l − l'), each with the error of its exp, five
   roundings and functions of lse, of size L at most, that are stored and converted: P w (EXP_ERROR + FUNCTION_ERROR + 5
   + 7 L).  θ is the larger of the two.  In its stepwise backward pass every term of the second gradient has all of
   these shares as factors, those of the steps before it from g and the others from the sum that it is added to; so the
   terms, g · (o' − o'') of two outputs as they were stored, add up to ŵ_p g · (o_p − ô) except for roundings of
   products.  ``fused`` and ``storage`` round weights, tf32 the operands of products.
2. *Gradient of an output.*  |δ| ≤ w_p |g_d| (θ + (P + 1) w + u …), and one rounding where it is stored; in ``storage``
   each of P products is stored.
3. *Gradient of a log-sum-exp.*  w (a − b + h), w a − w b + w h with other weights in each place, and the two paths of
   automatic differentiation are all in use, so that θ multiplies |a_p| + |b| + |h|.  The merged output that is
   subtracted has its own error, by steps 2 and 3 of bounds/merge.py, and in ``fused`` and ``storage`` is as it was
   stored: at most Σ_d |g_d| |δo_d|.  A product of Dv terms is made in each of P steps at most, of operands that are no
   larger than 2 A_d: P (g(Dv) + 6 w) 2 G.  ``storage`` rounds what it multiplies, and g in each step: (2 + P²) u 2 G.
   The rest is (P + 4) w of |a_p| + |b| + |h|.
4. *Storing.*  Gradients of outputs are stored in their dtype, gradients of log-sum-exps in float32 or wider in every
   profile: w of the result, in step 3.  A weight that underflows loses η |g_d| and η (2 G + |h|), with the η of the
   dtype that is computed in and, where weights are rounded, once more with that of the storage dtype; in ``storage``
   the g of each of P steps may lose η in each step before it, whatever the weight is then: P² η Σ_d 2 A_d.

A part without a key has gradients of exactly zero.  The reference's own error, of float64, is in w.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attention_conformance.conformance.bounds import merge as forward_bounds
from attention_conformance.conformance.bounds.merge import lost_of_weight, sizes_and_errors
from attention_conformance.conformance.bounds.sdpa import (
    EXP_ERROR,
    FUNCTION_ERROR,
    UNIT_ROUNDOFF,
    growth,
    rounding,
)
from attention_conformance.conformance.spec.merge_gradients import MergeGradExpected
from attention_conformance.impls.contract import Profile


@dataclass(frozen=True)
class MergeGradBound:
    """Bounds on |result − reference|, in the shapes of outputs and lses."""

    grad_outputs: np.ndarray
    grad_lses: np.ndarray


def bound(expected: MergeGradExpected, dtype: str, profile: Profile) -> MergeGradBound:
    """The bound for one input; elements that are NaN in the reference are compared by class.

    Parameters
    ----------
    expected
        The reference, float64.
    dtype
        Storage dtype of the outputs.
    profile
        The intermediates that are rounded to it.

    Returns
    -------
    MergeGradBound
        |error|, absolute: grad_outputs (P, B, H, S, Dv) and grad_lses (P, B, H, S).
    """
    f, r = expected.forward, rounding(dtype, profile)
    unit = r.accumulator + UNIT_ROUNDOFF["float64"]  # the reference's own error
    has_keys, lost = ~np.isneginf(f.lses), lost_of_weight(r)
    with np.errstate(all="ignore"):  # NaN is a test case, not an error
        parts, sizes, moved = sizes_and_errors(f, unit)
        stepwise = parts * unit * (EXP_ERROR + FUNCTION_ERROR + 5 + 7 * sizes)
        theta = np.expm1(np.fmax(3 * moved, stepwise)) + r.weight + 2 * r.operand
        g, h = np.abs(expected.grad_output), np.abs(expected.grad_lse)
        weights = np.where(has_keys, f.weights, 0.0)

        relative = theta + unit * (parts + 1) + r.score * parts
        grad_outputs = weights[..., None] * g * relative[..., None] + lost * g
        grad_outputs += r.underflow * (1 + (r.score > 0) * parts)[..., None]
        grad_outputs += r.store * (np.abs(expected.grad_outputs) + grad_outputs)

        largest = np.abs(f.outputs).max(axis=0, initial=0.0)
        own, merged = (np.abs((expected.grad_output * each).sum(axis=-1)) for each in (f.outputs, f.output))
        size = own + merged + h
        products = 2 * (g * largest).sum(axis=-1)
        error = (theta + unit * (parts + 4)) * size
        error = error + (g * _merged_error(expected, dtype, profile)).sum(axis=-1)
        error += parts * (growth(f.outputs.shape[-1], r) + 6 * unit + 2 * r.operand) * products
        error += (2 + parts**2) * r.score * products
        grad_lses = weights * (1 + theta) * error + r.flushed + lost * (products + h)
        grad_lses += r.underflow * (r.score > 0) * parts**2 * 2 * largest.sum(axis=-1)
    return MergeGradBound(
        np.where(has_keys[..., None], grad_outputs, 0.0),
        np.where(has_keys, grad_lses, 0.0),
    )


def _merged_error(expected: MergeGradExpected, dtype: str, profile: Profile) -> np.ndarray:
    """Step 3: the error of the merged output that is subtracted, which ``wide`` does not store."""
    kept = "float32" if profile is Profile.WIDE and dtype != "float64" else dtype
    return forward_bounds.bound(expected.forward, kept, profile).output
