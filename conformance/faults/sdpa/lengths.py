"""(SDPA-12) Key lengths ignored, off by one, rounded to a tile, or of another sample."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attention_conformance.conformance.faults.models.sdpa import Array, Attention, Inputs
from attention_conformance.conformance.faults.registry import fault
from attention_conformance.conformance.spec.sdpa import Expected


class Lengths(Attention):
    """Reads ``lengths`` instead of what was given."""

    def lengths(self, x: Inputs, given: Array) -> Array:
        """The lengths that are used, (B,)."""
        return given

    def lengths_allow(self, x: Inputs) -> Array:
        if x.kv_lengths is not None:
            x = replace(x, kv_lengths=self.lengths(x, np.asarray(x.kv_lengths)))
        return super().lengths_allow(x)


@fault("SDPA-12", "key lengths ignored", "jax 23349, cudnn-frontend PR 554")
class LengthsIgnored(Lengths):
    """Padding is attended to."""

    def lengths(self, x: Inputs, given: Array) -> Array:
        return np.full_like(given, x.shape[3])


@fault("SDPA-12", "one key more than the length", "cf. zml PR 563")
class LengthsOneMore(Lengths):
    """j ≤ length."""

    def lengths(self, x: Inputs, given: Array) -> Array:
        return given + 1


@fault("SDPA-12", "the last valid key dropped", "TransformerEngine 3331, cs249r_book PR 1953")
class LengthsOneFewer(Lengths):
    """j < length − 1."""

    def lengths(self, x: Inputs, given: Array) -> Array:
        return given - 1


@fault("SDPA-12", "the length of the first batch used for all", "yalis PR 53, reasoning-from-scratch 33")
class LengthsFirstBatch(Lengths):
    """A scalar is read from an array of lengths."""

    def lengths(self, x: Inputs, given: Array) -> Array:
        return np.broadcast_to(given[:1], given.shape)


@fault("SDPA-12", "the longest length used for all", "mlx-vlm PR 1946")
class LengthsLongest(Lengths):
    """The batch is as long as its longest sample."""

    def lengths(self, x: Inputs, given: Array) -> Array:
        return np.full_like(given, given.max(initial=0))


@fault("SDPA-12", "a length of 0 means all keys", "cf. flash-attention 2574")
class LengthsZeroIsAll(Lengths):
    """``length or Sk``: 0 is false."""

    def lengths(self, x: Inputs, given: Array) -> Array:
        return np.where(given == 0, x.shape[3], given)


@fault("SDPA-12", "lengths rounded up to a multiple of 8", "TransformerEngine 3331")
class LengthsRoundedUp(Lengths):
    """698 becomes 704."""

    def lengths(self, x: Inputs, given: Array) -> Array:
        return -(-given // 8) * 8


@fault("SDPA-12", "keys behind the length scored 0 instead of masked", "flashinfer PR 5090, tt-metal 54833")
class LengthsZeroScore(Attention):
    """Zero-filled keys have the score 0, and exp(0) = 1 in the sum; their values are 0."""

    def attend(self, x: Inputs) -> Expected:
        if x.kv_lengths is None:
            return super().attend(x)
        kept = (self.keys(x) < np.reshape(x.kv_lengths, (-1, 1)))[:, None, :, None]
        k, v = (np.where(kept, array, array.dtype.type(0)) for array in (x.k, x.v))
        return super().attend(replace(x, k=k, v=v, kv_lengths=None))


@fault("SDPA-12", "key lengths cut the queries too", "vigg_ribonanza 1")
class LengthsCutQueries(Attention):
    """Rows behind the length give zeros, as in self-attention over padded samples."""

    def lengths_allow(self, x: Inputs) -> Array:
        allowed = super().lengths_allow(x)
        if x.kv_lengths is None or x.shape[2] != x.shape[3]:
            return allowed
        return allowed & (np.arange(x.shape[2])[:, None] < np.reshape(x.kv_lengths, (-1, 1, 1, 1)))


@fault("SDPA-13", "key lengths move the causal diagonal to their end", "onnx PR 8068, onnx 8054")
class LengthsMoveDiagonal(Attention):
    """Each sample is aligned at its own last valid key, though no offset is given."""

    def causal_allows(self, x: Inputs) -> Array:
        if x.kv_lengths is None or not x.is_causal or np.any(self.offset(x)):
            return super().causal_allows(x)
        return self.keys(x) <= self.diagonal(x) + np.reshape(x.kv_lengths, (-1, 1, 1, 1)) - x.shape[2]


@fault("SDPA-13", "key lengths dropped where is_causal is given", "dia PR 170")
class LengthsDroppedWithCausal(Attention):
    """One of two masks wins."""

    def lengths_allow(self, x: Inputs) -> Array:
        return np.ones(x.shape, bool) if x.is_causal else super().lengths_allow(x)
