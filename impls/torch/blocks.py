"""Block masks and trees of draft tokens as the mask of torch.nn.functional.scaled_dot_product_attention.

Source: SPEC.md, BLOCK-1 to TREE-4: the dense mask that both mean, as model code has it where it has no kernel.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from attention_conformance.impls.torch.eager import with_past
from attention_conformance.impls.torch.sdpa import attention
from attention_conformance.impls.validate import check_inputs, check_masks


def block_sparse(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    mask: torch.Tensor | None = None,
    is_causal: bool = False,
    causal_offset: int | torch.Tensor | None = None,
    block_mask: torch.Tensor | None = None,
    block_size: tuple[int, int] | None = None,
    tree_parents: torch.Tensor | None = None,
    past_key: torch.Tensor | None = None,
    past_value: torch.Tensor | None = None,
) -> Any:
    """The output (B, Hq, Sq, Dv), and with a past the present; keywords as in impls.contract.

    Raises ValueError or TypeError for inputs that do not fit together, NotImplementedError for calls that the function
    refuses by name.
    """
    k, v, offset, present = with_past(k, v, causal_offset, past_key, past_value)
    check_inputs(q, k, v, mask)
    check_masks(q, k, block_mask, block_size, tree_parents)
    queries, keys = (torch.arange(n, device=q.device) for n in (q.shape[2], k.shape[2]))
    parts = [] if mask is None else [mask]
    if is_causal:
        start = offset.reshape(-1, 1, 1, 1) if isinstance(offset, torch.Tensor) else offset
        parts.append(keys <= queries[:, None] + start)
    if block_mask is not None and block_size is not None:
        parts.append(block_mask[..., queries // block_size[0], :][..., keys // block_size[1]])
    if tree_parents is not None:
        parts.append(tree_allows(tree_parents, offset, keys))
    whole = functools.reduce(torch.logical_and, parts) if parts else None
    output = attention(q, k, v, mask=whole)
    return (output, *present) if present else output


def tree_allows(parents: torch.Tensor, offset: int | torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """TREE-1: the keys before the tree, and those of a node and its ancestors, (B or 1, 1, Sq, Sk)."""
    nodes = parents.shape[-1]
    follows = parents.reshape(-1, nodes, 1) == torch.arange(nodes, device=parents.device)
    seen = torch.eye(nodes, device=parents.device) + follows
    for _ in range(max(nodes - 1, 0).bit_length()):  # twice as many generations each time
        seen = torch.clamp(seen @ seen, max=1)
    place = keys - torch.as_tensor(offset, device=keys.device).reshape(-1, 1, 1)
    inside = (place >= 0) & (place < nodes)
    batch = place.shape[0] if seen.shape[0] == 1 else seen.shape[0]
    column = torch.where(inside, place, 0).expand(batch, nodes, len(keys))
    own = torch.gather(seen.expand(batch, nodes, nodes), 2, column) > 0
    return ((place < 0) | (inside & own))[:, None]
