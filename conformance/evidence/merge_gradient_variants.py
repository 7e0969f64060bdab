"""Honest variants of the gradients of a merge: six correct ways that programs use, which must pass every case."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attention_conformance.conformance.faults.models.merge import Merging
from attention_conformance.conformance.faults.models.merge_gradients import MergeBackward
from attention_conformance.conformance.faults.models.sdpa import Array
from attention_conformance.impls.contract import Profile
from attention_conformance.impls.numpy.merge_gradients import merge_gradients
from attention_conformance.impls.numpy.parts import working_dtype
from attention_conformance.impls.validate import check_merge_gradients

Gradients = tuple[Array, Array]


def by_weights(outputs: Array, lses: Array, grad_output: Array, *, grad_lse: Array | None = None) -> Gradients:
    """The model that the faults modify."""
    return MergeBackward()(outputs, lses, grad_output, grad_lse=grad_lse)


def by_stored_lse(outputs: Array, lses: Array, grad_output: Array, *, grad_lse: Array | None = None) -> Gradients:
    """Weights relative to the stored lse: numpy-merge-gradients."""
    return merge_gradients(outputs, lses, grad_output, grad_lse=grad_lse)


def by_delta(outputs: Array, lses: Array, grad_output: Array, *, grad_lse: Array | None = None) -> Gradients:
    """Gradients as in flash kernels: delta from the stored merged output, and each product by itself."""
    check_merge_gradients(outputs, lses, grad_output, grad_lse)
    work = working_dtype(outputs.dtype)
    merged, lse = Merging()(outputs, lses)
    g = grad_output.astype(work)
    empty = np.isneginf(lses)
    weights = np.exp(lses - np.where(np.isneginf(lse), 0, lse)).astype(work)
    delta = (g * merged.astype(work)).sum(axis=-1) - (0 if grad_lse is None else grad_lse)
    products = (g * np.where(empty[..., None], 0, outputs.astype(work))).sum(axis=-1)
    grad_lses = weights * products - weights * delta
    return (weights[..., None] * g).astype(outputs.dtype), grad_lses.astype(lses.dtype)


def in_base_two(outputs: Array, lses: Array, grad_output: Array, *, grad_lse: Array | None = None) -> Gradients:
    """Log-sum-exps in base 2, and their gradients times ln 2, as in a kernel with exp2, converted back."""
    check_merge_gradients(outputs, lses, grad_output, grad_lse)
    work, ln2 = working_dtype(outputs.dtype), lses.dtype.type(np.log(2))
    twos, empty = lses / ln2, np.isneginf(lses)
    largest = twos.max(axis=0)
    powers = np.exp2(twos - np.where(np.isneginf(largest), 0, largest))
    total = powers.sum(axis=0)
    weights = (powers / np.where(total == 0, 1, total)).astype(work)
    parts, g = np.where(empty[..., None], 0, outputs.astype(work)), grad_output.astype(work)
    merged = (weights[..., None] * parts).sum(axis=0)
    of_lse = work(0) if grad_lse is None else grad_lse * ln2
    in_twos = weights * ((g * (parts - merged)).sum(axis=-1) * ln2 + of_lse)
    return (weights[..., None] * g).astype(outputs.dtype), (in_twos / ln2).astype(lses.dtype)


class _InSteps:
    """Back through merges of two parts at a time, from the left; arrays between two steps are kept in a dtype."""

    def __init__(self, *, stored: bool) -> None:
        self.stored, self.__name__ = stored, "in_stored_steps" if stored else "in_steps"

    def __call__(self, outputs: Array, lses: Array, grad_output: Array, *, grad_lse: Array | None = None) -> Gradients:
        check_merge_gradients(outputs, lses, grad_output, grad_lse)
        work = working_dtype(outputs.dtype)
        kept: Any = outputs.dtype if self.stored else work
        parts = np.where(np.isneginf(lses)[..., None], 0, outputs.astype(work)).astype(kept)
        states = [(parts[0], lses[0])]
        for part in zip(parts[1:], lses[1:], strict=True):
            states.append(Merging()(*(np.stack(pair) for pair in zip(states[-1], part, strict=True))))
        g = grad_output.astype(kept)
        h = np.zeros(lses.shape[1:], lses.dtype) if grad_lse is None else grad_lse.astype(lses.dtype)
        found_outputs, found_lses = np.zeros(outputs.shape, kept), np.zeros(lses.shape, lses.dtype)
        for n in range(len(parts) - 1, 0, -1):
            pair = np.stack([states[n - 1][0], parts[n]]), np.stack([states[n - 1][1], lses[n]])
            (g, found_outputs[n]), (h, found_lses[n]) = MergeBackward()(*pair, g, grad_lse=h)
        found_outputs[0] = np.where(np.isneginf(lses[0])[..., None], 0, g)
        found_lses[0] = np.where(np.isneginf(lses[0]), 0, h)
        return found_outputs.astype(outputs.dtype), found_lses


#: The variants, and the profile of each.
BACKWARD: dict[Callable[..., Gradients], Profile] = {
    by_weights: Profile.WIDE,
    by_stored_lse: Profile.WIDE,
    by_delta: Profile.FUSED,
    in_base_two: Profile.WIDE,
    _InSteps(stored=False): Profile.WIDE,
    _InSteps(stored=True): Profile.STORAGE,
}
