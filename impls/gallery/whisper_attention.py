"""OpenAI's Whisper: ``qkv_attention`` of its ``MultiHeadAttention``, by torch's function and in ``disable_sdpa``.

A transcription with ``word_timestamps`` is made in ``disable_sdpa``.
"""

from __future__ import annotations

from typing import Any

import torch
from whisper.model import MultiHeadAttention, disable_sdpa


def attention(q: Any, k: Any, v: Any, *, mask: Any = None, bias: Any = None, is_causal: bool = False) -> Any:
    """``mask`` is added to the scores, (n_ctx, n_ctx) and causal as its decoder makes it."""
    if any(a.ndim != 4 for a in (q, k, v)) or len({a.shape[2] for a in (q, k, v)}) > 1:
        raise NotImplementedError("self.n_head, of q, k and v")
    if sum((mask is not None, bias is not None, is_causal)) > 1:
        raise NotImplementedError("mask: Optional[Tensor]")
    added = bias
    if is_causal:  # TextDecoder.mask
        added = torch.empty(q.shape[1], q.shape[1], dtype=q.dtype).fill_(-torch.inf).triu_(1)
    if mask is not None:
        added = torch.zeros(mask.shape, dtype=q.dtype).masked_fill_(~mask, -torch.inf)
    if added is not None:
        added = added.reshape(added.shape[-2:]) if added.shape[:-2].numel() == 1 else added
        if added.ndim != 2 or q.shape[1] != k.shape[1]:
            raise NotImplementedError("mask[:n_ctx, :n_ctx]")
    flat = [each.reshape(*each.shape[:2], each.shape[2] * each.shape[3]) for each in (q, k, v)]
    with torch.device("meta"):  # no weight takes part
        made = MultiHeadAttention(flat[0].shape[2], q.shape[2]).eval()
    return made.qkv_attention(*flat, added)[0].reshape(*q.shape[:3], v.shape[3])


def eager(q: Any, k: Any, v: Any, *, mask: Any = None, bias: Any = None, is_causal: bool = False) -> Any:
    """By matrix products and softmax."""
    with disable_sdpa():
        return attention(q, k, v, mask=mask, bias=bias, is_causal=is_causal)


attention.layout = "BSHD"  # type: ignore[attr-defined]
eager.layout = "BSHD"  # type: ignore[attr-defined]
