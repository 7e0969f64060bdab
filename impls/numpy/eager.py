"""Attention written out in NumPy: matmul, softmax, matmul, over the whole score matrix.

Source: SPEC.md, clause by clause.  Half precision is computed in float32 and rounded once at the end.
It expresses every keyword; its memory is a few arrays of B · Hq · Sq · Sk elements.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_conformance.impls.numpy.parts import add_special, finite_part, split_scale, with_past, working_dtype
from attention_conformance.impls.rotary import check_rotary, rotated
from attention_conformance.impls.validate import check_by_head, check_inputs, check_masks


def attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    *,
    mask: np.ndarray | None = None,
    bias: np.ndarray | None = None,
    is_causal: bool = False,
    causal_offset: int | np.ndarray | None = None,
    window: tuple[int | None, int | None] | None = None,
    kv_lengths: np.ndarray | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: np.ndarray | None = None,
    alibi_slopes: np.ndarray | None = None,
    head_scale: np.ndarray | None = None,
    rotary_cos: np.ndarray | None = None,
    rotary_sin: np.ndarray | None = None,
    rotary_interleaved: bool = False,
    block_mask: np.ndarray | None = None,
    block_size: tuple[int, int] | None = None,
    tree_parents: np.ndarray | None = None,
    past_key: np.ndarray | None = None,
    past_value: np.ndarray | None = None,
    return_weights: bool = False,
    return_lse: bool = False,
) -> Any:
    """The output (B, Hq, Sq, Dv), and on request the weights (B, Hq, Sq, Sk) and the lse (B, Hq, Sq); then the present.

    Parameters
    ----------
    q, k, v
        (B, Hq, Sq, D), (B, Hkv, Sk, D) and (B, Hkv, Sk, Dv), of one dtype; Hq is a multiple of Hkv.
    mask, bias
        Broadcast to (B, Hq, Sq, Sk): True may attend; added to the scaled scores.
    is_causal, causal_offset, window
        Query i sees key j ≤ i + offset (default: the length of the past, or 0), and no further left or right than
        the window.
    kv_lengths
        (B,): the keys that each batch entry has.
    scale, softcap
        Factor of the scores, None for 1/√D; limit of the scores by tanh.
    sinks, alibi_slopes, head_scale
        (Hq,): logit without a value; slope over the distance; factor of the scores.
    rotary_cos, rotary_sin, rotary_interleaved
        Tables (P, W / 2), and whether pairs are side by side.
    block_mask, block_size, tree_parents
        Blocks (…, Sq / size, Sk / size) that may be seen; (Sq,) or (B, Sq): the parent of each query.
    past_key, past_value
        (B, Hkv, P, D) and (B, Hkv, P, Dv), which come before k and v.
    return_weights, return_lse
        Whether these are returned.

    Returns
    -------
    Any
        One array, or a tuple: output in the dtype of q, then weights, lse (float32, or float64 for float64),
        present key and value.

    Raises
    ------
    ValueError, TypeError
        For inputs that do not fit together (SDPA-31 to SDPA-36, DEC-7, BLOCK-5, TREE-4).
    """
    k, v, offset, present = with_past(k, v, causal_offset, past_key, past_value)
    check_inputs(q, k, v, mask, bias, sinks)
    check_by_head(q, alibi_slopes=alibi_slopes, head_scale=head_scale)
    check_rotary(q, rotary_cos, rotary_sin)
    check_masks(q, k, block_mask, block_size, tree_parents)
    dtype, work = q.dtype, working_dtype(q.dtype)
    with np.errstate(all="ignore"):  # NaN and inf are inputs like any other
        k, v = (_one_per_query_head(array.astype(work, copy=False), q.shape[1]) for array in (k, v))
        if rotary_cos is not None and rotary_sin is not None:
            tables = (rotary_cos.astype(work), rotary_sin.astype(work))
            place = np.arange(q.shape[2]) + np.reshape(offset, (-1, 1))
            q = rotated(q.astype(work), *tables, place, rotary_interleaved)
            k = rotated(k, *tables, np.arange(k.shape[2])[None], rotary_interleaved)
        before, after = split_scale(scale, q.shape[3])
        scores = np.matmul(q.astype(work, copy=False) * work(before), k.swapaxes(2, 3))
        if after != 1:
            scores *= work(after)
        if head_scale is not None:
            scores *= head_scale.astype(work)[:, None, None]
        if softcap is not None:
            scores = np.tanh(scores / work(softcap)) * work(softcap)
        if bias is not None:
            scores += bias.astype(work, copy=False)
        if alibi_slopes is not None:
            position = np.arange(q.shape[2])[:, None] + np.reshape(offset, (-1, 1, 1, 1))
            distance = np.abs(position - np.arange(k.shape[2]))
            scores = scores - alibi_slopes.astype(work)[:, None, None] * distance.astype(work)

        allowed = _allowed(scores.shape, mask, bias, is_causal, offset, window, kv_lengths)
        if block_mask is not None and block_size is not None:
            allowed &= spread_blocks(block_mask, block_size, *scores.shape[2:])
        if tree_parents is not None:
            allowed &= tree_allows(tree_parents, offset, scores.shape[3])
        scores = np.where(allowed, scores, work(-np.inf))
        if sinks is None:
            weights, lse = _softmax(scores)
        else:  # one key more, whose value is 0 (SDPA-38)
            column = np.broadcast_to(sinks.astype(work)[:, None, None], (*scores.shape[:3], 1))
            weights, lse = _softmax(np.concatenate([scores, column], axis=3))
            weights = weights[..., :-1]
        finite = np.isfinite(v).all()
        output = np.matmul(weights, v if finite else finite_part(v))
        if not finite:
            add_special(output, allowed, v)
        results = [output.astype(dtype, copy=False)]
        if return_weights:
            results.append(weights.astype(dtype, copy=False))
        if return_lse:
            results.append(lse)
        results += present
    return tuple(results) if len(results) > 1 else results[0]


def _one_per_query_head(array: np.ndarray, heads: int) -> np.ndarray:
    """SDPA-17: key/value head h // group for query head h."""
    group = heads // array.shape[1]
    return array if group == 1 else np.repeat(array, group, axis=1)


def _allowed(
    shape: tuple[int, ...],
    mask: np.ndarray | None,
    bias: np.ndarray | None,
    is_causal: bool,
    causal_offset: int | np.ndarray,
    window: tuple[int | None, int | None] | None,
    kv_lengths: np.ndarray | None,
) -> np.ndarray:
    """SDPA-7 to SDPA-13: where a key may be attended to, (B, Hq, Sq, Sk)."""
    batch, _, queries, keys = shape
    key = np.arange(keys)
    diagonal = np.arange(queries)[:, None] + np.reshape(causal_offset, (-1, 1, 1, 1))
    left, right = window or (None, None)
    allowed = np.ones(shape, bool)
    if mask is not None:
        allowed &= mask
    if bias is not None:
        allowed &= ~np.isneginf(bias)
    if is_causal:
        allowed &= key <= diagonal
    if left is not None:
        allowed &= key >= diagonal - left
    if right is not None:
        allowed &= key <= diagonal + right
    if kv_lengths is not None:
        allowed &= key < np.reshape(kv_lengths, (batch, 1, 1, 1))
    return allowed


def spread_blocks(block_mask: np.ndarray, block_size: tuple[int, int], queries: int, keys: int) -> np.ndarray:
    """BLOCK-1: a block mask (…, ⌈queries / bq⌉, ⌈keys / bk⌉) by rows and keys, (…, queries, keys)."""
    return block_mask[..., np.arange(queries) // block_size[0], :][..., np.arange(keys) // block_size[1]]


def tree_allows(parents: np.ndarray, offset: int | np.ndarray, keys: int) -> np.ndarray:
    """TREE-1: the keys before the tree, and those of a node and its ancestors, (B or 1, 1, Sq, keys)."""
    parents = np.atleast_2d(parents)
    seen = np.zeros((*parents.shape, parents.shape[1]), bool)
    for node in range(parents.shape[1]):  # after its parent
        parent = parents[:, node]
        seen[:, node] = (parent >= 0)[:, None] & seen[np.arange(len(parents)), parent]
        seen[:, node, node] = True
    place = np.arange(keys) - np.reshape(offset, (-1, 1, 1))  # in the tree
    inside = (place >= 0) & (place < parents.shape[1])
    column = np.where(inside, place, 0)
    shape = (*np.broadcast_shapes(seen.shape[:1], place.shape[:1]), parents.shape[1])
    own = np.take_along_axis(
        np.broadcast_to(seen, (*shape, parents.shape[1])), np.broadcast_to(column, (*shape, keys)), axis=2
    )
    return ((place < 0) | (inside & own))[:, None]


def _softmax(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weights and natural log-sum-exp; zeros and −inf in a row whose scores are all −inf (SDPA-15)."""
    top = scores.max(axis=3, keepdims=True, initial=-np.inf)
    powers = np.exp(scores - np.where(np.isneginf(top), 0, top))
    total = powers.sum(axis=3, keepdims=True)
    empty = total == 0
    weights = powers / np.where(empty, 1, total)
    lse = top + np.log(np.where(empty, 1, total))
    return weights, lse[..., 0]
