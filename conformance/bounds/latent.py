r"""(MLA-6) Error bound of latent: the larger bound of its two forms, element by element.

Each form is a sequence of products and sdpa; what one hands to the next is stored in the storage dtype, as in a layer
(bounds/mha.py, step 1, without a bias).

1. *Expanded*: k = c · W_UK and v = c · W_UV arrive at sdpa (bounds/sdpa.py, step 5) with the error of a product of R
   terms.
2. *Absorbed*: q' = q · W_UKᵀ arrives with the error of a product of D terms, k and v are the latents themselves, and
   the output o of sdpa goes through a product of R terms: |δy| ≤ |δo||W_UV| + (g(R) + 2 operand)(|o| + |δo|)|W_UV|, and
   is stored.

In either form a score is one sum of its parts, of D or R terms and of Dr.  The reference, computed in float64, has an
error of its own: the same bound with float64's roundoff, which is added.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attention_conformance.conformance.bounds import sdpa as bounds
from attention_conformance.conformance.bounds.sdpa import OperandErrors, Options, Rounding, growth, rounding
from attention_conformance.conformance.spec.latent import LatentExpected
from attention_conformance.conformance.spec.sdpa import Array
from attention_conformance.impls.contract import Profile


@dataclass(frozen=True)
class LatentBound:
    """Bounds on |result − reference|, in the shapes of the results."""

    output: Array
    lse: Array


def bound(expected: LatentExpected, options: Options, dtype: str, profile: Profile) -> LatentBound:
    """The bound for one call under one profile.

    Parameters
    ----------
    expected
        The reference, float64.
    options
        Scale of the call.
    dtype
        Storage dtype.
    profile
        The intermediates that are rounded to it.

    Returns
    -------
    LatentBound
        |error|, absolute: output (B, H, Sq, Dv) and lse (B, H, Sq).
    """
    with np.errstate(all="ignore"):
        theirs = bound_under(expected, options, rounding(dtype, profile))
        ours = bound_under(expected, options, rounding("float64", Profile.WIDE))
    return LatentBound(theirs.output + ours.output, theirs.lse + ours.lse)


def bound_under(expected: LatentExpected, options: Options, r: Rounding) -> LatentBound:
    """The bound of a program with the given roundoffs; the reference's own error is not added.

    Parameters
    ----------
    expected
        The reference, float64.
    options
        Scale of the call.
    r
        Roundoffs of the storage dtype and of the dtype that is computed in.

    Returns
    -------
    LatentBound
        |error|, absolute.
    """
    one, two, c = expected.expanded, expected.absorbed, expected.latents[:, None]
    if options.scale is None:  # the absorbed form's scale does not follow from its own width
        options = Options(scale=1 / np.sqrt(one.q.shape[3]))
    keys = _with_exact_columns(product_error(c, expected.w_uk, None, r), one.k)
    values = product_error(c, expected.w_uv, None, r)
    expanded = bounds.bound_under(one, options, r, OperandErrors(np.zeros_like(one.q), keys, values))
    queries = _with_exact_columns(product_error(expected.q, expected.w_uk.swapaxes(1, 2), None, r), two.q)
    absorbed = bounds.bound_under(two, options, r, OperandErrors(queries, np.zeros_like(two.k), np.zeros_like(two.v)))
    output = product_error(two.output, expected.w_uv, absorbed.output, r)
    return LatentBound(np.fmax(expanded.output, output), np.fmax(expanded.lse, absorbed.lse))


def product_error(x: Array, w: Array, arriving: Array | None, r: Rounding) -> Array:
    """The error of x · w after it is stored, (…, S, F); ``arriving`` is the error of x.

    Parameters
    ----------
    x
        (…, S, E).
    w
        (…, E, F).
    arriving
        |error| of x; None where x is exact.
    r
        Roundoffs of the storage dtype and of the dtype that is computed in.

    Returns
    -------
    Array
        |error|, absolute.
    """
    carried = 0.0 if arriving is None else arriving @ np.abs(w)
    error = carried + (growth(w.shape[-2], r) + 2 * r.operand) * (np.abs(x) @ np.abs(w) + carried)
    return np.asarray(error + r.store * (np.abs(x @ w) + error) + r.underflow)


def _with_exact_columns(error: Array, whole: Array) -> Array:
    """The error of an array whose first columns have ``error`` and whose other columns are exact."""
    columns = whole.shape[3] - error.shape[3]
    return np.pad(error, ((0, 0), (0, 0), (0, 0), (0, columns)))
