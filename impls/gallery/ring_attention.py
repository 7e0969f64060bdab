"""ring-attention-pytorch's ``ring_flash_attn`` in one process: flash attention in buckets of keys."""

from __future__ import annotations

from typing import Any

import torch
from ring_attention_pytorch import ring_flash_attn


def attention(
    q: Any, k: Any, v: Any, *, is_causal: bool = False, kv_lengths: Any = None, softcap: float | None = None
) -> Any:
    """``mask`` is of the keys of each sequence, (batch, keys); ``softclamp_qk_sim`` with its ``softclamp_value``."""
    if is_causal and kv_lengths is not None:
        raise NotImplementedError("causal: bool, or mask: Tensor | None")
    mask = None
    if kv_lengths is not None:
        mask = torch.arange(k.shape[1]) < kv_lengths[:, None]
    cap = {} if softcap is None else {"softclamp_qk_sim": True, "softclamp_value": softcap}
    return ring_flash_attn(q, k, v, mask, is_causal, bucket_size=64, **cap)


attention.layout = "BSHD"  # type: ignore[attr-defined]
