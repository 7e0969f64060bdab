"""(VARLEN-9) Error bounds of packed sequences: the bounds of sdpa (bounds/sdpa.py), sequence by sequence.

Nothing is derived here: the bound of a row depends only on its own sequence.  Keys and values that are stored with
scales (PAGED-15) are results of a product, off by the rounding of a weight in the profile, or else of the accumulator:
step 5 of bounds/sdpa.py with δk = u|k| and δv = u|v|.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attention_conformance.conformance.bounds import sdpa
from attention_conformance.conformance.spec.sdpa import Expected
from attention_conformance.conformance.spec.varlen import PackedExpected
from attention_conformance.impls.contract import Profile


@dataclass(frozen=True)
class PackedBound:
    """Bounds on |result − reference|: output (Tq, Hq, Dv) and lse (Hq, Tq)."""

    output: np.ndarray
    lse: np.ndarray


def bound(
    expected: PackedExpected, options: sdpa.Options, dtype: str, profile: Profile, quantised: bool = False
) -> PackedBound:
    """The bound for one pack with the reference ``expected``; parameters as for ``bounds.sdpa.bound``.

    Parameters
    ----------
    expected
        The reference of every sequence, float64.
    options
        Scale and softcap of the call.
    dtype
        Storage dtype of the results.
    profile
        The intermediates that are rounded to it.
    quantised
        Whether keys and values are read from a quantised cache.

    Returns
    -------
    PackedBound
        |error|, absolute: output (Tq, Hq, Dv) and lse (Hq, Tq).
    """
    found = PackedBound(np.zeros(expected.output.shape), np.zeros(expected.lse.shape))
    for part in expected.parts:
        off = dequantised(part.expected, dtype, profile) if quantised else None
        own = sdpa.bound(part.expected, options, dtype, profile, off)
        found.output[part.rows] = own.output.swapaxes(1, 2)
        found.lse[:, part.rows] = own.lse.swapaxes(0, 1)
    return found


def dequantised(expected: Expected, dtype: str, profile: Profile) -> sdpa.OperandErrors:
    """(PAGED-15) Errors of the keys and values that a program dequantises: one rounding of each.

    Parameters
    ----------
    expected
        The reference of one sequence.
    dtype
        Dtype that they are dequantised to.
    profile
        The intermediates that are rounded to it.

    Returns
    -------
    sdpa.OperandErrors
        |error| of q (0), k and v, one key head per query head.
    """
    r = sdpa.rounding(dtype, profile)
    u = max(r.weight, r.accumulator)
    return sdpa.OperandErrors(np.zeros_like(expected.q), u * np.abs(expected.k), u * np.abs(expected.v))
