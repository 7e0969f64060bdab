"""Call of a layer, of its gradients or of the sub-layer, as a question."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attention_conformance.conformance.calls.arrays import array_of, check_options, dtype_of, profile_of
from attention_conformance.conformance.calls.question import Part, Question
from attention_conformance.conformance.cases.given import GivenMha, GivenMhaGradients, GivenSublayer, given
from attention_conformance.conformance.cases.layer import LayerShape
from attention_conformance.conformance.spec.inputs import LayerGradientInputs, LayerInputs
from attention_conformance.impls.calls import Reply
from attention_conformance.impls.contract import Profile

_NORM = ("gamma", "beta")


def layer(
    output: Any,
    x_q: Any,
    w_q: Any,
    w_k: Any,
    w_v: Any,
    *,
    heads: int,
    weights: Any = None,
    average_weights: bool = False,
    sequence_first: bool = False,
    is_causal: bool = False,
    pre_norm: bool = False,
    grad_output: Any = None,
    gradients: Mapping[str, Any] | None = None,
    profile: Profile | str | None = None,
    scale: float | None = None,
    epsilon: float | None = None,
    **options: Any,
) -> Question:
    """The question of ``assert_layer_close``, with its arguments.  Raises TypeError and ValueError as it does."""
    arrays = {n: array_of(n, a) for n, a in (("x_q", x_q), ("w_q", w_q), ("w_k", w_k), ("w_v", w_v))}
    keywords: dict[str, Any] = {n: array_of(n, a) for n, a in options.items() if a is not None}
    dtype = dtype_of(arrays | {n: a for n, a in keywords.items() if n not in ("mask", "kv_lengths", "bias")})
    keywords |= {n: float(x) for n, x in (("scale", scale), ("epsilon", epsilon)) if x is not None}
    check_options(keywords, {})
    flags = {"sequence_first": sequence_first, "is_causal": is_causal, "pre_norm": pre_norm}
    keywords |= {"heads": heads, **{n: True for n, on in flags.items() if on}}
    normed = [n for n in (*_NORM, "epsilon") if n in keywords]
    if (normed or pre_norm) and len(normed) < 3:
        raise ValueError("gamma, beta and epsilon of a sub-layer must be given together")
    shape = _layer_shape(arrays, keywords, heads, sequence_first)
    came = {} if output is None else {"output": array_of("output", output)}
    parts = []
    if weights is not None:
        came["weights"] = array_of("weights", weights)
        keywords["return_weights"] = True
        keywords |= {"average_weights": True} if average_weights else {}
    kind, clause = (GivenSublayer, "SUB-3") if normed else (GivenMha, "MHA-12")
    if normed and "weights" in came:
        raise ValueError("a sub-layer returns no weights")
    if came:
        inputs = LayerInputs(**arrays, keywords=keywords)
        parts.append(Part(given(kind, inputs, clause, shape, dtype, names=tuple(came)), Reply("returned", came)))
    if gradients:
        if grad_output is None or normed:
            raise ValueError("gradients need grad_output, and are those of the layer without normalisation")
        of = {n: x for n, x in keywords.items() if n not in ("return_weights", "average_weights")}
        layer = LayerGradientInputs(**arrays, grad_output=array_of("grad_output", grad_output), keywords=of)
        grads = {f"grad_{n}": array_of(f"grad_{n}", a) for n, a in gradients.items()}
        missing = sorted(n for n in gradients if n not in arrays and n not in of)
        if missing:
            raise ValueError(f"gradients of {', '.join(missing)}, which is not given")
        case = given(GivenMhaGradients, layer, "GRAD-20", shape, dtype, names=tuple(grads))
        parts.append(Part(case, Reply("returned", grads)))
    for part in parts:
        part.case.expected(dtype)  # raises InvalidInput, a ValueError, for arguments that do not fit together
    return Question(tuple(parts), dtype, profile_of(profile, dtype))


def _layer_shape(arrays: Mapping[str, np.ndarray], keywords: Mapping[str, Any], heads: int, first: bool) -> LayerShape:
    """Lengths and widths of a call.  Raises ValueError where ranks do not fit."""
    x_q, x_kv = arrays["x_q"], keywords.get("x_kv", arrays["x_q"])
    if x_q.ndim not in (2, 3) or x_kv.ndim != x_q.ndim or any(arrays[n].ndim != 2 for n in ("w_q", "w_k", "w_v")):
        raise ValueError("expected x_q and x_kv with 3 axes, or both with 2, and weights with 2")
    if heads < 1:
        raise ValueError(f"heads is {heads}; expected 1 or more")
    (sq, b), (sk, _) = (
        (x.shape[0], 1) if x.ndim == 2 else x.shape[:2] if first else x.shape[1::-1] for x in (x_q, x_kv)
    )
    d, dv = arrays["w_q"].shape[1] // heads, arrays["w_v"].shape[1] // heads
    eo = keywords["w_o"].shape[-1] if "w_o" in keywords else arrays["w_v"].shape[1]
    return LayerShape(b, sq, sk, x_q.shape[-1], x_kv.shape[-1], heads, d, dv, eo, x_q.ndim == 2, first)
