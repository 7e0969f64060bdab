"""(DEC-1, DEC-2, DEC-5) Steps of decoding that attend to the wrong keys, or take the wrong positions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attention_conformance.conformance.faults.models.sdpa import Array, Attention, Inputs
from attention_conformance.conformance.faults.registry import fault
from attention_conformance.conformance.spec.sdpa import Expected


def new_keys(x: Inputs) -> int:
    """The number of new keys, once they are joined to the past."""
    return x.shape[3] - x.past


def fixed(x: Inputs) -> bool:
    """Whether this is a step over a cache of fixed size (DEC-5)."""
    return x.is_causal and x.kv_lengths is not None and isinstance(x.causal_offset, np.ndarray)


@fault("DEC-2", "causal starts at the first past key", "onnx PR 7297, flax 5591, hyprstream PR 1521")
class PastCausalTopLeft(Attention):
    """Row i of a step sees only the oldest keys, 0 to i, unless causal_offset is given."""

    def default_offset(self, x: Inputs) -> int:
        return 0


@fault("DEC-2", "causal ends at the last key, not behind the past", "cf. tract PR 2645, cf. lm-engine PR 498")
class PastCausalBottomRight(Attention):
    """The default offset is Sk − Sq: right in nearly all calls, which have as many queries as new keys."""

    def default_offset(self, x: Inputs) -> int:
        return x.shape[3] - x.shape[2] if x.past_key is not None else 0


@fault("DEC-2", "causal switched off with a past", "mlx-node PR 24, cf. lm-engine PR 498")
class PastCausalOff(Attention):
    """A single new token gets the right result; of several, each also sees the later ones."""

    def causal_allows(self, x: Inputs) -> Array:
        return np.ones(x.shape, bool) if x.past else super().causal_allows(x)


@fault("DEC-2", "all new tokens stand where the first one does", "cf. sgl-kernel-xpu 196")
class PastOneDiagonal(Attention):
    """The diagonal is the offset without the row index, so only the first new token sees its own key."""

    def diagonal(self, x: Inputs) -> Array:
        return super().diagonal(x) - (np.arange(x.shape[2])[:, None] if x.past else 0)


@fault("DEC-2", "the window is counted from the first past key", "lalamo PR 200")
class PastWindowTopLeft(Attention):
    """The window is built around key i for row i, as if there were no past; the causal mask is right."""

    def window_allows(self, x: Inputs) -> Array:
        return super().window_allows(replace(x, causal_offset=0) if x.past else x)


@fault("DEC-2", "the window is ignored in a step of one token", "nanochat 452, hnet 20")
class PastWindowIgnored(Attention):
    """The path for one token passes on every option except the window."""

    def window(self, x: Inputs) -> tuple[int | None, int | None]:
        return (None, None) if x.past and x.shape[2] == 1 else super().window(x)


@fault("DEC-1", "past keys are ignored", "DeepSpeed PR 7428")
class PastIgnored(Attention):
    """The past is returned as part of the present, but attention does not read it."""

    def allowed(self, x: Inputs) -> Array:
        return super().allowed(x) & (self.keys(x) >= x.past)


@fault("DEC-1", "the new keys are joined to the past values, too", "InfiniGen 5")
class NewValuesAreKeys(Attention):
    """A copied line writes k to both halves of the cache. Calls with Dv ≠ D raise; calls without a past are right."""

    def joined(self, x: Inputs) -> Inputs:
        return super().joined(x if x.past_value is None else replace(x, v=x.k))


@fault("DEC-1", "new keys are missing from their own step", "cs249r_book PR 1953")
class NewKeysMissing(Attention):
    """The cache is read before the new keys are written to it; calls without past keys are right."""

    def allowed(self, x: Inputs) -> Array:
        return super().allowed(x) & ((self.keys(x) < x.past) | (x.past == 0))


@fault("DEC-1", "the mask is ignored in a step of one token", "transformers 30670")
class PastMaskIgnored(Attention):
    """As soon as decoding begins, queries attend to the padding of the prompt."""

    def mask_allows(self, x: Inputs) -> Array:
        return super().mask_allows(replace(x, mask=None) if x.past and x.shape[2] == 1 else x)


@fault("DEC-1", "the mask is read from its first column for the new keys", "cf. llama 899, cf. candle 2153")
class PastMaskOfNewKeys(Attention):
    """Past keys are all allowed, and the new keys get the first columns of the mask instead of the last."""

    def mask_allows(self, x: Inputs) -> Array:
        allowed = super().mask_allows(x)
        if not x.past or x.mask is None:
            return allowed
        return np.concatenate([np.ones((*x.shape[:3], x.past), bool), allowed[..., : new_keys(x)]], axis=3)


@fault("DEC-1", "the bias of the new keys is read from its first column", "cf. llama 899")
class PastBiasOfNewKeys(Attention):
    """The bias is applied as if the new keys were the only ones; past keys get none."""

    def added(self, x: Inputs, s: Array) -> Array:
        if not x.past or x.bias is None:
            return super().added(x, s)
        bias = np.zeros(x.shape, x.bias.dtype)
        bias[..., x.past :] = self.spread(x, x.bias)[..., : new_keys(x)]
        return s + bias.astype(x.work)


@fault("DEC-1", "key lengths count new keys only", "cf. mobius PR 365")
class PastLengthsOfNewKeys(Attention):
    """The past is added to lengths that already include it, so too few keys are hidden."""

    def lengths_allow(self, x: Inputs) -> Array:
        if x.past and x.kv_lengths is not None:
            x = replace(x, kv_lengths=np.asarray(x.kv_lengths) + x.past)
        return super().lengths_allow(x)


@fault("DEC-1", "keys behind the last whole share of the cache are dropped", "TileOPs PR 101")
class SplitTailDropped(Attention):
    """Each of four splits (split-KV) takes ⌊Sk / 4⌋ keys; calls in which 4 divides Sk are still right."""

    def allowed(self, x: Inputs) -> Array:
        whole = x.shape[3] // 4 * 4
        return super().allowed(x) & ((self.keys(x) < whole) | (x.past == 0))


@fault("DEC-1", "the new keys are lost where the past fills its tiles of 16", "cf. flash-attention 1325")
class NewKeyBehindFullTile(Attention):
    """The tile that holds them is not visited, so every 16th step misses its own token."""

    def allowed(self, x: Inputs) -> Array:
        full = bool(x.past) and x.past % 16 == 0
        return super().allowed(x) & ((self.keys(x) < x.past) | (not full))


@fault("DEC-1", "the newest key overwrites the last past one in a window", "transformers 37574")
class NewestOverwrites(Attention):
    """A ring buffer of slots is written before it is rolled; results are right until the window is full."""

    def attend(self, x: Inputs) -> Expected:
        left = (x.window or (None, None))[0]
        if left is not None and x.past > left:
            k, v = x.k.copy(), x.v.copy()
            k[:, :, x.past - 1], v[:, :, x.past - 1] = k[:, :, -1], v[:, :, -1]
            x = replace(x, k=k, v=v)
        return super().attend(x)


@fault("DEC-5", "key lengths of a cache are those before the new tokens", "mobius PR 365")
class FixedLengthsBefore(Attention):
    """The lengths are raised after the step, so new keys are not seen, and a first step sees no key at all."""

    def attend(self, x: Inputs) -> Expected:
        if fixed(x):
            x = replace(x, kv_lengths=np.asarray(x.kv_lengths) - x.shape[2])
        return super().attend(x)


@fault("DEC-5", "the diagonal ends at the last slot of a cache", "cf. flash-attention 1402, cf. onnx 8054")
class FixedCausalOfBuffer(Attention):
    """The offset is that of a full cache, Sk − Sq; with one new token the key lengths still mask correctly."""

    def offset(self, x: Inputs) -> Array:
        return np.full((1, 1, 1, 1), x.shape[3] - x.shape[2]) if fixed(x) else super().offset(x)


@fault("DEC-5", "each row of a cache sees all of its valid keys", "cf. gpt-fast 233")
class FixedCausalOff(Attention):
    """Only the key lengths mask: a single new token is right, of several each also sees the later ones."""

    def causal_allows(self, x: Inputs) -> Array:
        return np.ones(x.shape, bool) if fixed(x) else super().causal_allows(x)


@fault("DEC-5", "the longest sequence of a batch ends the diagonal of all", "cf. lmdeploy 414")
class FixedOffsetOfLongest(Attention):
    """Rows of shorter sequences also see later tokens of their own, up to the key length."""

    def offset(self, x: Inputs) -> Array:
        offset = super().offset(x)
        return offset.max(axis=0, keepdims=True) if fixed(x) else offset
