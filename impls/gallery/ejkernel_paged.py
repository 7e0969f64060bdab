"""ejkernel's ``unified_attention`` over a paged cache, on the CPU, where it runs by XLA."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from ejkernel.modules import unified_attention


def paged(
    q: Any, k_cache: Any, v_cache: Any, cu_seqlens_q: Any, block_table: Any, kv_lengths: Any, *,
    is_causal: bool = False, window: Any = None, scale: float | None = None, softcap: float | None = None,
    sinks: Any = None,
) -> Any:  # fmt: skip
    """``sliding_window`` counts the query's own key; by XLA there is "only causal attention", at the bottom right."""
    left = None if window is None else window[0]
    return unified_attention(
        q,
        k_cache,
        v_cache,
        kv_lengths.astype(jnp.int32),
        block_table.astype(jnp.int32),
        cu_seqlens_q.astype(jnp.int32),
        None,
        None,
        sinks,
        softmax_scale=scale,
        causal=is_causal,
        sliding_window=None if left is None else left + 1,
        logits_soft_cap=softcap,
    )


paged.operator = "paged"  # type: ignore[attr-defined]
