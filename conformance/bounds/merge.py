r"""(MERGE-12) Error bounds of merge: how far output and lse may be from the reference, element by element.

One row, P parts with keys, l_p their log-sum-exps, w_p their weights, o_p their outputs, o = Σ w_p o_p, L = max |l_p|
+ log P.  w is the roundoff that is computed in, at least that of float32; bounds/sdpa.py has the roundoffs of each
profile.

1. *Log-sum-exps.*  A correct program may work in base 2, which rounds the constant and the product: at most 4 w L, as
   the difference of two l_p is at most 2 L; the difference itself 2 w L.  A program that joins two parts at a time
   stores P − 1 log-sum-exps on the way, w L each, every one the log of a sum of two: another P (FUNCTION_ERROR + 2) w.
   With the error of exp, an l_p is as if moved by at most

       ε = w (EXP_ERROR + P (FUNCTION_ERROR + 2) + (P + 6) L).

2. *Weights.*  As in bounds/sdpa.py, |δo| ≤ (exp(2 ε) − 1) Σ w_p |o_p − o|, and never more than max |o_p − o|.
   A program may take the weights relative to lse as it is stored, as MERGE-2 is written, without a division: all of
   them are then off by one more factor, which adds (exp(ε) − 1) |o|.
3. *Sum.*  P products and sums, or P − 1 times o + σ (o_p − o), whose difference is rounded at the size of the larger:
   at most (3 P + 2) w A with A = max |o_p|.  A profile that rounds weights adds u Σ w_p |o_p|, one whose products have
   rounded operands 2⁻¹¹ times that once more, and one that stores every intermediate (P + 1) u A: the products, or
   the outputs of P − 1 pairwise merges.  A weight that underflows loses η Σ |o_p|: the η of the dtype that is computed
   in, and in a profile that rounds weights the η of the storage dtype once more, as in step 3 of bounds/sdpa.py.
4. *Storing.*  One rounding of the output, u |o|, and what underflow loses.  lse is off by ε, and by the rounding of
   its sum and of itself, w (2 + 2 |lse|): it is in float32 or wider in every profile.

A row none of whose parts has a key is exact.  The reference's own error, of float64, is in w.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attention_conformance.conformance.bounds.sdpa import EXP_ERROR, FUNCTION_ERROR, UNIT_ROUNDOFF, Rounding, rounding
from attention_conformance.conformance.spec.merge import MergeExpected
from attention_conformance.impls.contract import Profile


@dataclass(frozen=True)
class MergeBound:
    """Bounds on |result − reference|, in the shapes of the results."""

    output: np.ndarray
    lse: np.ndarray


def sizes_and_errors(expected: MergeExpected, unit: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Step 1: P, L and ε of each row, each (B, H, S); ``unit`` is the roundoff that is computed in."""
    has_keys = ~np.isneginf(expected.lses)
    parts = has_keys.sum(axis=0)
    sizes = np.max(np.where(has_keys, np.abs(expected.lses), 0.0), axis=0, initial=0.0) + np.log(np.fmax(parts, 1))
    return parts, sizes, unit * (EXP_ERROR + parts * (FUNCTION_ERROR + 2) + (parts + 6) * sizes)


def lost_of_weight(r: Rounding) -> float:
    """Step 3: what underflow may take from a weight as it is computed, and once more where it is stored."""
    return r.flushed + (r.weight > 0) * r.underflow


def bound(expected: MergeExpected, dtype: str, profile: Profile) -> MergeBound:
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
    MergeBound
        |error|, absolute: output (B, H, S, Dv) and lse (B, H, S).
    """
    r, has_keys = rounding(dtype, profile), ~np.isneginf(expected.lses)
    lost = lost_of_weight(r)
    unit = r.accumulator + UNIT_ROUNDOFF["float64"]  # the reference's own error
    with np.errstate(all="ignore"):  # NaN is a test case, not an error
        parts, _, moved = sizes_and_errors(expected, unit)
        weights, absolute = expected.weights[..., None], np.abs(expected.outputs)
        apart = np.where(has_keys[..., None], np.abs(expected.outputs - expected.output), 0.0)
        by_weights = np.fmin(
            np.expm1(2 * moved)[..., None] * (weights * apart).sum(axis=0), apart.max(axis=0, initial=0.0)
        )
        largest, mean, count = absolute.max(axis=0, initial=0.0), (weights * absolute).sum(axis=0), parts[..., None]
        by_weights += np.expm1(moved)[..., None] * np.abs(expected.output)
        by_sum = (3 * count + 2) * unit * largest + (r.weight + r.operand) * mean
        by_sum += (count + 1) * r.score * largest + lost * absolute.sum(axis=0)
        output = by_weights + by_sum
        output += r.store * (np.abs(expected.output) + output) + r.underflow
        lse = moved + unit * (2 + 2 * np.abs(expected.lse))
    no_key = parts == 0
    return MergeBound(np.where(no_key[..., None], 0.0, output), np.where(no_key, 0.0, lse))
