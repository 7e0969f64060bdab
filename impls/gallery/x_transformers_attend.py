"""x-transformers' ``Attend``, with and without ``flash``."""

from __future__ import annotations

from typing import Any

from x_transformers.attend import Attend


def eager(
    q: Any, k: Any, v: Any, *, mask: Any = None, bias: Any = None, is_causal: bool = False, softcap: float | None = None
) -> Any:
    """``softclamp_logits`` with its ``logit_softclamp_value``."""
    cap = {} if softcap is None else {"softclamp_logits": True, "logit_softclamp_value": softcap}
    return Attend(causal=is_causal, heads=q.shape[1], **cap).eval()(q, k, v, mask=_four(mask), attn_bias=_four(bias))[0]


def flash(q: Any, k: Any, v: Any, *, mask: Any = None, bias: Any = None, is_causal: bool = False) -> Any:
    """``flash=True``, which calls torch's scaled_dot_product_attention."""
    attend = Attend(causal=is_causal, heads=q.shape[1], flash=True).eval()
    return attend(q, k, v, mask=_four(mask), attn_bias=_four(bias))[0]


def _four(array: Any) -> Any:
    """With four axes, as a mask of two would be a "key padding mask"."""
    return None if array is None else array.reshape((1,) * (4 - array.ndim) + array.shape)
