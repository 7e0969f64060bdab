"""(SDPA-8) Masks and biases that must be broadcast, with one of their axes read wrongly."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attention_conformance.conformance.faults.models.sdpa import Array, Attention, Inputs
from attention_conformance.conformance.faults.registry import fault


def full_rank(array: Array) -> Array:
    """The array with axes of length 1 in front, up to rank 4."""
    return array.reshape((1,) * (4 - array.ndim) + array.shape)


def first_of(array: Array, axis: int) -> Array:
    """The array at rank 4, cut to the first entry of an axis."""
    return full_rank(array).take([0], axis=axis)


@fault("SDPA-8", "the mask of the first batch used for all", "yalis PR 53")
class FirstBatchForAll(Attention):
    """The batch stride of the mask or bias is taken as 0."""

    def spread(self, x: Inputs, array: Array) -> Array:
        return super().spread(x, first_of(array, 0))


@fault("SDPA-8", "the mask of the first head used for all", "cf. rocm-libraries PR 11189")
class FirstHeadForAll(Attention):
    """The head stride of the mask or bias is taken as 0."""

    def spread(self, x: Inputs, array: Array) -> Array:
        return super().spread(x, first_of(array, 1))


@fault("SDPA-8", "the mask of the first row used for all", "cf. transformer PR 40")
class FirstRowForAll(Attention):
    """Every mask and bias is read as if it had one entry per key."""

    def spread(self, x: Inputs, array: Array) -> Array:
        return super().spread(x, first_of(array, 2))


@fault("SDPA-8", "the first head of a mask used for all, of a bias not", "cf. rocm-libraries PR 11189")
class MaskOfFirstHead(Attention):
    """A boolean mask is reduced to (B, 1, Sq, Sk); a bias is passed on unchanged."""

    def mask_allows(self, x: Inputs) -> Array:
        return super().mask_allows(x if x.mask is None else replace(x, mask=first_of(x.mask, 1)))


@fault("SDPA-8", "the first row of a mask used for all, of a bias not", "cf. transformer PR 40")
class MaskOfFirstRow(Attention):
    """A boolean mask is reduced to one entry per key; a bias is passed on unchanged."""

    def mask_allows(self, x: Inputs) -> Array:
        return super().mask_allows(x if x.mask is None else replace(x, mask=first_of(x.mask, 2)))


@fault("SDPA-8", "one key column is read as the first of many", "pytorch PR 128816")
class KeyColumnPadded(Attention):
    """A key axis of length 1 is not repeated: a mask is padded with False up to Sk, a bias with −inf."""

    def spread(self, x: Inputs, array: Array) -> Array:
        if array.ndim and array.shape[-1] == 1 < x.shape[3]:
            fill = False if array.dtype == bool else -np.inf
            rest = np.full((*array.shape[:-1], x.shape[3] - 1), fill, array.dtype)
            array = np.concatenate([array, rest], axis=-1)
        return super().spread(x, array)


@fault("SDPA-8", "a mask with one head is stepped through head by head", "pytorch PR 184180, onnxruntime PR 28963")
class PartialOffset(Attention):
    """For a mask (B, 1, Sq, Sk), sample b and head h read entry (b · Hq + h) mod B."""

    def spread(self, x: Inputs, array: Array) -> Array:
        full = full_rank(array)
        if full.shape[0] == 1 or full.shape[1] != 1 or x.shape[1] == 1:
            return super().spread(x, array)
        flat = np.broadcast_to(full, (full.shape[0], 1, *x.shape[2:]))[:, 0]
        order = np.arange(x.shape[0] * x.shape[1]) % full.shape[0]
        return flat[order].reshape(x.shape)


@fault("SDPA-8", "heads folded before the batch: the mask meets another sample", "attention-is-all-you-need-keras 36")
class HeadsFoldedFirst(Attention):
    """Scores folded to (H · B, …) are combined with a mask repeated as (B · H, …)."""

    def spread(self, x: Inputs, array: Array) -> Array:
        full = super().spread(x, array)
        b, h = x.shape[:2]
        return full.reshape(b * h, *x.shape[2:]).reshape(h, b, *x.shape[2:]).swapaxes(0, 1)


@fault("SDPA-8", "a mask of rank 3 aligned at the batch", "vit-pytorch 71")
class Rank3ByBatch(Attention):
    """With B = Hq, a mask (Hq, Sq, Sk) is read as (B, Sq, Sk)."""

    def spread(self, x: Inputs, array: Array) -> Array:
        if array.ndim == 3 and array.shape[0] == x.shape[0] > 1:
            array = array[:, None]
        return super().spread(x, array)


@fault("SDPA-8", "a key mask applied to the rows", "transformer PR 40, attention-is-all-you-need-keras 16")
class KeysAsRows(Attention):
    """With Sq = Sk, a mask (B, 1, 1, Sk) is read as (B, 1, Sq, 1)."""

    def spread(self, x: Inputs, array: Array) -> Array:
        if array.ndim == 4 and array.shape[2] == 1 and array.shape[3] == x.shape[2] > 1:
            array = array.swapaxes(2, 3)
        return super().spread(x, array)


@fault(
    "SDPA-8", "a mask per query head is read by key head", "cf. rocm-libraries PR 11189, cf. flash-sparse-attention 107"
)
class MaskByKeyHead(Attention):
    """With grouped heads, query head h reads the mask of head h // group."""

    def spread(self, x: Inputs, array: Array) -> Array:
        full = super().spread(x, array)
        return full[:, np.arange(x.shape[1]) // x.group] if x.shape[1] else full


@fault("SDPA-8", "an error for a key mask (B, 1, 1, Sk)", "jax 28974, burn 4772")
class KeyMaskRefused(Attention):
    """A mask or bias of rank 4 must have all Sq rows."""

    def check(self, x: Inputs) -> None:
        super().check(x)
        for array in (x.mask, x.bias):
            if array is not None and array.ndim == 4 and array.shape[2] == 1 < x.shape[2]:
                raise ValueError(f"expected {x.shape}, got {array.shape}")


@fault("SDPA-8", "an error for a mask of rank below 4", "pytorch 97409, vit-pytorch 293")
class LowRankRefused(Attention):
    """Every mask and bias must have rank 4."""

    def check(self, x: Inputs) -> None:
        super().check(x)
        for array in (x.mask, x.bias):
            if array is not None and array.ndim < 4:
                raise ValueError(f"expected rank 4, got {array.ndim}")
