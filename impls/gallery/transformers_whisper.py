"""Transformers' attention of Whisper's decoder, ``WhisperAttention``, with given weights."""

from __future__ import annotations

from typing import Any

import torch
from transformers import WhisperConfig
from transformers.models.whisper.modeling_whisper import WhisperAttention


def layer(
    x_q: Any, w_q: Any, w_k: Any, w_v: Any, *, heads: int, x_kv: Any = None, w_o: Any = None, b_q: Any = None,
    b_k: Any = None, b_v: Any = None, b_o: Any = None, mask: Any = None,
) -> Any:  # fmt: skip
    """Weights are (outputs, inputs); ``k_proj`` has no bias, and all inputs have the model's width."""
    if w_o is None or b_k is not None or len({w.shape for w in (w_q, w_k, w_v, w_o)}) > 1:
        raise NotImplementedError("nn.Linear(embed_dim, embed_dim), and for k_proj bias=False")
    if x_q.ndim != 3:
        raise NotImplementedError("Input shape: Batch x Time x Channel")
    config = WhisperConfig(attn_implementation="sdpa")
    made = WhisperAttention(w_q.shape[0], heads, layer_idx=0, config=config).eval()
    zeros = torch.zeros(w_q.shape[1], dtype=x_q.dtype)
    given = {"q_proj": (w_q, b_q), "v_proj": (w_v, b_v), "out_proj": (w_o, b_o)}
    state = {f"{name}.weight": w.T for name, (w, _) in given.items()} | {"k_proj.weight": w_k.T}
    state |= {f"{name}.bias": zeros if b is None else b for name, (_, b) in given.items()}
    if mask is not None:
        mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape).expand(x_q.shape[0], -1, x_q.shape[1], -1)
    kwargs = {"key_value_states": x_kv, "attention_mask": mask}
    return torch.func.functional_call(made, state, (x_q,), kwargs)[0]


layer.operator = "mha"  # type: ignore[attr-defined]
