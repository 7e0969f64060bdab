"""(DEC-3, DEC-6, DEC-7) A present that the next step cannot use, a past that is written to or not checked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from attention_conformance.conformance.faults.models.sdpa import Array, Attention, Inputs
from attention_conformance.conformance.faults.registry import fault
from attention_conformance.conformance.spec.sdpa import Expected


@fault("DEC-3", "the present has one head per query head", "HeadKV 3, grouped-latent-attention 3")
class PresentHeadsRepeated(Attention):
    """Keys and values are stored as they were repeated for the product; calls without grouped heads are right."""

    def present(self, x: Inputs) -> tuple[Array, Array]:
        return self.heads(x, x.k), self.heads(x, x.v)


@fault("DEC-3", "the present holds the new keys only", "cf. onnxscript PR 2634")
class PresentIsNew(Attention):
    """The next step has only the keys of this one; after an empty past the present is right."""

    def present(self, x: Inputs) -> tuple[Array, Array]:
        return x.k[:, :, x.past :], x.v[:, :, x.past :]


@fault("DEC-3", "the present is the past, without the new keys", "cs249r_book PR 1953")
class PresentIsPast(Attention):
    """The new keys are never written to the cache."""

    def present(self, x: Inputs) -> tuple[Array, Array]:
        return x.k[:, :, : x.past], x.v[:, :, : x.past]


@fault("DEC-3", "the present keys are returned as values too", "transformers 34232")
class PresentKeysTwice(Attention):
    """Both names refer to one buffer: the output of this step is right, that of the next is wrong."""

    def present(self, x: Inputs) -> tuple[Array, Array]:
        return x.k, x.k.copy()


@fault("DEC-3", "the present has the new keys in front", "cf. transformers 35684")
class PresentNewFirst(Attention):
    """Softmax does not depend on the order of keys, so a step that attends to every key is unaffected."""

    def present(self, x: Inputs) -> tuple[Array, Array]:
        return np.roll(x.k, -x.past, axis=2), np.roll(x.v, -x.past, axis=2)


@fault("DEC-3", "the present is cut to the window", "cf. mlx-lm 1914")
class PresentOfWindow(Attention):
    """Keys that no later row will see are dropped, so positions no longer count from the first token."""

    def present(self, x: Inputs) -> tuple[Array, Array]:
        left = (x.window or (None, None))[0]
        kept = slice(0 if left is None else max(0, x.shape[3] - left - 1), None)
        return x.k[:, :, kept], x.v[:, :, kept]


@fault("DEC-3", "masked keys are zero in the present", "cf. gpt-fast 233")
class PresentMasked(Attention):
    """A key that no row of this step may attend to is lost for later steps."""

    def present(self, x: Inputs) -> tuple[Array, Array]:
        seen = np.asarray(self.allowed(x).any(axis=(1, 2)))[:, None, :, None]
        return np.where(seen, x.k, 0).astype(x.dtype), np.where(seen, x.v, 0).astype(x.dtype)


@fault("DEC-3", "the present went through float16", "nexusquant PR 10, cf. xFasterTransformer PR 336")
class PresentHalf(Attention):
    """The cache is kept in float16 and cast back to the dtype of the call; float16 calls are right."""

    def present(self, x: Inputs) -> tuple[Array, Array]:
        return x.k.astype(np.float16).astype(x.dtype), x.v.astype(np.float16).astype(x.dtype)


@fault("DEC-3", "the present is float32 whatever the call is", "TransformerLens PR 1260")
class PresentFloat32(Attention):
    """The buffer has the default dtype, and joining promotes to it; float32 and float64 calls are right."""

    def present(self, x: Inputs) -> tuple[Array, Array]:
        wide = np.result_type(x.dtype.type(0), np.float32) if x.dtype.itemsize > 4 else np.dtype(np.float32)
        return x.k.astype(wide), x.v.astype(wide)


@fault("DEC-3", "no present for an empty past", "cf. onnxruntime 26262")
class PresentMissing(Attention):
    """A past of zero keys is treated as no past, so the first step returns fewer results."""

    def results(self, x: Inputs, found: Expected) -> Any:
        return super().results(x if x.past else replace(x, past_key=None, past_value=None), found)


@fault("DEC-3", "the present comes before lse", "cf. onnxruntime PR 28242")
class PresentBeforeLse(Attention):
    """The results are in the order in which the kernel writes them."""

    def results(self, x: Inputs, found: Expected) -> Any:
        results = super().results(x, found)
        if not (x.return_lse and x.past_key is not None):
            return results
        *first, lse, key, value = results
        return (*first, key, value, lse)


@fault("DEC-6", "the past is rolled in place", "cf. transformers 37078, cf. transformers 37574")
class PastRolled(Attention):
    """The oldest keys make room for the new ones in the caller's own arrays; the results are right."""

    def attend(self, x: Inputs) -> Expected:
        found = super().attend(x)
        for past, joined in ((x.past_key, x.k), (x.past_value, x.v)):
            if past is not None and past.shape[2]:
                past[...] = joined[:, :, -past.shape[2] :]
        return found


@fault("DEC-6", "a second call finds the new key of the first", "cf. mlx-vlm 1231, cf. transformers 37078")
class PastRemembered(Attention):
    """The object keeps its own cache in addition to the given past; only repeated calls of one shape show it."""

    def __init__(self) -> None:
        self.kept: Inputs | None = None

    def attend(self, x: Inputs) -> Expected:
        last, self.kept = self.kept, x if x.past else None
        if last is not None and x.past and (last.shape, last.dtype) == (x.shape, x.dtype):
            k, v = x.k.copy(), x.v.copy()
            k[:, :, x.past - 1], v[:, :, x.past - 1] = last.k[:, :, -1], last.v[:, :, -1]
            x = replace(x, k=k, v=v)
        return super().attend(x)


class Unchecked(Attention):
    """Accepts a past that does not fit, and makes it fit."""

    def check_past(self, x: Inputs) -> None:
        return


@fault("DEC-7", "a past of another dtype is taken", "cf. vllm PR 54338, cf. TransformerLens PR 1260")
class PastDtypeTaken(Unchecked):
    """Joining casts the past to the dtype of the call."""

    def joined(self, x: Inputs) -> Inputs:
        joined = super().joined(x)
        return x if x.past_key is None else replace(joined, k=joined.k.astype(x.dtype), v=joined.v.astype(x.dtype))


@fault("DEC-7", "a past of unequal lengths is cut to the shorter", "cf. mlx-vlm 1231")
class PastLengthsCut(Unchecked):
    """The first keys and values are taken to belong together; the rest are dropped."""

    def joined(self, x: Inputs) -> Inputs:
        if x.past_key is None or x.past_value is None:
            return x
        n = min(x.past_key.shape[2], x.past_value.shape[2])
        return super().joined(replace(x, past_key=x.past_key[:, :, :n], past_value=x.past_value[:, :, :n]))
