"""(MLA-2 to MLA-8) Latent attention with the wrong scale, no rotary part, or another head's projection."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from attention_conformance.conformance.faults.models.latent import Latent, Latents
from attention_conformance.conformance.faults.models.sdpa import Array
from attention_conformance.conformance.faults.registry import fault


@fault("MLA-4", "the scale is of the width of the cache, 1/√(R + Dr)", "vllm PR 41569")
class LatentScaleOfCache(Latent):
    """For DeepSeek-V2 that is 1/√576 instead of 1/√192."""

    def scale(self, x: Latents) -> float:
        return 1 / math.sqrt(x.latents.shape[2] + x.q_rope.shape[3]) if x.scale is None else x.scale


@fault("MLA-4", "the scale is of the width of a latent, 1/√R", "cf. vllm PR 41569")
class LatentScaleOfRank(Latent):
    """For DeepSeek-V2 that is 1/√512 instead of 1/√192."""

    def scale(self, x: Latents) -> float:
        return 1 / math.sqrt(x.latents.shape[2]) if x.scale is None else x.scale


@fault("MLA-4", "the scale leaves the rotary columns out, 1/√D", "cf. vllm PR 41569")
class LatentScaleWithoutRope(Latent):
    """For DeepSeek-V2 that is 1/√128 instead of 1/√192."""

    def scale(self, x: Latents) -> float:
        return 1 / math.sqrt(x.q.shape[3]) if x.scale is None else x.scale


@fault("MLA-4", "the scale is reversed: scores times √(D + Dr)", "maxtext 1370")
class LatentScaleReversed(Latent):
    """The exponent of the scale has the wrong sign; calls with a given scale are right."""

    def scale(self, x: Latents) -> float:
        return 1 / super().scale(x) if x.scale is None else x.scale


@fault("MLA-4", "the scale is 1 in the absorbed form", "vLLM-metax PR 113")
class LatentScaleOne(Latent):
    """A placeholder 1.0 is never replaced, even where a scale is given."""

    def scale(self, x: Latents) -> float:
        return 1.0


@fault(
    "MLA-2", "the rotary part of the scores is dropped", "cf. MiniGPT-and-DeepSeek-MLA-Multi-Head-Latent-Attention 1"
)
class LatentWithoutRope(Latent):
    """Only the latents enter the scores."""

    def q_rope(self, x: Latents) -> Array:
        return 0 * x.q_rope


@fault("MLA-2", "all heads have the rotary query of the first", "cf. rocm-libraries PR 9442")
class LatentRopeOfFirstHead(Latent):
    """All heads share the rotary key, but each has its own rotary query."""

    def q_rope(self, x: Latents) -> Array:
        return np.broadcast_to(x.q_rope[:, :1], x.q_rope.shape)


@fault("MLA-3", "values go through the projection of the next head", "cf. vllm PR 12528")
class LatentValuesOfNextHead(Latent):
    """w_uv is read with the heads in another order; a single head is right."""

    def w_uv(self, x: Latents) -> Array:
        return np.roll(x.w_uv, -1, axis=0)


@fault("MLA-3", "keys of all heads are projected as those of the first", "cf. vllm PR 12528")
class LatentKeysOfFirstHead(Latent):
    """With a single head the result is right."""

    def w_uk(self, x: Latents) -> Array:
        return np.broadcast_to(x.w_uk[:1], x.w_uk.shape)


@fault("MLA-3", "w_uk is not transposed where it is absorbed", "cf. vllm PR 12528")
class LatentNotTransposed(Latent):
    """Only calls with R = D, where the shapes fit, show it."""

    def w_uk(self, x: Latents) -> Array:
        return x.w_uk.swapaxes(1, 2) if x.w_uk.shape[1] == x.w_uk.shape[2] else x.w_uk


@fault("MLA-3", "values fall behind the keys after as many as the cache has columns", "ik_llama.cpp PR 2031")
class LatentValuesFallBehind(Latent):
    """Each block of R + Dr keys advances the values by only R; the first block is right."""

    def values(self, x: Latents) -> Array:
        width, rank = x.latents.shape[2] + x.k_rope.shape[2], x.latents.shape[2]
        keys = np.arange(x.latents.shape[1])
        return x.latents[:, np.minimum(keys // width * rank + keys % width, len(keys) - 1)][:, None]


@fault("MLA-5", "lse is of scores without the rotary part", "cf. vllm PR 12528")
class LatentLseWithoutRope(Latent):
    """The output is right, but a merge with other parts weights it wrongly."""

    def attended(
        self, arrays: tuple[Array, ...], scale: float | None = None, return_lse: bool = False, **options: Any
    ) -> Any:
        found = super().attended(arrays, scale, return_lse, **options)
        q, rope, *others = arrays
        return (found[0], super().attended((q, 0 * rope, *others), scale, True, **options)[1]) if return_lse else found


@fault("MLA-8", "what does not fit together is cut to what there is of both", "cf. Megatron-LM 1412")
class LatentUnchecked(Latent):
    """The smaller of two differing widths, lengths or numbers of heads is used."""

    def check(self, *arrays: Array) -> None:
        pass

    def attended(
        self, arrays: tuple[Array, ...], scale: float | None = None, return_lse: bool = False, **options: Any
    ) -> Any:
        q, q_rope, latents, k_rope, w_uk, w_uv = arrays
        keys, rank = min(latents.shape[1], k_rope.shape[1]), min(latents.shape[2], w_uk.shape[1], w_uv.shape[1])
        heads, rope = min(len(w_uk), len(w_uv), q.shape[1]), min(q_rope.shape[3], k_rope.shape[2])
        cut = (q[:, :heads], q_rope[:, :heads, :, :rope], latents[:, :keys, :rank], k_rope[:, :keys, :rope])
        return super().attended((*cut, w_uk[:heads, :rank], w_uv[:heads, :rank]), scale, return_lse, **options)
