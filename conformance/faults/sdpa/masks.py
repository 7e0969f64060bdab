"""(SDPA-6, SDPA-7, SDPA-13) Masks and biases misread: polarity, dtype, order, and options that disable one another."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attention_conformance.conformance.faults.models.sdpa import Array, Attention, Inputs
from attention_conformance.conformance.faults.registry import fault


@fault(
    "SDPA-7",
    "the mask inverted: True drops",
    "pytorch 170400, transformers PR 38094, openvino PR 32046, cs249r_book PR 1785",
)
class MaskInverted(Attention):
    """The code follows nn.MultiheadAttention, which means the opposite by the same name."""

    def mask_allows(self, x: Inputs) -> Array:
        return super().mask_allows(x if x.mask is None else replace(x, mask=~x.mask))


@fault("SDPA-7", "the mask ignored", "DI-engine 333, Practical_NLP_in_PyTorch PR 8")
class MaskIgnored(Attention):
    """The argument is accepted and never read."""

    def mask_allows(self, x: Inputs) -> Array:
        return super().mask_allows(replace(x, mask=None))


@fault("SDPA-7", "the mask ignored with one query", "hip-ep PR 144")
class MaskIgnoredOneQuery(Attention):
    """The decoding path does not apply the mask."""

    def mask_allows(self, x: Inputs) -> Array:
        return super().mask_allows(replace(x, mask=None) if x.shape[2] == 1 else x)


@fault("SDPA-7", "a mask or bias is not read: where one is given the call is causal", "executorch PR 10285")
class MaskMeansCausal(Attention):
    """Every mask or bias is taken for the causal one. A single query sees all keys; is_causal calls are right."""

    def allowed(self, x: Inputs) -> Array:
        if x.is_causal or (x.mask is None and x.bias is None):
            return super().allowed(x)
        return super().allowed(replace(x, mask=None, bias=None, is_causal=x.shape[2] > 1))

    def added(self, x: Inputs, s: Array) -> Array:
        return super().added(x, s) if x.is_causal else s


@fault("SDPA-7", "a boolean mask added to the scores as 0 and 1", "diffusers 14342")
class MaskAdded(Attention):
    """No key is masked; the scores of allowed keys only rise by 1."""

    def mask_allows(self, x: Inputs) -> Array:
        return super().mask_allows(replace(x, mask=None))

    def added(self, x: Inputs, s: Array) -> Array:
        s = super().added(x, s)
        return s if x.mask is None else s + self.spread(x, x.mask).astype(x.work)


@fault("SDPA-7", "the mask applied after softmax", "pytorch-image-models PR 2236, memory-compressed-attention 2")
class MaskAfterSoftmax(Attention):
    """Masked weights become 0, so rows no longer add up to 1."""

    def mask_allows(self, x: Inputs) -> Array:
        return super().mask_allows(replace(x, mask=None))

    def normalized(self, x: Inputs, powers: Array, total: Array, allowed: Array) -> Array:
        return super().normalized(x, powers, total, allowed) * Attention.mask_allows(self, x)


@fault("SDPA-6", "a bias read as a boolean mask: what is not 0 is dropped", "pytorch 107084")
class BiasAsMask(Attention):
    """The fast path of an encoder layer converts the bias to bool."""

    def added(self, x: Inputs, s: Array) -> Array:
        return s

    def bias_allows(self, x: Inputs) -> Array:
        return super().bias_allows(x) if x.bias is None else self.spread(x, x.bias) == 0


@fault("SDPA-6", "the bias ignored", "keras-hub PR 2977")
class BiasIgnored(Attention):
    """Only a bias of −inf has an effect."""

    def added(self, x: Inputs, s: Array) -> Array:
        return s


@fault("SDPA-6", "the bias ignored with one query", "keras-hub PR 2977")
class BiasIgnoredOneQuery(Attention):
    """The separate decoding path does not add the bias; a bias of −inf still masks."""

    def added(self, x: Inputs, s: Array) -> Array:
        return s if x.shape[2] == 1 else super().added(x, s)


@fault("SDPA-6", "the bias added before the scale", "ppl.llm.kernel.cuda PR 48, cudnn-frontend PR 804")
class BiasScaled(Attention):
    """The code computes (q · k + bias) · scale."""

    def added(self, x: Inputs, s: Array) -> Array:
        return s if x.bias is None else s + self.spread(x, x.bias).astype(x.work) * x.work(self.scale(x))


@fault("SDPA-13", "the mask dropped where is_causal is given", "pytorch PR 178588, dia PR 170")
class MaskDroppedWithCausal(Attention):
    """The code keeps only one of two masks."""

    def mask_allows(self, x: Inputs) -> Array:
        return super().mask_allows(replace(x, mask=None) if x.is_causal else x)


@fault("SDPA-13", "the bias dropped where is_causal is given", "cf. pytorch PR 178588, cf. keras-hub PR 2977")
class BiasDroppedWithCausal(Attention):
    """The code treats the bias as a mask and keeps only one of two masks, so a bias of −inf is lost too."""

    def added(self, x: Inputs, s: Array) -> Array:
        return s if x.is_causal else super().added(x, s)

    def bias_allows(self, x: Inputs) -> Array:
        return np.ones(x.shape, bool) if x.is_causal else super().bias_allows(x)


@fault("SDPA-13", "causal dropped where a mask is given", "candle PR 3632, BONSAI PR 344, keras PR 23040")
class CausalDroppedWithMask(Attention):
    """The code keeps only one of two masks."""

    def causal_allows(self, x: Inputs) -> Array:
        return np.ones(x.shape, bool) if x.mask is not None else super().causal_allows(x)


@fault("SDPA-13", "a key is allowed if mask or causal allow it", "local-attention 5")
class MaskOrCausal(Attention):
    """The masks are combined by OR instead of AND."""

    def causal_allows(self, x: Inputs) -> Array:
        return np.ones(x.shape, bool) if x.mask is not None and x.is_causal else super().causal_allows(x)

    def mask_allows(self, x: Inputs) -> Array:
        if x.mask is None or not x.is_causal:
            return super().mask_allows(x)
        return super().mask_allows(replace(x, mask=self.spread(x, x.mask) | (self.keys(x) <= self.diagonal(x))))


@fault("SDPA-13", "causal dropped where the weights are returned", "keras 23038")
class CausalDroppedWithWeights(Attention):
    """Calls that return the weights take a separate path, which has no causal mask."""

    def causal_allows(self, x: Inputs) -> Array:
        return np.ones(x.shape, bool) if x.return_weights else super().causal_allows(x)


@fault("SDPA-13", "the mask dropped where key lengths are given", "cf. dia PR 170")
class MaskDroppedWithLengths(Attention):
    """The code assumes that padding is all there is to mask."""

    def mask_allows(self, x: Inputs) -> Array:
        return super().mask_allows(x if x.kv_lengths is None else replace(x, mask=None))


@fault("SDPA-13", "the mask dropped where a bias is given", "cf. pytorch PR 178588, cf. dia PR 170")
class MaskDroppedWithBias(Attention):
    """Mask and bias share one operand, and the bias takes it."""

    def mask_allows(self, x: Inputs) -> Array:
        return super().mask_allows(x if x.bias is None else replace(x, mask=None))


@fault("SDPA-13", "the window dropped where a mask is given", "cf. jax 32300")
class WindowDroppedWithMask(Attention):
    """The window is built only where the call has no mask."""

    def window(self, x: Inputs) -> tuple[int | None, int | None]:
        return (None, None) if x.mask is not None else super().window(x)


@fault("SDPA-7", "a square mask transposed", "transformer PR 40")
class MaskTransposed(Attention):
    """Rows and keys of the mask are exchanged. Calls with Sq ≠ Sk are right."""

    def mask_allows(self, x: Inputs) -> Array:
        if x.mask is None or x.shape[2] != x.shape[3]:
            return super().mask_allows(x)
        return super().mask_allows(replace(x, mask=self.spread(x, x.mask).swapaxes(2, 3)))


@fault("SDPA-7", "with one allowed key the output is not quite its value", "tt-metal 51927")
class OneKeyLeaks(Attention):
    """2^-6 of the weight is spread over all keys, masked ones too. A correlation above 0.999 does not show it."""

    def normalized(self, x: Inputs, powers: Array, total: Array, allowed: Array) -> Array:
        weights = super().normalized(x, powers, total, allowed)
        single = (allowed.sum(axis=3, keepdims=True) == 1) & (x.shape[3] > 1)
        return np.where(single, weights * x.work(1 - 2.0**-6) + x.work(2.0**-6 / max(1, x.shape[3])), weights)


@fault(
    "SDPA-7",
    "masked keys get the score 0, and the other weights are divided by their sum, 1e−13 added to the sum",
    "allennlp PR 437",
)
class MaskedWeightsDividedOut(Attention):
    """The mask multiplies the scores and, after a softmax over all keys, the weights; float16 adds 1e−4 instead."""

    def softmax(self, x: Inputs, s: Array, allowed: Array) -> tuple[Array, Array]:
        if allowed.all():
            return super().softmax(x, s, allowed)
        weights, lse = super().softmax(x, np.where(allowed, s, x.work(0)), np.ones_like(allowed))
        weights = weights * allowed
        tiny = x.work(1e-4 if x.dtype == np.float16 else 1e-13)
        return weights / (weights.sum(axis=3, keepdims=True) + tiny), lse
