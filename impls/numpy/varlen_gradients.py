"""Gradients of packed attention written out in NumPy: one sequence after the other, each by numpy-gradients.

Source: SPEC.md, GRAD-30 to GRAD-34.  It expresses every keyword.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_conformance.impls.numpy.gradients import gradients
from attention_conformance.impls.validate import check_packs


def varlen_gradients(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    grad_output: np.ndarray,
    cu_seqlens_q: np.ndarray,
    cu_seqlens_k: np.ndarray,
    *,
    is_causal: bool = False,
    causal_offset: int | np.ndarray | None = None,
    window: tuple[int | None, int | None] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
) -> Any:
    """The gradients of q, k and v in their shapes; zeros for rows in no sequence.

    Parameters
    ----------
    q, k, v, cu_seqlens_q, cu_seqlens_k
        As in ``varlen.varlen``.
    grad_output
        (Tq, Hq, Dv): the gradient of the output.
    is_causal, causal_offset, window, scale, softcap, max_seqlen_q, max_seqlen_k
        As in ``varlen.varlen``.

    Returns
    -------
    Any
        Three arrays in the dtype of q.

    Raises
    ------
    ValueError, TypeError
        For inputs that do not fit together (GRAD-34).
    """
    check_packs(q, k, v, cu_seqlens_q, cu_seqlens_k)
    if grad_output.shape != (*q.shape[:2], v.shape[2]):
        raise ValueError(f"grad_output must have shape {(*q.shape[:2], v.shape[2])}, got {grad_output.shape}")
    results = tuple(np.zeros_like(array) for array in (q, k, v))
    for n in range(len(cu_seqlens_q) - 1):
        rows = slice(cu_seqlens_q[n], cu_seqlens_q[n + 1])
        keys = slice(cu_seqlens_k[n], cu_seqlens_k[n + 1])
        own = [array.swapaxes(0, 1)[None] for array in (q[rows], k[keys], v[keys], grad_output[rows])]
        offset = own[1].shape[2] - own[0].shape[2]  # the bottom right
        if causal_offset is not None:
            offset = int(np.broadcast_to(causal_offset, len(cu_seqlens_q) - 1)[n])
        options: dict[str, Any] = {"is_causal": is_causal, "window": window, "scale": scale, "softcap": softcap}
        found = gradients(*own, causal_offset=offset, **options)
        for result, at, gradient in zip(results, (rows, keys, keys), found, strict=True):
            result[at] = gradient[0].swapaxes(0, 1)
    return results


varlen_gradients.operator = "varlen_grad"  # type: ignore[attr-defined]
