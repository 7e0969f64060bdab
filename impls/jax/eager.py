"""Attention written out in jax.numpy: matmul, softmax, matmul, over the whole score matrix.

Source: SPEC.md, clause by clause.  Half precision is computed in float32 and rounded once at the end.
It expresses every keyword; its memory is a few arrays of B · Hq · Sq · Sk elements, fewer where a compiler fuses.

The table has it only jitted.  Run operation by operation it gives the same results on every case, but each operation
is compiled for each shape, which takes several times as long as one program per shape.
"""

from __future__ import annotations

from functools import reduce
from operator import and_
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from attention_conformance.impls.jax.parts import (
    PRECISION,
    Window,
    add_special,
    diagonal_tests,
    distances,
    finite_part,
    grouped,
    special_places,
    split_scale,
    tree_allows,
    with_past,
    working_dtype,
)
from attention_conformance.impls.rotary import check_rotary, rotated
from attention_conformance.impls.validate import check_by_head, check_inputs, check_masks


def attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    mask: jax.Array | None = None,
    bias: jax.Array | None = None,
    is_causal: bool = False,
    causal_offset: Any = None,
    window: Window | None = None,
    kv_lengths: jax.Array | None = None,
    scale: Any = None,
    softcap: Any = None,
    sinks: jax.Array | None = None,
    alibi_slopes: jax.Array | None = None,
    head_scale: jax.Array | None = None,
    rotary_cos: jax.Array | None = None,
    rotary_sin: jax.Array | None = None,
    rotary_interleaved: bool = False,
    block_mask: jax.Array | None = None,
    block_size: tuple[int, int] | None = None,
    tree_parents: jax.Array | None = None,
    past_key: jax.Array | None = None,
    past_value: jax.Array | None = None,
    return_weights: bool = False,
    return_lse: bool = False,
) -> Any:
    """The output (B, Hq, Sq, Dv), and on request the weights (B, Hq, Sq, Sk) and the lse (B, Hq, Sq); then the present.

    Shapes and keywords as in impls.contract; scale, softcap, causal_offset and the sides of the window may be traced
    scalars.  lse is float32, or float64 for float64 inputs.  Raises ValueError or TypeError for inputs that
    do not fit together (SDPA-31 to SDPA-36, DEC-7).
    """
    k, v, offset, present = with_past(k, v, causal_offset, past_key, past_value)
    check_inputs(q, k, v, mask, bias, sinks)
    check_by_head(q, alibi_slopes=alibi_slopes, head_scale=head_scale)
    check_rotary(q, rotary_cos, rotary_sin)
    check_masks(q, k, block_mask, block_size, tree_parents)
    dtype, work = q.dtype, working_dtype(q.dtype)
    shape = (*q.shape[:3], k.shape[2])
    if rotary_cos is not None and rotary_sin is not None:
        tables = (rotary_cos.astype(work), rotary_sin.astype(work))
        place = jnp.arange(q.shape[2]) + jnp.reshape(jnp.asarray(offset), (-1, 1))
        q = rotated(q.astype(work), *tables, place, rotary_interleaved)
        k = rotated(k.astype(work), *tables, jnp.arange(k.shape[2])[None], rotary_interleaved)
    before, after = split_scale(scale, q.shape[3], work)
    scores = _matmul("bhgid,bhjd->bhgij", q.astype(work) * before, k.astype(work)).reshape(shape)
    if after is not None:
        scores = scores * after
    if head_scale is not None:
        scores = scores * head_scale.astype(work)[:, None, None]
    if softcap is not None:
        cap = jnp.asarray(softcap, work)
        scores = cap * jnp.tanh(scores / cap)
    if bias is not None:
        scores = scores + bias.astype(work)

    rows, keys = jnp.arange(shape[2])[:, None], jnp.arange(shape[3])
    if alibi_slopes is not None:
        scores = scores - alibi_slopes.astype(work)[:, None, None] * distances(rows, keys, offset).astype(work)
    tests = list(diagonal_tests(rows, keys, is_causal, offset, window, kv_lengths))
    tests += [] if mask is None else [mask]
    tests += [] if bias is None else [~jnp.isneginf(bias)]
    if block_mask is not None and block_size is not None:
        tests.append(
            block_mask[..., np.arange(shape[2]) // block_size[0], :][..., np.arange(shape[3]) // block_size[1]]
        )
    if tree_parents is not None:
        tests.append(tree_allows(tree_parents, offset, keys))
    allowed = reduce(and_, tests) if tests else None
    scores = scores if allowed is None else jnp.where(allowed, scores, -jnp.inf)

    if sinks is None:
        weights, lse = _softmax(scores)
    else:  # one key more, whose value is 0 (SDPA-38)
        column = jnp.broadcast_to(sinks.astype(work)[:, None, None], (*shape[:3], 1))
        weights, lse = _softmax(jnp.concatenate([scores, column], axis=3))
        weights = weights[..., :-1]
    output = _weighted_sum(weights, v.astype(work), allowed)
    results = [output.astype(dtype)]
    results += [weights.astype(dtype)] if return_weights else []
    results += [lse] if return_lse else []
    results += present
    return tuple(results) if len(results) > 1 else results[0]


def _matmul(axes: str, a: jax.Array, b: jax.Array) -> jax.Array:
    """A product of a (B, Hq, …) with b (B, Hkv, …), whose axes are b, h, g = query heads of h, i, j and d."""
    return jnp.einsum(axes, grouped(a, b.shape[1]), b, precision=PRECISION)


def _softmax(scores: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Weights and natural log-sum-exp; zeros and −inf in a row whose scores are all −inf (SDPA-15).

    Such rows are handled by a maximum instead of a ``where``, with which XLA on the CPU does not fuse softmax and
    products into one kernel.  Nothing depends on ``top``, so it is differentiated as a constant.
    """
    top = lax.stop_gradient(jnp.max(scores, axis=3, keepdims=True, initial=-jnp.inf))
    powers = jnp.exp(scores - jnp.maximum(top, jnp.finfo(scores.dtype).min))
    total = jnp.maximum(jnp.sum(powers, axis=3, keepdims=True), 0.5)  # it is 0, or at least exp(0)
    return powers / total, (top + jnp.log(total))[..., 0]


def _weighted_sum(weights: jax.Array, v: jax.Array, allowed: jax.Array | None) -> jax.Array:
    """SDPA-16, SDPA-22, SDPA-23: Σ_j weight_j v_j over the allowed keys, None for all of them; (B, Hq, Sq, Dv)."""
    shape = (*weights.shape[:3], v.shape[3])
    if allowed is None:
        return _matmul("bhgij,bhjd->bhgid", weights, v).reshape(shape)
    output = _matmul("bhgij,bhjd->bhgid", weights, finite_part(v)).reshape(shape)

    def special(output: jax.Array) -> jax.Array:
        seen = jnp.broadcast_to(allowed, weights.shape).astype(v.dtype)
        reached = _matmul("bhgij,bhjd->bhgid", seen, special_places(v))
        return add_special(output, reached.reshape(*shape[:3], 3 * shape[3]))

    return lax.cond(jnp.isfinite(v).all(), lambda output: output, special, output)
