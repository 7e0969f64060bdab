"""(SDPA-42, SDPA-43) ALiBi slopes and head scales that are ignored, made up, or applied at the wrong step."""

from __future__ import annotations

import numpy as np

from attention_conformance.conformance.faults.models.sdpa import Array, Attention, Inputs
from attention_conformance.conformance.faults.registry import fault


@fault("SDPA-42", "ALiBi is ignored", "cf. x-transformers 298")
class AlibiIgnored(Attention):
    """The slopes are accepted and never read."""

    def slopes(self, x: Inputs) -> Array:
        return np.zeros(x.q.shape[1], x.work)


@fault("SDPA-42", "slopes are made up from the number of heads", "flashinfer 1606, mlx PR 3071")
class AlibiMadeUp(Attention):
    """Head h, from 1 on, gets the slope 2^(−8 h / Hq), whatever was given."""

    def slopes(self, x: Inputs) -> Array:
        heads = x.q.shape[1]
        return (2.0 ** (-8 * np.arange(1, heads + 1) / heads)).astype(x.work)


@fault("SDPA-42", "ALiBi counts the distance from the first key, whatever the offset", "cf. mlx 343")
class AlibiWithoutOffset(Attention):
    """The distance is |i − j|. Calls with offset 0 are right."""

    def distance(self, x: Inputs) -> Array:
        return np.abs(np.arange(x.shape[2])[:, None] - self.keys(x)) + np.zeros((1, 1, 1, 1), int)


@fault("SDPA-42", "ALiBi by the column: later keys gain", "flash-attention 1585")
class AlibiByColumn(Attention):
    """Scores gain slope · j. With is_causal the weights are still right, but lse is not."""

    def distance(self, x: Inputs) -> Array:
        return np.broadcast_to(-self.keys(x), (1, 1, 1, x.shape[3]))


@fault("SDPA-42", "slopes are scaled as scores are", "cf. ppl.llm.kernel.cuda PR 48")
class AlibiScaled(Attention):
    """The ALiBi term is added before the scale."""

    def slopes(self, x: Inputs) -> Array:
        return super().slopes(x) * x.work(self.scale(x))


@fault("SDPA-42", "slopes are read by key head", "cf. flashinfer 1606")
class AlibiByKeyHead(Attention):
    """Head h reads slope h // group. Calls without grouped heads are right."""

    def slopes(self, x: Inputs) -> Array:
        return super().slopes(x)[np.arange(x.q.shape[1]) // x.group]


@fault("SDPA-43", "the scale of each head is ignored", "cf. pytorch 174049")
class HeadScaleIgnored(Attention):
    """Only the plain scale is applied."""

    def head_scale(self, x: Inputs) -> Array:
        return np.ones(x.q.shape[1], x.work)


@fault("SDPA-43", "the scale of the first head is used for all", "cf. pytorch 174049")
class HeadScaleOfFirst(Attention):
    """The kernel has room for only one number."""

    def head_scale(self, x: Inputs) -> Array:
        return np.full(x.q.shape[1], super().head_scale(x)[:1])


@fault("SDPA-43", "the scale of each head takes the place of the scale", "cf. iree 16676")
class HeadScaleInPlace(Attention):
    """scale (default 1/√D) is left out."""

    def head_scale(self, x: Inputs) -> Array:
        return super().head_scale(x) / x.work(self.scale(x))


@fault("SDPA-43", "the scale of each head is applied twice", "cf. transformers 38277")
class HeadScaleTwice(Attention):
    """The factor multiplies both the queries and the scores."""

    def head_scale(self, x: Inputs) -> Array:
        return super().head_scale(x) ** 2


@fault("SDPA-43", "scales of heads are read by key head", "cf. flashinfer 1606")
class HeadScaleByKeyHead(Attention):
    """Head h reads scale h // group. Calls without grouped heads are right."""

    def head_scale(self, x: Inputs) -> Array:
        return super().head_scale(x)[np.arange(x.q.shape[1]) // x.group]
