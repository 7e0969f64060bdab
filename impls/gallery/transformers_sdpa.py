"""Transformers' default attention (``attn_implementation="sdpa"``), by the attention interface."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from transformers.integrations.sdpa_attention import sdpa_attention_forward


def attention(
    q: Any, k: Any, v: Any, *, mask: Any = None, bias: Any = None, is_causal: bool = False, scale: float | None = None
) -> Any:
    """``position_bias`` is "added to the QK^T result in the attention, before the softmax"."""
    layer = SimpleNamespace(num_key_value_groups=q.shape[1] // k.shape[1], training=False)
    given = {"scaling": scale, "is_causal": is_causal, "position_bias": bias}
    return sdpa_attention_forward(layer, q, k, v, mask, **given)[0].transpose(1, 2)
