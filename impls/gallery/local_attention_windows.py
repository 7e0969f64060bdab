"""local-attention's ``LocalAttention``: exact windows, without rotary embeddings."""

from __future__ import annotations

from typing import Any

import torch
from local_attention import LocalAttention


def attention(q: Any, k: Any, v: Any, *, window: Any = None, is_causal: bool = False, kv_lengths: Any = None) -> Any:
    """``window_size`` to either side by ``exact_windowsize``; ``autopad`` for other lengths; ``mask`` of the keys."""
    left, right = (None, None) if window is None else window
    causal = is_causal or right == 0
    if not left or (right != left and not causal):
        raise NotImplementedError("window_size, of as many keys before a query as behind it, or causal")
    if q.shape[:3] != k.shape[:3] or q.shape[3] != v.shape[3]:
        raise NotImplementedError("b, n, dim_head = q.shape, of keys and values, too")
    mask = None if kv_lengths is None else torch.arange(k.shape[2]) < kv_lengths[:, None]
    made = LocalAttention(left, causal=causal, exact_windowsize=True, autopad=True, use_rotary_pos_emb=False)
    return made.eval()(q, k, v, mask=mask)
