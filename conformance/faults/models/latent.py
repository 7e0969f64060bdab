"""Attention over latents in its absorbed form, split into correct steps, around the attention of sdpa.py."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from attention_conformance.conformance.faults.models.sdpa import Array, Attention, Model
from attention_conformance.impls.numpy.parts import working_dtype
from attention_conformance.impls.validate import check_latent


@dataclass(frozen=True)
class Latents:
    """One call: its arrays in the working dtype, and its options."""

    q: Array
    q_rope: Array
    latents: Array
    k_rope: Array
    w_uk: Array
    w_uv: Array
    options: dict[str, Any]
    scale: float | None = None


class Latent(Model):
    """The steps of latent, each correct; half precision is computed in float32."""

    operator: ClassVar[str] = "latent"
    #: The attention over the latents.
    attention: ClassVar[type[Attention]] = Attention

    def __init__(self) -> None:
        self.inner = self.attention()

    def __call__(
        self, q: Array, q_rope: Array, latents: Array, k_rope: Array, w_uk: Array, w_uv: Array, **options: Any
    ) -> Any:
        """The output (B, H, Sq, Dv), and lse (B, H, Sq) if it is requested."""
        return self.attended((q, q_rope, latents, k_rope, w_uk, w_uv), **options)

    def attended(
        self, arrays: tuple[Array, ...], scale: float | None = None, return_lse: bool = False, **options: Any
    ) -> Any:
        """Results of a call; ``arrays`` are the arrays of ``__call__``, in the same order."""
        self.check(*arrays)
        work = working_dtype(arrays[0].dtype)
        q, q_rope, latents, k_rope, w_uk, w_uv = (array.astype(work) for array in arrays)
        x = Latents(q, q_rope, latents, k_rope, w_uk, w_uv, options, scale)
        queries, keys, values = self.queries(x), self.keys(x), self.values(x)
        output, lse = self.inner(queries, keys, values, scale=self.scale(x), return_lse=True, **options)
        output = self.projected(x, output).astype(arrays[0].dtype)
        return (output, lse) if return_lse else output

    def check(self, *arrays: Array) -> None:
        """MLA-8: refuse inputs that do not fit together."""
        check_latent(*arrays)

    def scale(self, x: Latents) -> float:
        """MLA-4: the given scale, or the default."""
        return 1 / math.sqrt(x.q.shape[3] + x.q_rope.shape[3]) if x.scale is None else x.scale

    def queries(self, x: Latents) -> Array:
        """MLA-3: the queries over latents, (B, H, Sq, R + Dr)."""
        return np.concatenate([x.q @ self.w_uk(x).swapaxes(1, 2), self.q_rope(x)], axis=3)

    def w_uk(self, x: Latents) -> Array:
        """MLA-2: the weight w_uk, (H, R, D)."""
        return x.w_uk

    def q_rope(self, x: Latents) -> Array:
        """MLA-2: the rotary part of the queries, (B, H, Sq, Dr)."""
        return x.q_rope

    def keys(self, x: Latents) -> Array:
        """MLA-3: the keys that all heads share, (B, 1, Sk, R + Dr)."""
        return np.concatenate([x.latents, x.k_rope], axis=2)[:, None]

    def values(self, x: Latents) -> Array:
        """MLA-3: the values that all heads share, (B, 1, Sk, R)."""
        return x.latents[:, None]

    def w_uv(self, x: Latents) -> Array:
        """MLA-2: the weight w_uv, (H, R, Dv)."""
        return x.w_uv

    def projected(self, x: Latents, output: Array) -> Array:
        """MLA-3: the output after w_uv, (B, H, Sq, Dv)."""
        return output @ self.w_uv(x)
