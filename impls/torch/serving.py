"""PyTorch's own forms for serving: nested tensors in SDPA, and the paged caches of flex attention.

Sources: https://docs.pytorch.org/docs/stable/nested.html (layout ``torch.jagged``), and
``torch.nn.attention.experimental._paged_attention.PagedAttention``, which keeps the table of pages and turns masks and
scores by place in the sequence into those by place in the cache.  Both are called unchanged, on any device, and may
refuse a call themselves.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.experimental._paged_attention import PagedAttention
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from attention_conformance.impls.torch.varlen import Window, diagonals, order, places, side_by_side
from attention_conformance.impls.validate import check_packs, check_pages


def nested(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    *,
    scale: float | None = None,
    max_seqlen_q: int = 0,
    max_seqlen_k: int = 0,
) -> Tensor:
    """The output (Tq, Hq, Dv): the pack as it lies in memory, as nested tensors.

    ``enable_gqa`` is not for them, as its documentation says, and ``is_causal`` has a backend only on CUDA.
    """
    check_packs(q, k, v, cu_seqlens_q, cu_seqlens_k)
    of_queries, of_keys = cu_seqlens_q.long(), cu_seqlens_k.long()  # keys and values need the same offsets object
    queries, keys, values = (
        torch.nested.nested_tensor_from_jagged(array[: int(ends[-1])], ends).transpose(1, 2)
        for array, ends in ((q, of_queries), (k, of_keys), (v, of_keys))
    )
    output = scaled_dot_product_attention(queries, keys, values, scale=scale)
    packed: Tensor = output.transpose(1, 2).values()
    return packed


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
    softcap: float | None = None,
    max_seqlen_q: int = 0,
    max_seqlen_k: int = 0,
    return_lse: bool = False,
) -> Any:
    """The output (Tq, Hq, Dv), and on request the lse (Hq, Tq): flex attention over all pages of the cache."""
    check_pages(q, k_cache, v_cache, cu_seqlens_q, block_table, kv_lengths)
    (count, size), batch, device = k_cache.shape[:2], len(kv_lengths), str(q.device)
    pages = PagedAttention(count, size, batch, device=device)
    used = (kv_lengths.long() + size - 1) // size
    columns = max(int(used.max()), 1)
    sequence, logical = torch.nonzero(torch.arange(columns, device=q.device) < used[:, None], as_tuple=True)
    physical = block_table.long()[sequence, logical]
    pages.page_table[sequence, logical] = physical  # as ``reserve`` has it for pages that it chooses itself
    pages.physical_to_logical[sequence, physical] = logical

    of_row, place = places(cu_seqlens_q, int(cu_seqlens_q[-1]))
    longest = max(int(cu_seqlens_q.diff().max()), 1)
    ends = torch.nn.functional.pad(kv_lengths.cumsum(0), (1, 0))
    offsets, in_order = diagonals(cu_seqlens_q, ends, causal_offset), order(is_causal, window)

    def mask_mod(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return in_order(j < kv_lengths[b], j, i + offsets[b])

    def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return score if softcap is None else softcap * torch.tanh(score / softcap)

    keys, values = (cache.flatten(0, 1).transpose(0, 1)[None] for cache in (k_cache, v_cache))
    by_place = create_block_mask(mask_mod, batch, None, longest, columns * size, device, (128, size))
    output, aux = flex_attention(
        side_by_side(q, of_row, place, batch, longest),
        keys,
        values,
        score_mod=None if softcap is None else pages.get_score_mod(score_mod, kv_lengths),
        block_mask=pages.convert_logical_block_mask(by_place, kv_len=kv_lengths),
        scale=scale,
        enable_gqa=q.shape[1] != k_cache.shape[2],
        return_aux=AuxRequest(lse=return_lse),
    )
    packed = output.transpose(1, 2)[of_row, place]
    lse = aux.lse if return_lse else None
    return packed if lse is None else (packed, lse.transpose(1, 2)[of_row, place].T)
