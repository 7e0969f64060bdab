"""Transformers' attention of BERT, ``BertAttention``: the heads, their projection, the sum and the norm behind it."""

from __future__ import annotations

from typing import Any

import torch
from transformers import BertConfig
from transformers.models.bert.modeling_bert import BertAttention


def layer(
    x_q: Any, w_q: Any, w_k: Any, w_v: Any, *, heads: int, gamma: Any, beta: Any, epsilon: float, w_o: Any = None,
    b_q: Any = None, b_k: Any = None, b_v: Any = None, b_o: Any = None, mask: Any = None,
) -> Any:  # fmt: skip
    """Weights are (outputs, inputs), each with a bias; the mask is "0 or the minimum", as its models make it."""
    if w_o is None or x_q.ndim != 3 or len({w.shape for w in (w_q, w_k, w_v, w_o)}) > 1 or w_q.shape[0] != w_q.shape[1]:
        raise NotImplementedError("nn.Linear(config.hidden_size, self.all_head_size)")
    options = {"hidden_size": w_q.shape[0], "num_attention_heads": heads, "layer_norm_eps": epsilon}
    made = BertAttention(BertConfig(**options, attn_implementation="eager")).eval()
    zeros = torch.zeros(w_q.shape[1], dtype=x_q.dtype)
    given = {"self.query": (w_q, b_q), "self.key": (w_k, b_k), "self.value": (w_v, b_v), "output.dense": (w_o, b_o)}
    state = {f"{name}.weight": w.T for name, (w, _) in given.items()}
    state |= {f"{name}.bias": zeros if b is None else b for name, (_, b) in given.items()}
    state |= {"output.LayerNorm.weight": gamma, "output.LayerNorm.bias": beta}
    added = None
    if mask is not None:  # masking_utils.eager_mask
        added = torch.where(mask, torch.zeros((), dtype=x_q.dtype), torch.finfo(x_q.dtype).min)
        added = added.reshape((1,) * (4 - added.ndim) + added.shape)
    return torch.func.functional_call(made, state, (x_q, added))[0]


layer.operator = "sublayer"  # type: ignore[attr-defined]
