"""(VARLEN-9) Error bounds of packed sequences: those of sdpa (bounds/sdpa.py), sequence by sequence.

Nothing is derived here: the bound of a row depends on its own sequence, and on no other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attention_conformance.conformance.bounds import sdpa
from attention_conformance.conformance.spec.varlen import PackedExpected
from attention_conformance.impls.contract import Profile


@dataclass(frozen=True)
class PackedBound:
    """Bounds on |result − reference|: output (Tq, Hq, Dv) and lse (Hq, Tq)."""

    output: np.ndarray
    lse: np.ndarray


def bound(expected: PackedExpected, options: sdpa.Options, dtype: str, profile: Profile) -> PackedBound:
    """The bound for one pack, of which ``expected`` is the reference; parameters as of ``bounds.sdpa.bound``."""
    found = PackedBound(np.zeros(expected.output.shape), np.zeros(expected.lse.shape))
    for part in expected.parts:
        own = sdpa.bound(part.expected, options, dtype, profile)
        found.output[part.rows] = own.output.swapaxes(1, 2)
        found.lse[:, part.rows] = own.lse.swapaxes(0, 1)
    return found
