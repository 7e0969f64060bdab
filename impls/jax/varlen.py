"""Packed sequences by ``jax.nn.dot_product_attention``: one sequence of the whole pack, masked by segment.

The mask is (1, 1, Tq, Tk), as training code in JAX packs sequences.  Fully masked rows are what the library returns.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from attention_conformance.impls.jax.parts import Window
from attention_conformance.impls.validate import check_pack_bias, check_packs


def varlen(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    cu_seqlens_q: jax.Array,
    cu_seqlens_k: jax.Array,
    *,
    is_causal: bool = False,
    causal_offset: Any = None,
    window: Window | None = None,
    scale: Any = None,
    max_seqlen_q: int = 0,
    max_seqlen_k: int = 0,
    bias: jax.Array | None = None,
    return_lse: bool = False,
) -> Any:
    """The output (Tq, Hq, Dv), and on request the lse (Hq, Tq).

    Raises NotImplementedError for values of another width than the keys, and what the library raises.
    """
    check_packs(q, k, v, cu_seqlens_q, cu_seqlens_k)
    check_pack_bias(bias, q, cu_seqlens_q, max_seqlen_q, max_seqlen_k)
    if k.shape[-1] != v.shape[-1]:
        # "value: value array, should have the same shape as the `key` array."
        raise NotImplementedError("jax.nn.dot_product_attention wants values as wide as the keys")
    offset = jnp.diff(cu_seqlens_k) - jnp.diff(cu_seqlens_q) if causal_offset is None else causal_offset
    places = []
    for boundaries, rows in ((cu_seqlens_q, jnp.arange(len(q))), (cu_seqlens_k, jnp.arange(len(k)))):
        sequence = jnp.searchsorted(boundaries[1:], rows, side="right")
        places.append((sequence, rows - boundaries[sequence]))
    (of_row, i), (of_key, j) = places
    diagonal = (i + jnp.broadcast_to(jnp.asarray(offset), (len(cu_seqlens_q) - 1,))[of_row])[:, None]
    mask = of_row[:, None] == of_key
    left, right = window or (None, None)
    if is_causal:
        mask &= j <= diagonal
    if left is not None:
        mask &= j >= diagonal - left
    if right is not None:
        mask &= j <= diagonal + right
    options: dict[str, Any] = {"return_residual": True} if return_lse else {}
    if bias is not None:  # for a pair in two sequences, which the mask takes out, any entry will do
        own = of_row[:, None] if len(bias) > 1 else 0
        options["bias"] = jnp.moveaxis(bias, 1, -1).at[own, i[:, None], j].get(mode="clip").transpose(2, 0, 1)[None]
    found = jax.nn.dot_product_attention(
        q[None], k[None], v[None], mask=mask[None, None], scale=scale, implementation="xla", **options
    )
    return (found[0][0], found[1][0].swapaxes(0, 1)) if return_lse else found[0]
