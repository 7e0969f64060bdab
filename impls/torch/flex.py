"""torch.nn.attention.flex_attention: the score and the mask given as functions of the indices.

Source: https://pytorch.org/docs/stable/nn.attention.flex_attention.html.  Not compiled, which PyTorch offers
for checking and warns about: it computes the whole score matrix, and is traced again for every call, which takes
about 0.1 s.  It expresses every keyword but sinks and ``return_weights``, which flex attention does not return.
Block masks and trees are functions of the indices; its own blocks are of another size.

The compiled form is of a call without options only (``plain``): on the CPU, torch 2.13 compiles no other with dynamic
shapes; causal and window fail in the C++ compiler, a captured softcap while tracing, and with fixed shapes each shape
would be compiled by itself, for 7 to 10 s (1 to 2 s from a warm cache).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, and_masks, create_block_mask, flex_attention

from attention_conformance.impls.rotary import check_rotary, rotated
from attention_conformance.impls.torch.blocks import tree_allows
from attention_conformance.impls.torch.eager import with_past
from attention_conformance.impls.validate import check_by_head, check_masks

#: (score, batch, head, query, key) -> score, and (batch, head, query, key) -> allowed.
ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    is_causal: bool = False,
    causal_offset: int | Tensor | None = None,
    window: tuple[int | None, int | None] | None = None,
    kv_lengths: Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    alibi_slopes: Tensor | None = None,
    head_scale: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    rotary_interleaved: bool = False,
    block_mask: Tensor | None = None,
    block_size: tuple[int, int] | None = None,
    tree_parents: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    return_lse: bool = False,
) -> Any:
    """The output (B, Hq, Sq, Dv), and on request the lse (B, Hq, Sq); keywords as in impls.contract.

    With a past the present follows.
    """
    k, v, offset, present = with_past(k, v, causal_offset, past_key, past_value)
    if q.ndim == k.ndim == 4:
        check_by_head(q, alibi_slopes=alibi_slopes, head_scale=head_scale)
        check_rotary(q, rotary_cos, rotary_sin)
        check_masks(q, k, block_mask, block_size, tree_parents)
    if rotary_cos is not None and rotary_sin is not None:
        start = offset.reshape(-1, 1) if isinstance(offset, Tensor) else offset
        rows, keys = (torch.arange(n, device=q.device)[None] for n in (q.shape[2], k.shape[2]))
        q = rotated(q, rotary_cos, rotary_sin, rows + start, rotary_interleaved)
        k = rotated(k, rotary_cos, rotary_sin, keys, rotary_interleaved)
    output, aux = flex_attention(
        q,
        k,
        v,
        score_mod=_score_mod(q, k, bias, softcap, alibi_slopes, head_scale, offset),
        block_mask=_block_mask(q, k, mask, is_causal, offset, window, kv_lengths, block_mask, block_size, tree_parents),
        scale=scale,
        enable_gqa=q.ndim == k.ndim == 4 and q.shape[1] != k.shape[1],
        return_aux=AuxRequest(lse=return_lse),
    )
    results = [output, *([aux.lse] if return_lse else []), *present]
    return tuple(results) if len(results) > 1 else output


def plain(q: Tensor, k: Tensor, v: Tensor) -> Any:
    """The output (B, Hq, Sq, Dv) of a call without options, which is what torch 2.13 compiles on the CPU."""
    return flex_attention(q, k, v)


def _score_mod(
    q: Tensor,
    k: Tensor,
    bias: Tensor | None,
    softcap: float | None,
    slopes: Tensor | None,
    head_scale: Tensor | None,
    causal_offset: int | Tensor,
) -> ScoreMod | None:
    """A factor of each head, softcap, then bias and ALiBi; the incoming score is scaled."""
    if all(each is None for each in (bias, softcap, slopes, head_scale)):
        return None
    offsets = causal_offset if isinstance(causal_offset, Tensor) else torch.tensor(causal_offset, device=q.device)
    offsets = offsets.expand(q.shape[0])
    added = None if bias is None else bias.expand(*q.shape[:3], k.shape[2])

    def score_mod(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        if head_scale is not None:
            score = score * head_scale[h]
        if softcap is not None:
            score = softcap * torch.tanh(score / softcap)
        if slopes is not None:
            score = score - slopes[h] * (i + offsets[b] - j).abs()
        return score if added is None else score + added[b, h, i, j]

    return score_mod


def _block_mask(
    q: Tensor,
    k: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    causal_offset: int | Tensor,
    window: tuple[int | None, int | None] | None,
    kv_lengths: Tensor | None,
    blocks: Tensor | None,
    block_size: tuple[int, int] | None,
    tree_parents: Tensor | None,
) -> BlockMask | None:
    """The keys that each row may attend to, as flex attention's blocks; None if all."""
    left, right = window or (None, None)
    offsets = causal_offset if isinstance(causal_offset, Tensor) else torch.tensor(causal_offset, device=q.device)
    offsets = offsets.expand(q.shape[0])
    parts: list[MaskMod] = []
    if mask is not None:
        every = mask.expand(*q.shape[:3], k.shape[2])
        parts.append(lambda b, h, i, j: every[b, h, i, j])
    if is_causal:
        parts.append(lambda b, h, i, j: j <= i + offsets[b])
    if left is not None:
        parts.append(lambda b, h, i, j: j >= i + offsets[b] - left)
    if right is not None:
        parts.append(lambda b, h, i, j: j <= i + offsets[b] + right)
    if kv_lengths is not None:
        parts.append(lambda b, h, i, j: j < kv_lengths[b])
    if blocks is not None and block_size is not None:
        rows, columns = block_size
        table = blocks.expand(*q.shape[:2], *blocks.shape[-2:])
        parts.append(lambda b, h, i, j: table[b, h, i // rows, j // columns])
    if tree_parents is not None:
        tree = tree_allows(tree_parents, causal_offset, torch.arange(k.shape[2], device=q.device)).expand(
            q.shape[0], 1, q.shape[2], k.shape[2]
        )
        parts.append(lambda b, h, i, j: tree[b, 0, i, j])
    if not parts:
        return None
    batch, heads, queries = q.shape[:3]
    return create_block_mask(and_masks(*parts), batch, heads, queries, k.shape[2], device=str(q.device))
