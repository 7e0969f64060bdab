"""(SDPA-2, SDPA-3, SDPA-4, SDPA-13) A scale of another width, applied twice or not at all, or at the wrong step."""

from __future__ import annotations

import math

import numpy as np

from attention_conformance.conformance.faults.models.sdpa import Array, Attention, Inputs
from attention_conformance.conformance.faults.models.tiles import Tiled
from attention_conformance.conformance.faults.registry import fault

LOG2_E = 1 / math.log(2)


@fault(
    "SDPA-3",
    "the default scale is of the model width, 1/√(heads · D)",
    "vit-pytorch 65, dfdx 171, source 002, source 004",
)
class ScaleOfModelWidth(Attention):
    """Calls with one head are right."""

    def default_scale(self, x: Inputs) -> float:
        return 1 / math.sqrt(x.q.shape[1] * x.q.shape[3])


@fault("SDPA-3", "no default scale", "iree 16676, ethen8181-machine-learning 13")
class ScaleMissing(Attention):
    """The scale is 1 instead of 1/√D. Calls with D = 1 are right."""

    def default_scale(self, x: Inputs) -> float:
        return 1.0


@fault("SDPA-3", "the default scale applied twice: 1/D", "transformers 38277")
class ScaleTwice(Attention):
    """The layer applies it once, and the kernel applies it again."""

    def default_scale(self, x: Inputs) -> float:
        return 1 / x.q.shape[3]


@fault("SDPA-3", "scores divided by 1/√D", "perceiver-io 9, LLMs-from-scratch 856")
class ScaleDivided(Attention):
    """The scale is √D instead of 1/√D."""

    def default_scale(self, x: Inputs) -> float:
        return math.sqrt(x.q.shape[3])


@fault("SDPA-3", "the default scale is of the width padded to a multiple of 32", "ipex-llm PR 12619")
class ScaleOfPaddedWidth(Attention):
    """Widths such as 32, 64, 96, 128 and 256 are right."""

    def default_scale(self, x: Inputs) -> float:
        return 1 / math.sqrt(-(-x.q.shape[3] // 32) * 32)


@fault("SDPA-3", "the default scale is of the width padded to a multiple of 8", "cf. ipex-llm PR 12619")
class ScaleOfWidthPaddedTo8(Attention):
    """Only widths that are not a multiple of 8 are wrong."""

    def default_scale(self, x: Inputs) -> float:
        return 1 / math.sqrt(-(-x.q.shape[3] // 8) * 8)


@fault("SDPA-3", "the default scale is of the value width, 1/√Dv", "set_transformer 18")
class ScaleOfValueWidth(Attention):
    """Calls with Dv = D are right."""

    def default_scale(self, x: Inputs) -> float:
        return 1 / math.sqrt(max(1, x.v.shape[3]))


@fault("SDPA-4", "the given scale ignored", "pytorch 174049, FastVideo PR 1457, FasterTransformer PR 323")
class ScaleIgnored(Attention):
    """A fused pattern has the default scale built in."""

    def scale(self, x: Inputs) -> float:
        return self.default_scale(x)


@fault("SDPA-4", "the given scale multiplied with the default", "transformers 38277")
class ScaleTimesDefault(Attention):
    """Queries that are already scaled are scaled again."""

    def scale(self, x: Inputs) -> float:
        return self.default_scale(x) * (1.0 if x.scale is None else x.scale)


@fault("SDPA-4", "scale = 0 means the default", "iree-turbine PR 480, flash-sparse-attention PR 302")
class ScaleZeroIsDefault(Attention):
    """The code computes ``scale or default``, and 0 is false."""

    def scale(self, x: Inputs) -> float:
        return x.scale or self.default_scale(x)


@fault("SDPA-4", "√scale on q and k: NaN for a negative scale", "pytorch PR 105202")
class ScaleSplitRoot(Attention):
    """Calls with a scale of 0 or more are right."""

    def scores(self, x: Inputs, q: Array, k: Array) -> Array:
        root = x.work(np.sqrt(x.work(self.scale(x))))
        return (q * root) @ (k * root).swapaxes(2, 3)


@fault("SDPA-4", "the sign of the scale is lost", "pytorch PR 105202")
class ScaleAbsolute(Attention):
    """The code multiplies both q and k by √|scale|."""

    def scale(self, x: Inputs) -> float:
        return abs(super().scale(x))


@fault("SDPA-4", "a given scale lacks the factor log2(e) of exp2", "iree-turbine PR 480")
class GivenScaleInBaseTwo(Attention):
    """The code computes ``scale or default * log2(e)`` before exp2, so only the default scale gets the factor."""

    def scale(self, x: Inputs) -> float:
        return super().scale(x) if x.scale is None else x.scale / LOG2_E


@fault("SDPA-4", "the scale multiplied by log2(e) once a tile", "FlagGems PR 424")
class ScaleGrowsByTile(Tiled):
    """Calls with up to 16 keys are right."""

    def scores(self, x: Inputs, q: Array, k: Array) -> Array:
        tiles = np.arange(k.shape[2]) // self.tile
        return super().scores(x, q, k) * x.work(LOG2_E) ** tiles.astype(x.work)


@fault("SDPA-4", "the scale ignored with one query", "flashinfer PR 3393")
class ScaleIgnoredOneQuery(Attention):
    """The decoding path has the default scale built in."""

    def scale(self, x: Inputs) -> float:
        return self.default_scale(x) if x.shape[2] == 1 else super().scale(x)


@fault("SDPA-4", "the scale ignored with grouped heads", "flashinfer PR 3393")
class ScaleIgnoredGrouped(Attention):
    """The code path for grouped heads has the default scale built in."""

    def scale(self, x: Inputs) -> float:
        return self.default_scale(x) if x.group > 1 else super().scale(x)


@fault("SDPA-2", "queries and keys normalised to length 1", "x-transformers 190, cf. Swin-Transformer 373")
class OperandsNormalized(Attention):
    """The code computes cosine attention with the scale of dot-product attention."""

    def operands(self, x: Inputs) -> tuple[Array, Array, Array]:
        q, k, v = super().operands(x)
        return unit(q), unit(k), v


def unit(array: Array) -> Array:
    """Vectors scaled to length 1 along the last axis; a zero vector stays zero."""
    length = np.sqrt((array * array).sum(axis=-1, keepdims=True))
    return array / np.maximum(length, array.dtype.type(1e-12))


@fault("SDPA-3", "the default scale is of the number of heads, 1/√H", "tt-metal PR 56789")
class ScaleOfHeads(Attention):
    """Calls with as many heads as columns, Hq = D, are right."""

    def default_scale(self, x: Inputs) -> float:
        return 1 / math.sqrt(x.q.shape[1])


@fault("SDPA-13", "the scale is applied to the weights, not to the scores", "ViT 2")
class ScaleAfterSoftmax(Attention):
    """The code computes softmax(q · k) · scale, so rows add up to the scale. A scale of 1 is right."""

    def scores(self, x: Inputs, q: Array, k: Array) -> Array:
        return q @ k.swapaxes(2, 3)

    def normalized(self, x: Inputs, powers: Array, total: Array, allowed: Array) -> Array:
        return super().normalized(x, powers, total, allowed) * x.work(self.scale(x))
