"""(GRAD-1 to 14) Gradients of sdpa in float64 NumPy, by the closed formula over the intermediates of the reference.

Backpropagation through SPEC.md written out by hand: nothing is differentiated automatically.  With P for the weights,
dO for ``grad_output``, and every sum over the allowed keys only:

    dV = Pᵀ dO,   dP = dO Vᵀ,   δ = Σ_j P_j dP_j,   dS = P ∘ (dP − δ),   dS_raw = (1 − tanh²(raw / c)) ∘ dS,
    dQ = scale · dS_raw K,   dK = scale · dS_rawᵀ Q,   dbias = dS.

Gradients of shared inputs are summed: dK and dV over the query heads of a key head, dbias over the axes along which it
was broadcast.  Source: the chain rule; in this form Dao et al. 2022 (FlashAttention), appendix B.2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attention_conformance.conformance.spec import sdpa as reference
from attention_conformance.conformance.spec.sdpa import Array, Expected, InvalidInput


@dataclass(frozen=True)
class GradExpected:
    """The gradients of one input, with the intermediate results that an error analysis needs; all float64.

    Shapes: ``grad_q``, ``grad_k``, ``grad_v`` and ``grad_bias`` as q, k, v and bias (None without one);
    ``grad_output`` (B, Hq, Sq, Dv); ``d_weights`` (dP), ``d_scores`` (dS, of the final scores), ``slope`` (of softcap,
    1 without) and ``d_raw`` (dS_raw) (B, Hq, Sq, Sk), all but ``slope`` 0 at keys that are not allowed; ``delta``
    (B, Hq, Sq, 1).  ``forward`` has k and v with one head per query head; ``scale`` is the one that was used.
    """

    forward: Expected
    grad_output: Array
    grad_q: Array
    grad_k: Array
    grad_v: Array
    grad_bias: Array | None
    d_weights: Array
    delta: Array
    d_scores: Array
    slope: Array
    d_raw: Array
    scale: float

    @property
    def gradients(self) -> dict[str, Array]:
        """The gradients by name, in the order in which they are returned (GRAD-1)."""
        found = {"grad_q": self.grad_q, "grad_k": self.grad_k, "grad_v": self.grad_v}
        return found if self.grad_bias is None else {**found, "grad_bias": self.grad_bias}


def sdpa_grad(
    q: Array,
    k: Array,
    v: Array,
    grad_output: Array,
    *,
    mask: Array | None = None,
    bias: Array | None = None,
    is_causal: bool = False,
    causal_offset: int | Array | None = None,
    window: tuple[int | None, int | None] | None = None,
    kv_lengths: Array | None = None,
    scale: float | None = None,
    softcap: float | None = None,
) -> GradExpected:
    """The gradients of a loss whose gradient with respect to the output is ``grad_output`` (B, Hq, Sq, Dv).

    Parameters
    ----------
    q
        Queries (B, Hq, Sq, D).
    k
        Keys (B, Hkv, Sk, D).
    v
        Values (B, Hkv, Sk, Dv).
    grad_output
        Gradient with respect to the output, (B, Hq, Sq, Dv).
    mask, bias, is_causal, causal_offset, window, kv_lengths, scale, softcap
        As for ``sdpa``.

    Returns
    -------
    GradExpected
        Gradients of q, k, v and, where it is given, bias, in their shapes, float64, with the intermediate results.

    Raises
    ------
    InvalidInput
        Where sdpa raises it, and for a wrong shape or dtype of ``grad_output`` (GRAD-12).
    """
    forward = reference.sdpa(
        q,
        k,
        v,
        mask=mask,
        bias=bias,
        is_causal=is_causal,
        causal_offset=causal_offset,
        window=window,
        kv_lengths=kv_lengths,
        scale=scale,
        softcap=softcap,
    )
    if grad_output.shape != forward.output.shape or grad_output.dtype != q.dtype:
        raise InvalidInput("GRAD-12", f"grad_output is {grad_output.dtype}{grad_output.shape}")
    scale = 1 / np.sqrt(q.shape[3]) if scale is None else float(scale)
    heads, allowed = k.shape[1], forward.allowed
    d_output = grad_output.astype(np.float64)
    with np.errstate(all="ignore"):  # NaN and inf in the inputs are test cases, not errors
        weights = np.where(allowed, forward.weights, 0.0)
        d_weights = np.where(allowed, d_output @ np.swapaxes(forward.v, 2, 3), 0.0)
        delta = np.sum(weights * d_weights, axis=3, keepdims=True)
        d_scores = np.where(allowed, weights * (d_weights - delta), 0.0)
        slope = np.ones(allowed.shape) if softcap is None else 1 - np.tanh(forward.raw / softcap) ** 2
        d_raw = np.where(allowed, slope * d_scores, 0.0)
        grad_q = scale * reference.weighted_sum(d_raw, forward.k, allowed)
        grad_k = scale * over_groups(_by_key(d_raw, forward.q, allowed), heads)
        grad_v = over_groups(_by_key(weights, d_output, allowed), heads)
    grad_bias = None if bias is None else sum_to(d_scores, bias.shape)
    return GradExpected(
        forward, d_output, grad_q, grad_k, grad_v, grad_bias, d_weights, delta, d_scores, slope, d_raw, scale
    )


def _by_key(weights: Array, rows: Array, allowed: Array) -> Array:
    """Σ_i weights[i, j] · rows[i] over the rows that may attend to key j: (B, Hq, Sk, X) from rows (B, Hq, Sq, X)."""
    return reference.weighted_sum(np.swapaxes(weights, 2, 3), rows, np.swapaxes(allowed, 2, 3))


def over_groups(array: Array, heads: int) -> Array:
    """(GRAD-6) (B, Hq, …) summed over the query heads of each of ``heads`` key heads, (B, Hkv, …).

    Parameters
    ----------
    array
        (B, Hq, …).
    heads
        Hkv, which divides Hq.

    Returns
    -------
    Array
        (B, Hkv, …).
    """
    batch, query_heads, *rest = array.shape
    group = query_heads // heads if heads else 0  # no heads at all, where Hq = 0
    return array.reshape(batch, heads, group, *rest).sum(axis=2)


def sum_to(array: Array, shape: tuple[int, ...]) -> Array:
    """(GRAD-5) (B, Hq, Sq, Sk) summed over the axes along which an array of ``shape`` is broadcast to it (SDPA-8).

    Parameters
    ----------
    array
        (B, Hq, Sq, Sk).
    shape
        Shape that is broadcast to it.

    Returns
    -------
    Array
        An array of ``shape``.
    """
    aligned = (1,) * (array.ndim - len(shape)) + shape
    axes = tuple(axis for axis, length in enumerate(aligned) if length == 1)
    return array.sum(axis=axes, keepdims=True).reshape(shape)
