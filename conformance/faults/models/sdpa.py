"""Attention in steps, each a small correct method, so that a fault overrides one of them and nothing else.

A model is an operator written in this way; its faults are subclasses of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from attention_conformance.conformance.spec.sdpa import Expected
from attention_conformance.impls.numpy.parts import add_special, finite_part, working_dtype
from attention_conformance.impls.rotary import check_rotary, rotated
from attention_conformance.impls.validate import check_by_head, check_inputs, check_masks, check_past

Array = np.ndarray


@dataclass(frozen=True)
class Inputs:
    """One call: its arrays unchanged, options with their defaults, and the working dtype."""

    q: Array
    k: Array
    v: Array
    mask: Array | None = None
    bias: Array | None = None
    is_causal: bool = False
    causal_offset: int | Array | None = None
    window: tuple[int | None, int | None] | None = None
    kv_lengths: Array | None = None
    scale: float | None = None
    softcap: float | None = None
    return_weights: bool = False
    return_lse: bool = False
    work: type[np.floating[Any]] = np.float64
    #: The storage dtype within a layer, where q is in the working dtype already.
    stored: np.dtype | None = None
    sinks: Array | None = None
    past_key: Array | None = None
    past_value: Array | None = None
    alibi_slopes: Array | None = None
    head_scale: Array | None = None
    rotary_cos: Array | None = None
    rotary_sin: Array | None = None
    rotary_interleaved: bool = False
    block_mask: Array | None = None
    block_size: tuple[int, int] | None = None
    tree_parents: Array | None = None

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(B, Hq, Sq, Sk), once the past is joined."""
        return (*self.q.shape[:3], self.k.shape[2])

    @property
    def past(self) -> int:
        """P, the number of past keys."""
        return 0 if self.past_key is None else self.past_key.shape[2]

    @property
    def dtype(self) -> np.dtype:
        """The storage dtype."""
        return self.stored or self.q.dtype

    @property
    def group(self) -> int:
        """Query heads per key head."""
        return self.q.shape[1] // self.k.shape[1]


class Model:
    """An operator in steps; a fault is a subclass, and is called like the operator."""

    operator: ClassVar[str]

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """The results that are requested."""
        raise NotImplementedError


class Attention(Model):
    """The steps of sdpa in the order of SDPA-13, each correct; ``x`` is the call, ``s`` the scores so far.

    Score arrays are (B, Hq, Sq, Sk).  An instance may keep state between calls, as the implementation it
    stands for would.
    """

    operator: ClassVar[str] = "sdpa"

    def __call__(self, q: Array, k: Array, v: Array, **keywords: Any) -> Any:
        """Sdpa, called as a plug-in is: arguments as in impls.contract, half precision computed in float32."""
        x = Inputs(q, k, v, **keywords)
        self.check_past(x)
        x = self.joined(x)
        self.check(x)
        x = replace(x, work=working_dtype(x.dtype))
        with np.errstate(all="ignore"):  # NaN and inf are inputs like any other
            return self.results(x, self.attend(x))

    def check_past(self, x: Inputs) -> None:
        """DEC-7: refuse a past that does not fit."""
        if x.past_key is not None or x.past_value is not None:
            check_past(x.k, x.v, x.past_key, x.past_value)

    def joined(self, x: Inputs) -> Inputs:
        """DEC-1: k and v with the past in front."""
        if x.past_key is None or x.past_value is None:
            return x
        return replace(x, k=np.concatenate([x.past_key, x.k], 2), v=np.concatenate([x.past_value, x.v], 2))

    def check(self, x: Inputs) -> None:
        """SDPA-31 to SDPA-36: refuse inputs that do not fit together."""
        check_inputs(x.q, x.k, x.v, x.mask, x.bias, x.sinks)
        check_by_head(x.q, alibi_slopes=x.alibi_slopes, head_scale=x.head_scale)
        check_rotary(x.q, x.rotary_cos, x.rotary_sin)
        self.check_masks(x)

    def check_masks(self, x: Inputs) -> None:
        """BLOCK-5, TREE-4: refuse block masks and trees that do not fit."""
        check_masks(x.q, x.k, x.block_mask, x.block_size, x.tree_parents)

    def attend(self, x: Inputs) -> Expected:
        """Every intermediate result, in the working dtype."""
        q, k, v = self.operands(x)
        raw = self.scores(x, q, k)
        raw = raw if x.head_scale is None else raw * self.head_scale(x)[:, None, None]
        s = self.added(x, self.capped(x, raw))
        s = s if x.alibi_slopes is None else s - self.slopes(x)[:, None, None] * self.distance(x).astype(x.work)
        allowed = self.allowed(x)
        s = self.filled(x, s, allowed)
        output, weights, lse = self.mixed(x, s, allowed, v)
        return Expected(output, weights, lse, s, raw, allowed, q, k, v, None if x.sinks is None else self.sinks(x))

    # Operands and scores.

    def operands(self, x: Inputs) -> tuple[Array, Array, Array]:
        """q, k and v to compute with, one key and value head per query head."""
        q, k, v = x.q.astype(x.work), self.heads(x, x.k).astype(x.work), self.heads(x, x.v).astype(x.work)
        if x.rotary_cos is None:
            return q, k, v
        return self.turned(x, q, self.rotary_rows(x)), self.turned(x, k, self.keys(x)[None]), v

    def rotary_rows(self, x: Inputs) -> Array:
        """SDPA-44: the positions of the rows in the tables, (B or 1, Sq)."""
        return self.diagonal(x)[:, 0, :, 0]

    def turned(self, x: Inputs, rows: Array, place: Array) -> Array:
        """SDPA-44: queries or keys (B, Hq, S, D), rotated by their positions (B or 1, S)."""
        return np.asarray(rotated(rows, *self.tables(x), place, self.interleaved(x)))

    def tables(self, x: Inputs) -> tuple[Array, Array]:
        """SDPA-44: cosines and sines, (P, W / 2)."""
        assert x.rotary_cos is not None
        assert x.rotary_sin is not None
        return x.rotary_cos.astype(x.work), x.rotary_sin.astype(x.work)

    def interleaved(self, x: Inputs) -> bool:
        """SDPA-44: whether neighbouring columns form a pair."""
        return x.rotary_interleaved

    def heads(self, x: Inputs, array: Array) -> Array:
        """SDPA-17: query head h reads key head ⌊h / group⌋."""
        return np.repeat(array, x.group, axis=1)

    def scale(self, x: Inputs) -> float:
        """SDPA-3, SDPA-4: the given scale, or the default."""
        return self.default_scale(x) if x.scale is None else x.scale

    def default_scale(self, x: Inputs) -> float:
        """SDPA-3: 1/√D."""
        return 1 / math.sqrt(x.q.shape[3])

    def scores(self, x: Inputs, q: Array, k: Array) -> Array:
        """SDPA-2: the scaled scores; a scale above 1 is applied last, so that it cannot overflow."""
        scale = self.scale(x)
        before, after = (scale, 1.0) if abs(scale) <= 1 else (1.0, scale)
        return (q * x.work(before)) @ k.swapaxes(2, 3) * x.work(after)

    def capped(self, x: Inputs, s: Array) -> Array:
        """SDPA-5: the scores after softcap."""
        return s if x.softcap is None else x.work(x.softcap) * np.tanh(s / x.work(x.softcap))

    def added(self, x: Inputs, s: Array) -> Array:
        """SDPA-6: the scores with the bias added."""
        return s if x.bias is None else s + self.spread(x, x.bias).astype(x.work)

    def spread(self, x: Inputs, array: Array) -> Array:
        """SDPA-8: a mask or bias in full shape."""
        return np.broadcast_to(array, x.shape)

    def head_scale(self, x: Inputs) -> Array:
        """SDPA-43: a factor of each query head, (Hq,)."""
        assert x.head_scale is not None
        return x.head_scale.astype(x.work)

    def slopes(self, x: Inputs) -> Array:
        """SDPA-42: the slope of each query head, (Hq,)."""
        assert x.alibi_slopes is not None
        return x.alibi_slopes.astype(x.work)

    def distance(self, x: Inputs) -> Array:
        """SDPA-42: the distance from the position of each row to each key, (B or 1, 1, Sq, Sk)."""
        return np.abs(self.diagonal(x) - self.keys(x))

    # Which keys are allowed.

    def allowed(self, x: Inputs) -> Array:
        """SDPA-13: the keys that everything given allows."""
        return (
            self.mask_allows(x)
            & self.bias_allows(x)
            & self.causal_allows(x)
            & self.window_allows(x)
            & self.lengths_allow(x)
        )

    def mask_allows(self, x: Inputs) -> Array:
        """SDPA-7: True keeps; likewise BLOCK-1 and TREE-1."""
        allowed = np.ones(x.shape, bool) if x.mask is None else self.spread(x, x.mask)
        if x.block_mask is not None:
            allowed = allowed & self.blocks_allow(x)
        return allowed if x.tree_parents is None else allowed & self.tree_allows(x)

    def block_mask(self, x: Inputs) -> Array:
        """BLOCK-1: the table for every head, (B, Hq, ⌈Sq / bq⌉, ⌈Sk / bk⌉)."""
        assert x.block_mask is not None
        return np.broadcast_to(x.block_mask, (*x.shape[:2], *x.block_mask.shape[-2:]))

    def block_size(self, x: Inputs) -> tuple[int, int]:
        """BLOCK-1: rows and keys of a block."""
        assert x.block_size is not None
        return x.block_size

    def blocks_allow(self, x: Inputs) -> Array:
        """BLOCK-1: the keys of blocks that are True."""
        table = self.block_mask(x)
        rows, keys = (
            np.minimum(np.arange(n) // size, blocks - 1)
            for n, size, blocks in zip(x.shape[2:], self.block_size(x), table.shape[2:], strict=True)
        )
        return table[:, :, rows][..., keys]

    def parents(self, x: Inputs) -> Array:
        """TREE-1: the parent of each node, (B or 1, Sq); −1 for none."""
        assert x.tree_parents is not None
        return np.atleast_2d(x.tree_parents)

    def seen_nodes(self, x: Inputs) -> Array:
        """TREE-1: the nodes that each node attends to: itself and its ancestors, (B or 1, Sq, Sq)."""
        parents = self.parents(x)
        seen = np.eye(x.shape[2], dtype=bool) | np.zeros((len(parents), 1, 1), bool)
        for node in range(x.shape[2]):
            parent = parents[:, node]
            seen[:, node] |= (parent >= 0)[:, None] & seen[np.arange(len(parents)), parent]
        return seen

    def prefix_allows(self, x: Inputs) -> Array:
        """TREE-1: the keys before the tree, (B or 1, 1, 1, Sk)."""
        return self.keys(x) < self.offset(x)

    def tree_allows(self, x: Inputs) -> Array:
        """TREE-1: the keys before the tree, and the keys of the nodes that are seen."""
        seen, place = self.seen_nodes(x)[:, None], self.keys(x) - self.offset(x)
        inside = (place >= 0) & (place < x.shape[2])
        full = np.broadcast_to(seen, (x.shape[0], 1, x.shape[2], x.shape[2]))
        column = np.broadcast_to(np.where(inside, place, 0), (x.shape[0], 1, x.shape[2], x.shape[3]))
        return self.prefix_allows(x) | (inside & np.take_along_axis(full, column, axis=3))

    def bias_allows(self, x: Inputs) -> Array:
        """SDPA-24: a bias of −inf is a mask."""
        return np.ones(x.shape, bool) if x.bias is None else ~np.isneginf(self.spread(x, x.bias))

    def keys(self, x: Inputs) -> Array:
        """The key indices j, (Sk,)."""
        return np.arange(x.k.shape[2])

    def offset(self, x: Inputs) -> Array:
        """SDPA-10: the causal offset of each batch, (B or 1, 1, 1, 1)."""
        return np.reshape(self.default_offset(x) if x.causal_offset is None else x.causal_offset, (-1, 1, 1, 1))

    def default_offset(self, x: Inputs) -> int:
        """SDPA-9, DEC-2: the number of past keys."""
        return x.past

    def diagonal(self, x: Inputs) -> Array:
        """The key index of the diagonal in each row, (B or 1, 1, Sq, 1)."""
        return np.arange(x.q.shape[2])[:, None] + self.offset(x)

    def causal_allows(self, x: Inputs) -> Array:
        """SDPA-9: the keys up to the diagonal."""
        return self.keys(x) <= self.diagonal(x) if x.is_causal else np.ones(x.shape, bool)

    def window(self, x: Inputs) -> tuple[int | None, int | None]:
        """SDPA-11: the numbers of keys to the left and to the right; None is unlimited."""
        return x.window or (None, None)

    def window_allows(self, x: Inputs) -> Array:
        """SDPA-11: the keys of the window around the diagonal."""
        left, right = self.window(x)
        allowed = np.ones(x.shape, bool)
        if left is not None:
            allowed = allowed & (self.keys(x) >= self.diagonal(x) - left)
        if right is not None:
            allowed = allowed & (self.keys(x) <= self.diagonal(x) + right)
        return allowed

    def lengths_allow(self, x: Inputs) -> Array:
        """SDPA-12: the keys before the key length."""
        if x.kv_lengths is None:
            return np.ones(x.shape, bool)
        return np.broadcast_to(self.keys(x) < np.reshape(x.kv_lengths, (-1, 1, 1, 1)), x.shape)

    def filled(self, x: Inputs, s: Array, allowed: Array) -> Array:
        """SDPA-7: −inf where a key is not allowed."""
        return np.where(allowed, s, x.work(-np.inf))

    # Softmax and the weighted sum.

    def sinks(self, x: Inputs) -> Array:
        """SDPA-38: the score of one additional key, (Hq,); −inf, which changes nothing, where no sinks are given."""
        return np.full(x.q.shape[1], -np.inf, x.work) if x.sinks is None else x.sinks.astype(x.work)

    def mixed(self, x: Inputs, s: Array, allowed: Array, v: Array) -> tuple[Array, Array, Array]:
        """Output, weights, and lse (B, Hq, Sq)."""
        weights, lse = self.softmax(x, s, allowed)
        return self.summed(x, weights, allowed, v), weights, lse

    def softmax(self, x: Inputs, s: Array, allowed: Array) -> tuple[Array, Array]:
        """SDPA-14, SDPA-15, SDPA-19: the weights, and lse (B, Hq, Sq)."""
        top = self.top(x, s)
        powers = self.powers(x, s, top)
        total = self.total(x, powers) + self.sink_power(x, top)
        return self.normalized(x, powers, total, allowed), self.lse(x, top, total, allowed)[..., 0]

    def top(self, x: Inputs, s: Array) -> Array:
        """Number that is subtracted before exp: the largest score of the row, 0 for a fully masked row."""
        top = self.sink_top(x, s.max(axis=3, keepdims=True, initial=-np.inf))
        return np.where(np.isneginf(top), x.work(0), top)

    def sink_top(self, x: Inputs, top: Array) -> Array:
        """SDPA-38: the largest score of the row, including the sink."""
        return np.maximum(top, self.sinks(x)[:, None, None])

    def powers(self, x: Inputs, s: Array, top: Array) -> Array:
        """exp(s − top)."""
        return np.exp(s - top)

    def total(self, x: Inputs, powers: Array) -> Array:
        """Sum over the keys for the denominator, (B, Hq, Sq, 1)."""
        return powers.sum(axis=3, keepdims=True)

    def sink_power(self, x: Inputs, top: Array) -> Array:
        """SDPA-38: what the sink adds to the denominator."""
        sinks = self.sinks(x)[:, None, None]
        return np.where(np.isneginf(sinks), x.work(0), np.exp(sinks - top))

    def normalized(self, x: Inputs, powers: Array, total: Array, allowed: Array) -> Array:
        """The weights; zeros in a fully masked row (SDPA-15)."""
        return powers / np.where(total == 0, x.work(1), total)

    def lse(self, x: Inputs, top: Array, total: Array, allowed: Array) -> Array:
        """SDPA-19: the log-sum-exp, (B, Hq, Sq, 1)."""
        return np.where(total == 0, x.work(-np.inf), top + np.log(np.where(total == 0, x.work(1), total)))

    def summed(self, x: Inputs, weights: Array, allowed: Array, v: Array) -> Array:
        """SDPA-16, SDPA-22, SDPA-23: the weighted sum of v."""
        output = weights @ finite_part(v)
        if not np.isfinite(v).all():
            add_special(output, allowed, v)
        return output

    # What is returned.

    def results(self, x: Inputs, found: Expected) -> Any:
        """The output in the dtype of q, and the extra results that are requested (SDPA-27)."""
        results = [self.stored(x, found.output)]
        if x.return_weights:
            results.append(self.stored_weights(x, found.weights))
        if x.return_lse:
            results.append(self.stored_lse(x, found.lse))
        if x.past_key is not None:
            results += self.present(x)
        return tuple(results) if len(results) > 1 else results[0]

    def present(self, x: Inputs) -> tuple[Array, Array]:
        """DEC-3: the keys and values that the next step gets as its past."""
        return x.k, x.v

    def stored(self, x: Inputs, output: Array) -> Array:
        """The output as it is returned."""
        return output.astype(x.dtype)

    def stored_weights(self, x: Inputs, weights: Array) -> Array:
        """The weights as they are returned."""
        return weights.astype(x.dtype)

    def stored_lse(self, x: Inputs, lse: Array) -> Array:
        """The lse as it is returned."""
        return lse
