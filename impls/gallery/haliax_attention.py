"""Haliax's ``dot_product_attention`` of named axes, in which grouped heads are two axes, as Levanter names them."""

from __future__ import annotations

from typing import Any

import haliax as hax
from haliax.nn.attention import causal_mask, combine_masks_and, dot_product_attention


def attention(
    q: Any, k: Any, v: Any, *, mask: Any = None, bias: Any = None, is_causal: bool = False, causal_offset: Any = None
) -> Any:
    """``causal_mask`` has a ``q_start``; a mask or bias has only the names of the axes that it has."""
    groups = {"kv_heads": k.shape[1], "q_heads_per_group": q.shape[1] // k.shape[1]}
    query = hax.named(q, ("batch", "heads", "position", "head_size")).unflatten_axis("heads", groups)
    key = hax.named(k, ("batch", "kv_heads", "key_position", "head_size"))
    value = hax.named(v, ("batch", "kv_heads", "key_position", "value_size"))
    if mask is not None:
        mask = _named(mask, groups)
    if bias is not None:
        bias = _named(bias, groups)
    if is_causal:
        start = 0 if causal_offset is None else causal_offset
        if not isinstance(start, int):
            start = hax.named(start, ("batch",))
        causal = causal_mask(query.resolve_axis("position"), key.resolve_axis("key_position"), q_start=start)
        mask = combine_masks_and(mask, causal)
    out = dot_product_attention("key_position", "head_size", query, key, value, mask=mask, bias=bias)
    out = out.rearrange(("batch", *groups, "position", "value_size"))
    return out.flatten_axes(tuple(groups), "heads").array


def _named(array: Any, groups: dict[str, int]) -> Any:
    names = ["batch", "heads", "position", "key_position"]
    if array.ndim > 4:
        return hax.named(array, names)
    kept = {name: size for name, size in zip(names[4 - array.ndim :], array.shape, strict=True) if size != 1}
    found = hax.named(array.reshape(tuple(kept.values())), tuple(kept))
    return found.unflatten_axis("heads", groups) if found.has_axis("heads") else found
