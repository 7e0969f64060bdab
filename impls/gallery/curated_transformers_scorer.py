"""curated-transformers' ``ScaledDotProductAttention``, which its layers call, and in ``enable_torch_sdp``."""

from __future__ import annotations

from typing import Any

import torch
from curated_transformers.layers import AttentionMask, ScaledDotProductAttention, enable_torch_sdp

_scorer = ScaledDotProductAttention(dropout_prob=0.0, linear_biases=None).eval()


def attention(q: Any, k: Any, v: Any, *, mask: Any = None, kv_lengths: Any = None, is_causal: bool = False) -> Any:
    """A mask is (batch, keys), or of four axes; ``use_causal_mask``; one key head, or as many as query heads."""
    if k.shape[1] not in (1, q.shape[1]):
        raise NotImplementedError("we have to broadcast the heads explicitly")
    if mask is not None and kv_lengths is not None:
        raise NotImplementedError("one attention_mask")
    given = torch.ones(k.shape[0], k.shape[2], dtype=torch.bool)
    if kv_lengths is not None:
        given = torch.arange(k.shape[2]) < kv_lengths[:, None]
    if mask is not None:
        given = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    return _scorer(query=q, key=k, value=v, attention_mask=AttentionMask(given), use_causal_mask=is_causal)


def torch_sdp(q: Any, k: Any, v: Any, *, kv_lengths: Any = None, is_causal: bool = False) -> Any:
    """Its masks are "'pure' attention masks", (batch, keys); one query comes with a cache."""
    if q.shape[2] not in (1, k.shape[2]):
        raise NotImplementedError("Shape: (batch_size, heads, seq_len, width), of query, key and value")
    with enable_torch_sdp():
        return attention(q, k, v, kv_lengths=kv_lengths, is_causal=is_causal)
