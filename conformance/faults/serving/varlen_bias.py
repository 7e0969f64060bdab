"""(VARLEN-16) Packed sequences with the bias of another sequence, of another place, or with none."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_conformance.conformance.faults.models.sdpa import Array
from attention_conformance.conformance.faults.models.varlen import Pack, Packed
from attention_conformance.conformance.faults.registry import fault
from attention_conformance.conformance.faults.sdpa.masks import BiasScaled
from attention_conformance.conformance.faults.sdpa.softcaps import SoftcapAfterBias


@fault("VARLEN-16", "the bias of packed sequences is ignored", "cf. keras-hub PR 2977")
class PackedBiasIgnored(Packed):
    """The path without padding has no bias parameter."""

    def options(self, x: Pack, n: int) -> dict[str, Any]:
        return {**x.options, "bias": None}


@fault(
    "VARLEN-16",
    "the bias of packed sequences is dropped where is_causal is given",
    "cf. pytorch PR 178588, cf. keras-hub PR 2977",
)
class PackedBiasDroppedWithCausal(Packed):
    """The causal mask replaces the bias."""

    def options(self, x: Pack, n: int) -> dict[str, Any]:
        return {**x.options, "bias": None} if x.options.get("is_causal") else x.options


@fault("VARLEN-16", "a packed sequence has the bias of the next one", "cf. yalis PR 53")
class PackedBiasOfNext(Packed):
    """The index of the sequence is one too large; calls where all share one bias are right."""

    def bias_of(self, x: Pack, n: int) -> int:
        return n + 1


@fault("VARLEN-16", "all packed sequences have the bias of the first", "cf. yalis PR 53")
class PackedBiasOfFirst(Packed):
    """The stride of the first axis is 0, as if all sequences shared one bias."""

    def bias_of(self, x: Pack, n: int) -> int:
        return 0


@fault("VARLEN-16", "all heads of a pack have the bias of the first", "cf. rocm-libraries PR 11189")
class PackedBiasOfFirstHead(Packed):
    """The head stride is 0, as if all heads shared one bias."""

    def bias_at(self, bias: Array, i: Array, j: Array) -> Array:
        return super().bias_at(bias[:1], i, j)


@fault("VARLEN-16", "query heads of a pack have the bias of their key head", "cf. rocm-libraries PR 11189")
class PackedBiasOfKeyHead(Packed):
    """The head index has already been divided by the size of the group."""

    def bias(self, x: Pack, n: int, i: Array, j: Array) -> Array:
        found = super().bias(x, n, i, j)
        heads = np.arange(x.q.shape[1]) // (x.q.shape[1] // x.k.shape[1])
        return found[heads] if len(found) > 1 else found


@fault("VARLEN-16", "the bias is read at places in the pack", "cf. flash-sparse-attention 113, cf. tilelang PR 1530")
class PackedBiasByPackedPlace(Packed):
    """The start of the sequence is added to row and key, as for q and k; the first sequence is right."""

    def bias(self, x: Pack, n: int, i: Array, j: Array) -> Array:
        return super().bias(x, n, i + int(x.cu_seqlens_q[n]), j + int(x.cu_seqlens_k[n]))


@fault("VARLEN-16", "the bias of packed sequences is aligned at the bottom right", "cf. rocm-libraries PR 10999")
class PackedBiasBottomRight(Packed):
    """The last row and key of the bias are taken as the sequence's last, as if padding were at the left."""

    def bias(self, x: Pack, n: int, i: Array, j: Array) -> Array:
        rows, keys = x.options["bias"].shape[2:]
        return super().bias(x, n, i + rows - len(i), j + keys - len(j))


@fault("VARLEN-16", "rows of the bias are places of queries among the keys", "cf. tilelang PR 1530")
class PackedBiasRowsByOffset(Packed):
    """Row i reads row i + Sk − Sq of the bias; sequences with as many queries as keys are right."""

    def bias(self, x: Pack, n: int, i: Array, j: Array) -> Array:
        return super().bias(x, n, i + len(j) - len(i), j)


@fault("VARLEN-16", "the rows of the bias are as long as the sequence", "cf. flash-sparse-attention 113")
class PackedBiasOwnStride(Packed):
    """The row stride is the sequence's own Sk instead of max_seqlen_k; sequences of that many keys are right."""

    def bias_at(self, bias: Array, i: Array, j: Array) -> Array:
        flat = i * max(len(j), 1) + j
        return super().bias_at(bias, flat // bias.shape[2], flat % bias.shape[2])


@fault("VARLEN-16", "the bias of packed sequences is transposed", "cf. transformer PR 40")
class PackedBiasTransposed(Packed):
    """Rows and keys are exchanged; places beyond the bias read its last row or key."""

    def bias_at(self, bias: Array, i: Array, j: Array) -> Array:
        return super().bias_at(bias, np.broadcast_to(j, (len(i), len(j))), i)


@fault("VARLEN-16", "the softcap of packed sequences comes after the bias", "cf. onnx 7865, cf. emx-onnx-cgen PR 731")
class PackedBiasCapped(Packed):
    """The softcap limits the bias, too."""

    attention = SoftcapAfterBias


@fault("VARLEN-16", "the bias of packed sequences is added before the scale", "cf. cudnn-frontend PR 804")
class PackedBiasScaled(Packed):
    """The score is (q · k + bias) · scale."""

    attention = BiasScaled


@fault("VARLEN-16", "−inf in the bias of packed sequences is a finite number", "cf. allennlp 890, cf. flax 982")
class PackedBiasFilled(Packed):
    """−10,000 replaces it; rows in which another key counts are still right."""

    def bias_at(self, bias: Array, i: Array, j: Array) -> Array:
        found = super().bias_at(bias, i, j)
        return np.where(np.isneginf(found), found.dtype.type(-1e4), found)


@fault("VARLEN-16", "a bias of packed sequences that does not fit is accepted", "flash-sparse-attention 113")
class PackedBiasUnchecked(Packed):
    """Places outside the bias are read from its edge."""

    def check_bias(self, x: Pack) -> None:
        pass

    def bias(self, x: Pack, n: int, i: Array, j: Array) -> Array:
        return super().bias(x, n, i, j)[: x.q.shape[1]]
