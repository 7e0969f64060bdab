"""Attention that is wrong in one step each, so that one property fails, and a correct attention.

Each is a correct attention taken apart (conformance.faults.models.sdpa) with one method overridden.
"""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np

from attention_conformance.conformance.faults.models.sdpa import Array, Attention, Inputs
from attention_conformance.impls.numpy.varlen import varlen


class _Recency(Attention):
    """Later keys have larger scores."""

    def added(self, x: Inputs, s: Array) -> Array:
        return super().added(x, s) + x.work(0.01) * np.arange(s.shape[3], dtype=x.work)


class _NoMaximum(Attention):
    """exp without subtracting the largest score: it overflows."""

    def top(self, x: Inputs, s: Array) -> Array:
        return np.zeros_like(s[..., :1])


class _FirstMask(Attention):
    """The mask of the first batch, used for all batches."""

    def mask_allows(self, x: Inputs) -> Array:
        allowed = super().mask_allows(x)
        return np.broadcast_to(allowed[:1], allowed.shape)


class _HeadsInTurn(Attention):
    """Query head h reads key head h mod Hkv."""

    def heads(self, x: Inputs, array: Array) -> Array:
        return np.tile(array, (1, x.group, 1, 1))


class _ClippedValues(Attention):
    """Values beyond ±1 are clipped."""

    def summed(self, x: Inputs, weights: Array, allowed: Array, v: Array) -> Array:
        return super().summed(x, weights, allowed, np.clip(v, -1, 1))


class _Epsilon(Attention):
    """A small number added to the denominator."""

    def total(self, x: Inputs, powers: Array) -> Array:
        return super().total(x, powers) + x.work(0.01)


class _BottomRight(Attention):
    """The diagonal ends at the last key."""

    def diagonal(self, x: Inputs) -> Array:
        return super().diagonal(x) + x.shape[3] - x.shape[2]


class _BaseTwo(Attention):
    """The log-sum-exp in base 2."""

    def stored_lse(self, x: Inputs, lse: Array) -> Array:
        return (lse / np.log(2)).astype(lse.dtype)


class _FiniteFill(Attention):
    """Masked scores are set to −5, which leaves them a weight."""

    def filled(self, x: Inputs, s: Array, allowed: Array) -> Array:
        return np.where(allowed, s, x.work(-5))


class _WrongScale(Attention):
    """1/D instead of 1/√D."""

    def default_scale(self, x: Inputs) -> float:
        return 1 / x.q.shape[3]


class _MeanOfRows(Attention):
    """A fully masked row gives the mean of v."""

    def normalized(self, x: Inputs, powers: Array, total: Array, allowed: Array) -> Array:
        weights = super().normalized(x, powers, total, allowed)
        return np.where(allowed.any(axis=3, keepdims=True), weights, x.work(1 / max(1, x.shape[3])))


class _MeanAndScale(_MeanOfRows):
    """Two mistakes: the mean of v in a fully masked row, and a wrong scale everywhere."""

    def default_scale(self, x: Inputs) -> float:
        return 1 / x.q.shape[3]


class _PastMasked(Attention):
    """Past keys are not seen."""

    def allowed(self, x: Inputs) -> Array:
        return super().allowed(x) & (self.keys(x) >= x.past)


class _CausalFromFirstKey(Attention):
    """New rows start at the first past key."""

    def default_offset(self, x: Inputs) -> int:
        return 0


class _AllNan(Attention):
    """NaN for every call."""

    def summed(self, x: Inputs, weights: Array, allowed: Array, v: Array) -> Array:
        return np.full_like(super().summed(x, weights, allowed, v), np.nan)


right = Attention()
all_nan = _AllNan()
recency = _Recency()
no_maximum = _NoMaximum()
first_mask = _FirstMask()
heads_in_turn = _HeadsInTurn()
clipped_values = _ClippedValues()
epsilon = _Epsilon()
bottom_right = _BottomRight()
base_two = _BaseTwo()
finite_fill = _FiniteFill()
wrong_scale = _WrongScale()
past_masked = _PastMasked()
causal_from_first_key = _CausalFromFirstKey()
mean_of_rows = _MeanOfRows()
mean_and_scale = _MeanAndScale()


def packed_mean(
    q: Array, k: Array, v: Array, cu_seqlens_q: Array, cu_seqlens_k: Array, *, return_lse: bool = False, **options: Any
) -> Any:
    """Packed attention that returns the mean of all values of the pack for a fully masked row."""
    output, lse = varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, return_lse=True, **options)
    if len(v):
        mean = np.repeat(v.mean(axis=0, keepdims=True), q.shape[1] // v.shape[1], axis=1)
        output = np.where(np.isneginf(lse.T)[..., None], mean, output).astype(q.dtype)
    return (output, lse) if return_lse else output


def packed_mean_of_more(
    q: Array, k: Array, v: Array, cu_seqlens_q: Array, cu_seqlens_k: Array, *, return_lse: bool = False, **options: Any
) -> Any:
    """``packed_mean``, with every row too large by a hundredth."""
    output, lse = packed_mean(q, k, v, cu_seqlens_q, cu_seqlens_k, return_lse=True, **options)
    output = (output * 1.01).astype(q.dtype)
    return (output, lse) if return_lse else output


def packed_without_keys(q: Array, k: Array, v: Array, cu_seqlens_q: Array, cu_seqlens_k: Array, **options: Any) -> Any:
    """Packed attention that raises where no sequence has a key."""
    if not len(k):
        raise IndexError("index out of range")
    return varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, **options)


_CALLS = 0


def forgetful(q: Array, k: Array, v: Array) -> Any:
    """Zeros in every third call."""
    global _CALLS
    _CALLS += 1
    output = right(q, k, v)
    return output if _CALLS % 3 else np.zeros_like(output)


def refuses_causal(q: Array, k: Array, v: Array, *, is_causal: bool = False) -> Any:
    """Accepts ``is_causal``, and refuses calls that set it."""
    if is_causal:
        raise NotImplementedError("no causal kernel on Mondays")
    return right(q, k, v)


def raises_on_three_keys(q: Array, k: Array, v: Array) -> Any:
    """Raises from three keys on."""
    if k.shape[2] >= 3:
        raise RuntimeError("too many keys")
    return right(q, k, v)


def modifies(q: Array, k: Array, v: Array) -> Any:
    """Leaves q scaled after the call."""
    output = right(q, k, v)
    q *= 0.5
    return output


def aborts_on_three_keys(q: Array, k: Array, v: Array) -> Any:
    """Kills its process from three keys on."""
    if k.shape[2] >= 3:
        os.abort()
    return right(q, k, v)


def hangs_on_three_keys(q: Array, k: Array, v: Array) -> Any:
    """Never returns from three keys on."""
    while k.shape[2] >= 3:
        time.sleep(1)
    return right(q, k, v)
