"""(GRAD-10, GRAD-13, GRAD-14 and GRAD-22 to GRAD-28) Rows, masks, forms and sums in the gradients of a layer."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_conformance.conformance.faults.gradients.sdpa import BiasBatchNotSummed, BiasHeadsNotSummed, made_to_fit
from attention_conformance.conformance.faults.gradients.sdpa_masks import (
    CausalForgottenBackward,
    LengthsForgottenWithCausalBackward,
)
from attention_conformance.conformance.faults.mha.projections import as_contiguous
from attention_conformance.conformance.faults.models.mha import LayerCall
from attention_conformance.conformance.faults.models.mha_gradients import Gradients, LayerBackward
from attention_conformance.conformance.faults.models.sdpa import Array
from attention_conformance.conformance.faults.registry import fault
from attention_conformance.conformance.spec.mha import LayerExpected


@fault(
    "GRAD-22",
    "the gradient of a layer's bias not summed over the batch",
    "cf. flash-sparse-attention PR 193, jax 30593",
)
class LayerBiasBatchNotSummed(LayerBackward):
    """A bias that all samples share gets the gradient of the first sample only."""

    backward = BiasBatchNotSummed


@fault(
    "GRAD-22",
    "the gradient of a layer's bias not summed over heads",
    "cf. flash-sparse-attention PR 193, cf. jax PR 36702",
)
class LayerBiasHeadsNotSummed(LayerBackward):
    """A bias that all heads share gets the gradient of the first head only."""

    backward = BiasHeadsNotSummed


@fault("GRAD-23", "the causal mask is forgotten in the layer's backward pass", "cf. MSLK PR 263, cf. pytorch 27461")
class LayerCausalForgottenBackward(LayerBackward):
    """Later keys get gradients from rows that may not attend to them."""

    backward = CausalForgottenBackward


@fault("GRAD-23", "key lengths are forgotten in the layer's backward pass where it is causal", "cf. mojo_opset PR 386")
class LayerLengthsForgottenWithCausal(LayerBackward):
    """The causal branch reads no key lengths; calls without is_causal are right."""

    backward = LengthsForgottenWithCausalBackward


@fault("GRAD-23", "padded rows of self-attention have no gradient as queries", "cf. TransformerEngine 3331")
class PaddedQueriesDropped(LayerBackward):
    """The key lengths mask the rows of grad_output; a loss that leaves padded rows out hides it."""

    def d_combined(self, x: LayerCall, dy: Array) -> Array:
        d = super().d_combined(x, dy)
        if x.kv_lengths is None or x.x_kv is not None:
            return d
        return np.where(np.arange(d.shape[1])[:, None] < np.reshape(x.kv_lengths, (-1, 1, 1)), d, x.work(0))


def _empty(found: LayerExpected) -> Array:
    """Fully masked rows by head, (B, H, Sq, 1)."""
    return np.logical_not(found.heads.allowed.any(axis=3, keepdims=True))


@fault(
    "GRAD-24", "one fully masked row makes the gradients of all inner weights NaN", "pytorch 41508, pytorch PR 196170"
)
class EmptyRowPoisonsWeights(LayerBackward):
    """0 · NaN of that row spreads through the sums over all samples."""

    def of_heads(self, x: LayerCall, found: LayerExpected, d: Array) -> Gradients:
        grads = super().of_heads(x, found, d)
        return {name: a * x.work(np.nan) for name, a in grads.items()} if _empty(found).any() else grads


@fault("GRAD-24", "a head without a key for a row makes that row's gradient NaN", "cf. pytorch 160064")
class EmptyHeadGradientNan(LayerBackward):
    """The row's dQ is NaN, and with it the gradients of w_q and b_q; those of keys and values are right."""

    def of_heads(self, x: LayerCall, found: LayerExpected, d: Array) -> Gradients:
        grads = super().of_heads(x, found, d)
        rows = _empty(found).any(axis=1)
        return {**grads, "q": np.where(rows, x.work(np.nan), grads["q"])}


@fault("GRAD-24", "fully masked rows left out of the gradient of b_o", "cf. pytorch PR 42323")
class EmptyRowsLeftOutOfOutputBias(LayerBackward):
    """Such rows are cut out of the loss, although b_o does reach their outputs."""

    def gradients(self, x: LayerCall, dy: Array) -> Gradients:
        found = self.layer.layer(x, *self.layer.inputs(x))
        rows = _empty(found).all(axis=1)
        return {**super().gradients(x, dy), "b_o": self.of_bias(x, "o", np.where(rows, x.work(0), dy))}


@fault("GRAD-24", "fully masked rows give values the gradient of a mean", "cf. onnxruntime 28904")
class EmptyRowsMeanBackward(LayerBackward):
    """The backward pass fills masked scores with a finite number, so that such rows get equal weights."""

    def of_heads(self, x: LayerCall, found: LayerExpected, d: Array) -> Gradients:
        grads, keys = super().of_heads(x, found, d), found.heads.allowed.shape[3]
        alone = np.where(_empty(found), self.split(x, d), x.work(0)).sum(axis=2, keepdims=True) / max(1, keys)
        return {**grads, "v": grads["v"] + self.layer.combine(x, np.repeat(alone, keys, axis=2))}


@fault("GRAD-25", "gradients of sequence-first inputs returned batch-first", "opacus 650")
class SequenceFirstGradientsTurned(LayerBackward):
    """With as many samples as rows the shape is right, but not the contents."""

    def gradients(self, x: LayerCall, dy: Array) -> Gradients:
        grads = super().gradients(x, dy)
        turned = [name for name in ("x_q", "x_kv") if x.sequence_first and not x.unbatched and name in grads]
        return {**grads, **{name: grads[name].swapaxes(0, 1) for name in turned}}


@fault(
    "GRAD-25", "sequence-first grad_output taken as batch-first where that fits", "cf. opacus PR 651, cf. AEMatter 3"
)
class SequenceFirstGradOutputTurned(LayerBackward):
    """Only calls with as many samples as rows show it."""

    def gradients(self, x: LayerCall, dy: Array) -> Gradients:
        square = x.sequence_first and not x.unbatched and dy.shape[0] == dy.shape[1]
        return super().gradients(x, dy.swapaxes(0, 1) if square else dy)


@fault("GRAD-25", "gradients of unbatched inputs returned with a batch axis", "cf. opacus PR 651")
class UnbatchedGradientsBatched(LayerBackward):
    """The batch axis that was added is not removed again."""

    def stored(self, x: LayerCall, grad: Array) -> Array:
        inputs = x.unbatched and grad.shape in (x.x_q.shape, () if x.x_kv is None else x.x_kv.shape)
        return super().stored(x, grad[None] if inputs else grad)


class _Halved(LayerBackward):
    """Sums of rows, added one after the other in half precision where that is the storage dtype."""

    def added_rows(self, x: LayerCall, terms: Array) -> Array:
        """The sum over the first axis."""
        total = np.zeros(terms.shape[1:], x.dtype)
        for term in terms:
            total = (total + term).astype(x.dtype)
        return total.astype(x.work)


@fault(
    "GRAD-26", "gradients of weights accumulated in half precision", "Liger-Kernel PR 830, cf. ISEEKYAN-Megatron-LM 153"
)
class WeightGradientsInHalf(_Halved):
    """The sum is rounded after each row; few rows hide it."""

    def of_weight(self, x: LayerCall, name: str, array: Array, d: Array) -> Array:
        if x.dtype.itemsize != 2:
            return super().of_weight(x, name, array, d)
        rows, gradient = array.reshape(-1, array.shape[2]), d.reshape(-1, d.shape[2])
        return self.added_rows(x, rows[:, :, None] * gradient[:, None])


@fault("GRAD-26", "gradients of biases accumulated in half precision", "cf. Automodel PR 3387")
class BiasGradientsInHalf(_Halved):
    """The sum is rounded after each row; few rows hide it."""

    def of_bias(self, x: LayerCall, name: str, d: Array) -> Array:
        return super().of_bias(x, name, d) if x.dtype.itemsize != 2 else self.added_rows(x, d.reshape(-1, d.shape[2]))


@fault("GRAD-26", "the gradients of a layer in float64 computed in float32", "cf. TransformerEngine PR 3193")
class LayerGradientsInSingle(LayerBackward):
    """Intermediates are kept for the backward pass in float32."""

    def of_heads(self, x: LayerCall, found: LayerExpected, d: Array) -> Gradients:
        return {name: a.astype(np.float32).astype(x.work) for name, a in super().of_heads(x, found, d).items()}


@fault("GRAD-10", "gradients of a layer in half precision returned as float32", "cf. flash-attention-jax PR 13")
class LayerGradientsFloat32(LayerBackward):
    """The float32 accumulators are returned without a cast."""

    def stored(self, x: LayerCall, grad: Array) -> Array:
        return grad


@fault("GRAD-27", "a grad_output of a layer that does not fit accepted", "cf. AiDotNet.Tensors PR 270")
class LayerGradOutputUnchecked(LayerBackward):
    """Missing elements count as zero, surplus ones are dropped, and the dtype is converted."""

    def checked(self, x: LayerCall, g: Array) -> Array:
        return super().checked(x, made_to_fit(g, self.shape(x), x.dtype))


@fault("GRAD-28", "strides of grad_output ignored", "flash-attention 355, pytorch PR 189565, cf. pytorch 133671")
class GradOutputStridesIgnored(LayerBackward):
    """The memory behind the first element is read as if it were contiguous."""

    def checked(self, x: LayerCall, g: Array) -> Array:
        return super().checked(x, as_contiguous(g))


@fault("GRAD-13", "the gradient of the input is written over the input", "cf. TransformerEngine PR 3193, cf. apex 1430")
class InputOverwrittenBackward(LayerBackward):
    """The buffer of x_q is reused for the gradient, although the caller still needs it."""

    def __call__(self, x_q: Array, *arguments: Array, **keywords: Any) -> tuple[Array, ...]:
        grads = super().__call__(x_q, *arguments, **keywords)
        if x_q.flags.writeable:
            x_q[...] = grads[0]
        return grads


@fault(
    "GRAD-14", "rows of a gradient of weights are added in a random order", "cf. Automodel PR 3387, cf. pytorch 123656"
)
class WeightGradientOrderRandom(LayerBackward):
    """Atomic additions make equal calls differ in the last bits."""

    def __init__(self) -> None:
        super().__init__()
        self.random = np.random.default_rng(0)

    def of_weight(self, x: LayerCall, name: str, array: Array, d: Array) -> Array:
        total = np.zeros((array.shape[2], d.shape[2]), x.work)
        for row in self.random.permutation(array.shape[1]):
            total += super().of_weight(x, name, array[:, [row]], d[:, [row]])
        return total


@fault("GRAD-28", "an error in the layer's backward pass where there are no rows", "cf. flash-attention 2562")
class NoRowsRefusedBackward(LayerBackward):
    """Calls without queries or without keys end in an illegal memory access."""

    def gradients(self, x: LayerCall, dy: Array) -> Gradients:
        if 0 in x.x_q.shape or (x.x_kv is not None and 0 in x.x_kv.shape):
            raise RuntimeError("illegal memory access")
        return super().gradients(x, dy)
