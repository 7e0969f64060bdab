"""Diagnosis of wrong attention after bug reports: each has a thread, a cause, and the words that name the cause.

The causes were written down from the threads, none of which an earlier set used, before the diagnosis was run on any of
these functions.  The titles of that first run are kept next to those of now.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from studies.common import Study, Unfit, markdown, sentence
from studies.diagnosis import examined
from studies.library_functions import Array


@dataclass(frozen=True)
class Report:
    """A bug report, and the words of an explanation that name its cause, as a regular expression."""

    function: str
    what: str
    thread: str
    says: str
    #: Words of other explanations that are also true of the function here, as found when they were read.
    besides: str = r"(?!)"


REPORTS = (
    Report("causal_by_four", "one causal row for four query rows: three of them see ahead", "https://github.com/pytorch/pytorch/issues/195910", r"four|of 4 |4 rows"),
    Report("mask_added", "a boolean mask added to the scores as 0 and 1", "https://github.com/huggingface/diffusers/issues/14342", r"mask.*added|0/1|0 and 1"),
    Report("mask_after_softmax", "the mask applied to the weights after the softmax", "https://github.com/huggingface/pytorch-image-models/pull/2236", r"after the softmax|after softmax|divided out"),
    Report("softcap_after_mask", "the softcap after the mask: masked keys leak", "https://github.com/onnx/onnx/issues/7865", r"softcap.*after|after.*softcap|softcap.*mask"),
    Report("padding_of_queries", "the key lengths applied to the rows, not to the keys", "https://github.com/hyunwoongko/transformer/pull/40", r"lengths.*(rows|quer)|(rows|quer).*lengths"),
    Report("scaled_twice", "the queries scaled before a function that scales", "https://github.com/huggingface/transformers/issues/38277", r"twice|scale of 1/D\b"),
    Report("zero_by_default", "a default scale of 0 taken literally", "https://github.com/SKaiNET-developers/SKaiNET/pull/880", r"scores are 0 |scale of 0|0 times"),
    Report("root_of_scale", "the root of the scale on both sides: NaN for a negative one", "https://github.com/pytorch/pytorch/pull/105202", r"negative scale.*NaN|NaN.*negative|root of the scale|√scale"),
    Report("zero_keys_behind", "keys behind the last tile are zero and count", "https://github.com/flashinfer-ai/flashinfer/pull/5090", r"padding|behind the last key"),
    Report("tail_rows_unwritten", "rows behind the last full tile of 4 not written", "https://github.com/OpenNLPLab/lightning-attention/pull/28", r"not written|never written|unwritten"),
    Report("head_unwritten", "the output of the last head not written", "https://github.com/triton-lang/triton/issues/2626", r"not written|never written|unwritten"),
    Report("columns_of_keys", "as many output columns as keys have", "https://github.com/pytorch/pytorch/issues/176767", r"column|width of (the )?(keys|q)"),
    Report("small_infinity", "a maximum that starts at −5e4", "https://github.com/flashinfer-ai/flashinfer/issues/4267", r"5e4"),
    Report("float16_sum", "the sum of the powers in float16", "https://github.com/pytorch/executorch/pull/20090", r"storage dtype|float16|accumulat"),
    Report("lse_base_two", "lse in base 2", "https://github.com/vllm-project/vllm/pull/28840", r"base.2|log2|log₂"),
    Report("causal_without_past", "the diagonal counted without the past keys", "https://github.com/tinygrad/tinygrad/pull/15949", r"past"),
    Report("capped_padding", "padding of −inf capped to −softcap, and counted", "https://github.com/ggml-org/llama.cpp/pull/29034", r"(softcap|cap).*(padd|tile|behind)|(padd|tile|behind).*(softcap|cap)"),
    Report("window_lost_in_groups", "the window ignored where there are fewer key heads", "https://github.com/vllm-project/vllm/issues/17476", r"window.*(ignored|dropped).*grouped|grouped.*window"),
    Report("always_float32", "float64 computed in float32", "https://github.com/pytorch/pytorch/issues/171190", r"float64.*float32|float32.*float64"),
    Report("lengths_ignored", "key lengths ignored", "https://github.com/jax-ml/jax/issues/23349", r"lengths.*(ignored|dropped)"),
    Report("masked_before_scale", "the fill written before a scale is applied", "https://github.com/NVIDIA/cudnn-frontend/pull/804", r"before the scale", r"NaN in fully masked rows"),
    Report("causal_off_for_one", "causal switched off for one query", "https://github.com/microsoft/onnxruntime/issues/29020", r"one query"),
    Report("mask_of_other_sample", "heads are folded before the batch, masks behind it", "https://github.com/lsdefine/attention-is-all-you-need-keras/issues/36", r"mask.*(batch|sample|head|exchanged)"),
    Report("mask_inverted", "an additive mask cast to bool: inverted", "https://github.com/huggingface/transformers/pull/38094", r"invert"),
    Report("later_samples_zero", "samples behind the first are zero where there is a mask", "https://github.com/pytorch/pytorch/issues/139462", r"batch|samples behind the first hold zeros"),
)  # fmt: skip


def _attend(
    q: Array, k: Array, v: Array, allowed: Any = True, scale: float | None = None, change: Callable[[Array], Array] = lambda s: s
) -> Array:  # fmt: skip
    """Right attention except for a bug's arguments: the keys that are allowed, the scale, a change of the scores."""
    s, v = _scores(q, k, scale), np.repeat(v, q.shape[1] // max(1, v.shape[1]), axis=1)
    return (_softmax(np.where(allowed, change(s), -np.inf)) @ v.astype(s.dtype)).astype(q.dtype)


def _scores(q: Array, k: Array, scale: float | None) -> Array:
    work: Any = np.float64 if q.dtype == np.float64 else np.float32
    k = np.repeat(k, q.shape[1] // max(1, k.shape[1]), axis=1)
    found: Array = (q.astype(work) * work(q.shape[3] ** -0.5 if scale is None else scale)) @ k.astype(work).swapaxes(
        2, 3
    )
    return found


def _softmax(s: Array) -> Array:
    """Softmax over the keys; zeros where no key is allowed."""
    with np.errstate(all="ignore"):
        top = s.max(axis=3, keepdims=True, initial=-np.inf)
        powers = np.exp(s - np.where(np.isneginf(top), 0, top))
        total = powers.sum(axis=3, keepdims=True)
        return np.where(total == 0, 0, powers / total).astype(s.dtype)


def _not_after(q: Array, k: Array, offset: int = 0) -> Array:
    """True where a key is at or before the row's place."""
    return np.arange(k.shape[2]) <= np.arange(q.shape[2])[:, None] + offset


def _below_lengths(kv_lengths: Any, k: Array) -> Any:
    return True if kv_lengths is None else np.arange(k.shape[2]) < np.reshape(kv_lengths, (-1, 1, 1, 1))


def causal_by_four(q: Array, k: Array, v: Array, *, is_causal: bool = False) -> Array:
    """One causal mask for four query rows."""
    rows = np.arange(q.shape[2]) // 4 * 4 + 3
    return _attend(q, k, v, np.arange(k.shape[2]) <= rows[:, None] if is_causal else True)


def mask_added(q: Array, k: Array, v: Array, *, mask: Any = None) -> Array:
    """Scores plus 1 where a key is allowed."""
    return _attend(q, k, v, change=lambda s: s if mask is None else s + np.asarray(mask, s.dtype))


def mask_after_softmax(q: Array, k: Array, v: Array, *, mask: Any = None) -> Array:
    """Weights of masked keys are set to 0, the others unchanged."""
    weights = _softmax(_scores(q, k, None))
    weights = weights if mask is None else weights * np.asarray(mask)
    return (weights @ np.repeat(v, q.shape[1] // v.shape[1], 1).astype(weights.dtype)).astype(q.dtype)


def softcap_after_mask(q: Array, k: Array, v: Array, *, mask: Any = None, softcap: Any = None) -> Array:
    """−inf becomes −softcap."""

    def capped(s: Array) -> Array:
        s = s if mask is None else np.where(mask, s, -np.inf).astype(s.dtype)
        return s if softcap is None else (softcap * np.tanh(s / softcap)).astype(s.dtype)

    return _attend(q, k, v, change=capped)


def padding_of_queries(q: Array, k: Array, v: Array, *, kv_lengths: Any = None) -> Array:
    """A padding mask (B, 1, S, 1) for (B, 1, 1, S)."""
    rows = True if kv_lengths is None else np.arange(q.shape[2])[:, None] < np.reshape(kv_lengths, (-1, 1, 1, 1))
    return _attend(q, k, v, rows)


def scaled_twice(q: Array, k: Array, v: Array) -> Array:
    """1/√D before and within."""
    return _attend(q, k, v, scale=1 / q.shape[3])


def zero_by_default(q: Array, k: Array, v: Array, *, scale: float = 0.0) -> Array:
    """Equal weights unless a scale is given."""
    return _attend(q, k, v, scale=scale)


def root_of_scale(q: Array, k: Array, v: Array, *, scale: float | None = None) -> Array:
    """√scale on queries and keys."""
    with np.errstate(invalid="ignore"):
        root = np.sqrt(np.float64(q.shape[3] ** -0.5 if scale is None else scale))
    work: Any = np.float64 if q.dtype == np.float64 else np.float32
    return _attend(q.astype(work) * work(root), k.astype(work) * work(root), v, scale=1.0).astype(q.dtype)


def _padded(array: Array, tile: int) -> Array:
    return np.pad(array, ((0, 0), (0, 0), (0, -array.shape[2] % tile), (0, 0)))


def zero_keys_behind(q: Array, k: Array, v: Array) -> Array:
    """Zero keys up to a multiple of 4, which are not masked."""
    return _attend(q, _padded(k, 4), _padded(v, 4))


def tail_rows_unwritten(q: Array, k: Array, v: Array) -> Array:
    """The last rows are what the buffer held before, here random numbers."""
    found, full = _attend(q, k, v), q.shape[2] // 4 * 4
    found[:, :, full:] = np.random.default_rng(found.size).standard_normal(found[:, :, full:].shape)
    return found


def head_unwritten(q: Array, k: Array, v: Array) -> Array:
    """The last of several heads is what the buffer held."""
    found = _attend(q, k, v)
    if found.shape[1] > 1:
        found[:, -1] = np.random.default_rng(found.size).standard_normal(found[:, -1].shape)
    return found


def columns_of_keys(q: Array, k: Array, v: Array) -> Array:
    """The output is (B, H, S, D), whatever Dv is."""
    found = np.zeros(q.shape, q.dtype)
    some = min(q.shape[3], v.shape[3])
    found[..., :some] = _attend(q, k, v)[..., :some]
    return found


def small_infinity(q: Array, k: Array, v: Array) -> Array:
    """Powers of s − max(s, −5e4)."""
    s = _scores(q, k, None)
    with np.errstate(all="ignore"):
        powers = np.exp(s - np.maximum(s.max(axis=3, keepdims=True, initial=-np.inf), -5e4))
        total = powers.sum(axis=3, keepdims=True)
        weights = np.where(total == 0, 0, powers / total).astype(s.dtype)
    return (weights @ np.repeat(v, q.shape[1] // v.shape[1], 1).astype(s.dtype)).astype(q.dtype)


def float16_sum(q: Array, k: Array, v: Array) -> Array:
    """Sum in half precision: powers are added up in it, one by one."""
    if q.dtype != np.float16:
        return _attend(q, k, v)
    s = _scores(q, k, None)
    powers = np.exp(s - s.max(axis=3, keepdims=True, initial=-np.inf)).astype(np.float16)
    total = np.add.accumulate(powers, axis=3, dtype=np.float16)[..., -1:] if s.shape[3] else 1
    weights = powers.astype(np.float32) / np.asarray(total, np.float32)
    return (weights @ np.repeat(v, q.shape[1] // v.shape[1], 1).astype(np.float32)).astype(q.dtype)


def lse_base_two(q: Array, k: Array, v: Array, *, return_lse: bool = False) -> Any:
    """log2 of the sum of the powers."""
    found = _attend(q, k, v)
    if not return_lse:
        return found
    s = _scores(q, k, None)
    with np.errstate(all="ignore"):
        lse = np.logaddexp.reduce(s, axis=3) / np.log(2)
    return found, lse.astype(s.dtype)


def causal_without_past(
    q: Array, k: Array, v: Array, *, is_causal: bool = False, past_key: Any = None, past_value: Any = None
) -> Any:
    """tril(0) of (S, P + S)."""
    if past_key is None:
        return _attend(q, k, v, _not_after(q, k) if is_causal else True)
    k, v = np.concatenate([past_key, k], 2), np.concatenate([past_value, v], 2)
    return _attend(q, k, v, _not_after(q, k) if is_causal else True), k, v


def capped_padding(q: Array, k: Array, v: Array, *, softcap: Any = None) -> Array:
    """Padding up to a multiple of 4 keys, with score −softcap and value 0."""
    if softcap is None:
        return _attend(q, k, v)
    behind = np.arange(-(-k.shape[2] // 4) * 4) >= k.shape[2]
    capped = lambda s: (softcap * np.tanh(np.where(behind, -np.inf, s) / softcap)).astype(s.dtype)  # noqa: E731
    return _attend(q, _padded(k, 4), _padded(v, 4), change=capped)


def window_lost_in_groups(q: Array, k: Array, v: Array, *, window: Any = None) -> Array:
    """The window is used only where every query head has its own key head."""
    left, right = window or (None, None)
    if q.shape[1] != k.shape[1]:
        left = right = None
    at = np.arange(k.shape[2]) - np.arange(q.shape[2])[:, None]
    allowed = (at >= -left if left is not None else True) & (
        at <= right if right is not None else np.ones(at.shape, bool)
    )
    return _attend(q, k, v, allowed)


def always_float32(q: Array, k: Array, v: Array) -> Array:
    """Casts to float64 are dropped."""
    return _attend(q.astype(np.float32), k.astype(np.float32), v.astype(np.float32)).astype(q.dtype)


def lengths_ignored(q: Array, k: Array, v: Array, *, is_causal: bool = False, kv_lengths: Any = None) -> Array:
    """The lengths of keys are ignored without lengths of queries."""
    return _attend(q, k, v, _not_after(q, k) if is_causal else True)


def masked_before_scale(q: Array, k: Array, v: Array, *, mask: Any = None, scale: float | None = None) -> Array:
    """−inf · scale."""
    scale = q.shape[3] ** -0.5 if scale is None else scale
    s = _scores(q, k, 1.0)
    with np.errstate(all="ignore"):
        s = (s if mask is None else np.where(mask, s, -np.inf)).astype(s.dtype) * s.dtype.type(scale)
        powers = np.exp(s - s.max(axis=3, keepdims=True, initial=-np.inf))
        weights = powers / powers.sum(axis=3, keepdims=True)
        return (weights @ np.repeat(v, q.shape[1] // v.shape[1], 1).astype(s.dtype)).astype(q.dtype)


def causal_off_for_one(q: Array, k: Array, v: Array, *, is_causal: bool = False) -> Array:
    """A single query sees every key."""
    return _attend(q, k, v, _not_after(q, k) if is_causal and q.shape[2] != 1 else True)


def mask_of_other_sample(q: Array, k: Array, v: Array, *, mask: Any = None) -> Array:
    """Scores are folded to (H · B) and masks to (B · H)."""
    if mask is None:
        return _attend(q, k, v)
    b, h = q.shape[:2]
    full = np.broadcast_to(mask, (b, h, q.shape[2], k.shape[2]))
    return _attend(q, k, v, full.reshape(h, b, *full.shape[2:]).swapaxes(0, 1))


def mask_inverted(q: Array, k: Array, v: Array, *, mask: Any = None) -> Array:
    """(1 − mask) · min cast to bool."""
    return _attend(q, k, v, True if mask is None else ~np.asarray(mask))


def later_samples_zero(q: Array, k: Array, v: Array, *, mask: Any = None) -> Array:
    """A block mask made for another size."""
    found = _attend(q, k, v, True if mask is None else mask)
    if mask is not None:
        found[1:] = 0
    return found


# The study.


def graded(report: Report, titles: Sequence[str], failed: int) -> dict[str, Any]:
    """Titles that a diagnosis gave a function: the ones that name its cause, and the ones that do not."""
    named = [title for title in titles if re.search(report.says, title)]
    return {
        "function": report.function,
        "failed": failed,
        "named": named,
        "wrong": [title for title in titles if title not in named and not re.search(report.besides, title)],
    }


def diagnosed(
    reports: Sequence[Report], functions: Mapping[str, Callable[..., Any]], names: Sequence[str]
) -> list[dict[str, Any]]:
    """Each function that is named, or all, with the diagnosis of it."""
    rows = []
    for report in (each for each in reports if each.function in names or not names):
        found = examined(functions[report.function])
        rows.append(graded(report, [each.title for each in found.explanations], found.failed))
    return rows


def measure(function: Sequence[str]) -> dict[str, Any]:
    """Every function, or some; the first run's results stay."""
    return {"functions": diagnosed(REPORTS, globals(), function), "first": STUDY.kept()["first"], "threads": 1}


def counted(rows: Sequence[Mapping[str, Any]]) -> tuple[int, int, int, int]:
    """Numbers of causes that some case shows, of named causes, of explanations that name none, and of all of these."""
    shown = [row for row in rows if row["failed"]]
    wrong = sum(len(row["wrong"]) for row in shown)
    return len(shown), sum(bool(row["named"]) for row in shown), wrong, wrong + sum(len(row["named"]) for row in shown)


def table(found: Mapping[str, Any], reports: Sequence[Report] = REPORTS) -> str:
    """A row for each function, and the figures of both runs."""
    said = {run: {row["function"]: _diagnosis_text(row) for row in found[run]} for run in ("first", "functions")}
    rows = [
        (
            f"`{r.function}`",
            f"[{r.what}]({r.thread})",
            said["first"].get(r.function, "–"),
            said["functions"][r.function],
        )
        for r in reports
        if r.function in said["functions"]
    ]
    figures = []
    for run, words in (("first", "at first"), ("functions", "after mending")):
        causes, named, wrong, every = counted(found[run])
        figures.append(
            (words, f"{named} of {causes} ({named / causes:.0%})", f"{wrong} of {every} ({wrong / every:.0%})")
        )
    heads = ("function", "cause, as the report says it", "what the diagnosis said at first", "what it says now")
    of = markdown(("", "causes named", "explanations that name no cause"), figures)
    return "\n\n".join([markdown(heads, rows, left=range(4)), of, sentence(found)])


def _diagnosis_text(row: Mapping[str, Any]) -> str:
    if not row["failed"]:
        return "no small case shows it"
    return "; ".join([*row["named"], *(f"wrong: {title}" for title in row["wrong"])]) or "nothing"


def whole(function: Sequence[str]) -> None:
    """The page has all functions."""
    if function:
        raise Unfit("--page needs all functions")


STUDY = Study(
    "bug_reports",
    "What the diagnosis says of wrong functions after bug reports, at first and once it was mended.",
    measure,
    {"conformance/DIAGNOSIS.md": table},
    {"function": {"nargs": "*", "metavar": "FUNCTION", "help": "default: all"}},
    whole,
)
