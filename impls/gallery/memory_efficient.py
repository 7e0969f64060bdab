"""memory-efficient-attention-pytorch's ``memory_efficient_attention``, in buckets of queries and keys."""

from __future__ import annotations

from typing import Any

import torch
from memory_efficient_attention_pytorch.memory_efficient_attention import memory_efficient_attention


def attention(q: Any, k: Any, v: Any, *, bias: Any = None, is_causal: bool = False, kv_lengths: Any = None) -> Any:
    """``mask`` is of the keys of each sequence, (batch, keys)."""
    if q.shape[1] != k.shape[1]:
        raise NotImplementedError("q, k, v of the same heads")
    mask = None
    if kv_lengths is not None:
        mask = torch.arange(k.shape[2]) < kv_lengths[:, None]
    return memory_efficient_attention(q, k, v, mask, causal=is_causal, attn_bias=bias)
