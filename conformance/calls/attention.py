"""Call of sdpa, and of its gradients, as a question: long inputs by rows, gradients by heads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from attention_conformance.conformance.calls import question
from attention_conformance.conformance.calls.arrays import (
    Form,
    array_of,
    check_fit,
    check_options,
    dtype_of,
    layout_of,
    pair_of,
    profile_of,
)
from attention_conformance.conformance.calls.question import Part, Question, rows_of, sample_rows, shapes_of
from attention_conformance.conformance.cases.data import Shape
from attention_conformance.conformance.cases.given import GivenGradients, GivenHeads, GivenRows, given
from attention_conformance.conformance.cases.parts import part_of, query_heads, sample_heads
from attention_conformance.conformance.judging.message import runs
from attention_conformance.conformance.spec.inputs import GradientInputs, Inputs
from attention_conformance.impls.calls import Reply
from attention_conformance.impls.contract import Layout, Profile

#: The clause that a wrong output breaks with one of these options, if nothing else tells.
_CLAUSES = {
    "causal_offset": "SDPA-10",
    "is_causal": "SDPA-9",
    "window": "SDPA-11",
    "kv_lengths": "SDPA-12",
    "mask": "SDPA-7",
    "bias": "SDPA-6",
    "softcap": "SDPA-5",
    "sinks": "SDPA-38",
    "alibi_slopes": "SDPA-42",
    "head_scale": "SDPA-43",
    "rotary_cos": "SDPA-44",
    "block_mask": "BLOCK-1",
    "tree_parents": "TREE-1",
    "past_key": "DEC-1",
    "scale": "SDPA-4",
}

#: Options without gradients.
_FORWARD = ("sinks", "rotary_cos", "alibi_slopes", "head_scale", "block_mask", "tree_parents", "past_key", "past_value")


def attention(
    output: Any,
    q: Any,
    k: Any,
    v: Any,
    *,
    mask: Any = None,
    bias: Any = None,
    is_causal: bool = False,
    causal_offset: Any = None,
    window: tuple[int | None, int | None] | None = None,
    kv_lengths: Any = None,
    scale: Any = None,
    softcap: Any = None,
    sinks: Any = None,
    alibi_slopes: Any = None,
    head_scale: Any = None,
    rotary_cos: Any = None,
    rotary_sin: Any = None,
    rotary_interleaved: bool = False,
    block_mask: Any = None,
    block_size: tuple[int, int] | None = None,
    tree_parents: Any = None,
    past_key: Any = None,
    past_value: Any = None,
    weights: Any = None,
    lse: Any = None,
    present_key: Any = None,
    present_value: Any = None,
    grad_output: Any = None,
    grad_q: Any = None,
    grad_k: Any = None,
    grad_v: Any = None,
    grad_bias: Any = None,
    profile: Profile | str | None = None,
    layout: Layout | str = Layout.BHSD,
    rows: int | None = None,
    seed: int = 0,
) -> Question:
    """The question of ``assert_close``, with its arguments.  Raises TypeError and ValueError as it does."""
    form = Form(layout_of(layout), 4 - array_of("q", q).ndim)
    arrays = {n: form.four(n, array_of(n, a)) for n, a in (("q", q), ("k", k), ("v", v))}
    dtype = dtype_of(arrays)
    keywords: dict[str, Any] = {
        "mask": mask, "bias": bias, "causal_offset": causal_offset, "kv_lengths": kv_lengths, "sinks": sinks,
        "alibi_slopes": alibi_slopes, "head_scale": head_scale, "rotary_cos": rotary_cos,
        "rotary_sin": rotary_sin, "block_mask": block_mask, "tree_parents": tree_parents,
        "past_key": past_key, "past_value": past_value,
    }  # fmt: skip
    keywords = {n: array_of(n, a) for n, a in keywords.items() if a is not None}
    keywords |= {n: form.four(n, keywords[n]) for n in ("past_key", "past_value") if n in keywords}
    numbers = {"scale": scale, "softcap": softcap}
    keywords |= {
        n: float(array_of(n, x) if hasattr(x, "__array__") else x) for n, x in numbers.items() if x is not None
    }
    keywords |= {"is_causal": True} if is_causal else {}
    keywords |= {"rotary_interleaved": True} if rotary_interleaved else {}
    pairs = {"window": window, "block_size": block_size}
    keywords |= {n: pair_of(n, pair) for n, pair in pairs.items() if pair is not None}
    check_options(keywords, arrays)
    results = {
        "output": output, "weights": weights, "lse": lse, "present_key": present_key, "present_value": present_value,
        "grad_q": grad_q, "grad_k": grad_k, "grad_v": grad_v, "grad_bias": grad_bias,
    }  # fmt: skip
    came = {n: form.result(n, array_of(n, a)) for n, a in results.items() if a is not None}
    forward = {n: a for n, a in came.items() if not n.startswith("grad_")}
    backward = {n: a for n, a in came.items() if n.startswith("grad_")}
    chosen = profile_of(profile, dtype)
    parts: list[Part] = []
    checked, kept = None, None
    check_fit(arrays, keywords)
    if forward:
        part, checked = _forward(arrays, keywords, forward, form, dtype, rows, seed)
        parts.append(part)
    if backward:
        if grad_output is None:
            raise ValueError(f"{', '.join(backward)} given without grad_output, on which they depend")
        given_grad = form.four("grad_output", array_of("grad_output", grad_output))
        part, kept = _backward(arrays, keywords, given_grad, backward, form, dtype, seed)
        parts.append(part)
    return Question(tuple(parts), dtype, chosen, checked, kept)


def _forward(
    arrays: Mapping[str, np.ndarray],
    keywords: Mapping[str, Any],
    came: Mapping[str, np.ndarray],
    form: Form,
    dtype: str,
    wanted: int | None,
    seed: int,
) -> tuple[Part, tuple[int, ...] | None]:
    """The case of the results except gradients; long ones by rows."""
    q, k, v = arrays["q"], arrays["k"], arrays["v"]
    past = keywords.get("past_key")
    keys = k.shape[2] + (0 if past is None else past.shape[2])
    shape = Shape(q.shape[0], q.shape[1], k.shape[1], q.shape[2], keys, q.shape[3], v.shape[3])
    asked = {f"return_{n}": True for n in ("weights", "lse") if n in came}
    inputs = Inputs(q, k, v, {**keywords, **asked})
    shapes = shapes_of(shape)
    scores = int(np.prod(shape.scores))
    if wanted is None:
        wanted = rows_of(scores, shape.sq)
    rows = sample_rows(shape.sq, wanted, came["output"] if "output" in came else next(iter(came.values())), seed)
    common = {"names": tuple(came), "dropped": form.dropped, "heads_inside": form.layout is Layout.BSHD}
    clause = _clause(keywords, shape)
    case = given(GivenRows, inputs, clause, shape, dtype, rows=tuple(rows.tolist()), whole=shapes, **common)
    note = ""
    if len(rows) < shape.sq:
        note = f"{len(rows)} of {shape.sq} query rows of every head, seed {seed}: {runs(rows.tolist())}"
    return Part(case, Reply("returned", dict(came)), note), tuple(rows.tolist()) if note else None


def _clause(keywords: Mapping[str, Any], shape: Shape) -> str:
    """The clause that a wrong output is blamed on by default: that of the only option, or of several together."""
    options = [clause for name, clause in _CLAUSES.items() if name in keywords]
    if "causal_offset" in keywords and "is_causal" in keywords:
        options.remove(_CLAUSES["is_causal"])
    if len(options) == 1:
        return options[0]
    return "SDPA-13" if options else "SDPA-16" if shape.hq == shape.hkv else "SDPA-17"


def _backward(
    arrays: Mapping[str, np.ndarray],
    keywords: Mapping[str, Any],
    grad_output: np.ndarray,
    came: Mapping[str, np.ndarray],
    form: Form,
    dtype: str,
    seed: int,
) -> tuple[Part, tuple[int, ...] | None]:
    """The case of the gradients; long ones by key heads: the first, the last and random ones."""
    lacking = sorted(keywords.keys() & set(_FORWARD))
    if lacking:
        raise ValueError(f"the spec has no gradients with {', '.join(lacking)}")
    if "grad_bias" in came and "bias" not in keywords:
        raise ValueError("grad_bias given without a bias")
    q, k, v = arrays["q"], arrays["k"], arrays["v"]
    if grad_output.shape != (*q.shape[:3], v.shape[3]) or grad_output.dtype != q.dtype:
        raise ValueError(f"GRAD-12: grad_output is {grad_output.dtype}{grad_output.shape}")
    for name, array in (("q", q), ("k", k), ("v", v), ("grad_output", grad_output)):
        if not np.isfinite(array).all():
            raise ValueError(f"{name} has NaN or infinities; GRAD-15 leaves the gradients open")
    shape = Shape(q.shape[0], q.shape[1], k.shape[1], q.shape[2], k.shape[2], q.shape[3], v.shape[3])
    whole = {"grad_q": q.shape, "grad_k": k.shape, "grad_v": v.shape}
    whole |= {"grad_bias": keywords["bias"].shape} if "bias" in keywords else {}
    group, bias = shape.hq // shape.hkv, keywords.get("bias")
    count = max(1, question.GRADIENT_SCORES // max(1, shape.b * group * shape.sq * shape.sk))
    shared = bias is not None and (bias.ndim < 3 or bias.shape[-3] == 1)  # its gradient is a sum over the heads
    common = {"names": tuple(came), "dropped": form.dropped, "heads_inside": form.layout is Layout.BSHD}
    if count >= shape.hkv or (shared and "grad_bias" in came):
        inputs = GradientInputs(q, k, v, grad_output, dict(keywords))
        return Part(
            given(GivenGradients, inputs, "GRAD-3", shape, dtype, **common), Reply("returned", dict(came))
        ), None
    kept = sample_heads(shape.hkv, count, seed)
    queries = query_heads(kept, group)
    options = {n: part_of(n, x, queries=queries) for n, x in keywords.items()}
    inputs = GradientInputs(q[:, queries], k[:, kept], v[:, kept], grad_output[:, queries], options)
    part = replace(shape, hq=len(queries), hkv=len(kept))
    case = given(
        GivenHeads, inputs, "GRAD-3", part, dtype,
        kept=tuple(kept.tolist()), queries=tuple(queries.tolist()), whole=whole, **common,
    )  # fmt: skip
    note = f"key heads {runs(kept.tolist())} of {shape.hkv} with their query heads, every row, seed {seed}"
    return Part(case, Reply("returned", dict(came)), note), tuple(kept.tolist())
