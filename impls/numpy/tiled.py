"""Attention in NumPy over tiles: no array as large as the score matrix, on as many threads as NumPy's BLAS has.

Source: Dao et al. 2022 (FlashAttention, https://arxiv.org/abs/2205.14135), restated for NumPy: a block of query rows
meets one tile of keys after the other (tiled_block), and each thread takes the next block (tiled_threads).  The query
rows of the heads that share a key/value head, and of several such heads, form one block (tiled_plan), so that grouped
heads and decoding with one query row are matrix products too (tiled_products).  Keys that causality, window or lengths
hide from a whole block are not visited (tiled_visible).

It expresses every keyword but ``return_weights``, whose result is the array that it avoids.
Memory: a tile of scores and a copy of its keys for each thread, and k and v where they have to be converted.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from impls.numpy.parts import split_scale, with_past, working_dtype
from impls.numpy.tiled_block import Heads, attend
from impls.numpy.tiled_plan import Place, plan
from impls.numpy.tiled_threads import share_out
from impls.numpy.tiled_visible import visible
from impls.validate import check_inputs


def attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    *,
    mask: np.ndarray | None = None,
    bias: np.ndarray | None = None,
    is_causal: bool = False,
    causal_offset: int | np.ndarray | None = None,
    window: tuple[int | None, int | None] | None = None,
    kv_lengths: np.ndarray | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: np.ndarray | None = None,
    past_key: np.ndarray | None = None,
    past_value: np.ndarray | None = None,
    return_lse: bool = False,
) -> Any:
    """The output (B, Hq, Sq, Dv), and on request the lse (B, Hq, Sq) in float32, or float64 for float64 inputs.

    With a past the present follows.  Shapes and keywords as in impls.contract.  Raises ValueError or TypeError for
    inputs that do not fit together (SDPA-31 to SDPA-36, DEC-7).
    """
    k, v, offset, present = with_past(k, v, causal_offset, past_key, past_value)
    check_inputs(q, k, v, mask, bias, sinks)
    work = working_dtype(q.dtype)
    batch, heads, queries, width = q.shape
    group = heads // k.shape[1]
    shape = (batch, heads, queries, k.shape[2])
    before, after = split_scale(scale, width)
    seen = visible(k.shape[2], batch, is_causal, offset, window, kv_lengths)
    mask, bias = (None if each is None else np.broadcast_to(each, shape) for each in (mask, bias))
    output = np.empty((*shape[:3], v.shape[3]), q.dtype)
    lse = np.empty(shape[:3], work)
    with np.errstate(all="ignore"):  # NaN and inf are inputs like any other
        keys, values = (np.ascontiguousarray(each, dtype=work) for each in (k, v))

    def block(place: Place, scratch: np.ndarray) -> None:
        b, kv_heads, rows = place
        hs = slice(kv_heads.start * group, kv_heads.stop * group)
        those = Heads(
            keys=keys[b, kv_heads],
            values=values[b, kv_heads],
            mask=None if mask is None else mask[b, hs],
            bias=None if bias is None else bias[b, hs],
            before=before,
            after=after,
            softcap=softcap,
            sinks=None if sinks is None else sinks[hs].astype(work),
            visible=seen,
            batch=b,
        )
        attend(q[b, hs, rows], rows, those, scratch, output[b, hs, rows], lse[b, hs, rows])

    cut = plan(seen, q.shape, v.shape)
    share_out(cut.blocks, block, [np.empty(cut.tile, work) for _ in range(cut.threads)])
    results = [output, *([lse] if return_lse else []), *present]
    return tuple(results) if len(results) > 1 else output
