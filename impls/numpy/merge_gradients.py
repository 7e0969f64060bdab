"""Gradients of a merge in NumPy, by the formulas of SPEC.md; half precision is computed in float32 and rounded once.

Source: SPEC.md, GRAD-36 to GRAD-43.
"""

from __future__ import annotations

import numpy as np

from attention_conformance.impls.numpy.merge import merge
from attention_conformance.impls.numpy.parts import working_dtype
from attention_conformance.impls.validate import check_merge_gradients


def merge_gradients(
    outputs: np.ndarray, lses: np.ndarray, grad_output: np.ndarray, *, grad_lse: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The gradients of outputs (P, B, H, S, Dv) and lses (P, B, H, S), given those of the output and the lse.

    Parameters
    ----------
    outputs, lses
        (P, B, H, S, Dv) and (P, B, H, S): each part's output and the log-sum-exp of its scores, −inf without a key.
    grad_output
        (B, H, S, Dv), in the dtype of outputs.
    grad_lse
        (B, H, S), or None where no loss depends on the lse.

    Returns
    -------
    tuple[numpy.ndarray, numpy.ndarray]
        Gradients in the shapes and dtypes of outputs and lses.

    Raises
    ------
    ValueError, TypeError
        For inputs that do not fit together (MERGE-15, GRAD-42).
    """
    check_merge_gradients(outputs, lses, grad_output, grad_lse)
    work = working_dtype(outputs.dtype)
    empty = np.isneginf(lses)
    parts = np.where(empty[..., None], work(0), outputs.astype(work))
    g = grad_output.astype(work)
    with np.errstate(all="ignore"):  # NaN is an input like any other
        output, lse = merge(parts, lses)
        weights = np.where(empty, 0, np.exp(lses - np.where(np.isneginf(lse), 0, lse)))
        grad_outputs = np.where(empty[..., None], 0, weights[..., None] * g)
        pulls = (g * (parts - output)).sum(axis=-1)
        grad_lses = np.where(empty, 0, weights * (pulls if grad_lse is None else pulls + grad_lse))
    return grad_outputs.astype(outputs.dtype), grad_lses.astype(lses.dtype)


merge_gradients.operator = "merge_grad"  # type: ignore[attr-defined]
