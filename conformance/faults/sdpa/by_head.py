"""(SDPA-42, SDPA-43) ALiBi slopes and scales of heads that are lost, made up, or applied in another place."""

from __future__ import annotations

import numpy as np

from attention_conformance.conformance.faults.models.sdpa import Array, Attention, Inputs
from attention_conformance.conformance.faults.registry import fault


@fault("SDPA-42", "ALiBi is ignored", "cf. x-transformers 298")
class AlibiIgnored(Attention):
    """The slopes are passed on to nothing."""

    def slopes(self, x: Inputs) -> Array:
        return np.zeros(x.q.shape[1], x.work)


@fault("SDPA-42", "slopes are made up from the number of heads", "flashinfer 1606, mlx PR 3071")
class AlibiMadeUp(Attention):
    """2^(−8 h / H) for whatever was given."""

    def slopes(self, x: Inputs) -> Array:
        heads = x.q.shape[1]
        return (2.0 ** (-8 * np.arange(1, heads + 1) / heads)).astype(x.work)


@fault("SDPA-42", "ALiBi counts the distance from the first key, whatever the offset", "cf. mlx 343")
class AlibiWithoutOffset(Attention):
    """|i − j|: right without a past."""

    def distance(self, x: Inputs) -> Array:
        return np.abs(np.arange(x.shape[2])[:, None] - self.keys(x)) + np.zeros((1, 1, 1, 1), int)


@fault("SDPA-42", "ALiBi by the column: later keys gain", "flash-attention 1585")
class AlibiByColumn(Attention):
    """slope · j, which is the same to a causal softmax and not to lse."""

    def distance(self, x: Inputs) -> Array:
        return np.broadcast_to(-self.keys(x), (1, 1, 1, x.shape[3]))


@fault("SDPA-42", "slopes are scaled as scores are", "cf. ppl.llm.kernel.cuda PR 48")
class AlibiScaled(Attention):
    """Added before the scale."""

    def slopes(self, x: Inputs) -> Array:
        return super().slopes(x) * x.work(self.scale(x))


@fault("SDPA-42", "slopes are read by key head", "cf. flashinfer 1606")
class AlibiByKeyHead(Attention):
    """One query head per key head hides it."""

    def slopes(self, x: Inputs) -> Array:
        return super().slopes(x)[np.arange(x.q.shape[1]) // x.group]


@fault("SDPA-43", "the scale of each head is ignored", "cf. pytorch 174049")
class HeadScaleIgnored(Attention):
    """The plain scale alone."""

    def head_scale(self, x: Inputs) -> Array:
        return np.ones(x.q.shape[1], x.work)


@fault("SDPA-43", "the scale of the first head is used for all", "cf. pytorch 174049")
class HeadScaleOfFirst(Attention):
    """There is room for one number."""

    def head_scale(self, x: Inputs) -> Array:
        return np.full(x.q.shape[1], super().head_scale(x)[:1])


@fault("SDPA-43", "the scale of each head takes the place of the scale", "cf. iree 16676")
class HeadScaleInPlace(Attention):
    """1/√D is left out."""

    def head_scale(self, x: Inputs) -> Array:
        return super().head_scale(x) / x.work(self.scale(x))


@fault("SDPA-43", "the scale of each head is applied twice", "cf. transformers 38277")
class HeadScaleTwice(Attention):
    """To the queries and to the scores."""

    def head_scale(self, x: Inputs) -> Array:
        return super().head_scale(x) ** 2


@fault("SDPA-43", "scales of heads are read by key head", "cf. flashinfer 1606")
class HeadScaleByKeyHead(Attention):
    """One query head per key head hides it."""

    def head_scale(self, x: Inputs) -> Array:
        return super().head_scale(x)[np.arange(x.q.shape[1]) // x.group]
