"""(SDPA-38) Cases of attention sinks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from attention_conformance.conformance.cases.base import ALL_DTYPES, HALVES, Case, case
from attention_conformance.conformance.cases.data import (
    CHUNKS,
    GROUPED,
    SMALL,
    SQUARE,
    TILES,
    Maker,
    Rng,
    Shape,
    bottom_right,
    full_mask,
    lengths,
    mask_without,
    numbered,
    random_bias,
    random_mask,
    shifted,
)


def cases() -> Iterator[Case]:
    """Every case of this group."""
    one: dict[str, Any] = {"data": numbered, "sinks": per_head(1.0)}
    yield case("sinks", "SDPA-38", "One logit per head takes weight from the keys.", dtypes=ALL_DTYPES, **one)
    yield case("sinks-large", "SDPA-38", "A logit of 20 takes nearly all weight: it belongs to the maximum, too.", dtypes=("float32", *HALVES), sinks=constant(20.0), stays="a sink above all scores, in half precision")
    yield case("sinks-small", "SDPA-38", "A logit of −inf takes no weight.", sinks=constant(-np.inf), stays="the sink that changes nothing")
    yield case("sinks-zero", "SDPA-38", "A logit of 0 is not \"none\": it adds 1 to the denominator.", sinks=constant(0.0), stays="a value that is easily taken for none")
    yield case("sinks-scale", "SDPA-38 SDPA-4", "The scale does not act on sinks.", scale=3.0, stays="a scale that is not the default one", **one)
    yield case("sinks-softcap", "SDPA-38 SDPA-5", "Nor does the softcap.", softcap=2.0, sinks=constant(4.0))
    yield case("sinks-softcap-scale", "SDPA-38 SDPA-5 SDPA-4", "A softcap and a scale, neither of which acts on the sink (rocm-libraries PR 12229).", softcap=2.0, scale=0.7, sinks=constant(3.0))
    yield case("sinks-bias", "SDPA-38 SDPA-6", "A bias is added to the keys, not to the sink.", bias=random_bias(2.0), stays="sinks and a bias together", **one)
    yield case("sinks-grouped", "SDPA-38 SDPA-17", "One logit per query head, not per key head.", GROUPED, **one)
    yield case("sinks-one-query", "SDPA-38", "One query.", replace(SMALL, sq=1), **one)
    yield case("sinks-one-query-grouped", "SDPA-38 SDPA-17", "One query and grouped heads, as in decoding (sgl-kernel-xpu PR 254).", replace(GROUPED, sq=1), **one)
    yield case("sinks-square", "SDPA-38", "As many queries as keys.", SQUARE, stays="the shape of self-attention", **one, needs="Sq = Sk")
    yield case("sinks-square-causal", "SDPA-38 SDPA-9", "Causal, as many queries as keys: the first row has one key and the sink.", SQUARE, is_causal=True, stays="the mask of models with sinks", **one, needs="Sq = Sk")
    yield case("sinks-window", "SDPA-38 SDPA-11", "A sliding window, with which models have sinks.", SQUARE, is_causal=True, window=(2, 0), **one)
    yield case("sinks-mask", "SDPA-38 SDPA-7", "A mask does not hide the sink.", mask=random_mask(0.5), stays="sinks and a mask together", **one)
    yield case("sinks-empty-row", "SDPA-38 SDPA-15", "A fully masked row: output 0, whatever the sink.", mask=mask_without(rows=slice(1, 2)), stays="a fully masked row beside others", **one, needs="Sq > 1")
    yield case("sinks-empty-all", "SDPA-38 SDPA-15", "No row has a key.", mask=full_mask(False), sinks=per_head(1.0), zeros=True, stays="no key anywhere")
    yield case("sinks-tiles", "SDPA-38", "Over several tiles: the sink counts once, not once a tile.", TILES, dtypes=("float32", *HALVES), **one)
    yield case("sinks-tiles-window", "SDPA-38 SDPA-11", "A window behind the first tile, which has no key for any row (rocm-libraries 12227).", TILES, is_causal=True, causal_offset=bottom_right, window=(8, 0), **one, needs="Sq < Sk")
    yield case("sinks-long", "SDPA-38", "Over 1,025 keys: the sink counts once, not once a chunk of up to 1,024 keys.", CHUNKS, stays="chunks longer than a tile", **one)
    yield case("sinks-shift", "SDPA-38 SDPA-14", "All scores near −625 and a logit of −625: neither drowns.", data=shifted(-625.0), sinks=constant(-625.0), stays="the scores and the sink have one maximum")
    yield case("sinks-weights", "SDPA-38 SDPA-18", "The weights returned are those of the keys, and add up to less than 1.", return_weights=True, **one)
    yield case("sinks-weights-mask", "SDPA-38 SDPA-18 SDPA-7", "The weights of the keys under a mask.", mask=random_mask(0.5), return_weights=True, **one)
    yield case("sinks-lse", "SDPA-38 SDPA-19", "lse counts the sink.", return_lse=True, **one)
    yield case("sinks-lse-large", "SDPA-38 SDPA-19", "A logit of 100 is the lse; e to the power of it is too large for float32 (flash-attention PR 2752).", return_lse=True, sinks=constant(100.0))
    yield case("sinks-lse-empty", "SDPA-38 SDPA-19 SDPA-15", "In a fully masked row lse is the sink.", mask=mask_without(rows=slice(1, 2)), return_lse=True, **one, needs="Sq > 1")
    yield case("sinks-lse-lengths", "SDPA-38 SDPA-19 SDPA-12", "A sample without a key: lse is the sink (flash-attention PR 2706).", kv_lengths=lengths(0, 5, of=7), return_lse=True, **one, needs="B > 1")


def per_head(spread: float) -> Maker:
    """Normal numbers, one per query head."""
    return lambda rng, s, dtype: (spread * rng.standard_normal(s.hq)).astype(dtype)


def constant(value: float) -> Maker:
    """One number for every head."""

    def make(rng: Rng, s: Shape, dtype: np.dtype) -> np.ndarray:
        return np.full(s.hq, value, dtype)

    return make
