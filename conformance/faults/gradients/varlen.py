"""(GRAD-30 to GRAD-34) Mistakes of the backward pass of packed sequences."""

from __future__ import annotations

import numpy as np

from attention_conformance.conformance.faults.gradients.sdpa import GroupNotSummed
from attention_conformance.conformance.faults.models.sdpa import Array
from attention_conformance.conformance.faults.models.varlen import Pack
from attention_conformance.conformance.faults.models.varlen_gradients import PackedBackward
from attention_conformance.conformance.faults.registry import fault

#: Queries per tile.
TILE = 16

Gradients = tuple[Array, Array, Array]


@fault(
    "GRAD-31", "keys of a pack get gradients from the first queries of the next sequence", "cf. flash-attention PR 2333"
)
class PackedGradientRowsRunOn(PackedBackward):
    """The pass over keys loads the last tile of queries whole; the gradient of q is right."""

    def sequence(self, x: Pack, n: int, g: Array, rows: Array, keys: Array) -> Gradients:
        grad_q, *_ = super().sequence(x, n, g, rows, keys)
        more = np.arange(rows[0], min(rows[0] - (-len(rows) // TILE) * TILE, len(x.q))) if len(rows) else rows
        _, grad_k, grad_v = self.over(x, n, g, more, keys, self.offset(x, n, len(rows), len(keys)))
        return grad_q, grad_k, grad_v


@fault("GRAD-31", "queries of a pack get gradients from the first keys of the next sequence", "cf. prime-rl PR 2392")
class PackedGradientKeysRunOn(PackedBackward):
    """The pass over queries sees one key of the next sequence; the gradients of k and v are right."""

    def sequence(self, x: Pack, n: int, g: Array, rows: Array, keys: Array) -> Gradients:
        _, grad_k, grad_v = super().sequence(x, n, g, rows, keys)
        more = np.append(keys, min(keys[-1] + 1, len(x.k) - 1)) if len(keys) else keys
        grad_q, _, _ = self.over(x, n, g, rows, more, self.offset(x, n, len(rows), len(keys)) + 1)
        return grad_q, grad_k, grad_v


@fault("GRAD-31", "the boundaries of packed sequences are ignored in the backward pass", "LLaMA-Factory PR 4224")
class PackedGradientBoundariesIgnored(PackedBackward):
    """The backward pass treats the whole pack as one sequence."""

    def sequence(self, x: Pack, n: int, g: Array, rows: Array, keys: Array) -> Gradients:
        every = np.arange(x.cu_seqlens_q[-1]), np.arange(x.cu_seqlens_k[-1])
        found = self.over(x, n, g, *every, self.offset(x, n, len(every[0]), len(every[1])))
        return found[0][rows], found[1][keys], found[2][keys]


@fault(
    "GRAD-31", "gradients of shared keys of a pack are those of one query head of the group only", "cf. levanter PR 449"
)
class PackedGradientGroupNotSummed(PackedBackward):
    """Calls without grouped heads are right."""

    backward = GroupNotSummed


@fault("GRAD-31", "causal masks of packed sequences are aligned at the top left, backwards", "cf. SageAttention PR 372")
class PackedGradientTopLeft(PackedBackward):
    """Sequences with as many queries as keys are right."""

    def default_offset(self, x: Pack, n: int, queries: int, keys: int) -> int:
        return 0


@fault("GRAD-31", "the diagonal of packed sequences is that of the maxima, backwards", "cf. rocm-libraries PR 10999")
class PackedGradientDiagonalOfMaxima(PackedBackward):
    """The offset is max_seqlen_k − max_seqlen_q instead of each sequence's own Sk − Sq."""

    def default_offset(self, x: Pack, n: int, queries: int, keys: int) -> int:
        return x.max_seqlen_k - x.max_seqlen_q


@fault("GRAD-32", "a packed sequence without keys has gradients of NaN", "cf. flash-attention PR 2568")
class PackedGradientEmptyNan(PackedBackward):
    """Fully masked rows compute 0 / 0 in the gradient of q."""

    def sequence(self, x: Pack, n: int, g: Array, rows: Array, keys: Array) -> Gradients:
        grad_q, grad_k, grad_v = super().sequence(x, n, g, rows, keys)
        return (grad_q if len(keys) else np.full_like(grad_q, np.nan)), grad_k, grad_v


@fault("GRAD-32", "gradients of packed keys without queries are not written", "cf. flash-attention 1537")
class PackedGradientKeysNotWritten(PackedBackward):
    """No block of queries reaches such keys, so their gradients are uninitialised memory."""

    def sequence(self, x: Pack, n: int, g: Array, rows: Array, keys: Array) -> Gradients:
        grad_q, grad_k, grad_v = super().sequence(x, n, g, rows, keys)
        return (grad_q, grad_k, grad_v) if len(rows) else (grad_q, np.ones_like(grad_k), np.ones_like(grad_v))


@fault("GRAD-32", "gradients behind the last packed sequence are not written", "cf. flash-attention 1661")
class PackedGradientBehindNotWritten(PackedBackward):
    """Memory is not cleared, so keys of no sequence keep what it held."""

    def empty(self, x: Pack) -> list[Array]:
        found = super().empty(x)
        for array in found[1:]:
            array[x.cu_seqlens_k[-1] :] = 1
        return found


@fault("GRAD-31", "gradients of packed keys are found by the boundaries of queries", "cf. vllm-omni PR 3525")
class PackedGradientKeysOfQueries(PackedBackward):
    """Packs in which every sequence has as many queries as keys are right."""

    def keys(self, x: Pack, n: int) -> Array:
        return np.minimum(np.arange(x.cu_seqlens_q[n], x.cu_seqlens_q[n + 1]), len(x.k) - 1)


@fault("GRAD-34", "grad_output with fewer rows than a pack is accepted", "cf. transformers PR 39653")
class PackedGradientNotChecked(PackedBackward):
    """Missing rows count as zeros, and a sequence without a key boundary has no keys."""

    def check(self, x: Pack, g: Array) -> None:
        pass

    def keys(self, x: Pack, n: int) -> Array:
        return super().keys(x, n) if n + 1 < len(x.cu_seqlens_k) else np.arange(0)

    def over(self, x: Pack, n: int, g: Array, rows: Array, keys: Array, offset: int) -> Gradients:
        padded = np.zeros((len(x.q), *g.shape[1:]), g.dtype)
        padded[: len(g)] = g
        return super().over(x, n, padded, rows, keys, offset)
