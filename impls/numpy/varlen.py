"""Packed attention written out in NumPy: one sequence after the other, each by numpy-eager.

Source: SPEC.md, VARLEN-1 to VARLEN-11 and VARLEN-16.  It expresses every keyword.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_conformance.impls.numpy.eager import attention
from attention_conformance.impls.validate import check_pack_bias, check_packs


def varlen(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    cu_seqlens_q: np.ndarray,
    cu_seqlens_k: np.ndarray,
    *,
    is_causal: bool = False,
    causal_offset: int | np.ndarray | None = None,
    window: tuple[int | None, int | None] | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: np.ndarray | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    bias: np.ndarray | None = None,
    return_lse: bool = False,
) -> Any:
    """The output (Tq, Hq, Dv), and on request the lse (Hq, Tq).

    Parameters
    ----------
    q, k, v
        (Tq, Hq, D), (Tk, Hkv, D) and (Tk, Hkv, Dv): the rows of all sequences, one after the other.
    cu_seqlens_q, cu_seqlens_k
        (N + 1,): where each sequence begins, and where the last one ends.
    is_causal, causal_offset, window, scale, softcap, sinks
        As in ``eager.attention``, inside each sequence.
    bias
        (N or 1, Hq or 1, max_seqlen_q, max_seqlen_k): added to the scores of each sequence, from its first row and key.
    max_seqlen_q, max_seqlen_k
        The size of the bias, and nothing else.
    return_lse
        Whether the lse is returned.

    Returns
    -------
    Any
        The output in the dtype of q, or a tuple of it and the lse.

    Raises
    ------
    ValueError, TypeError
        For inputs that do not fit together (VARLEN-11, VARLEN-16).
    """
    check_packs(q, k, v, cu_seqlens_q, cu_seqlens_k)
    check_pack_bias(bias, q, cu_seqlens_q, max_seqlen_q, max_seqlen_k)
    output = np.zeros((*q.shape[:2], v.shape[2]), q.dtype)
    lse = np.full(q.shape[1::-1], -np.inf, np.float64 if q.dtype == np.float64 else np.float32)
    for n in range(len(cu_seqlens_q) - 1):
        rows = slice(cu_seqlens_q[n], cu_seqlens_q[n + 1])
        keys = slice(cu_seqlens_k[n], cu_seqlens_k[n + 1])
        own = [array.swapaxes(0, 1)[None] for array in (q[rows], k[keys], v[keys])]  # (1, heads, length, width)
        offset = own[1].shape[2] - own[0].shape[2]  # the bottom right
        if causal_offset is not None:
            offset = int(np.broadcast_to(causal_offset, len(cu_seqlens_q) - 1)[n])
        queries, length = own[0].shape[2], own[1].shape[2]
        found, of_rows = attention(
            *own,
            bias=None if bias is None else bias[n if len(bias) > 1 else 0, :, :queries, :length][None],
            is_causal=is_causal,
            causal_offset=offset,
            window=window,
            scale=scale,
            softcap=softcap,
            sinks=sinks,
            return_lse=True,
        )
        output[rows], lse[:, rows] = found[0].swapaxes(0, 1), of_rows[0]
    return (output, lse) if return_lse else output
