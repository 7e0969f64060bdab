"""NATTEN's ``attention`` and causal ``na1d``, on the CPU, where they run by its backends of Flex Attention."""

from __future__ import annotations

from typing import Any

from natten.functional import attention as natten_attention
from natten.functional import na1d


def attention(
    q: Any, k: Any, v: Any, *, is_causal: bool = False, scale: float | None = None, return_lse: bool = False
) -> Any:
    """In the "heads last layout"; the log-sum-exp is (batch, seqlen, heads)."""
    found = natten_attention(q, k, v, is_causal=is_causal, scale=scale, return_lse=return_lse)
    return (found[0], found[1].transpose(1, 2)) if return_lse else found


def neighborhood(
    q: Any, k: Any, v: Any, *, window: Any = None, is_causal: bool = False, scale: float | None = None
) -> Any:
    """``kernel_size`` counts the query's own key; only a causal neighborhood is a window, others keep their size."""
    left, right = (None, None) if window is None else window
    if left is None or not (is_causal or right == 0) or not 1 <= left < q.shape[1]:
        raise NotImplementedError("kernel_size: at least 2, at most the sequence, and is_causal")
    if len({each.shape[1] for each in (q, k, v)}) > 1:
        raise NotImplementedError(
            "Neighborhood Attention operations require Q, K, and V to match in their token layouts"
        )
    return na1d(q, k, v, kernel_size=left + 1, is_causal=True, scale=scale)


attention.layout = "BSHD"  # type: ignore[attr-defined]
neighborhood.layout = "BSHD"  # type: ignore[attr-defined]
