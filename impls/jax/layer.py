"""The multi-head layer and its sub-layer written out in jax.numpy, traceable under ``jax.jit``.

Source: Vaswani et al. 2017, §3.2.2 (layer) and §3.1 (post-norm); Xiong et al. 2020 (pre-norm); Ba et al. 2016
(LayerNorm).  Half precision is computed in float32 throughout and rounded once, at the end.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from attention_conformance.impls.jax.eager import attention
from attention_conformance.impls.jax.parts import PRECISION, working_dtype
from attention_conformance.impls.validate import check_layer


def mha(
    x_q: jax.Array,
    w_q: jax.Array,
    w_k: jax.Array,
    w_v: jax.Array,
    *,
    heads: int,
    x_kv: jax.Array | None = None,
    w_o: jax.Array | None = None,
    b_q: jax.Array | None = None,
    b_k: jax.Array | None = None,
    b_v: jax.Array | None = None,
    b_o: jax.Array | None = None,
    mask: jax.Array | None = None,
    bias: jax.Array | None = None,
    is_causal: bool = False,
    kv_lengths: jax.Array | None = None,
    scale: Any = None,
    sequence_first: bool = False,
    return_weights: bool = False,
    average_weights: bool = False,
) -> Any:
    """The output (B, Sq, Eo), and on request the weights (B, H, Sq, Sk) or their mean over heads (B, Sq, Sk).

    x_q (B, Sq, E), x_kv (B, Sk, Ekv), weights as in impls.operators; scale may be a traced scalar.  Inputs of rank 2
    are one batch without its axis; with ``sequence_first`` inputs and output are (S, B, E).  Raises ValueError or
    TypeError for inputs that do not fit together.
    """
    check_layer(heads, x_q, x_kv, w_q=w_q, w_k=w_k, w_v=w_v, w_o=w_o, b_q=b_q, b_k=b_k, b_v=b_v, b_o=b_o)
    dtype, work = x_q.dtype, working_dtype(x_q.dtype)
    if bias is not None and bias.dtype != dtype:
        raise TypeError(f"bias must have the dtype of x_q, {dtype}, got {bias.dtype}")
    batched, sequence_first = x_q.ndim == 3, sequence_first and x_q.ndim == 3
    x_q, x_kv = (_batch_first(x.astype(work), sequence_first) for x in (x_q, x_q if x_kv is None else x_kv))
    found = attention(
        _split(_project(x_q, w_q, b_q), heads),
        _split(_project(x_kv, w_k, b_k), heads),
        _split(_project(x_kv, w_v, b_v), heads),
        mask=mask,
        bias=None if bias is None else bias.astype(work),
        is_causal=is_causal,
        kv_lengths=kv_lengths,
        scale=scale,
        return_weights=return_weights,
    )
    output, weights = found if return_weights else (found, None)
    output = _combine(output)
    if w_o is not None:
        output = _project(output, w_o, b_o)
    output = _batch_first(output, sequence_first).astype(dtype)
    if weights is None:
        return output if batched else output[0]
    if average_weights:
        weights = weights.mean(axis=1)
    weights = weights.astype(dtype)
    return (output, weights) if batched else (output[0], weights[0])


def sublayer(
    x_q: jax.Array,
    w_q: jax.Array,
    w_k: jax.Array,
    w_v: jax.Array,
    *,
    heads: int,
    gamma: jax.Array,
    beta: jax.Array,
    epsilon: Any,
    pre_norm: bool = False,
    bias: jax.Array | None = None,
    **layer: Any,
) -> jax.Array:
    """LayerNorm(x_q + mha(x_q, …)), or x_q + mha(LayerNorm(x_q), …) with ``pre_norm``; shape and dtype of x_q.

    gamma, beta (E,); ``layer`` holds the other keywords of ``mha`` except those for weights.  ``x_kv`` is not
    normalised; epsilon may be a traced scalar.  Raises as ``mha``, and ValueError for an output that is not as wide
    as x_q.
    """
    named = {name: layer.get(name) for name in ("w_o", "b_q", "b_k", "b_v", "b_o")}
    check_layer(heads, x_q, layer.get("x_kv"), w_q=w_q, w_k=w_k, w_v=w_v, gamma=gamma, beta=beta, **named)
    dtype, work = x_q.dtype, working_dtype(x_q.dtype)
    if bias is not None and bias.dtype != dtype:
        raise TypeError(f"bias must have the dtype of x_q, {dtype}, got {bias.dtype}")
    x, w_q, w_k, w_v, gamma, beta = (a.astype(work) for a in (x_q, w_q, w_k, w_v, gamma, beta))
    layer = {name: _wide(value, work) for name, value in {**layer, "bias": bias}.items()}
    if pre_norm:
        output = x + mha(_normalise(x, gamma, beta, epsilon), w_q, w_k, w_v, heads=heads, **layer)
    else:
        output = _normalise(x + mha(x, w_q, w_k, w_v, heads=heads, **layer), gamma, beta, epsilon)
    return output.astype(dtype)


def _project(x: jax.Array, w: jax.Array, b: jax.Array | None) -> jax.Array:
    """X @ w + b in the dtype of x."""
    y = jnp.matmul(x, w.astype(x.dtype), precision=PRECISION)
    return y if b is None else y + b.astype(x.dtype)


def _split(x: jax.Array, heads: int) -> jax.Array:
    """(B, S, H · D) to (B, H, S, D): head h is columns h · D to (h + 1) · D − 1."""
    batch, length, width = x.shape
    return x.reshape(batch, length, heads, width // heads).transpose(0, 2, 1, 3)


def _combine(x: jax.Array) -> jax.Array:
    """(B, H, S, D) to (B, S, H · D): the sequence axis goes before the heads, then they are laid side by side."""
    batch, heads, length, width = x.shape
    return x.transpose(0, 2, 1, 3).reshape(batch, length, heads * width)


def _batch_first(x: jax.Array, sequence_first: bool) -> jax.Array:
    """(S, B, E) to (B, S, E), or back; rank 2 becomes a batch of one."""
    if x.ndim == 2:
        return x[None]
    return x.swapaxes(0, 1) if sequence_first else x


def _normalise(x: jax.Array, gamma: jax.Array, beta: jax.Array, epsilon: Any) -> jax.Array:
    """LayerNorm over the last axis, with the variance of the row itself (divided by E, not by E − 1)."""
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = jnp.square(centred).mean(axis=-1, keepdims=True)
    return centred / jnp.sqrt(variance + jnp.asarray(epsilon, x.dtype)) * gamma + beta


def _wide(value: Any, work: Any) -> Any:
    """A floating-point array in the working dtype; masks, lengths and plain values unchanged."""
    floating = isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jnp.floating) and value.ndim > 0
    return value.astype(work) if floating else value
