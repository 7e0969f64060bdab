"""``jax.nn.dot_product_attention``: JAX's own attention, written out for XLA or passed to cuDNN.

Source: https://docs.jax.dev/en/latest/_autosummary/jax.nn.dot_product_attention.html.  q, k, v and the output are
(B, S, H, D); mask and bias are (B, H, Sq, Sk) with axes of length 1 where they repeat.  It has no causal_offset, no
softcap, no weights, and no values of another width than the keys.  Validation is the library's own.

An exception on a call that it documents is a failure: in float16 it requests products with sums in float32 by name,
which the CPU does not have, and its fallback is a ``try`` around the operation, while a jitted program fails only when
it is compiled.  So float16 works eagerly there, but not under ``jax.jit``.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from attention_conformance.impls.jax.parts import Window


def attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    mask: jax.Array | None = None,
    bias: jax.Array | None = None,
    is_causal: bool = False,
    window: Window | None = None,
    kv_lengths: jax.Array | None = None,
    scale: Any = None,
    return_lse: bool = False,
    implementation: Any = "xla",
) -> Any:
    """The output (B, Sq, Hq, Dv) of one of the library's implementations, and on request the lse (B, Hq, Sq).

    q (B, Sq, Hq, D), k (B, Sk, Hkv, D), v (B, Sk, Hkv, D).  Raises what the library raises.
    """
    if q.shape[-1] == k.shape[-1] != v.shape[-1] and k.shape[:-1] == v.shape[:-1]:
        # "value: value array, should have the same shape as the `key` array."
        raise NotImplementedError("jax.nn.dot_product_attention wants values as wide as the keys")
    options: dict[str, Any] = {"is_causal": is_causal, "scale": scale, "implementation": implementation}
    if window is not None:
        # An open side is as long as all keys and rows together.
        whole = q.shape[1] + k.shape[1]
        options["local_window_size"] = tuple(whole if side is None else side for side in window)
    if kv_lengths is not None:
        options["key_value_seq_lengths"] = kv_lengths.astype(jnp.int32)  # the only dtype that the library takes
    if return_lse:
        options["return_residual"] = True  # a keyword of recent versions only
    result = jax.nn.dot_product_attention(q, k, v, bias, mask, **options)
    if not return_lse:
        return result
    output, lse = result
    return output, lse.swapaxes(1, 2)


@functools.wraps(attention, assigned=("__module__", "__annotations__"))
def cudnn_attention(*arguments: jax.Array, **keywords: Any) -> Any:
    """Attention in cuDNN's flash kernel; scale and window must be Python numbers.

    Raises NotImplementedError for a window that cuDNN does not have: it has a left side, under a causal right side.
    """
    window, is_causal = keywords.get("window"), keywords.get("is_causal", False)
    if window is not None and not (window[1] == 0 or (is_causal and keywords.get("kv_lengths") is None)):
        # "supports only a subset of shapes/dtypes, and an exception will be thrown if its not supported."
        raise NotImplementedError("cuDNN has a window to the right only as is_causal")
    return attention(*arguments, **keywords, implementation="cudnn")
