"""PyTorch's ``scaled_dot_product_attention`` of nested tensors with the jagged layout, a sequence per batch entry."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention


def attention(
    q: Any, k: Any, v: Any, *, is_causal: bool = False, kv_lengths: Any = None, scale: float | None = None
) -> Any:
    """Lengths are those of the sequences; the heads are moved before them, as its tutorial has it."""
    lengths = [k.shape[2]] * k.shape[0] if kv_lengths is None else kv_lengths.tolist()
    keys, values = (
        torch.nested.nested_tensor(
            [one[:, :n].transpose(0, 1) for one, n in zip(x, lengths, strict=True)], layout=torch.jagged
        )
        for x in (k, v)
    )
    queries = torch.nested.nested_tensor([one.transpose(0, 1) for one in q], layout=torch.jagged)
    found = scaled_dot_product_attention(
        queries.transpose(1, 2),
        keys.transpose(1, 2),
        values.transpose(1, 2),
        is_causal=is_causal,
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )
    return torch.stack([one.transpose(0, 1) for one in found.transpose(1, 2).unbind()])
