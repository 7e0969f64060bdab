"""Attention over latents in PyTorch, expanded (MLA-2): keys and values of every head, for eager.py."""

from __future__ import annotations

from typing import Any

import torch

from attention_conformance.impls.torch.eager import attention
from attention_conformance.impls.validate import check_latent


def latent(
    q: torch.Tensor,
    q_rope: torch.Tensor,
    latents: torch.Tensor,
    k_rope: torch.Tensor,
    w_uk: torch.Tensor,
    w_uv: torch.Tensor,
    *,
    is_causal: bool = False,
    causal_offset: int | torch.Tensor | None = None,
    kv_lengths: torch.Tensor | None = None,
    scale: float | None = None,
    return_lse: bool = False,
) -> Any:
    """The output (B, H, Sq, Dv), and on request the lse (B, H, Sq).

    Raises ValueError or TypeError for inputs that do not fit together (MLA-8).
    """
    check_latent(q, q_rope, latents, k_rope, w_uk, w_uv)
    keys = torch.matmul(latents[:, None], w_uk)
    rope = k_rope[:, None].expand(-1, q.shape[1], -1, -1)
    return attention(
        torch.cat([q, q_rope], dim=3),
        torch.cat([keys, rope], dim=3),
        torch.matmul(latents[:, None], w_uv),
        is_causal=is_causal,
        causal_offset=causal_offset,
        kv_lengths=kv_lengths,
        scale=scale,
        return_lse=return_lse,
    )
