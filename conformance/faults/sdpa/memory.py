"""(SDPA-28, SDPA-30) Strides ignored, memory past the end of the inputs read, inputs written to."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attention_conformance.conformance.faults.models.sdpa import Array, Attention, Inputs
from attention_conformance.conformance.faults.registry import fault
from attention_conformance.conformance.spec.sdpa import Expected


def as_it_lies(array: Array) -> Array:
    """The elements in memory order, read as a contiguous array of the same shape."""
    return np.ravel(array, order="K").reshape(array.shape)


@fault("SDPA-30", "strides of q, k and v ignored", "pytorch 181133, pytorch 195320")
class StridesIgnored(Attention):
    """Transposed inputs are read as if they were contiguous."""

    def attend(self, x: Inputs) -> Expected:
        return super().attend(replace(x, q=as_it_lies(x.q), k=as_it_lies(x.k), v=as_it_lies(x.v)))


@fault("SDPA-30", "the stride of the innermost axis ignored", "pytorch PR 187506")
class InnerStrideIgnored(Attention):
    """Heads and rows may have any stride, but the code takes the width to be contiguous without a check."""

    def attend(self, x: Inputs) -> Expected:
        def read(array: Array) -> Array:
            swapped = array.ndim == 4 and array.shape[3] > 1 and array.strides[3] > array.strides[2] > 0
            return as_it_lies(array) if swapped else array

        return super().attend(replace(x, q=read(x.q), k=read(x.k), v=read(x.v)))


@fault("SDPA-30", "strides of the mask ignored", "pytorch PR 184180, onnxruntime PR 28963")
class MaskStridesIgnored(Attention):
    """A transposed mask or bias is read as if it were contiguous."""

    def spread(self, x: Inputs, array: Array) -> Array:
        return super().spread(x, as_it_lies(array))


@fault("SDPA-30", "values behind the last key are read, with the weight 0", "vllm PR 936, pytorch PR 169222")
class ReadsBehind(Attention):
    """Calls are wrong where NaN or infinity lies there, because 0 · NaN is NaN."""

    def summed(self, x: Inputs, weights: Array, allowed: Array, v: Array) -> Array:
        output = super().summed(x, weights, allowed, v)
        buffer = x.v if x.v.base is None else x.v.base
        if not isinstance(buffer, np.ndarray) or buffer.size <= x.v.size or 0 in x.v.strides:
            return output
        return output + 0 * np.ravel(buffer)[-1].astype(x.work)


@fault("SDPA-28", "q scaled in place", "cf. flashinfer PR 2084")
class QueryScaledInPlace(Attention):
    """The first call is right, but it leaves the caller's q changed."""

    def scores(self, x: Inputs, q: Array, k: Array) -> Array:
        scores = super().scores(x, q, k)
        x.q[...] = x.q * x.dtype.type(0.5)
        return scores


@fault("SDPA-28", "k smoothed in place", "FastVideo PR 1457")
class KeysSmoothedInPlace(Attention):
    """The code subtracts the mean over the keys, which changes no weight, in the caller's own array."""

    def operands(self, x: Inputs) -> tuple[Array, Array, Array]:
        operands = super().operands(x)
        if x.shape[3]:
            x.k[...] = x.k - x.k.mean(axis=2, keepdims=True, dtype=x.work).astype(x.dtype)
        return operands


@fault("SDPA-28", "causal written into the caller's mask", "cf. flashinfer PR 2084, cf. FastVideo PR 1457")
class MaskWritten(Attention):
    """The code runs ``mask &= causal``. Masks that must be broadcast are copied first and stay intact."""

    def mask_allows(self, x: Inputs) -> Array:
        if x.mask is not None and x.is_causal and x.mask.shape == x.shape and x.mask.flags.writeable:
            x.mask[...] &= np.broadcast_to(self.keys(x) <= self.diagonal(x), x.shape)
        return super().mask_allows(x)
