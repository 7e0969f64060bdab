"""Attention in torch with 32-bit offsets, and one with wider offsets, for test_offsets."""

from __future__ import annotations

from typing import Any

import torch

#: Offset from which a 32-bit number wraps.
WRAPS = 2**31


def _narrow(array: torch.Tensor) -> torch.Tensor:
    """The array as 32-bit offsets read it: an entry beyond their reach is read from the first entry's place."""
    for axis in range(array.ndim - 1):
        if (array.shape[axis] - 1) * array.stride(axis) >= WRAPS:
            array = array.narrow(axis, 0, 1).expand_as(array)
    return array


def wide(q: Any, k: Any, v: Any, *, mask: Any = None) -> torch.Tensor:
    """Attention with 64-bit offsets."""
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def narrow(q: Any, k: Any, v: Any, *, mask: Any = None) -> torch.Tensor:
    """Attention with 32-bit offsets into k and the mask."""
    return wide(q, _narrow(k), v, mask=mask if mask is None else _narrow(mask))


def raises(q: Any, k: Any, v: Any) -> torch.Tensor:
    """Attention that raises for an offset that it cannot compute."""
    if _narrow(q) is not q:
        raise IndexError("an offset that is no 32-bit number")
    return wide(q, k, v)


def causal(q: Any, k: Any, v: Any, *, is_causal: bool = False) -> torch.Tensor:
    """Attention that takes only causal calls."""
    if not is_causal:
        raise NotImplementedError("causal alone")
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def no_room(q: Any, k: Any, v: Any) -> torch.Tensor:
    """Attention that runs out of memory for arrays that far apart."""
    if _narrow(q) is not q or _narrow(k) is not k or _narrow(v) is not v:
        raise RuntimeError("CUDA out of memory. Tried to allocate 4.00 GiB")
    return wide(q, k, v)


def refuses(q: Any, k: Any, v: Any) -> torch.Tensor:
    """Attention that refuses every call."""
    raise NotImplementedError("not here")
