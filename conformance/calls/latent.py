"""Call of latent as a question: some query rows of every head, each computed exactly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attention_conformance.conformance.calls.arrays import (
    Form,
    array_of,
    check_options,
    dtype_of,
    layout_of,
    profile_of,
)
from attention_conformance.conformance.calls.question import Part, Question, rows_of, sample_rows
from attention_conformance.conformance.cases.given import GivenLatent, given
from attention_conformance.conformance.cases.latent import LatentShape
from attention_conformance.conformance.judging.message import runs
from attention_conformance.conformance.spec.inputs import LatentInputs
from attention_conformance.conformance.spec.latent import check
from attention_conformance.impls.calls import Reply
from attention_conformance.impls.contract import Layout, Profile

#: The clause that a wrong output breaks with one of these options, if nothing else tells.
_CLAUSES = {"is_causal": "MLA-5", "causal_offset": "MLA-5", "kv_lengths": "MLA-5", "scale": "MLA-4"}

#: The width at which as many scores are recomputed as for sdpa; for a wider cache fewer are.
_WIDTH = 64


def latent(
    given_arrays: Mapping[str, Any],
    options: Mapping[str, Any],
    results: Mapping[str, Any],
    profile: Profile | str | None,
    layout: Layout | str,
    wanted: int | None,
    seed: int,
) -> Question:
    """A call of latent; ``results`` has output, and lse or None."""
    came = {name: array_of(name, array) for name, array in given_arrays.items()}
    dtype = dtype_of(came)
    form = Form(layout_of(layout), 4 - came["q"].ndim)
    if form.dropped not in (0, 1):
        raise ValueError(f"q has shape {came['q'].shape}; expected 4 axes, or 3 without a batch")
    arrays = {name: _with_batch(form, name, array) for name, array in came.items()}
    check(*arrays.values())
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise ValueError(f"{name} has NaN or infinities; MLA-8 leaves the result open")
    keywords: dict[str, Any] = {"is_causal": True} if options["is_causal"] else {}
    keywords |= {n: array_of(n, options[n]) for n in ("causal_offset", "kv_lengths") if options[n] is not None}
    keywords |= {"scale": float(options["scale"])} if options["scale"] is not None else {}
    q, latents = arrays["q"], arrays["latents"]
    check_options(keywords, {"q": q, "k": latents[:, None]})
    returned = {
        name: form.result(name, array_of(name, a)) for name, a in results.items() if name == "output" or a is not None
    }
    (b, heads, sq, d), (_, sk, rank) = q.shape, latents.shape
    shape = LatentShape(b, heads, sq, sk, d, arrays["k_rope"].shape[2], rank, arrays["w_uv"].shape[2])
    if wanted is None:
        wanted = rows_of(int(np.prod(shape.scores)) * max(1, (rank + shape.dr) // _WIDTH), sq)
    rows = sample_rows(sq, wanted, returned["output"], seed)
    found = {_CLAUSES[name] for name in keywords}
    asked = {"return_lse": True} if "lse" in returned else {}
    case = given(
        GivenLatent, LatentInputs(**arrays, keywords=keywords | asked), found.pop() if len(found) == 1 else "MLA-2",
        shape, dtype, names=tuple(returned), dropped=form.dropped, heads_inside=form.layout is Layout.BSHD,
        rows=tuple(rows.tolist()), whole={"output": (b, heads, sq, shape.dv), "lse": (b, heads, sq)},
    )  # fmt: skip
    sampled = len(rows) < sq
    note = f"{len(rows)} of {sq} query rows of every head, seed {seed}: {runs(rows.tolist())}" if sampled else ""
    part = Part(case, Reply("returned", returned), note)
    return Question((part,), dtype, profile_of(profile, dtype), case.rows if sampled else None)


def _with_batch(form: Form, name: str, array: np.ndarray) -> np.ndarray:
    """An argument with all its axes; one of another rank is unchanged, and is then refused."""
    if name in ("q", "q_rope"):
        return form.four(name, array) if array.ndim == 4 - form.dropped else array
    if name in ("latents", "k_rope") and form.dropped and array.ndim == 2:
        return array[None]
    return array
