"""The multi-head layer and its sub-layer written out in PyTorch, in the dtype of the inputs.

Source: Vaswani et al. 2017, §3.2.2 (layer) and §3.1 (post-norm); Xiong et al. 2020 (pre-norm).  The form that
tutorials teach: linear layers, heads split, attention of each, heads combined, a linear layer.  No branch depends on a
tensor's values, so that it can be compiled and exported.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import layer_norm, linear

from attention_conformance.impls.torch.eager import attention
from attention_conformance.impls.validate import check_layer


def mha(
    x_q: torch.Tensor,
    w_q: torch.Tensor,
    w_k: torch.Tensor,
    w_v: torch.Tensor,
    *,
    heads: int,
    x_kv: torch.Tensor | None = None,
    w_o: torch.Tensor | None = None,
    b_q: torch.Tensor | None = None,
    b_k: torch.Tensor | None = None,
    b_v: torch.Tensor | None = None,
    b_o: torch.Tensor | None = None,
    mask: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    is_causal: bool = False,
    kv_lengths: torch.Tensor | None = None,
    scale: float | None = None,
    sequence_first: bool = False,
    return_weights: bool = False,
    average_weights: bool = False,
) -> Any:
    """The output (B, Sq, Eo), and on request the weights (B, H, Sq, Sk) or their mean over heads (B, Sq, Sk).

    x_q (B, Sq, E), x_kv (B, Sk, Ekv), weights as in impls.operators.  Inputs of rank 2 are one batch without its
    axis; with ``sequence_first`` inputs and output are (S, B, E).  Raises ValueError or TypeError for inputs that do
    not fit together.
    """
    check_layer(heads, x_q, x_kv, w_q=w_q, w_k=w_k, w_v=w_v, w_o=w_o, b_q=b_q, b_k=b_k, b_v=b_v, b_o=b_o)
    batched, sequence_first = x_q.ndim == 3, sequence_first and x_q.ndim == 3
    x_q, x_kv = (_batch_first(x, sequence_first) for x in (x_q, x_q if x_kv is None else x_kv))
    found = attention(
        _split(linear(x_q, w_q.mT, b_q), heads),
        _split(linear(x_kv, w_k.mT, b_k), heads),
        _split(linear(x_kv, w_v.mT, b_v), heads),
        mask=mask,
        bias=bias,
        is_causal=is_causal,
        kv_lengths=kv_lengths,
        scale=scale,
        return_weights=return_weights,
    )
    output, weights = found if return_weights else (found, None)
    output = _combine(output)
    if w_o is not None:
        output = linear(output, w_o.mT, b_o)
    output = _batch_first(output, sequence_first)
    if weights is None:
        return output if batched else output[0]
    if average_weights:
        weights = weights.mean(dim=1)
    return (output, weights) if batched else (output[0], weights[0])


def sublayer(
    x_q: torch.Tensor,
    w_q: torch.Tensor,
    w_k: torch.Tensor,
    w_v: torch.Tensor,
    *,
    heads: int,
    gamma: torch.Tensor,
    beta: torch.Tensor,
    epsilon: float,
    pre_norm: bool = False,
    **layer: Any,
) -> torch.Tensor:
    """LayerNorm(x_q + mha(x_q, …)), or x_q + mha(LayerNorm(x_q), …) with ``pre_norm``; shape and dtype of x_q.

    gamma, beta (E,); ``layer`` holds the other keywords of ``mha`` except those for weights.  ``x_kv`` is not
    normalised.  Raises as ``mha``, and ValueError for an output that is not as wide as x_q.
    """
    named = {name: layer.get(name) for name in ("w_o", "b_q", "b_k", "b_v", "b_o")}
    check_layer(heads, x_q, layer.get("x_kv"), w_q=w_q, w_k=w_k, w_v=w_v, gamma=gamma, beta=beta, **named)
    widths = (x_q.shape[-1],)
    if pre_norm:
        normal = layer_norm(x_q, widths, gamma, beta, epsilon)
        return x_q + mha(normal, w_q, w_k, w_v, heads=heads, **layer)
    return layer_norm(x_q + mha(x_q, w_q, w_k, w_v, heads=heads, **layer), widths, gamma, beta, epsilon)


def _split(x: torch.Tensor, heads: int) -> torch.Tensor:
    """(B, S, H · D) to (B, H, S, D): head h is columns h · D to (h + 1) · D − 1."""
    batch, length, width = x.shape
    return x.reshape(batch, length, heads, width // heads).transpose(1, 2)


def _combine(x: torch.Tensor) -> torch.Tensor:
    """(B, H, S, D) to (B, S, H · D): the sequence axis goes before the heads, then they are laid side by side."""
    batch, heads, length, width = x.shape
    return x.transpose(1, 2).reshape(batch, length, heads * width)


def _batch_first(x: torch.Tensor, sequence_first: bool) -> torch.Tensor:
    """(S, B, E) to (B, S, E), or back; rank 2 becomes a batch of one."""
    if x.ndim == 2:
        return x[None]
    return x.transpose(0, 1) if sequence_first else x
