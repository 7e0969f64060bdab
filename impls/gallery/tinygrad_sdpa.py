"""tinygrad's ``Tensor.scaled_dot_product_attention`` on the CPU."""

from __future__ import annotations

from typing import Any

from tinygrad import Tensor


def attention(q: Any, k: Any, v: Any, *, mask: Any = None, bias: Any = None, is_causal: bool = False) -> Any:
    """``attn_mask`` is a boolean mask or added to the scores."""
    if mask is not None and bias is not None:
        raise NotImplementedError("one attn_mask")
    added = bias if mask is None else mask
    if added is not None and is_causal:
        raise NotImplementedError("cannot set attn_mask when is_causal=True")
    given = None if added is None else Tensor(added)
    grouped = q.shape[1] != k.shape[1]
    found = Tensor(q).scaled_dot_product_attention(
        Tensor(k), Tensor(v), attn_mask=given, is_causal=is_causal, enable_gqa=grouped
    )
    return found.numpy()
