"""(VARLEN-16) Packed sequences with the bias of somebody else, of another place, or with none."""

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
    """The path without padding has no parameter for it."""

    def options(self, x: Pack, n: int) -> dict[str, Any]:
        return {**x.options, "bias": None}


@fault(
    "VARLEN-16",
    "the bias of packed sequences is dropped where is_causal is given",
    "cf. pytorch PR 178588, cf. keras-hub PR 2977",
)
class PackedBiasDroppedWithCausal(Packed):
    """One of two masks wins."""

    def options(self, x: Pack, n: int) -> dict[str, Any]:
        return {**x.options, "bias": None} if x.options.get("is_causal") else x.options


@fault("VARLEN-16", "a packed sequence has the bias of the next one", "cf. yalis PR 53")
class PackedBiasOfNext(Packed):
    """The index of the sequence is one too large; where one bias is for all it is right."""

    def bias_of(self, x: Pack, n: int) -> int:
        return n + 1


@fault("VARLEN-16", "all packed sequences have the bias of the first", "cf. yalis PR 53")
class PackedBiasOfFirst(Packed):
    """The stride of the first axis is 0, as for one bias for all."""

    def bias_of(self, x: Pack, n: int) -> int:
        return 0


@fault("VARLEN-16", "all heads of a pack have the bias of the first", "cf. rocm-libraries PR 11189")
class PackedBiasOfFirstHead(Packed):
    """The stride of the heads is 0."""

    def bias_at(self, bias: Array, i: Array, j: Array) -> Array:
        return super().bias_at(bias[:1], i, j)


@fault("VARLEN-16", "query heads of a pack have the bias of their key head", "cf. rocm-libraries PR 11189")
class PackedBiasOfKeyHead(Packed):
    """The index of the head was divided by the group already."""

    def bias(self, x: Pack, n: int, i: Array, j: Array) -> Array:
        found = super().bias(x, n, i, j)
        heads = np.arange(x.q.shape[1]) // (x.q.shape[1] // x.k.shape[1])
        return found[heads] if len(found) > 1 else found


@fault("VARLEN-16", "the bias is read at places in the pack", "cf. flash-sparse-attention 113, cf. tilelang PR 1530")
class PackedBiasByPackedPlace(Packed):
    """The start of the sequence is added to rows and keys, as where q and k are read; the first one is right."""

    def bias(self, x: Pack, n: int, i: Array, j: Array) -> Array:
        return super().bias(x, n, i + int(x.cu_seqlens_q[n]), j + int(x.cu_seqlens_k[n]))


@fault("VARLEN-16", "the bias of packed sequences is aligned at the bottom right", "cf. rocm-libraries PR 10999")
class PackedBiasBottomRight(Packed):
    """The last row and key of the bias are taken for those of the sequence, as a padding at the left has it."""

    def bias(self, x: Pack, n: int, i: Array, j: Array) -> Array:
        rows, keys = x.options["bias"].shape[2:]
        return super().bias(x, n, i + rows - len(i), j + keys - len(j))


@fault("VARLEN-16", "rows of the bias are places of queries among the keys", "cf. tilelang PR 1530")
class PackedBiasRowsByOffset(Packed):
    """Row i reads the bias of the key that it stands at; right where there are as many queries as keys."""

    def bias(self, x: Pack, n: int, i: Array, j: Array) -> Array:
        return super().bias(x, n, i + len(j) - len(i), j)


@fault("VARLEN-16", "the rows of the bias are as long as the sequence", "cf. flash-sparse-attention 113")
class PackedBiasOwnStride(Packed):
    """The keys of the sequence for the stride of a row, and not max_seqlen_k: right for the longest sequence."""

    def bias_at(self, bias: Array, i: Array, j: Array) -> Array:
        flat = i * max(len(j), 1) + j
        return super().bias_at(bias, flat // bias.shape[2], flat % bias.shape[2])


@fault("VARLEN-16", "the bias of packed sequences is transposed", "cf. transformer PR 40")
class PackedBiasTransposed(Packed):
    """Rows and keys exchanged; what would lie beyond is read at the end."""

    def bias_at(self, bias: Array, i: Array, j: Array) -> Array:
        return super().bias_at(bias, np.broadcast_to(j, (len(i), len(j))), i)


@fault("VARLEN-16", "the softcap of packed sequences comes after the bias", "cf. onnx 7865, cf. emx-onnx-cgen PR 731")
class PackedBiasCapped(Packed):
    """The bias is capped too."""

    attention = SoftcapAfterBias


@fault("VARLEN-16", "the bias of packed sequences is added before the scale", "cf. cudnn-frontend PR 804")
class PackedBiasScaled(Packed):
    """(q · k + bias) · scale."""

    attention = BiasScaled


@fault("VARLEN-16", "−inf in the bias of packed sequences is a finite number", "cf. allennlp 890, cf. flax 982")
class PackedBiasFilled(Packed):
    """−10,000 in its place: right as long as another key of the row counts."""

    def bias_at(self, bias: Array, i: Array, j: Array) -> Array:
        found = super().bias_at(bias, i, j)
        return np.where(np.isneginf(found), found.dtype.type(-1e4), found)


@fault("VARLEN-16", "a bias of packed sequences that does not fit is accepted", "flash-sparse-attention 113")
class PackedBiasUnchecked(Packed):
    """Whatever memory there is."""

    def check_bias(self, x: Pack) -> None:
        pass

    def bias(self, x: Pack, n: int, i: Array, j: Array) -> Array:
        return super().bias(x, n, i, j)[: x.q.shape[1]]
