"""Block-sparse attention in NumPy: each block of rows is multiplied by the keys of its blocks only.

Source: SPEC.md, BLOCK-1 to BLOCK-5.  Keys whose block is False are not read.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_conformance.impls.numpy.eager import attention
from attention_conformance.impls.numpy.parts import working_dtype
from attention_conformance.impls.validate import check_inputs, check_masks


def block_sparse(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    *,
    block_mask: np.ndarray | None = None,
    block_size: tuple[int, int] | None = None,
    mask: np.ndarray | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    return_lse: bool = False,
) -> Any:
    """The output (B, Hq, Sq, Dv), and on request the lse (B, Hq, Sq); keywords as in impls.contract.

    Raises ValueError or TypeError for inputs that do not fit together (SDPA-31 to SDPA-36, BLOCK-5).
    """
    check_inputs(q, k, v, mask)
    check_masks(q, k, block_mask, block_size)
    batch, heads, queries = q.shape[:3]
    if block_mask is None or block_size is None:
        block_mask, block_size = np.ones((1, 1), bool)[: min(queries, 1), : min(k.shape[2], 1)], (queries, k.shape[2])
    rows_of, keys_of = block_size
    table = np.broadcast_to(block_mask, (batch, heads, *block_mask.shape[-2:]))
    allowed = None if mask is None else np.broadcast_to(mask, (*q.shape[:3], k.shape[2]))
    output = np.zeros((*q.shape[:3], v.shape[3]), q.dtype)
    lse = np.full(q.shape[:3], -np.inf, working_dtype(q.dtype))
    for b, h, block in np.argwhere(table.any(axis=3)):
        rows = np.arange(block * rows_of, min((block + 1) * rows_of, queries))
        keys = np.flatnonzero(table[b, h, block].repeat(keys_of)[: k.shape[2]])
        seen = np.ones((len(rows), len(keys)), bool) if allowed is None else allowed[b, h][np.ix_(rows, keys)]
        if is_causal:
            seen = seen & (keys <= rows[:, None])
        key_head = h * k.shape[1] // heads
        part = (array[b : b + 1, key_head : key_head + 1, keys] for array in (k, v))
        found = attention(q[b : b + 1, h : h + 1, rows], *part, mask=seen, scale=scale, return_lse=True)
        output[b, h, rows], lse[b, h, rows] = found[0][0, 0], found[1][0, 0]
    return (output, lse) if return_lse else output
