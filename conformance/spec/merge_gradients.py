"""(GRAD-36 to 43) Gradients of a merge in float64 NumPy, with respect to every part's output and log-sum-exp."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attention_conformance.conformance.spec.merge import MergeExpected, merge
from attention_conformance.conformance.spec.sdpa import Array, InvalidInput


@dataclass(frozen=True)
class MergeGradExpected:
    """Expected gradients of a merge, with intermediate results for an error analysis; all float64.

    Shapes: ``grad_outputs`` (P, B, H, S, Dv), ``grad_lses`` (P, B, H, S); ``forward`` is the merge, ``grad_output``
    (B, H, S, Dv) and ``grad_lse`` (B, H, S) the given gradients, zeros for none.
    """

    grad_outputs: Array
    grad_lses: Array
    forward: MergeExpected
    grad_output: Array
    grad_lse: Array


def merge_grad(outputs: Array, lses: Array, grad_output: Array, *, grad_lse: Array | None = None) -> MergeGradExpected:
    """The gradients of a loss that depends on the parts through the output and the lse of their merge.

    Parameters
    ----------
    outputs
        Output of each of P parts, (P, B, H, S, Dv).
    lses
        Natural log-sum-exp of each part, (P, B, H, S); −inf for a part without an allowed key.
    grad_output
        The loss's gradient with respect to the merged output, (B, H, S, Dv), of the dtype of outputs.
    grad_lse
        The same with respect to the merged log-sum-exp, (B, H, S); None for a loss that does not depend on it.

    Returns
    -------
    MergeGradExpected
        Gradients of outputs and lses in their shapes, float64.

    Raises
    ------
    InvalidInput
        Where MERGE-15 or GRAD-42 requires an exception.
    """
    forward = merge(outputs, lses)
    if grad_output.shape != outputs.shape[1:] or grad_output.dtype != outputs.dtype:
        raise InvalidInput("GRAD-42", f"grad_output is {grad_output.dtype}{grad_output.shape}")
    if grad_lse is not None and grad_lse.shape != lses.shape[1:]:
        raise InvalidInput("GRAD-42", f"grad_lse is {grad_lse.shape}")
    g = grad_output.astype(np.float64)
    h = np.zeros(lses.shape[1:]) if grad_lse is None else grad_lse.astype(np.float64)
    has_keys = ~np.isneginf(forward.lses)
    weights = np.where(has_keys, forward.weights, 0.0)
    with np.errstate(all="ignore"):  # NaN is a test case, not an error
        grad_outputs = np.where(has_keys[..., None], weights[..., None] * g, 0.0)  # GRAD-38
        pulls = (g * (forward.outputs - forward.output)).sum(axis=-1)
        grad_lses = np.where(has_keys, weights * (pulls + h), 0.0)
    return MergeGradExpected(grad_outputs, grad_lses, forward, g, h)
