"""(SDPA-38) Sinks whose logit is applied in the wrong place, counted too often, or ignored."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attention_conformance.conformance.faults.models.sdpa import Array, Attention, Inputs
from attention_conformance.conformance.faults.models.tiles import State, Tiled
from attention_conformance.conformance.faults.registry import fault
from attention_conformance.conformance.spec.sdpa import Expected


class WithoutSinks(Attention):
    """Attention that leaves out the sinks of calls for which ``ignores`` is true."""

    def attend(self, x: Inputs) -> Expected:
        return super().attend(replace(x, sinks=None) if x.sinks is not None and self.ignores(x) else x)

    def ignores(self, x: Inputs) -> bool:
        """Whether this call's sinks are ignored."""
        return True


@fault("SDPA-38", "sinks are ignored", "TransformerEngine 2541, vllm-metal 212")
class SinksIgnored(WithoutSinks):
    """The argument is accepted and never read, so the softmax is the plain one."""


@fault("SDPA-38", "sinks are ignored with one query", "imp 1345")
class SinksIgnoredWithOneQuery(WithoutSinks):
    """The decoding kernel does not read the sinks."""

    def ignores(self, x: Inputs) -> bool:
        return x.shape[2] == 1


@fault("SDPA-38", "sinks are ignored with a window", "vllm PR 49815")
class SinksIgnoredWithWindow(WithoutSinks):
    """The path for local attention does not read the sinks."""

    def ignores(self, x: Inputs) -> bool:
        return x.window is not None


@fault("SDPA-38", "the scale acts on sinks", "rocm-libraries 12227")
class SinksScaled(Attention):
    """The sinks are appended to the scores before the scale is applied."""

    def sinks(self, x: Inputs) -> Array:
        sinks = super().sinks(x)
        return sinks if x.sinks is None else sinks * x.work(self.scale(x))


@fault("SDPA-38", "the softcap acts on sinks", "cf. rocm-libraries PR 12229")
class SinksCapped(Attention):
    """Calls without a softcap are right, and logits far below it are nearly right."""

    def sinks(self, x: Inputs) -> Array:
        sinks = super().sinks(x)
        return sinks if x.sinks is None else self.capped(x, sinks)


@fault("SDPA-38", "a sink is left out of the maximum", "flash-attention PR 2752, sgl-kernel-npu PR 216")
class SinkNotInMaximum(Attention):
    """exp(sink − m) overflows for a sink far above the scores; a fully masked row has lse NaN and weights of 0."""

    def sink_top(self, x: Inputs, top: Array) -> Array:
        return top

    def lse(self, x: Inputs, top: Array, total: Array, allowed: Array) -> Array:
        lse = super().lse(x, top, total, allowed)
        return np.where(allowed.any(axis=3, keepdims=True) | (x.sinks is None), lse, x.work(np.nan))


@fault("SDPA-38", "the maximum is not taken off a sink", "AttentionIsOFFByOne 5")
class SinkNotShifted(Attention):
    """The sum adds exp(sink) to the powers exp(s − m), so a sink weighs more the higher the scores are."""

    def sink_power(self, x: Inputs, top: Array) -> Array:
        return np.zeros_like(top) + np.exp(self.sinks(x)[:, None, None])


@fault("SDPA-38", "a sink counts twice where the first tile is masked", "rocm-libraries 12227")
class SinkCountsTwice(Tiled):
    """The masked tile adds the sink to the sum, and the next tile assumes that it is not counted yet."""

    def merged(self, x: Inputs, index: int, s: Array, v: Array, state: State) -> State:
        top, total, output = super().merged(x, index, s, v, state)
        if index == 0 and x.sinks is not None:
            total = np.where(np.isneginf(s).all(axis=3, keepdims=True), 2 * total, total)
        return top, total, output


@fault("SDPA-38", "a sink counts once per tile", "cf. rocm-libraries 12227, cf. mistral.rs PR 1872")
class SinkCountsPerTile(Tiled):
    """Every tile adds the sink before the parts are merged. Calls with up to 16 keys, one tile, are right."""

    def merged(self, x: Inputs, index: int, s: Array, v: Array, state: State) -> State:
        top, total, output = super().merged(x, index, s, v, state)
        base = np.where(np.isneginf(top), x.work(0), top)
        return top, total + (np.exp(self.sinks(x)[:, None, None] - base) if index else 0), output


@fault("SDPA-38", "sinks are read by key head", "cf. pie PR 272, cf. sgl-kernel-xpu PR 254")
class SinksByKeyHead(Attention):
    """Head h reads the logit of head h // group. Calls without grouped heads are right."""

    def sinks(self, x: Inputs) -> Array:
        return super().sinks(x)[np.arange(x.q.shape[1]) // x.group]


@fault("SDPA-38", "a sink is added to the score of the first key", "cf. vllm PR 49815")
class SinkBiasesFirstKey(WithoutSinks):
    """The code implements another operator of the same name, in which the first key is the sink."""

    def attend(self, x: Inputs) -> Expected:
        self._sinks = self.sinks(x)
        return super().attend(x)

    def added(self, x: Inputs, s: Array) -> Array:
        s = super().added(x, s)
        if np.isfinite(self._sinks).any():
            s[..., :1] += self._sinks[:, None, None]
        return s


@fault("SDPA-38", "a sink acts on each score by itself, before a softmax without it", "transformers 41026")
class SinkInScoreFunction(Attention):
    """Each score s becomes 1 / (1 + exp(sink − s)), and a softmax over these gives weights that add up to 1."""

    def softmax(self, x: Inputs, s: Array, allowed: Array) -> tuple[Array, Array]:
        if x.sinks is None:
            return super().softmax(x, s, allowed)
        shares = 1 / (1 + np.exp(self.sinks(x)[:, None, None] - s))
        return super().softmax(replace(x, sinks=None), np.where(allowed, shares, x.work(-np.inf)), allowed)


@fault("SDPA-38", "weights are normalised to 1 without the sink", "cf. transformers 41026")
class WeightsWithoutSink(Attention):
    """The returned weights are not the ones that the output was computed with."""

    def stored_weights(self, x: Inputs, weights: Array) -> Array:
        total = weights.sum(axis=3, keepdims=True)
        return super().stored_weights(x, weights if x.sinks is None else weights / np.where(total == 0, 1, total))


@fault("SDPA-38", "lse does not count the sink", "cf. flash-attention PR 2752, cf. cudnn-frontend PR 333")
class LseWithoutSink(Attention):
    """lse covers only the keys, which is the value that a correction after the kernel starts from."""

    def softmax(self, x: Inputs, s: Array, allowed: Array) -> tuple[Array, Array]:
        weights, _ = super().softmax(x, s, allowed)
        return weights, super().softmax(replace(x, sinks=None), s, allowed)[1]  # subtracting it would lose digits


@fault("SDPA-38", "lse is −inf in a fully masked row", "flash-attention PR 2706")
class LseOfEmptyRowWithoutSink(Attention):
    """The early exit for a row without allowed keys does not read the sink."""

    def lse(self, x: Inputs, top: Array, total: Array, allowed: Array) -> Array:
        some = allowed.any(axis=3, keepdims=True)
        return np.where(some, super().lse(x, top, total, allowed), x.work(-np.inf))
