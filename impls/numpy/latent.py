"""Attention over latents in NumPy, absorbed: the queries go through w_uk, the output through w_uv (MLA-3)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from attention_conformance.impls.numpy.eager import attention
from attention_conformance.impls.numpy.parts import working_dtype
from attention_conformance.impls.validate import check_latent


def latent(
    q: np.ndarray,
    q_rope: np.ndarray,
    latents: np.ndarray,
    k_rope: np.ndarray,
    w_uk: np.ndarray,
    w_uv: np.ndarray,
    *,
    is_causal: bool = False,
    causal_offset: int | np.ndarray | None = None,
    kv_lengths: np.ndarray | None = None,
    scale: float | None = None,
    return_lse: bool = False,
) -> Any:
    """The output (B, H, Sq, Dv), and on request the lse (B, H, Sq).

    Parameters
    ----------
    q, q_rope
        (B, H, Sq, D) and (B, H, Sq, Dr): queries without and with positions.
    latents, k_rope
        (B, Sk, R) and (B, Sk, Dr): the cache, shared by all heads.
    w_uk, w_uv
        (H, R, D) and (H, R, Dv): from a latent to the head's key and value.
    is_causal, causal_offset, kv_lengths
        As in ``eager.attention``.
    scale
        Factor of the scores; None for 1/√(D + Dr).
    return_lse
        Whether the lse is returned.

    Returns
    -------
    Any
        The output in the dtype of q, or a tuple of it and the lse.

    Raises
    ------
    ValueError, TypeError
        For inputs that do not fit together (MLA-8).
    """
    check_latent(q, q_rope, latents, k_rope, w_uk, w_uv)
    dtype, work = q.dtype, working_dtype(q.dtype)
    q, q_rope, latents, k_rope, w_uk, w_uv = (a.astype(work) for a in (q, q_rope, latents, k_rope, w_uk, w_uv))
    scale = 1 / math.sqrt(q.shape[3] + q_rope.shape[3]) if scale is None else scale
    output, lse = attention(
        np.concatenate([q @ w_uk.swapaxes(1, 2), q_rope], axis=3),
        np.concatenate([latents, k_rope], axis=2)[:, None],
        latents[:, None],
        is_causal=is_causal,
        causal_offset=causal_offset,
        kv_lengths=kv_lengths,
        scale=scale,
        return_lse=True,
    )
    output = (output @ w_uv).astype(dtype)
    return (output, lse) if return_lse else output
