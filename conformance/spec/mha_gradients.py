"""(GRAD-16 to 28) Gradients of the multi-head layer in float64 NumPy, by the closed formula over its reference.

The chain rule written out, with dY for ``grad_output``, C for the combined heads and X for what is projected:

    dC = dY w_oᵀ,   (dQ, dK, dV) = the gradients of sdpa in each head, combined as heads are,
    dw_q = X_qᵀ dQ,   dw_k = X_kvᵀ dK,   dw_v = X_kvᵀ dV,   dw_o = Cᵀ dY,   each bias: the sum of the rows,
    dX_q = dQ w_qᵀ,   dX_kv = dK w_kᵀ + dV w_vᵀ,   in self-attention all three.

Rows of all samples are summed.  Written to be read next to SPEC.md (GRAD-16 to GRAD-27).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from attention_conformance.conformance.spec.gradients import GradExpected, sdpa_grad
from attention_conformance.conformance.spec.mha import Form, LayerExpected, Projection, combine, mha, split
from attention_conformance.conformance.spec.sdpa import Array, InvalidInput

#: Keywords that the gradients within a head depend on.
_OF_HEADS = ("mask", "bias", "is_causal", "kv_lengths", "scale")


@dataclass(frozen=True)
class LayerGradExpected:
    """The gradients of one call of ``mha``, with the intermediate results that an error analysis needs; all float64.

    Each gradient has the shape of its argument, and is None for an argument that is not given.  The rest is
    batch-first: ``grad_output`` (B, Sq, Eo); ``d_combined`` (dC) as the projection of grad_output by w_oᵀ, None without
    w_o; ``heads``, the gradients of sdpa in each head; ``d_q`` (B, Sq, H·D), ``d_k`` and ``d_v`` (B, Sk, …) of all
    heads.
    """

    layer: LayerExpected
    grad_output: Array
    d_combined: Projection | None
    heads: GradExpected
    d_q: Array
    d_k: Array
    d_v: Array
    grad_x_q: Array
    grad_w_q: Array
    grad_w_k: Array
    grad_w_v: Array
    grad_x_kv: Array | None
    grad_w_o: Array | None
    grad_b_q: Array | None
    grad_b_k: Array | None
    grad_b_v: Array | None
    grad_b_o: Array | None
    grad_bias: Array | None

    @property
    def form(self) -> Form:
        """The form of inputs and their gradients."""
        return self.layer.form

    @property
    def gradients(self) -> dict[str, Array]:
        """The gradients by name, in the order in which they are returned (GRAD-16)."""
        names = ("x_q", "w_q", "w_k", "w_v", "x_kv", "w_o", "b_q", "b_k", "b_v", "b_o", "bias")
        found = {f"grad_{name}": getattr(self, f"grad_{name}") for name in names}
        return {name: array for name, array in found.items() if array is not None}


def mha_grad(
    x_q: Array, w_q: Array, w_k: Array, w_v: Array, grad_output: Array, *, heads: int, **options: Any
) -> LayerGradExpected:
    """The gradients of a loss whose gradient with respect to the output of ``mha`` is ``grad_output``.

    ``options`` are the keywords of ``mha``, as SPEC.md defines them.

    Parameters
    ----------
    x_q
        (B, Sq, E).
    w_q
        (E, H·D).
    w_k
        (Ekv, H·D).
    w_v
        (Ekv, H·Dv).
    grad_output
        Gradient with respect to the output, (B, Sq, Eo).
    heads
        Number of heads, H.
    options
        Keywords of ``mha``, as SPEC.md defines them.

    Returns
    -------
    LayerGradExpected
        Gradients of inputs, weights and biases in their shapes, float64, with the intermediate results.

    Raises
    ------
    InvalidInput
        Where mha raises it, and for a wrong shape or dtype of ``grad_output`` (GRAD-27).
    """
    layer = mha(x_q, w_q, w_k, w_v, heads=heads, **options)
    if grad_output.shape != layer.output.shape or grad_output.dtype != x_q.dtype:
        raise InvalidInput("GRAD-27", f"grad_output is {grad_output.dtype}{grad_output.shape}")
    form, given = layer.form, {name for name, value in options.items() if value is not None}
    with np.errstate(all="ignore"):  # NaN and inf in the inputs are test cases, not errors
        d_output = form.batch_first(grad_output)
        d_combined = None if layer.out is None else _through(d_output, layer.out.w)
        of_combined = d_output if d_combined is None else d_combined.result
        q, k, v, g = (split(a, heads) for a in (layer.q.result, layer.k.result, layer.v.result, of_combined))
        attended = sdpa_grad(q, k, v, g, **{name: options[name] for name in _OF_HEADS if name in given})
        d_q, d_k, d_v = (combine(array) for array in (attended.grad_q, attended.grad_k, attended.grad_v))
        of_queries = d_q @ layer.q.w.T
        of_keys = d_k @ layer.k.w.T + d_v @ layer.v.w.T
    return LayerGradExpected(
        layer,
        d_output,
        d_combined,
        attended,
        *(d_q, d_k, d_v),
        grad_x_q=form.output(of_queries + of_keys if layer.self_attention else of_queries),
        grad_w_q=of_weight(layer.q.x, d_q),
        grad_w_k=of_weight(layer.k.x, d_k),
        grad_w_v=of_weight(layer.v.x, d_v),
        grad_x_kv=None if layer.self_attention else form.output(of_keys),
        grad_w_o=None if layer.out is None else of_weight(layer.out.x, d_output),
        grad_b_q=of_rows(d_q) if "b_q" in given else None,
        grad_b_k=of_rows(d_k) if "b_k" in given else None,
        grad_b_v=of_rows(d_v) if "b_v" in given else None,
        grad_b_o=of_rows(d_output) if "b_o" in given else None,
        grad_bias=attended.grad_bias,
    )


def _through(gradient: Array, w: Array) -> Projection:
    """The gradient of a projection's input: itself a projection, by the transpose of the weight (inputs, outputs)."""
    product = gradient @ w.T
    return Projection(gradient, w.T, None, product, product)


def of_weight(x: Array, gradient: Array) -> Array:
    """(GRAD-17) Σ x[r]ᵀ gradient[r] over the rows of all samples, (inputs, outputs).

    Parameters
    ----------
    x
        (B, S, inputs).
    gradient
        (B, S, outputs).

    Returns
    -------
    Array
        (inputs, outputs).
    """
    return np.einsum("bse,bsf->ef", x, gradient)


def of_rows(gradient: Array) -> Array:
    """(GRAD-18) The sum of the rows of all samples, (outputs,).

    Parameters
    ----------
    gradient
        (B, S, outputs).

    Returns
    -------
    Array
        (outputs,).
    """
    return gradient.sum(axis=(0, 1))
