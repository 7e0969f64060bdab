"""Honest variants of merging: six correct ways that programs use, which must pass every case."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from attention_conformance.conformance.faults.models.merge import Merging
from attention_conformance.conformance.faults.models.sdpa import Array
from attention_conformance.impls.contract import Profile

States = tuple[Array, Array]


def _work(outputs: Array) -> type:
    return np.float64 if outputs.dtype == np.float64 else np.float32


def by_maximum(outputs: Array, lses: Array) -> States:
    """The model that the faults modify."""
    return Merging()(outputs, lses)


def by_stored_lse(outputs: Array, lses: Array) -> States:
    """Weights relative to the stored lse, and no division."""
    lse = np.logaddexp.reduce(lses, axis=0)
    weights = np.exp(lses - np.where(np.isneginf(lse), 0, lse).astype(lses.dtype))
    return (weights[..., None] * outputs.astype(_work(outputs))).sum(axis=0).astype(outputs.dtype), lse


def in_base_two(outputs: Array, lses: Array) -> States:
    """All log-sum-exps converted to base 2, and lse converted back."""
    log2e = lses.dtype.type(np.log2(np.e))
    twos = lses * log2e
    largest = twos.max(axis=0)
    largest = np.where(np.isneginf(largest), 0, largest).astype(lses.dtype)
    powers = np.exp2(twos - largest)
    total = powers.sum(axis=0)
    weights = powers / np.where(total == 0, 1, total).astype(lses.dtype)
    output = (weights[..., None] * outputs.astype(_work(outputs))).sum(axis=0).astype(outputs.dtype)
    return output, (largest + np.log2(total)) / log2e


def _two(a: States, b: States) -> States:
    outputs, lses = (np.stack(pair) for pair in zip(a, b, strict=True))
    return Merging()(outputs, lses)


def folded(outputs: Array, lses: Array) -> States:
    """Parts merged one by one from the left, each result stored in the dtype of the outputs: profile storage."""
    return functools.reduce(_two, zip(outputs, lses, strict=True))


def as_a_tree(outputs: Array, lses: Array) -> States:
    """Neighbouring parts in pairs, then the results in pairs."""
    states = list(zip(outputs, lses, strict=True))
    while len(states) > 1:
        states = [_two(*pair) for pair in zip(states[::2], states[1::2], strict=False)] + states[len(states) & ~1 :]
    return states[0]


def by_sigmoid(outputs: Array, lses: Array) -> States:
    """One after the other as out − σ(b − a) (out − part), with a guard where a part has no key."""
    output, lse = outputs[0].astype(_work(outputs)), lses[0]
    for part, other in zip(outputs[1:].astype(output.dtype), lses[1:], strict=True):
        gap = np.where(np.isneginf(other), -np.inf, np.where(np.isneginf(lse), np.inf, other - lse)).astype(lse.dtype)
        output = output - (1 / (1 + np.exp(-gap)))[..., None] * (output - part)
        lse = np.logaddexp(lse, other)
    return output.astype(outputs.dtype), lse


#: The variants, and the profile of each.
RIGHT: dict[Callable[[Array, Array], States], Profile] = {
    by_maximum: Profile.WIDE,
    by_stored_lse: Profile.WIDE,
    in_base_two: Profile.WIDE,
    folded: Profile.STORAGE,
    as_a_tree: Profile.STORAGE,
    by_sigmoid: Profile.WIDE,
}
