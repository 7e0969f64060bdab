"""(SDPA-1, SDPA-9) Indices too narrow for the input, and grids too small for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from attention_conformance.conformance.faults.models.sdpa import Array, Attention, Inputs
from attention_conformance.conformance.faults.registry import fault
from attention_conformance.conformance.spec.sdpa import Expected

#: Options that may have a batch axis, and the number of axes that they then have.
OF_BATCHES = (("mask", 4), ("bias", 4), ("kv_lengths", 1), ("causal_offset", 1))

#: Limit of a 16-bit index, and of the second and third axis of a CUDA grid.
LIMIT = 65536


@fault("SDPA-9", "the key index wraps at 65536", "pytorch 162588")
class KeyIndex16Bits(Attention):
    """Only calls that compare key indices, as for is_causal or a window, over more than 65536 keys are wrong."""

    def keys(self, x: Inputs) -> Array:
        return super().keys(x) % LIMIT


@fault("SDPA-7", "the mask is read with a key index that wraps at 65536", "pytorch 162588, llama.cpp 24912")
class MaskIndex16Bits(Attention):
    """Key 65536 reads the mask of key 0."""

    def spread(self, x: Inputs, array: Array) -> Array:
        return super().spread(x, array)[..., np.arange(x.shape[3]) % LIMIT]


@fault("SDPA-1", "batches and heads beyond 65535 are not computed", "pytorch 142228, flash-linear-attention PR 1077")
class GridLimit(Attention):
    """The launch covers 65535 blocks, and the output of the rest stays zero."""

    def stored(self, x: Inputs, output: Array) -> Array:
        output = super().stored(x, output)
        output.reshape(x.shape[0] * x.shape[1], *output.shape[2:])[LIMIT - 1 :] = 0
        return output


@fault("SDPA-9", "positions counted in the storage dtype", "cf. ml_dtypes 63")
class PositionsInStorage(Attention):
    """bfloat16 counts exactly only to 256 and float16 to 2048; beyond that, several keys share a position."""

    def keys(self, x: Inputs) -> Array:
        return super().keys(x).astype(x.dtype).astype(np.float64)


@fault("SDPA-7", "with a mask, every batch but the first comes out 0", "pytorch 139462")
class MaskedBatchesZero(Attention):
    """The mask was prepared for another length. Masks shared by all batches are right."""

    def stored(self, x: Inputs, output: Array) -> Array:
        output = super().stored(x, output)
        if x.mask is not None and x.mask.ndim == 4 and x.mask.shape[0] > 1:
            output[1:] = 0
        return output


@fault("SDPA-1", "masks, biases, lengths and offsets of a third batch are read from the second", "cf. pytorch 139462")
class OptionsOfTwoBatches(Attention):
    """The index of the batch is cut to 1. Calls of one or two batches are right."""

    def attend(self, x: Inputs) -> Expected:
        return super().attend(replace(x, **{name: self.read(getattr(x, name), axes) for name, axes in OF_BATCHES}))

    def read(self, given: Any, axes: int) -> Any:
        """An option with the second batch's numbers in all later ones."""
        if given is None or np.ndim(given) != axes or len(given) < 3:
            return given
        return np.asarray(given)[np.minimum(np.arange(len(given)), 1)]
