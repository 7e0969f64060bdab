"""Attention written out in PyTorch: matmul, softmax, matmul, in the dtype of the inputs.

Source: SPEC.md; the form that model code has where it does not call the library's function.  It
expresses every keyword but ALiBi, scales by head, rotations, block masks and trees.  No branch depends on a tensor's
values, so that it can be compiled and exported.
NaN and infinity in v at a masked key reach the output as 0 · NaN, as in every plain product (SDPA-22).
"""

from __future__ import annotations

import math
from typing import Any

import torch

from attention_conformance.impls.validate import check_inputs, check_past


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    mask: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    is_causal: bool = False,
    causal_offset: int | torch.Tensor | None = None,
    window: tuple[int | None, int | None] | None = None,
    kv_lengths: torch.Tensor | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
    past_key: torch.Tensor | None = None,
    past_value: torch.Tensor | None = None,
    return_weights: bool = False,
    return_lse: bool = False,
) -> Any:
    """The output (B, Hq, Sq, Dv), and on request the weights (B, Hq, Sq, Sk) and the lse (B, Hq, Sq); then the present.

    Shapes and keywords as in impls.contract; lse is float32, or float64 for float64 inputs.  Raises
    ValueError or TypeError for inputs that do not fit together (SDPA-31 to SDPA-36, DEC-7).
    """
    k, v, offset, present = with_past(k, v, causal_offset, past_key, past_value)
    check_inputs(q, k, v, mask, bias, sinks)
    group = q.shape[1] // k.shape[1]
    if group != 1:
        k = k.repeat_interleave(group, dim=1)
        v = v.repeat_interleave(group, dim=1)
    if scale is None:
        scale = 1 / math.sqrt(q.shape[3])
    if abs(scale) <= 1:  # q · k may overflow float16 where the scaled score does not (SDPA-26)
        scores = torch.matmul(q * scale, k.transpose(2, 3))
    else:
        scores = torch.matmul(q, k.transpose(2, 3)) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias

    allowed = _allowed(q, k, mask, bias, is_causal, offset, window, kv_lengths)
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -math.inf)
    if sinks is not None:  # one key more, whose value is 0 (SDPA-38)
        scores = torch.cat([scores, sinks.reshape(-1, 1, 1).expand(*scores.shape[:3], 1)], dim=-1)
    weights = torch.softmax(scores, dim=-1)
    if sinks is not None:
        weights = weights[..., :-1]
    if allowed is not None:
        weights = weights.masked_fill(~allowed.any(dim=-1, keepdim=True), 0)  # softmax gives NaN there
    results = [torch.matmul(weights, v)]
    if return_weights:
        results.append(weights)
    if return_lse:
        results.append(torch.logsumexp(scores.to(torch.promote_types(q.dtype, torch.float32)), dim=-1))
    results += present
    return tuple(results) if len(results) > 1 else results[0]


def with_past(
    k: torch.Tensor,
    v: torch.Tensor,
    causal_offset: int | torch.Tensor | None,
    past_key: torch.Tensor | None,
    past_value: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, int | torch.Tensor, list[torch.Tensor]]:
    """All keys and values, the offset of the diagonal, and the present, if any (DEC-1 to DEC-3).

    Raises ValueError or TypeError for a past that does not fit (DEC-7).
    """
    if past_key is None and past_value is None:
        return k, v, 0 if causal_offset is None else causal_offset, []
    check_past(k, v, past_key, past_value)
    assert past_key is not None
    assert past_value is not None
    k, v = torch.cat([past_key, k], dim=2), torch.cat([past_value, v], dim=2)
    return k, v, past_key.shape[2] if causal_offset is None else causal_offset, [k, v]


def _allowed(
    q: torch.Tensor,
    k: torch.Tensor,
    mask: torch.Tensor | None,
    bias: torch.Tensor | None,
    is_causal: bool,
    causal_offset: int | torch.Tensor,
    window: tuple[int | None, int | None] | None,
    kv_lengths: torch.Tensor | None,
) -> torch.Tensor | None:
    """Allowed keys, broadcastable to (B, Hq, Sq, Sk); None for all."""
    parts = []
    if mask is not None:
        parts.append(mask)
    if bias is not None:
        parts.append(bias != -math.inf)
    key = torch.arange(k.shape[2], device=q.device)
    if isinstance(causal_offset, torch.Tensor):
        causal_offset = causal_offset.reshape(-1, 1, 1, 1)
    diagonal = torch.arange(q.shape[2], device=q.device)[:, None] + causal_offset
    left, right = window or (None, None)
    if is_causal:
        parts.append(key <= diagonal)
    if left is not None:
        parts.append(key >= diagonal - left)
    if right is not None:
        parts.append(key <= diagonal + right)
    if kv_lengths is not None:
        parts.append(key < kv_lengths.reshape(-1, 1, 1, 1))
    if not parts:
        return None
    allowed = parts[0]
    for part in parts[1:]:
        allowed = allowed & part
    return allowed
