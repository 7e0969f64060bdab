"""(SDPA-12) Key lengths that are ignored, off by one, rounded to a tile, or read from another sample."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attention_conformance.conformance.faults.models.sdpa import Array, Attention, Inputs
from attention_conformance.conformance.faults.registry import fault
from attention_conformance.conformance.spec.sdpa import Expected


class Lengths(Attention):
    """Uses ``lengths`` instead of the given key lengths."""

    def lengths(self, x: Inputs, given: Array) -> Array:
        """The lengths that are used, (B,)."""
        return given

    def lengths_allow(self, x: Inputs) -> Array:
        if x.kv_lengths is not None:
            x = replace(x, kv_lengths=self.lengths(x, np.asarray(x.kv_lengths)))
        return super().lengths_allow(x)


@fault("SDPA-12", "key lengths ignored", "jax 23349, cudnn-frontend PR 554")
class LengthsIgnored(Lengths):
    """Rows attend to the padding as well."""

    def lengths(self, x: Inputs, given: Array) -> Array:
        return np.full_like(given, x.shape[3])


@fault("SDPA-12", "one key more than the length", "cf. zml PR 563")
class LengthsOneMore(Lengths):
    """The code tests j ≤ length."""

    def lengths(self, x: Inputs, given: Array) -> Array:
        return given + 1


@fault("SDPA-12", "the last valid key dropped", "TransformerEngine 3331, cs249r_book PR 1953")
class LengthsOneFewer(Lengths):
    """The code tests j < length − 1."""

    def lengths(self, x: Inputs, given: Array) -> Array:
        return given - 1


@fault("SDPA-12", "the length of the first batch used for all", "yalis PR 53, reasoning-from-scratch 33")
class LengthsFirstBatch(Lengths):
    """The code reads one scalar from the array of lengths."""

    def lengths(self, x: Inputs, given: Array) -> Array:
        return np.broadcast_to(given[:1], given.shape)


@fault("SDPA-12", "the longest length used for all", "mlx-vlm PR 1946")
class LengthsLongest(Lengths):
    """Shorter samples attend to their padding, up to the longest length."""

    def lengths(self, x: Inputs, given: Array) -> Array:
        return np.full_like(given, given.max(initial=0))


@fault("SDPA-12", "a length of 0 means all keys", "cf. flash-attention 2574")
class LengthsZeroIsAll(Lengths):
    """The code computes ``length or Sk``, and 0 is false."""

    def lengths(self, x: Inputs, given: Array) -> Array:
        return np.where(given == 0, x.shape[3], given)


@fault("SDPA-12", "lengths rounded up to a multiple of 8", "TransformerEngine 3331")
class LengthsRoundedUp(Lengths):
    """A length of 698 becomes 704."""

    def lengths(self, x: Inputs, given: Array) -> Array:
        return -(-given // 8) * 8


@fault("SDPA-12", "keys behind the length scored 0 instead of masked", "flashinfer PR 5090, tt-metal 54833")
class LengthsZeroScore(Attention):
    """Keys and values past the length are filled with zeros, so each such key adds exp(0) = 1 to the sum."""

    def attend(self, x: Inputs) -> Expected:
        if x.kv_lengths is None:
            return super().attend(x)
        kept = (self.keys(x) < np.reshape(x.kv_lengths, (-1, 1)))[:, None, :, None]
        k, v = (np.where(kept, array, array.dtype.type(0)) for array in (x.k, x.v))
        return super().attend(replace(x, k=k, v=v, kv_lengths=None))


@fault("SDPA-12", "key lengths cut the queries too", "vigg_ribonanza 1")
class LengthsCutQueries(Attention):
    """With Sq = Sk, rows past the key length give zeros, as in self-attention over padded samples."""

    def lengths_allow(self, x: Inputs) -> Array:
        allowed = super().lengths_allow(x)
        if x.kv_lengths is None or x.shape[2] != x.shape[3]:
            return allowed
        return allowed & (np.arange(x.shape[2])[:, None] < np.reshape(x.kv_lengths, (-1, 1, 1, 1)))


@fault("SDPA-13", "key lengths move the causal diagonal to their end", "onnx PR 8068, onnx 8054")
class LengthsMoveDiagonal(Attention):
    """Each sample's diagonal ends at its own last valid key. Calls with an offset are right."""

    def causal_allows(self, x: Inputs) -> Array:
        if x.kv_lengths is None or not x.is_causal or np.any(self.offset(x)):
            return super().causal_allows(x)
        return self.keys(x) <= self.diagonal(x) + np.reshape(x.kv_lengths, (-1, 1, 1, 1)) - x.shape[2]


@fault("SDPA-13", "key lengths dropped where is_causal is given", "dia PR 170")
class LengthsDroppedWithCausal(Attention):
    """The code keeps only one of two masks."""

    def lengths_allow(self, x: Inputs) -> Array:
        return np.ones(x.shape, bool) if x.is_causal else super().lengths_allow(x)
