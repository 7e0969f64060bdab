"""Diagnosis of first attempts: attention with a mistake that is typical when it is written for the first time.

Each follows a report, in the usual form of a program: no guard for fully masked rows, one line for each product.  The
causes were written down from the threads.  The diagnosis from before such mistakes were on its list is kept next to
that of now; nothing about the last three was on the list when the rest was added.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from studies.bug_reports import Report, diagnosed, table, whole
from studies.common import Study
from studies.library_functions import Array

#: True explanations that are no cause: calls that such functions refuse, shapes that follow, and NaN of calls with NaN.
TRUE = r"exception|error for|output of shape|D columns where Dv differs|^“NaN in every element of output”, only"

REPORTS = (
    Report("softmax_over_rows", "the softmax over the query rows", "https://github.com/labmlai/annotated_deep_learning_paper_implementations/issues/282", r"softmax is over the query rows", TRUE),
    Report("softmax_over_heads", "the softmax over the heads", "https://github.com/CAMMA-public/rendezvous-in-time/issues/3", r"softmax is over the heads", TRUE),
    Report("softmax_over_folded", "the softmax over batches and heads, folded into the first axis", "https://github.com/jadore801120/attention-is-all-you-need-pytorch/issues/52", r"softmax is over batches and heads", TRUE),
    Report("softmax_over_first", "the softmax over batches and rows, folded into the first axis", "https://github.com/PetrochukM/PyTorch-NLP/issues/2", r"softmax is over batches and query rows", TRUE),
    Report("softmax_over_flattened", "the softmax over heads and keys, flattened", "https://github.com/facebookresearch/detr/issues/247", r"softmax is over heads and keys", TRUE),
    Report("softmax_missing", "no softmax", "https://github.com/flexflow/flexflow-train/issues/467", r"no softmax", TRUE),
    Report("scaled_behind", "the weights scaled, not the scores", "https://github.com/FrancescoSaverioZuppichini/ViT/issues/2", r"scale is applied to the weights", TRUE),
    Report("scaled_by_heads", "a scale of 1/√H", "https://github.com/tenstorrent/tt-metal/pull/56789", r"1/√H\b", TRUE),
    Report("weights_transposed", "the weights transposed before the product with v", "https://github.com/heykeetae/Self-Attention-GAN/issues/11", r"weights are transposed", TRUE),
    Report("einsum_of_rows", "einsum bnsk,bnsh: a row gets its own value", "https://github.com/pytorch-tpu/transformers/pull/34", r"own value", TRUE),
    Report("keys_averaged", "keys in the place of values", "https://github.com/ruvnet/agentic-flow/issues/191", r"keys are averaged", TRUE),
    Report("scores_of_values", "values in the place of keys", "https://github.com/Genentech/ARGMINN/issues/1", r"products with the values", TRUE),
    Report("values_of_queries", "values projected from the queries' input", "https://github.com/tensorflow/tensorflow/pull/35859", r"values come from x_q", TRUE),
    Report("heads_viewed", "heads (H, B, S, D) viewed as (B, S, H·D)", "https://github.com/hackiey/QAnet-pytorch/issues/2", r"heads.*view|view.*heads", TRUE),
    Report("divided_again", "the weights divided by their sums over the query rows, too", "https://github.com/MenghaoGuo/PCT/issues/13", r"divided.*(again|sum).*query rows|query rows.*divided", TRUE),
    Report("input_split", "the input split into heads before it is projected", "https://github.com/neetcode-gh/leetcode/issues/5130", r"split.*before|input.*split", TRUE),
)  # fmt: skip


def softmax(s: Array, axis: int | tuple[int, ...] = 3) -> Array:
    """Softmax as many programs write it."""
    p: Array = np.exp(s - s.max(axis, keepdims=True, initial=-np.inf))
    return p / p.sum(axis, keepdims=True)


def made_attention(
    scores: Callable[..., Array] = lambda q, k, v: q @ k.swapaxes(2, 3),
    output: Callable[..., Array] = lambda s, k, v, scale: softmax(s) @ v,
    default: Callable[[Array], float] = lambda q: q.shape[3] ** -0.5,
) -> Callable[..., Array]:
    """A function of heads with the given two products and default scale."""

    def attention(
        q: Array, k: Array, v: Array, *, mask: Any = None, is_causal: bool = False, scale: float | None = None
    ) -> Array:
        dtype = q.dtype
        q, k, v = (a.astype(np.result_type(a, np.float32)) for a in (q, k, v))
        if q.shape[1] != k.shape[1]:
            k, v = (np.repeat(a, q.shape[1] // a.shape[1], axis=1) for a in (k, v))
        with np.errstate(all="ignore"):
            factor = q.dtype.type(default(q) if scale is None else scale)
            s = scores(q, k, v) * factor
            s = s if mask is None else np.where(mask, s, -np.inf)
            s = np.where(np.tri(*s.shape[2:]) > 0, s, -np.inf) if is_causal else s
            return output(s, k, v, factor).astype(dtype)

    return attention


def made_layer(
    values_of: Callable[[Array, Array], Array] = lambda x, kv: kv,
    combine: Callable[[Array], Array] = lambda heads: heads.swapaxes(1, 2).reshape(
        heads.shape[0], heads.shape[2], heads.shape[1] * heads.shape[3]
    ),
    project: Callable[[Array, Array, int], Array] = lambda a, w, heads: a @ w,
) -> Callable[..., Array]:
    """A layer with the given input of its values, combination of heads and projections."""

    def mha(
        x_q: Array, w_q: Array, w_k: Array, w_v: Array, *, heads: int, x_kv: Any = None, w_o: Any = None, b_q: Any = None,
        b_k: Any = None, b_v: Any = None, b_o: Any = None,
    ) -> Array:  # fmt: skip
        given = (x_q, x_q if x_kv is None else x_kv, w_q, w_k, w_v)
        x, kv, w_q, w_k, w_v = (a.astype(np.result_type(a, np.float32)) for a in given)
        q, k, v = (
            (project(a, w, heads) + (0 if b is None else b.astype(w.dtype)))
            .reshape(a.shape[0], a.shape[1], heads, w.shape[1] // heads)
            .swapaxes(1, 2)
            for a, w, b in ((x, w_q, b_q), (kv, w_k, b_k), (values_of(x, kv), w_v, b_v))
        )
        with np.errstate(all="ignore"):
            found = combine(softmax(q @ k.swapaxes(2, 3) * q.dtype.type(q.shape[3] ** -0.5)) @ v)
        if w_o is not None:
            found = found @ w_o.astype(found.dtype) + (0 if b_o is None else b_o.astype(found.dtype))
        return found.astype(x_q.dtype)

    return mha


def _over_first(s: Array) -> Array:
    folded = s.swapaxes(0, 1).reshape(s.shape[1], s.shape[0] * s.shape[2], s.shape[3])
    return softmax(folded, 1).reshape(s.shape[1], s.shape[0], *s.shape[2:]).swapaxes(0, 1)


def _viewed(heads: Array) -> Array:
    b, h, s, d = heads.shape
    return np.ascontiguousarray(heads.swapaxes(0, 1)).reshape(b, s, h * d)


def _split_first(a: Array, w: Array, heads: int) -> Array:
    """Each head of the input with its own block of the weight; a width that heads do not divide is refused."""
    parts, blocks = (np.split(each, heads, axis=2) for each in (a, w[None]))
    rows = w.shape[0] // heads
    return np.concatenate(
        [part @ block[0, n * rows : (n + 1) * rows] for n, (part, block) in enumerate(zip(parts, blocks, strict=True))],
        axis=2,
    )


FUNCTIONS: dict[str, Callable[..., Array]] = {
    "softmax_over_rows": made_attention(output=lambda s, k, v, scale: softmax(s, 2) @ v),
    "softmax_over_heads": made_attention(output=lambda s, k, v, scale: softmax(s, 1) @ v),
    "softmax_over_folded": made_attention(output=lambda s, k, v, scale: softmax(s, (0, 1)) @ v),
    "softmax_over_first": made_attention(output=lambda s, k, v, scale: _over_first(s) @ v),
    "softmax_over_flattened": made_attention(output=lambda s, k, v, scale: softmax(s, (1, 3)) @ v),
    "softmax_missing": made_attention(output=lambda s, k, v, scale: np.where(np.isneginf(s), 0, s) @ v),
    "scaled_behind": made_attention(output=lambda s, k, v, scale: softmax(s / scale) * scale @ v),
    "scaled_by_heads": made_attention(default=lambda q: q.shape[1] ** -0.5),
    "weights_transposed": made_attention(
        output=lambda s, k, v, scale: (v.swapaxes(2, 3) @ softmax(s)).swapaxes(2, 3)
    ),
    "einsum_of_rows": made_attention(output=lambda s, k, v, scale: np.einsum("bnsk,bnsh->bnsh", softmax(s), v)),
    "keys_averaged": made_attention(output=lambda s, k, v, scale: softmax(s) @ k),
    "scores_of_values": made_attention(scores=lambda q, k, v: q @ v.swapaxes(2, 3)),
    "values_of_queries": made_layer(values_of=lambda x, kv: x),
    "heads_viewed": made_layer(combine=_viewed),
    "divided_again": made_attention(output=lambda s, k, v, scale: (p := softmax(s)) / (1e-9 + p.sum(2, keepdims=True)) @ v),
    "input_split": made_layer(project=_split_first),
}  # fmt: skip


def measure(function: Sequence[str]) -> dict[str, Any]:
    """Every function, or some; the first run's results stay."""
    return {"functions": diagnosed(REPORTS, FUNCTIONS, function), "first": STUDY.kept()["first"], "threads": 1}


STUDY = Study(
    "first_attempts",
    "What the diagnosis says of mistakes of first attempts, before they were on its list and now.",
    measure,
    {"conformance/DIAGNOSIS.md": functools.partial(table, reports=REPORTS)},
    {"function": {"nargs": "*", "metavar": "FUNCTION", "help": "default: all"}},
    whole,
)
