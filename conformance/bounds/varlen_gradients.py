"""(GRAD-33) Error bounds of the gradients of packed sequences: the bounds of sdpa_grad, sequence by sequence.

Nothing is derived here: the bound of a row or a key depends only on its own sequence.  Rows and keys in no sequence
have gradients of exactly zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attention_conformance.conformance.bounds import gradients
from attention_conformance.conformance.bounds.sdpa import Options
from attention_conformance.conformance.spec.varlen_gradients import PackedGradExpected
from attention_conformance.impls.contract import Profile


@dataclass(frozen=True)
class PackedGradBound:
    """Bounds on |result − reference|, in the shapes of q, k and v."""

    grad_q: np.ndarray
    grad_k: np.ndarray
    grad_v: np.ndarray


def bound(expected: PackedGradExpected, options: Options, dtype: str, profile: Profile) -> PackedGradBound:
    """The bound for one pack with the reference ``expected``; parameters as for ``bounds.gradients.bound``."""
    found = PackedGradBound(*(np.zeros(array.shape) for array in (expected.grad_q, expected.grad_k, expected.grad_v)))
    for part in expected.parts:
        own = gradients.bound(part.expected, options, dtype, profile)
        found.grad_q[part.rows] = own["grad_q"].swapaxes(1, 2)
        found.grad_k[part.keys] = own["grad_k"].swapaxes(1, 2)
        found.grad_v[part.keys] = own["grad_v"].swapaxes(1, 2)
    return found
