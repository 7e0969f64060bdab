"""(SDPA-5) The softcap ignored, or applied at the wrong step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attention_conformance.conformance.faults.models.sdpa import Array, Attention, Inputs
from attention_conformance.conformance.faults.models.tiles import Tiled
from attention_conformance.conformance.faults.registry import fault


@fault("SDPA-5", "the softcap ignored", "flashinfer 1193, sgl-kernel-xpu PR 491, vllm-metal 665")
class SoftcapIgnored(Attention):
    """The argument is passed to the wrong call and dropped."""

    def capped(self, x: Inputs, s: Array) -> Array:
        return s


@fault("SDPA-5", "the softcap ignored with one query", "vllm-metal 665")
class SoftcapIgnoredOneQuery(Attention):
    """The decoding path applies no softcap."""

    def capped(self, x: Inputs, s: Array) -> Array:
        return s if x.shape[2] == 1 else super().capped(x, s)


@fault("SDPA-5", "the softcap ignored with grouped heads", "imp PR 688")
class SoftcapIgnoredGrouped(Attention):
    """The kernel for grouped heads applies no softcap."""

    def capped(self, x: Inputs, s: Array) -> Array:
        return s if x.group > 1 else super().capped(x, s)


@fault("SDPA-13", "the softcap after the bias", "onnx 7865, emx-onnx-cgen PR 731")
class SoftcapAfterBias(Attention):
    """The bias is capped too."""

    def capped(self, x: Inputs, s: Array) -> Array:
        return s

    def added(self, x: Inputs, s: Array) -> Array:
        return super().capped(x, super().added(x, s))


@fault("SDPA-13", "the softcap after the mask: −inf becomes −c", "onnx 7865, onnxruntime PR 28379, flashinfer PR 350")
class SoftcapAfterMask(Attention):
    """Masked keys take part with the weight exp(−c)."""

    def capped(self, x: Inputs, s: Array) -> Array:
        return s

    def filled(self, x: Inputs, s: Array, allowed: Array) -> Array:
        return super().capped(x, super().filled(x, s, allowed))


@fault("SDPA-13", "the softcap after causal: −inf becomes −c", "onnx 7865")
class SoftcapAfterCausal(Attention):
    """Masks given as arrays are applied correctly."""

    def filled(self, x: Inputs, s: Array, allowed: Array) -> Array:
        s = super().filled(x, s, allowed)
        if x.softcap is None or not x.is_causal:
            return s
        leaks = self.allowed(replace(x, is_causal=False)) & ~self.causal_allows(x)
        return np.where(leaks, x.work(-x.softcap), s)


@fault("SDPA-5", "the softcap before the scale", "cf. trl PR 5691")
class SoftcapBeforeScale(Attention):
    """The score is scale · c · tanh(q · k / c)."""

    def scores(self, x: Inputs, q: Array, k: Array) -> Array:
        if x.softcap is None:
            return super().scores(x, q, k)
        return x.work(self.scale(x)) * super().capped(x, q @ k.swapaxes(2, 3))

    def capped(self, x: Inputs, s: Array) -> Array:
        return s


@fault("SDPA-5", "padding behind the last key capped from −inf to −c", "llama.cpp PR 29034")
class SoftcapPaddedTail(Tiled):
    """Only calls with a softcap and a number of keys that is not a multiple of 16, the tile, are wrong."""

    def padding(self, x: Inputs) -> float:
        return -np.inf if x.softcap is None else -x.softcap
