"""(SDPA-…, DEC-…, BLOCK-…, TREE-…) Scaled dot-product attention in float64 NumPy, one function per group of clauses.

Written to be read next to SPEC.md, not to be fast.  It is not trusted: tests check it against examples computed by
hand, a 50-digit evaluation, and the ONNX node tests.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

Array = np.ndarray


class InvalidInput(ValueError):
    """An input that the spec says must be refused; ``clause`` names which clause says so."""

    def __init__(self, clause: str, text: str) -> None:
        super().__init__(f"{clause}: {text}")
        self.clause = clause


@dataclass(frozen=True)
class Expected:
    """Expected results of one input of ``sdpa``, with the intermediate results that an error analysis needs.

    Shapes: ``output`` (B, Hq, Sq, Dv); ``weights``, ``scores`` (final scores, −inf where not allowed),
    ``raw`` (scaled scores before softcap) and ``allowed`` (B, Hq, Sq, Sk); ``lse`` (B, Hq, Sq);
    ``k`` and ``v`` with one head per query head.  All are float64 except ``allowed``, which is boolean.
    """

    output: Array
    weights: Array
    lse: Array
    scores: Array
    raw: Array
    allowed: Array
    q: Array
    k: Array
    v: Array
    #: SDPA-38: the logit of each query head, (Hq,) in float64; None without sinks.
    sinks: Array | None = None
    #: SDPA-42: what ALiBi adds to the scores, (B, Hq, Sq, Sk); None without slopes.
    alibi: Array | None = None
    #: SDPA-44: |a cos| + |b sin| for each rotated element of q and k, 0 for the others; None without a rotation.
    rotary: tuple[Array, Array] | None = None
    #: DEC-3: past and new keys and values, (B, Hkv, Sk, D) and (B, Hkv, Sk, Dv); None without a past.
    present_key: Array | None = None
    present_value: Array | None = None


def sdpa(
    q: Array,
    k: Array,
    v: Array,
    *,
    mask: Array | None = None,
    bias: Array | None = None,
    is_causal: bool = False,
    causal_offset: int | Array | None = None,
    window: tuple[int | None, int | None] | None = None,
    kv_lengths: Array | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Array | None = None,
    alibi_slopes: Array | None = None,
    head_scale: Array | None = None,
    rotary_cos: Array | None = None,
    rotary_sin: Array | None = None,
    rotary_interleaved: bool = False,
    block_mask: Array | None = None,
    block_size: tuple[int, int] | None = None,
    tree_parents: Array | None = None,
    past_key: Array | None = None,
    past_value: Array | None = None,
    rows: Array | None = None,
) -> Expected:
    """Scaled dot-product attention as SPEC.md defines it.

    Parameters
    ----------
    q, k, v
        (B, Hq, Sq, D), (B, Hkv, Sk, D) and (B, Hkv, Sk, Dv), of one floating dtype (SDPA-1, SDPA-17).
    mask, bias
        Broadcast to (B, Hq, Sq, Sk): True where a key takes part (SDPA-7), and numbers added to the scores (SDPA-6).
    is_causal, causal_offset, window, kv_lengths
        Keys that a row may attend to (SDPA-9 to SDPA-12); offset and lengths are one for all batches, or (B,).
    scale, softcap
        SDPA-3 to SDPA-5.
    sinks
        (Hq,) (SDPA-38).
    alibi_slopes, head_scale
        (Hq,) each (SDPA-42, SDPA-43).
    rotary_cos, rotary_sin, rotary_interleaved
        (P, W / 2) each, and how columns are paired (SDPA-44).
    block_mask, block_size
        (…, ⌈Sq / bq⌉, ⌈Sk / bk⌉), and (bq, bk): blocks of rows and keys that take part (BLOCK-1).
    tree_parents
        (Sq,) or (B, Sq): the row before each one in a tree, −1 for none (TREE-1).
    past_key, past_value
        (B, Hkv, P, D) and (B, Hkv, P, Dv), which come before k and v (DEC-1).
    rows
        Indices of query rows: only those are computed, in that order.

    Returns
    -------
    Expected
        Results and intermediate results, in float64.

    Raises
    ------
    InvalidInput
        Where SDPA-31 to SDPA-36, DEC-7, BLOCK-5 and TREE-4 require an exception.
    """
    present: tuple[Array, ...] = ()
    if past_key is not None or past_value is not None:
        k, v = joined(k, v, past_key, past_value)
        present = (k.astype(np.float64), v.astype(np.float64))
    check_inputs(q, k, v, mask, bias, sinks)
    check_masks(q, k, block_mask, block_size, tree_parents)
    check_tables(q, alibi_slopes, head_scale, rotary_cos, rotary_sin)
    if causal_offset is None:
        causal_offset = 0 if past_key is None else past_key.shape[2]  # SDPA-9, DEC-2
    keys, positions = np.arange(k.shape[2]), np.arange(q.shape[2])
    if rows is not None:
        positions = np.asarray(rows)
        q, mask, bias = q[:, :, positions], take_rows(mask, positions), take_rows(bias, positions)
    shape = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    q = q.astype(np.float64)
    k = repeat_heads(k.astype(np.float64), q.shape[1])
    v = repeat_heads(v.astype(np.float64), q.shape[1])
    rotary = None
    if rotary_cos is not None and rotary_sin is not None:
        tables = (rotary_cos.astype(np.float64), rotary_sin.astype(np.float64))
        places = positions + np.reshape(causal_offset, (-1, 1)), keys[None]
        (q, size_q), (k, size_k) = (
            turned(x, tables[0][place][:, None], tables[1][place][:, None], rotary_interleaved)
            for x, place in zip((q, k), places, strict=True)
        )
        rotary = size_q, size_k
    bias = None if bias is None else np.broadcast_to(bias.astype(np.float64), shape)

    allowed = allowed_keys(shape, positions, mask, bias, is_causal, causal_offset, window, kv_lengths)
    if block_mask is not None and block_size is not None:
        allowed &= block_mask[..., positions // block_size[0], :][..., keys // block_size[1]]
    if tree_parents is not None:
        allowed &= tree_keys(tree_parents, causal_offset, keys)[:, :, positions]
    with np.errstate(all="ignore"):  # NaN and inf in the inputs are test cases, not errors
        raw = scaled_scores(q, k, scale)
        raw = raw if head_scale is None else raw * head_scale.astype(np.float64)[:, None, None]
        scores = capped_scores(raw, softcap)
        scores = scores if bias is None else scores + bias
        alibi = None
        if alibi_slopes is not None:
            distance = np.abs(positions[:, None] + np.reshape(causal_offset, (-1, 1, 1, 1)) - keys)
            alibi = np.broadcast_to(-alibi_slopes.astype(np.float64)[:, None, None] * distance, shape)
            scores = scores + alibi
        scores = np.where(allowed, scores, -np.inf)
        if sinks is None:
            weights, lse = softmax(scores, allowed)
        else:
            sinks = sinks.astype(np.float64)
            weights, lse = softmax_with_sinks(scores, allowed, sinks)
        output = weighted_sum(weights, v, allowed)
    return Expected(output, weights, lse, scores, raw, allowed, q, k, v, sinks, alibi, rotary, *present)


def joined(k: Array, v: Array, past_key: Array | None, past_value: Array | None) -> tuple[Array, Array]:
    """(DEC-1, DEC-7) Past keys and values followed by the new ones; arrays that do not fit are refused.

    Parameters
    ----------
    k
        New keys (B, Hkv, Sk, D).
    v
        New values (B, Hkv, Sk, Dv).
    past_key
        (B, Hkv, past, D).
    past_value
        (B, Hkv, past, Dv).

    Returns
    -------
    tuple[Array, Array]
        (B, Hkv, past + Sk, D) and (B, Hkv, past + Sk, Dv).

    Raises
    ------
    InvalidInput
        Where they do not fit together.
    """
    if past_key is None or past_value is None:
        raise InvalidInput("DEC-7", "past_key and past_value are given together or not at all")
    for name, past, new in (("past_key", past_key, k), ("past_value", past_value, v)):
        if past.ndim != 4 or new.ndim != 4 or past.shape[:2] + past.shape[3:] != new.shape[:2] + new.shape[3:]:
            raise InvalidInput("DEC-7", f"{name} {past.shape} does not fit {new.shape}")
        if past.dtype != new.dtype:
            raise InvalidInput("DEC-7", f"{name} is {past.dtype}, its new part {new.dtype}")
    if past_key.shape[2] != past_value.shape[2]:
        raise InvalidInput("DEC-7", f"the past has {past_key.shape[2]} keys and {past_value.shape[2]} values")
    return np.concatenate([past_key, k], axis=2), np.concatenate([past_value, v], axis=2)


def check_inputs(
    q: Array, k: Array, v: Array, mask: Array | None, bias: Array | None, sinks: Array | None = None
) -> None:
    """(SDPA-31 to SDPA-36) Refuse inputs that do not fit together.

    Parameters
    ----------
    q
        (B, Hq, Sq, D).
    k
        (B, Hkv, Sk, D).
    v
        (B, Hkv, Sk, Dv).
    mask
        Bool, broadcast to (B, Hq, Sq, Sk); True may be attended to.
    bias
        Added to the scores, broadcast to (B, Hq, Sq, Sk).
    sinks
        (Hq,).

    Raises
    ------
    InvalidInput
        For the first thing that does not fit.
    """
    if not q.ndim == k.ndim == v.ndim == 4:
        raise InvalidInput("SDPA-34", f"q, k, v have ranks {q.ndim}, {k.ndim}, {v.ndim}")
    if not q.dtype == k.dtype == v.dtype:
        raise InvalidInput("SDPA-35", f"q, k, v have dtypes {q.dtype}, {k.dtype}, {v.dtype}")
    if k.shape[2] != v.shape[2]:
        raise InvalidInput("SDPA-31", f"k has {k.shape[2]} keys, v has {v.shape[2]}")
    if not q.shape[0] == k.shape[0] == v.shape[0]:
        raise InvalidInput("SDPA-31", f"q, k, v have batches {q.shape[0]}, {k.shape[0]}, {v.shape[0]}")
    if q.shape[3] != k.shape[3]:
        raise InvalidInput("SDPA-32", f"q has width {q.shape[3]}, k has width {k.shape[3]}")
    if k.shape[1] != v.shape[1] or k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise InvalidInput("SDPA-33", f"q, k, v have {q.shape[1]}, {k.shape[1]}, {v.shape[1]} heads")
    for name, array in (("mask", mask), ("bias", bias)):
        if array is not None and not broadcasts(array.shape, (*q.shape[:3], k.shape[2])):
            raise InvalidInput("SDPA-36", f"{name} {array.shape} does not broadcast")
    if sinks is not None and sinks.shape != (q.shape[1],):
        raise InvalidInput("SDPA-36", f"sinks {sinks.shape} are not one per query head")


def check_tables(
    q: Array, alibi_slopes: Array | None, head_scale: Array | None, rotary_cos: Array | None, rotary_sin: Array | None
) -> None:
    """(SDPA-36) Refuse slopes and factors that are not one per query head, and rotary tables that do not fit.

    Parameters
    ----------
    q
        (B, Hq, Sq, D).
    alibi_slopes, head_scale
        (Hq,) each.
    rotary_cos, rotary_sin
        (P, W / 2) each, W ≤ D.

    Raises
    ------
    InvalidInput
        For the first thing that does not fit.
    """
    for name, array in (("alibi_slopes", alibi_slopes), ("head_scale", head_scale)):
        if array is not None and array.shape != (q.shape[1],):
            raise InvalidInput("SDPA-36", f"{name} {array.shape} are not one per query head")
    if rotary_cos is None and rotary_sin is None:
        return
    if rotary_cos is None or rotary_sin is None or rotary_cos.shape != rotary_sin.shape:
        raise InvalidInput("SDPA-36", "rotary_cos and rotary_sin do not fit together")
    if rotary_cos.ndim != 2 or 2 * rotary_cos.shape[1] > q.shape[3]:
        raise InvalidInput("SDPA-36", f"rotary_cos {rotary_cos.shape} is not (P, W / 2) with W up to {q.shape[3]}")


def check_masks(
    q: Array, k: Array, block_mask: Array | None, block_size: tuple[int, int] | None, tree_parents: Array | None
) -> None:
    """(BLOCK-5, TREE-4) Refuse a block mask or a tree that does not fit.

    Parameters
    ----------
    q
        (B, Hq, Sq, D).
    k
        (B, Hkv, Sk, D), including past keys.
    block_mask
        (…, ⌈Sq / bq⌉, ⌈Sk / bk⌉).
    block_size
        (bq, bk).
    tree_parents
        (Sq,) or (B, Sq).

    Raises
    ------
    InvalidInput
        For the first thing that does not fit.
    """
    if (block_mask is None) != (block_size is None):
        raise InvalidInput("BLOCK-5", "block_mask and block_size are given together or not at all")
    if block_mask is not None and block_size is not None:
        blocks = (-(-q.shape[2] // block_size[0]), -(-k.shape[2] // block_size[1]))
        if block_mask.shape[-2:] != blocks or not broadcasts(block_mask.shape, (*q.shape[:2], *blocks)):
            raise InvalidInput("BLOCK-5", f"block_mask {block_mask.shape} is not one of {blocks} blocks")
    if tree_parents is not None and tree_parents.shape not in (q.shape[2:3], (q.shape[0], q.shape[2])):
        raise InvalidInput("TREE-4", f"tree_parents {tree_parents.shape} are not one per query row")


def turned(x: Array, cos: Array, sin: Array, interleaved: bool) -> tuple[Array, Array]:
    """(SDPA-44) Pairs of columns (a, b) as (a cos − b sin, a sin + b cos), and the sums of absolute values.

    Parameters
    ----------
    x
        (B, H, S, D).
    cos, sin
        (B or 1, 1, S, W / 2).
    interleaved
        Whether columns 2d and 2d + 1 are a pair, or d and d + W / 2.

    Returns
    -------
    tuple[Array, Array]
        (B, H, S, D) each; from column W on, unchanged and 0.
    """
    half = cos.shape[3]
    first = 2 * np.arange(half) if interleaved else np.arange(half)
    second = first + (1 if interleaved else half)
    a, b = x[..., first], x[..., second]
    found, size = x.copy(), np.zeros_like(x)
    found[..., first], found[..., second] = a * cos - b * sin, a * sin + b * cos
    size[..., first] = np.abs(a * cos) + np.abs(b * sin)
    size[..., second] = np.abs(a * sin) + np.abs(b * cos)
    return found, size


def tree_keys(parents: Array, offset: int | Array, keys: Array) -> Array:
    """(TREE-1) Keys that the nodes of a tree may attend to: keys before the tree, their ancestors' and their own.

    Parameters
    ----------
    parents
        (Sq,) or (B, Sq).
    offset
        Number of keys before the first node's key, one or (B,).
    keys
        Indices j, (Sk,).

    Returns
    -------
    Array
        Bool, (B or 1, 1, Sq, Sk).
    """
    parents, offset = np.atleast_2d(parents), np.reshape(offset, (-1, 1))
    (batch,) = np.broadcast_shapes(parents.shape[:1], offset.shape[:1])
    parents, offset = np.broadcast_to(parents, (batch, parents.shape[1])), np.broadcast_to(offset, (batch, 1))
    allowed = np.zeros((batch, 1, parents.shape[1], len(keys)), bool)
    for b in range(batch):
        for row in range(parents.shape[1]):
            path = [row]
            while parents[b, path[-1]] >= 0:
                path.append(int(parents[b, path[-1]]))
            allowed[b, 0, row] = (keys < offset[b]) | np.isin(keys - offset[b], path)
    return allowed


def broadcasts(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """(SDPA-8) Whether NumPy's rule takes ``shape`` to ``target``.

    Parameters
    ----------
    shape
        Shape of the array.
    target
        Shape to broadcast to.

    Returns
    -------
    bool
        Whether it does.
    """
    aligned = (1,) * (len(target) - len(shape)) + shape
    return len(aligned) == len(target) and all(a in (1, t) for a, t in zip(aligned, target, strict=True))


def repeat_heads(array: Array, heads: int) -> Array:
    """(SDPA-17) Query head h reads key/value head ⌊h / group⌋.

    Parameters
    ----------
    array
        (B, Hkv, …).
    heads
        Hq.

    Returns
    -------
    Array
        (B, Hq, …).
    """
    return np.repeat(array, heads // array.shape[1], axis=1)


def take_rows(array: Array | None, rows: Array) -> Array | None:
    """The query rows of a mask or bias, which may have one row for all.

    Parameters
    ----------
    array
        (…, Sq or 1, Sk or 1).
    rows
        Indices of query rows.

    Returns
    -------
    Array | None
        (…, rows or 1, Sk or 1).
    """
    if array is None or array.ndim < 2 or array.shape[-2] == 1:
        return array
    return array[..., rows, :]


def allowed_keys(
    shape: tuple[int, ...],
    positions: Array,
    mask: Array | None,
    bias: Array | None,
    is_causal: bool,
    causal_offset: int | Array,
    window: tuple[int | None, int | None] | None,
    kv_lengths: Array | None,
) -> Array:
    """(SDPA-7 to SDPA-13) Keys that each row may attend to, (B, Hq, Sq, Sk).

    ``positions`` are the indices i of the query rows.

    Parameters
    ----------
    shape
        (B, Hq, Sq, Sk).
    positions
        Index i of each row, (Sq,).
    mask
        Bool, broadcast to (B, Hq, Sq, Sk); True may be attended to.
    bias
        Added to the scores, broadcast to (B, Hq, Sq, Sk).
    is_causal
        Whether row i attends to keys up to i + offset.
    causal_offset
        Offset of the diagonal, one or (B,).
    window
        Keys to the left and right of the diagonal; None for all.
    kv_lengths
        Number of keys of each sample, (B,).

    Returns
    -------
    Array
        Bool, (B, Hq, Sq, Sk).
    """
    batch, _, _, keys = shape
    j = np.arange(keys)
    diagonal = positions[:, None] + np.reshape(causal_offset, (-1, 1, 1, 1))  # (B or 1, 1, Sq, 1)
    allowed = np.ones(shape, bool)
    if mask is not None:
        allowed &= mask
    if bias is not None:
        allowed &= bias != -np.inf
    if is_causal:
        allowed &= j <= diagonal
    left, right = window or (None, None)
    if left is not None:
        allowed &= j >= diagonal - left
    if right is not None:
        allowed &= j <= diagonal + right
    if kv_lengths is not None:
        allowed &= j < np.reshape(kv_lengths, (batch, 1, 1, 1))
    return allowed


def scaled_scores(q: Array, k: Array, scale: float | None) -> Array:
    """(SDPA-2 to SDPA-4) scale · q · k, for every row and key.

    Parameters
    ----------
    q
        (B, Hq, Sq, D).
    k
        (B, Hq, Sk, D).
    scale
        None for 1/√D.

    Returns
    -------
    Array
        (B, Hq, Sq, Sk).
    """
    if scale is None:
        scale = 1 / np.sqrt(q.shape[3])
    return scale * (q @ np.swapaxes(k, 2, 3))


def capped_scores(scores: Array, softcap: float | None) -> Array:
    """(SDPA-5) c · tanh(s / c).

    Parameters
    ----------
    scores
        (B, Hq, Sq, Sk).
    softcap
        The cap c; None for none.

    Returns
    -------
    Array
        (B, Hq, Sq, Sk).
    """
    return scores if softcap is None else softcap * np.tanh(scores / softcap)


def softmax(scores: Array, allowed: Array) -> tuple[Array, Array]:
    """(SDPA-14, SDPA-15, SDPA-19) Weights and natural log-sum-exp; zeros and −inf where no key is allowed.

    Parameters
    ----------
    scores
        (B, Hq, Sq, Sk).
    allowed
        Bool, (B, Hq, Sq, Sk).

    Returns
    -------
    tuple[Array, Array]
        (B, Hq, Sq, Sk) and (B, Hq, Sq).
    """
    empty = ~allowed.any(axis=3, keepdims=True)
    top = np.max(scores, axis=3, keepdims=True, initial=-np.inf)
    top = np.where(np.isneginf(top), 0.0, top)
    powers = np.exp(scores - top)  # exp(−inf) = 0 at keys that are not allowed
    total = powers.sum(axis=3, keepdims=True)
    weights = np.where(empty, 0.0, powers / np.where(empty, 1.0, total))
    lse = np.where(empty, -np.inf, top + np.log(np.where(empty, 1.0, total)))
    return weights, lse[..., 0]


def softmax_with_sinks(scores: Array, allowed: Array, sinks: Array) -> tuple[Array, Array]:
    """(SDPA-38) Softmax over the allowed keys and one more key, whose score is the sink and whose weight is left out.

    Parameters
    ----------
    scores
        (B, Hq, Sq, Sk).
    allowed
        Bool, (B, Hq, Sq, Sk).
    sinks
        (Hq,).

    Returns
    -------
    tuple[Array, Array]
        (B, Hq, Sq, Sk) and (B, Hq, Sq).
    """
    column = np.broadcast_to(sinks[:, None, None], (*scores.shape[:3], 1))
    weights, lse = softmax(np.concatenate([scores, column], 3), np.concatenate([allowed, column > -np.inf], 3))
    return weights[..., :-1], lse


def weighted_sum(weights: Array, v: Array, allowed: Array) -> Array:
    """(SDPA-16, SDPA-22, SDPA-23) Σ_j weight_j v_j over the allowed keys only.

    A NaN or infinite value at a key that is not allowed must not enter as 0 · NaN, and at an allowed key
    it must enter even where its weight has underflowed to 0; so those values are added separately.

    Parameters
    ----------
    weights
        (B, Hq, Sq, Sk).
    v
        (B, Hq, Sk, Dv).
    allowed
        Bool, (B, Hq, Sq, Sk).

    Returns
    -------
    Array
        (B, Hq, Sq, Dv).
    """
    output = weights @ np.where(np.isfinite(v), v, 0.0)
    for where, more in ((v == np.inf, np.inf), (v == -np.inf, -np.inf), (np.isnan(v), np.nan)):
        if where.any():
            reached = allowed.astype(float) @ where > 0
            output = np.where(reached, more if np.isnan(more) else output + more, output)
    return output
