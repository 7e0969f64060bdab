"""The written-out attention of ``impls.torch.eager`` under ``torch.compile``, with the commonest keywords.

Source: https://pytorch.org/docs/stable/generated/torch.compile.html.  torch compiles once for each set of keywords
and each pattern of axes of length 0 or 1, for several seconds each; lengths and the value of ``scale`` are inputs
of the compiled code.  With all ten keywords, a set of 38 option combinations needs 32 compilations for every such
pattern of shapes, which is why only three of them are offered here.  What is fused does not depend on the others.
"""

from __future__ import annotations

from typing import Any

import torch

from impls.torch import eager


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    mask: torch.Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> Any:
    """The output (B, Hq, Sq, Dv) of ``eager.attention``, which raises for what does not fit together."""
    return eager.attention(q, k, v, mask=mask, is_causal=is_causal, scale=scale)
