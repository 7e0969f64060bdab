"""Merging of partial results in NumPy, as in SPEC.md; half precision is computed in float32 and rounded once."""

from __future__ import annotations

import numpy as np

from attention_conformance.impls.numpy.parts import working_dtype
from attention_conformance.impls.validate import check_merge


def merge(outputs: np.ndarray, lses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The output (B, H, S, Dv) and lse (B, H, S) of parts, outputs (P, B, H, S, Dv) and lses (P, B, H, S).

    Raises ValueError for inputs that do not fit together (MERGE-15).
    """
    check_merge(outputs, lses)
    with np.errstate(all="ignore"):  # NaN is an input like any other
        largest = lses.max(axis=0)
        largest = np.where(np.isneginf(largest), 0, largest)  # no part has a key
        powers = np.exp(lses - largest)
        total = powers.sum(axis=0)
        lse = (largest + np.log(total)).astype(lses.dtype)
        weights = powers / np.where(total == 0, 1, total)
        parts = np.where(np.isneginf(lses)[..., None], 0, outputs.astype(working_dtype(outputs.dtype)))
        output = (weights[..., None] * parts).sum(axis=0)
    return output.astype(outputs.dtype), lse
