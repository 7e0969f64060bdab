"""(SDPA-42, SDPA-43) Cases of ALiBi slopes and of scales of each head."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from attention_conformance.conformance.cases.base import ALL_DTYPES, HALVES, Case, case
from attention_conformance.conformance.cases.data import (
    GROUPED,
    SQUARE,
    TILES,
    Rng,
    Shape,
    bottom_right,
    numbered,
    random_bias,
)
from attention_conformance.conformance.cases.sinks import per_head
from attention_conformance.conformance.spec.inputs import Inputs


def cases() -> Iterator[Case]:
    """Every case of this group."""
    slopes: dict[str, Any] = {"alibi_slopes": _slopes, "data": numbered}
    yield case("alibi", "SDPA-42", "Slopes of 1/2, 1/4, …, of both sides of the row.", dtypes=ALL_DTYPES, **slopes)
    yield case("alibi-square-causal", "SDPA-42 SDPA-9", "Causal self-attention, as models with ALiBi are trained.", SQUARE, is_causal=True, stays="the mask of models with ALiBi", **slopes, needs="Sq = Sk")
    yield case("alibi-offset", "SDPA-42 SDPA-10", "The queries are the last rows; no causal.", causal_offset=bottom_right, **slopes, needs="Sq < Sk")
    yield case("alibi-causal-offset", "SDPA-42 SDPA-10", "The same with causal.", is_causal=True, causal_offset=bottom_right, **slopes, needs="Sq < Sk")
    yield case("alibi-past", "SDPA-42 DEC-2", "Behind a past distances are of places in the whole.", past=4, **slopes)
    yield case("alibi-grouped", "SDPA-42 SDPA-17", "A slope for each query head, with grouped heads.", GROUPED, **slopes)
    yield case("alibi-grouped-one-query", "SDPA-42 SDPA-17", "The same with one query behind a past.", replace(GROUPED, sq=1), past=6, **slopes)
    yield case("alibi-drawn", "SDPA-42", "Slopes of both signs that no formula gives.", alibi_slopes=per_head(0.5), data=numbered, stays="slopes that a formula does not give")
    yield case("alibi-scale", "SDPA-42 SDPA-4", "The scale does not act on slopes.", scale=3.0, stays="a scale that is not the default one", **slopes)
    yield case("alibi-softcap", "SDPA-42 SDPA-5", "Nor does the softcap.", softcap=2.0, stays="ALiBi and softcap", **slopes)
    yield case("alibi-bias", "SDPA-42 SDPA-6", "ALiBi and a bias.", bias=random_bias(2.0), **slopes)
    yield case("alibi-lse", "SDPA-42 SDPA-19", "lse is of the scores with ALiBi.", SQUARE, is_causal=True, return_lse=True, stays="the result that a shift of each row shows in", **slopes)
    yield case("alibi-tiles", "SDPA-42", "Distances over several tiles, in half precision too.", TILES, dtypes=("float32", *HALVES), stays="distances in half precision", **slopes)
    scales: dict[str, Any] = {"head_scale": per_head(2.0), "data": numbered}
    yield case("head-scale", "SDPA-43", "Another factor for each head, of either sign.", dtypes=ALL_DTYPES, **scales)
    yield case("head-scale-scale", "SDPA-43 SDPA-4", "And a scale besides.", scale=0.7, stays="a scale and one of each head", **scales)
    yield case("head-scale-softcap", "SDPA-43 SDPA-5", "Before the softcap.", softcap=2.0, stays="the order of scale and softcap", **scales)
    yield case("head-scale-bias", "SDPA-43 SDPA-6", "Which does not act on the bias.", bias=random_bias(2.0), stays="a bias that is not scaled", **scales)
    yield case("head-scale-grouped", "SDPA-43 SDPA-17", "A factor for each query head, with grouped heads.", GROUPED, **scales)
    yield case("head-scale-grouped-one-query", "SDPA-43 SDPA-17", "The same with one query.", replace(GROUPED, sq=1), **scales)
    for kind, options in (("alibi", slopes), ("head-scale", scales)):
        yield case(f"{kind}-invalid", "SDPA-36", "One number less than there are query heads.", invalid=True, edit=_one_less, stays="a number that a head has not", **options)


def _slopes(rng: Rng, s: Shape, dtype: np.dtype) -> np.ndarray:
    return (2.0 ** -np.arange(1, s.hq + 1)).astype(dtype)


def _one_less(inputs: Inputs) -> Inputs:
    given = {name: array[:-1] for name, array in inputs.keywords.items()}
    return replace(inputs, keywords=given)
