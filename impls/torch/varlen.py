"""Packed sequences and paged caches in PyTorch on any device: padded and masked for SDPA, and flex attention.

Sources: torch.nn.functional.scaled_dot_product_attention, and torch.nn.attention.flex_attention with the mask of
https://pytorch.org/blog/flexattention/ (document masking).  ``torch.nn.attention.varlen.varlen_attn`` has kernels only
for CUDA, and is plugged in by its own signature (impls.packed).  Fully masked rows are what the library returns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from attention_conformance.impls.validate import check_pack_bias, check_packs, check_pages

Window = tuple[int | None, int | None] | None


def places(boundaries: Tensor, total: int) -> tuple[Tensor, Tensor]:
    """The sequence of each row and its place in it, (total,) each; rows after the last sequence are in one more."""
    rows = torch.arange(total, device=boundaries.device)
    sequence = torch.searchsorted(boundaries[1:].contiguous(), rows, right=True)
    return sequence, rows - boundaries.long()[sequence]


def diagonals(cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, causal_offset: int | Tensor | None) -> Tensor:
    """VARLEN-3: the offset of every sequence, (N,)."""
    if causal_offset is None:
        return cu_seqlens_k.diff() - cu_seqlens_q.diff()
    return torch.as_tensor(causal_offset, device=cu_seqlens_q.device).expand(len(cu_seqlens_q) - 1)


def order(is_causal: bool, window: Window) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Allowed keys that causal order and window leave, by the places of keys and of each row's diagonal."""
    left, right = window or (None, None)

    def left_over(allowed: Tensor, keys: Tensor, diagonal: Tensor) -> Tensor:
        if is_causal:
            allowed = allowed & (keys <= diagonal)
        if left is not None:
            allowed = allowed & (keys >= diagonal - left)
        if right is not None:
            allowed = allowed & (keys <= diagonal + right)
        return allowed

    return left_over


def side_by_side(array: Tensor, sequence: Tensor, place: Tensor, batch: int, size: int) -> Tensor:
    """A pack as a batch (N, heads, longest, width), padded with zeros."""
    rows = array.new_zeros(batch, size, *array.shape[1:])
    rows[sequence, place] = array[: len(sequence)]
    return rows.transpose(1, 2)


def padded(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    *,
    is_causal: bool = False,
    causal_offset: int | Tensor | None = None,
    window: Window = None,
    scale: float | None = None,
    max_seqlen_q: int = 0,
    max_seqlen_k: int = 0,
    bias: Tensor | None = None,
) -> Tensor:
    """The output (Tq, Hq, Dv): sequences side by side, padded with zeros, and a mask of the allowed keys."""
    check_packs(q, k, v, cu_seqlens_q, cu_seqlens_k)
    check_pack_bias(bias, q, cu_seqlens_q, max_seqlen_q, max_seqlen_k)
    lengths = [boundaries.diff() for boundaries in (cu_seqlens_q, cu_seqlens_k)]
    (of_row, i), (of_key, j) = (places(cu, int(cu[-1])) for cu in (cu_seqlens_q, cu_seqlens_k))
    sizes = [int(each.max()) for each in lengths]
    batch = len(lengths[0])
    rows_in = side_by_side(q, of_row, i, batch, sizes[0])
    keys_in, values_in = (side_by_side(array, of_key, j, batch, sizes[1]) for array in (k, v))
    rows, keys = (torch.arange(size, device=q.device) for size in sizes)
    diagonal = rows[:, None] + diagonals(cu_seqlens_q, cu_seqlens_k, causal_offset)[:, None, None]
    there = (keys < lengths[1][:, None, None]).expand(-1, sizes[0], -1)
    mask = order(is_causal, window)(there, keys, diagonal)
    grouped = q.shape[1] != k.shape[1]
    added = mask[:, None]
    if bias is not None:
        added = bias[:, :, : sizes[0], : sizes[1]].masked_fill(~added, float("-inf"))
    output = scaled_dot_product_attention(rows_in, keys_in, values_in, attn_mask=added, scale=scale, enable_gqa=grouped)
    return output.transpose(1, 2)[of_row, i]


def flex(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    *,
    is_causal: bool = False,
    causal_offset: int | Tensor | None = None,
    window: Window = None,
    scale: float | None = None,
    softcap: float | None = None,
    max_seqlen_q: int = 0,
    max_seqlen_k: int = 0,
    bias: Tensor | None = None,
    return_lse: bool = False,
) -> Any:
    """The output (Tq, Hq, Dv), and on request the lse (Hq, Tq): one sequence of the whole pack, masked by document."""
    check_packs(q, k, v, cu_seqlens_q, cu_seqlens_k)
    check_pack_bias(bias, q, cu_seqlens_q, max_seqlen_q, max_seqlen_k)
    (of_row, place), (of_key, position) = places(cu_seqlens_q, len(q)), places(cu_seqlens_k, len(k))
    offsets, in_order = diagonals(cu_seqlens_q, cu_seqlens_k, causal_offset), order(is_causal, window)

    def mask_mod(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        diagonal = place[i] + offsets[of_row[i]]
        return in_order(of_row[i] == of_key[j], position[j], diagonal)

    def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        score = score if softcap is None else softcap * torch.tanh(score / softcap)
        if bias is None:
            return score
        at = [of_row[i], h, place[i], position[j]]  # any bias will do for a pair in two sequences, which the mask hides
        n, head, row, key = (torch.clamp(index, max=size - 1) for index, size in zip(at, bias.shape, strict=True))
        return score + bias[n, head, row, key]

    output, aux = flex_attention(
        q.transpose(0, 1)[None],
        k.transpose(0, 1)[None],
        v.transpose(0, 1)[None],
        score_mod=None if softcap is None and bias is None else score_mod,
        block_mask=create_block_mask(mask_mod, None, None, len(q), len(k), device=str(q.device)),
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
        return_aux=AuxRequest(lse=return_lse),
    )
    output, lse = output[0].transpose(0, 1), aux.lse if return_lse else None
    return output if lse is None else (output, lse[0])


def paged(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    cu_seqlens_q: Tensor,
    block_table: Tensor,
    kv_lengths: Tensor,
    *,
    is_causal: bool = False,
    causal_offset: int | Tensor | None = None,
    window: Window = None,
    scale: float | None = None,
    max_seqlen_q: int = 0,
    max_seqlen_k: int = 0,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> Tensor:
    """The output (Tq, Hq, Dv): the keys of a paged cache gathered by its table, then ``padded``.

    A cache stored with scales is multiplied by them in float32 or float64, and rounded to the dtype of q.
    """
    check_pages(q, k_cache, v_cache, cu_seqlens_q, block_table, kv_lengths, k_scale, v_scale)
    if k_scale is not None and v_scale is not None:
        wide = torch.promote_types(q.dtype, torch.float32)
        k_cache, v_cache = ((c.to(wide) * s).to(q.dtype) for c, s in ((k_cache, k_scale), (v_cache, v_scale)))
    size = k_cache.shape[1]
    ends = torch.nn.functional.pad(kv_lengths.cumsum(0), (1, 0))
    sequence, place = places(ends, int(ends[-1]))
    page = block_table[sequence, place // size]
    k, v = (cache[page, place % size] for cache in (k_cache, v_cache))
    return padded(
        q, k, v, cu_seqlens_q, ends, is_causal=is_causal, causal_offset=causal_offset, window=window, scale=scale
    )
