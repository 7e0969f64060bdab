"""MONAI's ``SABlock``, with and without ``use_flash_attention``, and its ``CrossAttentionBlock``."""

from __future__ import annotations

from typing import Any

import torch
from monai.networks.blocks.crossattention import CrossAttentionBlock
from monai.networks.blocks.selfattention import SABlock


def layer(
    x_q: Any, w_q: Any, w_k: Any, w_v: Any, *, heads: int, w_o: Any = None, b_q: Any = None, b_k: Any = None,
    b_v: Any = None, b_o: Any = None, kv_lengths: Any = None, is_causal: bool = False,
) -> Any:  # fmt: skip
    """The default: einsum and softmax."""
    biases = {"b_q": b_q, "b_k": b_k, "b_v": b_v, "b_o": b_o}
    return _self(x_q, w_q, w_k, w_v, w_o, heads, kv_lengths, is_causal, False, **biases)


def flash(
    x_q: Any, w_q: Any, w_k: Any, w_v: Any, *, heads: int, w_o: Any = None, b_q: Any = None, b_k: Any = None,
    b_v: Any = None, b_o: Any = None, kv_lengths: Any = None, is_causal: bool = False,
) -> Any:  # fmt: skip
    """``use_flash_attention=True``, which calls torch's scaled_dot_product_attention."""
    biases = {"b_q": b_q, "b_k": b_k, "b_v": b_v, "b_o": b_o}
    return _self(x_q, w_q, w_k, w_v, w_o, heads, kv_lengths, is_causal, True, **biases)


def _self(
    x: Any, w_q: Any, w_k: Any, w_v: Any, w_o: Any, heads: int, lengths: Any, is_causal: bool, is_flash: bool, **b: Any
) -> Any:
    """``attn_mask`` is of the keys of each sequence, (batch, keys)."""
    _check(x, w_q, w_k, w_v, w_o, **b)
    if is_causal and lengths is not None:
        raise NotImplementedError("Causal attention does not support attention masks.")
    mask = None if lengths is None else torch.arange(x.shape[1]) < lengths[:, None]
    options = {"dim_head": w_q.shape[1] // heads, "hidden_input_size": w_q.shape[0], "use_flash_attention": is_flash}
    causal = {"causal": is_causal, "sequence_length": x.shape[1] if is_causal else None}
    made = SABlock(w_q.shape[1], heads, qkv_bias=b["b_q"] is not None, **options, **causal).eval()
    given = {"qkv.weight": torch.cat([w_q, w_k, w_v], 1).T} | _output(w_o, b["b_o"])
    if b["b_q"] is not None:
        given["qkv.bias"] = torch.cat([b["b_q"], b["b_k"], b["b_v"]])
    return torch.func.functional_call(made, given, (x, mask))


def cross(
    x_q: Any, w_q: Any, w_k: Any, w_v: Any, *, heads: int, x_kv: Any = None, w_o: Any = None, b_q: Any = None,
    b_k: Any = None, b_v: Any = None, b_o: Any = None, is_causal: bool = False,
) -> Any:  # fmt: skip
    """``context`` has the keys and values; with ``causal`` a ``sequence_length`` is required."""
    _check(x_q, w_q, w_k, w_v, w_o, b_q=b_q, b_k=b_k, b_v=b_v, b_o=b_o)
    longest = max(x_q.shape[1], 0 if x_kv is None else x_kv.shape[1])
    made = CrossAttentionBlock(
        w_q.shape[1],
        heads,
        hidden_input_size=w_q.shape[0],
        context_input_size=w_k.shape[0],
        dim_head=w_q.shape[1] // heads,
        qkv_bias=b_q is not None,
        causal=is_causal,
        sequence_length=longest if is_causal else None,
    ).eval()
    linears = {"to_q": (w_q, b_q), "to_k": (w_k, b_k), "to_v": (w_v, b_v)}
    given = {f"{name}.weight": w.T for name, (w, _) in linears.items()} | _output(w_o, b_o)
    given |= {f"{name}.bias": b for name, (_, b) in linears.items() if b is not None}
    return torch.func.functional_call(made, given, (x_q, x_kv))


def _check(x: Any, w_q: Any, w_k: Any, w_v: Any, w_o: Any, **b: Any) -> None:
    if w_o is None or w_q.shape[1] != w_v.shape[1] or w_o.shape[1] != w_q.shape[0] or x.ndim != 3:
        raise NotImplementedError("B x (s_dim_1 * ... * s_dim_n) x C, and hidden_input_size of the output, too")
    if len({b[name] is None for name in ("b_q", "b_k", "b_v")}) > 1:
        raise NotImplementedError("qkv_bias (bool, optional): bias term for the qkv linear layer.")


def _output(w_o: Any, b_o: Any) -> dict[str, Any]:
    bias = torch.zeros(w_o.shape[1], dtype=w_o.dtype) if b_o is None else b_o
    return {"out_proj.weight": w_o.T, "out_proj.bias": bias}


for each in (layer, flash, cross):
    each.operator = "mha"  # type: ignore[attr-defined, union-attr]
