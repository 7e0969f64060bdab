"""Merging of partial results in PyTorch: written out, and by the merger of context parallelism."""

from __future__ import annotations

import torch

from attention_conformance.impls.validate import check_merge


def merge(outputs: torch.Tensor, lses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights by softmax over the parts, in float32 or wider; (B, H, S, Dv) and (B, H, S).

    Raises ValueError for inputs that do not fit together (MERGE-15).
    """
    check_merge(outputs, lses)
    empty = torch.isneginf(lses)
    none = empty.all(dim=0)
    # Where no part has a key, 0 replaces −inf: log and exp have no derivative there, and NaN · 0 is NaN.
    used = lses.masked_fill(none, 0)
    lse = torch.logsumexp(used, dim=0)
    weights = torch.exp(used - lse)
    parts = outputs.to(lses.dtype).masked_fill(empty[..., None], 0)
    return (weights[..., None] * parts).sum(dim=0).to(outputs.dtype), lse.masked_fill(none, -torch.inf)


def context_parallel(outputs: torch.Tensor, lses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """One part after the other by ``_SDPAMerger``, which joins what the devices of a ring computed."""
    from torch.distributed.tensor.experimental._context_parallel._attention import _SDPAMerger

    merger = _SDPAMerger(convert_to_f32=outputs.dtype != torch.float64, seq_dim=2)
    for output, lse in zip(outputs, lses, strict=True):
        merger.step(output, lse, partial=False)
    merged: tuple[torch.Tensor, torch.Tensor] = merger.results()
    return merged
