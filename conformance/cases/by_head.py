"""(SDPA-42 to SDPA-44) Cases of ALiBi slopes, scales per head, and rotations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from attention_conformance.conformance.cases.base import ALL_DTYPES, HALVES, Case, case
from attention_conformance.conformance.cases.data import (
    GROUPED,
    SMALL,
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
    yield case("alibi-grouped-lse", "SDPA-42 SDPA-17 SDPA-19", "lse with a slope for each query head of a group.", GROUPED, return_lse=True, stays="lse with slopes in a group", **slopes)
    yield case("alibi-grouped-one-query", "SDPA-42 SDPA-17", "The same with one query behind a past.", replace(GROUPED, sq=1), past=6, **slopes)
    yield case("alibi-drawn", "SDPA-42", "Slopes of both signs that no formula gives.", alibi_slopes=per_head(0.5), data=numbered, stays="slopes that a formula does not give")
    yield case("alibi-drawn-lse", "SDPA-42 SDPA-19", "lse with slopes that no formula gives.", alibi_slopes=per_head(0.5), return_lse=True, data=numbered, stays="lse with slopes that a formula does not give")
    yield case("alibi-scale", "SDPA-42 SDPA-4", "The scale does not act on slopes.", scale=3.0, stays="a scale that is not the default one", **slopes)
    yield case("alibi-softcap", "SDPA-42 SDPA-5", "Nor does the softcap.", softcap=2.0, stays="ALiBi and softcap", **slopes)
    yield case("alibi-bias", "SDPA-42 SDPA-6", "ALiBi and a bias.", bias=random_bias(2.0), **slopes)
    yield case("alibi-lse", "SDPA-42 SDPA-19", "lse is of the scores with ALiBi.", SQUARE, is_causal=True, return_lse=True, stays="the result that a shift of each row shows in", **slopes)
    yield case("alibi-tiles", "SDPA-42", "Distances over several tiles, in half precision too.", TILES, dtypes=("float32", *HALVES), stays="distances in half precision", **slopes)
    scales: dict[str, Any] = {"head_scale": per_head(2.0), "data": numbered}
    yield case("head-scale", "SDPA-43", "Another factor for each head, of either sign.", dtypes=ALL_DTYPES, **scales)
    yield case("head-scale-scale", "SDPA-43 SDPA-4", "With a scale in addition.", scale=0.7, stays="a scale and one of each head", **scales)
    yield case("head-scale-softcap", "SDPA-43 SDPA-5", "Before the softcap.", softcap=2.0, stays="the order of scale and softcap", **scales)
    yield case("head-scale-bias", "SDPA-43 SDPA-6", "Which does not act on the bias.", bias=random_bias(2.0), stays="a bias that is not scaled", **scales)
    yield case("head-scale-grouped", "SDPA-43 SDPA-17", "A factor for each query head, with grouped heads.", GROUPED, **scales)
    yield case("head-scale-grouped-lse", "SDPA-43 SDPA-17 SDPA-19", "lse with a factor for each query head of a group.", GROUPED, return_lse=True, stays="lse with factors in a group", **scales)
    yield case("head-scale-grouped-one-query", "SDPA-43 SDPA-17", "The same with one query.", replace(GROUPED, sq=1), **scales)
    yield from _rotary()
    for kind, options in (("alibi", slopes), ("head-scale", scales)):
        yield case(f"{kind}-invalid", "SDPA-36", "One number less than there are query heads.", invalid=True, edit=_one_less, stays="a number that a head has not", **options)


def _rotary() -> Iterator[Case]:
    halves: dict[str, Any] = {"rotary_cos": _cos, "rotary_sin": _sin, "data": numbered}
    pairs: dict[str, Any] = halves | {"rotary_interleaved": True}
    yield case("rotary", "SDPA-44", "Halves, of the whole width.", dtypes=ALL_DTYPES, **halves)
    yield case("rotary-interleaved", "SDPA-44", "Interleaved pairs.", dtypes=ALL_DTYPES, **pairs)
    yield case("rotary-interleaved-lse", "SDPA-44 SDPA-19", "lse of scores turned in interleaved pairs.", return_lse=True, stays="lse with interleaved pairs", **pairs)
    yield case("rotary-square-causal", "SDPA-44 SDPA-9", "Causal self-attention, as in prefill.", SQUARE, is_causal=True, stays="the rotation of prefill", **halves, needs="Sq = Sk")
    yield case("rotary-part", "SDPA-44", "Half of the columns turn, the others stay.", rotary_cos=_cos_of_half, rotary_sin=_sin_of_half, data=numbered, stays="a rotation of some columns")
    yield case("rotary-part-interleaved", "SDPA-44", "The same with interleaved pairs.", rotary_cos=_cos_of_half, rotary_sin=_sin_of_half, rotary_interleaved=True, data=numbered)
    yield case("rotary-offset", "SDPA-44 SDPA-10", "The queries are the last rows.", causal_offset=bottom_right, **halves, needs="Sq < Sk")
    yield case("rotary-past", "SDPA-44 DEC-2", "Behind a past queries turn by their place in the whole, and past keys by theirs.", past=4, **halves)
    yield case("rotary-past-interleaved", "SDPA-44 DEC-2", "The same with interleaved pairs and one query.", replace(SMALL, sq=1), past=6, **pairs)
    yield case("rotary-grouped", "SDPA-44 SDPA-17", "Grouped heads turn by the same angles.", GROUPED, stays="rotation with grouped heads", **halves)
    yield case("rotary-lse", "SDPA-44 SDPA-19", "lse is of the turned scores.", return_lse=True, **halves)
    yield case("rotary-invalid", "SDPA-36", "A column of sines less than of cosines.", invalid=True, edit=lambda x: replace(x, keywords=x.keywords | {"rotary_sin": x.keywords["rotary_sin"][:, 1:]}), stays="tables that do not fit", **halves)


def _angles(s: Shape, width: int) -> np.ndarray:
    """Angles of each position and pair, the slowest a tenth of the fastest, so that all show at few positions."""
    half = width // 2
    return np.arange(s.sq + s.sk)[:, None] * 10.0 ** (-np.arange(half) / max(half, 1))


def _cos(rng: Rng, s: Shape, dtype: np.dtype) -> np.ndarray:
    return np.cos(_angles(s, s.d)).astype(dtype)


def _sin(rng: Rng, s: Shape, dtype: np.dtype) -> np.ndarray:
    return np.sin(_angles(s, s.d)).astype(dtype)


def _cos_of_half(rng: Rng, s: Shape, dtype: np.dtype) -> np.ndarray:
    return np.cos(_angles(s, s.d // 2)).astype(dtype)


def _sin_of_half(rng: Rng, s: Shape, dtype: np.dtype) -> np.ndarray:
    return np.sin(_angles(s, s.d // 2)).astype(dtype)


def _slopes(rng: Rng, s: Shape, dtype: np.dtype) -> np.ndarray:
    return (2.0 ** -np.arange(1, s.hq + 1)).astype(dtype)


def _one_less(inputs: Inputs) -> Inputs:
    given = {name: array[:-1] for name, array in inputs.keywords.items()}
    return replace(inputs, keywords=given)
