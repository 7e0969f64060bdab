"""(SDPA-1, SDPA-2, SDPA-14, SDPA-16, SDPA-17) Heads paired, split or merged wrongly, and axes or arrays confused."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np

from attention_conformance.conformance.faults.models.sdpa import Array, Attention, Inputs
from attention_conformance.conformance.faults.registry import fault
from attention_conformance.conformance.spec.sdpa import Expected


@fault("SDPA-17", "query head h reads key head h mod Hkv", "onnx PR 7274, onnxscript PR 2408, jax-js PR 180")
class HeadsTiled(Attention):
    """The heads are tiled instead of repeated. Calls with Hkv = 1 or Hkv = Hq are still right."""

    def heads(self, x: Inputs, array: Array) -> Array:
        return np.tile(array, (1, x.group, 1, 1))


@fault("SDPA-17", "query head h reads value head h mod Hkv", "onnx PR 7274, onnxscript PR 2408")
class ValueHeadsTiled(Attention):
    """Query heads still read the right key heads."""

    def operands(self, x: Inputs) -> tuple[Array, Array, Array]:
        q, k, _ = super().operands(x)
        return q, k, np.tile(x.v, (1, x.group, 1, 1)).astype(x.work)


@fault(
    "SDPA-17",
    "query head h reads key head h // Hkv",
    "ONNXim PR 34, HipKittens PR 22, native-sparse-attention-triton 27",
)
class HeadsByGroupCount(Attention):
    """The number of groups is taken for their size. Calls where both are equal, or Hkv = 1, are right."""

    def heads(self, x: Inputs, array: Array) -> Array:
        hkv = array.shape[1]
        return array[:, np.minimum(np.arange(x.shape[1]) // hkv, hkv - 1)]


@fault("SDPA-17", "every query head reads the first key head", "ONNXim PR 34")
class HeadsFirstForAll(Attention):
    """The code treats every call as multi-query attention, grouped or not. Calls with one key head are right."""

    def heads(self, x: Inputs, array: Array) -> Array:
        return np.repeat(array[:, :1], x.shape[1], axis=1)


@fault("SDPA-17", "grouped heads switch causal off", "xformers PR 1239")
class GroupedDropsCausal(Attention):
    """The kernel for grouped heads folds them into the rows and loses the diagonal."""

    def causal_allows(self, x: Inputs) -> Array:
        return np.ones(x.shape, bool) if x.group > 1 else super().causal_allows(x)


@fault(
    "SDPA-17",
    "grouped heads folded into rows: the diagonal counts folded rows",
    "flash-attention PR 2528, xformers PR 1239",
)
class GroupedRowsCounted(Attention):
    """Row i of the g-th head of a group of n heads counts as row i · n + g."""

    def diagonal(self, x: Inputs) -> Array:
        if x.group <= 1:
            return super().diagonal(x)
        rows = np.arange(x.shape[2])[None, :, None] * x.group + (np.arange(x.shape[1]) % x.group)[:, None, None]
        return rows + self.offset(x)


@fault("SDPA-1", "heads split by a view, without the transpose", "onnx 7118, FuxiCTR 30, torch-mlir PR 4470")
class SplitByView(Attention):
    """Memory in the layout (B, S, H, D) is read as (B, H, S, D). Arrays with one head or one row are right."""

    def operands(self, x: Inputs) -> tuple[Array, Array, Array]:
        def split(array: Array) -> Array:
            b, h, s, d = array.shape
            return np.ascontiguousarray(array.transpose(0, 2, 1, 3)).reshape(b, h, s, d)

        return (
            split(x.q).astype(x.work),
            self.heads(x, split(x.k)).astype(x.work),
            self.heads(x, split(x.v)).astype(x.work),
        )


@fault("SDPA-1", "heads merged by a view, without the transpose", "transformer-from-scratch PR 6, source 002")
class MergedByView(Attention):
    """The output has the right shape, but its elements are in the wrong order."""

    def stored(self, x: Inputs, output: Array) -> Array:
        b, h, s, d = output.shape
        return np.ascontiguousarray(super().stored(x, output)).reshape(b, s, h, d).transpose(0, 2, 1, 3)


@fault("SDPA-1", "with a batch of one, a head reads its neighbour's keys", "flashinfer 1898")
class BatchOfOne(Attention):
    """The batch axis is squeezed away and the heads shift by one. Larger batches are right."""

    def operands(self, x: Inputs) -> tuple[Array, Array, Array]:
        q, k, v = super().operands(x)
        return (q, np.roll(k, 1, axis=1), v) if x.shape[0] == 1 else (q, k, v)


@fault("SDPA-1", "every batch reads the keys of the first", "cf. source 002")
class FirstBatchKeys(Attention):
    """The batch stride of k is taken as 0. A batch of one is right."""

    def operands(self, x: Inputs) -> tuple[Array, Array, Array]:
        q, k, v = super().operands(x)
        return q, np.broadcast_to(k[:1], k.shape) if len(k) else k, v


@fault(
    "SDPA-17", "query head h reads key head min(h, Hkv − 1)", "cf. ONNXim PR 34, cf. native-sparse-attention-triton 27"
)
class HeadsClamped(Attention):
    """Query heads past the last key head read the last one. Calls with Hkv = 1 or Hkv = Hq are right."""

    def heads(self, x: Inputs, array: Array) -> Array:
        return array[:, np.minimum(np.arange(x.shape[1]), array.shape[1] - 1)]


@fault(
    "SDPA-1",
    "keys and values counted across the samples: (Sk, B) memory read as (B, Sk)",
    "cf. onnx 7118, cf. FuxiCTR 30",
)
class KeysAcrossSamples(Attention):
    """Sequence-first keys are combined with batch-first queries. A batch of one is right."""

    def operands(self, x: Inputs) -> tuple[Array, Array, Array]:
        def crossed(array: Array) -> Array:
            b, h, s, d = array.shape
            return array.transpose(1, 2, 0, 3).reshape(h, b, s, d).swapaxes(0, 1)

        q, k, v = super().operands(x)
        return q, crossed(k), crossed(v)


@fault("SDPA-1", "the two halves of the head width taken for keys of their own", "cf. FuxiCTR 30, cf. onnx 7118")
class WidthHalvesAsKeys(Attention):
    """Queries, keys and values (S, D) are read as (2 · S, D/2). Calls with an odd width or a bias are right."""

    def attend(self, x: Inputs) -> Expected:
        if x.q.shape[3] % 2 or x.v.shape[3] % 2 or x.bias is not None:
            return super().attend(x)

        def halved(array: Array) -> Array:
            b, h, s, d = array.shape
            return array.reshape(b, h, 2 * s, d // 2)

        mask = self.allowed(x).repeat(2, axis=2).repeat(2, axis=3)
        kept = {"scale": x.scale, "softcap": x.softcap, "sinks": x.sinks, "work": x.work, "stored": x.dtype}
        found = super().attend(Inputs(halved(x.q), halved(x.k), halved(x.v), mask, **kept))  # type: ignore[arg-type]
        (b, h, n, m), width = x.shape, x.v.shape[3]
        weights = found.weights.reshape(b, h, n, 2, m, 2).sum(axis=5).mean(axis=3)
        right = super().attend(x)
        lse = found.lse.reshape(b, h, n, 2).mean(axis=3)
        return replace(right, output=found.output.reshape(b, h, n, width), weights=weights, lse=lse)


class OtherAxes(Attention):
    """Softmax over ``axes`` instead of over the keys, computed as a library's function does; lse is right."""

    axes: ClassVar[tuple[int, ...]]

    def softmax(self, x: Inputs, s: Array, allowed: Array) -> tuple[Array, Array]:
        powers = np.exp(s - s.max(axis=self.axes, keepdims=True, initial=-np.inf))
        return powers / powers.sum(axis=self.axes, keepdims=True), super().softmax(x, s, allowed)[1]


@fault(
    "SDPA-14",
    "the softmax is over the query rows",
    "annotated_deep_learning_paper_implementations 146, annotated_deep_learning_paper_implementations 282, fastNLP 254",
)
class SoftmaxOverRows(OtherAxes):
    """The weights of a key, not of a row, add up to 1. A key that is masked for every row gives NaN."""

    axes = (2,)


@fault("SDPA-14", "the softmax is over the heads", "rendezvous-in-time 3")
class SoftmaxOverHeads(OtherAxes):
    """A softmax called without an axis takes axis 1 of four. With one head every key gets the weight 1."""

    axes = (1,)


@fault("SDPA-14", "the softmax is over batches and heads", "attention-is-all-you-need-pytorch 52")
class SoftmaxOverBatchesAndHeads(OtherAxes):
    """Heads are folded into the batch, and a softmax called without an axis takes the first of three axes."""

    axes = (0, 1)


@fault("SDPA-14", "the softmax is over batches and query rows", "PyTorch-NLP 2")
class SoftmaxOverBatchesAndRows(OtherAxes):
    """Scores are folded to (B · Sq, Sk), and the softmax takes axis 0. With B = Sq = 1 every weight is 1."""

    axes = (0, 2)


@fault("SDPA-14", "the softmax is over heads and keys together", "detr 247")
class SoftmaxOverHeadsAndKeys(OtherAxes):
    """The weights of a row add up to 1 over all heads. Calls with one head are right."""

    axes = (1, 3)


@fault("SDPA-16", "the weights are transposed before they meet the values", "Self-Attention-GAN 11")
class WeightsUsedTransposed(Attention):
    """Row i gets the weights that the rows give to key i. The code runs only where Sq = Sk."""

    def summed(self, x: Inputs, weights: Array, allowed: Array, v: Array) -> Array:
        return weights.swapaxes(2, 3) @ v


@fault("SDPA-16", "a row gets its own value, times the sum of its weights", "pytorch-tpu-transformers PR 34")
class OwnValues(Attention):
    """The code computes einsum("bnsk,bnsh->bnsh"), which runs only where Sq = Sk or either is 1."""

    def summed(self, x: Inputs, weights: Array, allowed: Array, v: Array) -> Array:
        return np.einsum("bnsk,bnsh->bnsh", weights, v)


@fault("SDPA-16", "keys are averaged in the place of values", "cf. agentic-flow 191")
class KeysForValues(Attention):
    """Calls with equal keys and values, as in many examples, are right."""

    def operands(self, x: Inputs) -> tuple[Array, Array, Array]:
        q, k, _ = super().operands(x)
        return q, k, k


@fault("SDPA-2", "scores are products with the values, not with the keys", "ARGMINN 1")
class ValuesForKeys(Attention):
    """Calls with equal keys and values are right; Dv ≠ D raises an exception."""

    def operands(self, x: Inputs) -> tuple[Array, Array, Array]:
        q, _, v = super().operands(x)
        return q, v, v
