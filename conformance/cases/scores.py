"""(SDPA-2 to 5) Cases of scale and softcap."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from attention_conformance.conformance.cases.base import ALL_DTYPES, HALVES, Case, case
from attention_conformance.conformance.cases.data import (
    SMALL,
    TILES,
    Shape,
    integers,
    normal,
    numbered,
    random_bias,
    random_mask,
)

#: One width for query and key that differs from the model width of two heads.
WIDE = Shape(d=16, dv=16)


def cases() -> Iterator[Case]:
    """Every case of this group."""
    yield from _scale()
    yield from _softcap()


def _scale() -> Iterator[Case]:
    yield case("scale-default", "SDPA-3", "1/√16 by default, not 1/√32 of the model width.", WIDE, data=normal(2.0), stays="the width of a head is not that of the model")
    yield case("scale-given", "SDPA-4 SDPA-2", "scale = 0.3 replaces the default and is not multiplied with it.", SMALL, scale=0.3, dtypes=ALL_DTYPES)
    yield case("scale-one", "SDPA-4", "scale = 1: no scaling at all.", SMALL, scale=1.0, dtypes=ALL_DTYPES)
    yield case("scale-log-two", "SDPA-2 SDPA-4", "Integers with scale = ln 2: all weights are powers of two over their sum.", SMALL, data=integers(-2, 2), scale=math.log(2), stays="its weights are exact fractions")
    yield case("scale-zero", "SDPA-4", "scale = 0 gives the mean of the values; it does not mean \"not given\" (SKaiNET PR 880).", SMALL, scale=0.0, dtypes=ALL_DTYPES)
    yield case("scale-zero-causal", "SDPA-4 SDPA-9", "scale = 0, causal: the mean of the values seen so far; masked keys stay masked.", SMALL, scale=0.0, is_causal=True, dtypes=("float32", *HALVES))
    yield case("scale-zero-mask", "SDPA-4 SDPA-7", "scale = 0 with a mask: a mask written before the scale would be lost (cudnn-frontend PR 804).", SMALL, scale=0.0, mask=random_mask(0.5))
    yield case("scale-negative", "SDPA-4", "scale = −0.5: NaN where √scale is split over q and k (pytorch PR 105202).", SMALL, scale=-0.5, dtypes=ALL_DTYPES)
    yield case("scale-negative-causal", "SDPA-4 SDPA-9", "scale = −0.5, causal: −inf times a negative scale would be +inf.", SMALL, scale=-0.5, is_causal=True, dtypes=("float32", *HALVES))
    yield case("scale-negative-mask", "SDPA-4 SDPA-7", "scale = −0.5 with a mask.", SMALL, scale=-0.5, mask=random_mask(0.5))
    yield case("scale-negative-bias", "SDPA-4 SDPA-6", "scale = −0.5 does not touch the bias.", SMALL, scale=-0.5, bias=random_bias())
    yield case("scale-tiles", "SDPA-4", "scale = 0.3 over several tiles: multiplied once, not once a tile (FlagGems PR 424).", TILES, scale=0.3, data=normal(2.0))
    yield case("scale-grouped", "SDPA-4 SDPA-17", "scale = 0.3 with grouped heads.", replace(SMALL, hq=4), scale=0.3)
    yield case("scale-one-query", "SDPA-4", "scale = 0.3 with one query.", replace(SMALL, sq=1), scale=0.3)


def _softcap() -> Iterator[Case]:
    yield case("softcap", "SDPA-5", "softcap = 2 on scores of a few units: c · tanh(s / c).", SMALL, softcap=2.0, data=normal(2.0), dtypes=ALL_DTYPES)
    yield case("softcap-50", "SDPA-5", "softcap = 50, as Gemma 2 has it, on scores up to some hundreds.", SMALL, softcap=50.0, data=normal(10.0), dtypes=("float32", *HALVES), stays="a published model's value")
    yield case("softcap-saturated", "SDPA-5", "All scores far beyond the cap: the weights depend on signs alone.", SMALL, softcap=1.0, data=integers(-40, 40), stays="the flat end of tanh")
    yield case("softcap-negative-scale", "SDPA-5 SDPA-4", "Softcap with a negative scale.", SMALL, softcap=2.0, scale=-1.0)
    yield case("softcap-one-query", "SDPA-5", "Softcap with one query, where decoding kernels have dropped it.", replace(SMALL, sq=1), softcap=2.0, data=normal(2.0))
    yield case("softcap-mask", "SDPA-5 SDPA-13", "Softcap before the mask: −inf must not become −c (onnx 7865).", SMALL, softcap=2.0, mask=random_mask(0.5), data=numbered)
    yield case("softcap-causal", "SDPA-5 SDPA-13", "Softcap with causal: masked keys stay masked.", replace(SMALL, sq=7), softcap=2.0, is_causal=True, data=numbered)
    yield case("softcap-bias", "SDPA-5 SDPA-6 SDPA-13", "Softcap before the bias: the bias is not capped.", SMALL, softcap=1.0, bias=random_bias(4.0), stays="softcap and bias alone")
    yield case("softcap-tail", "SDPA-5 SDPA-1", "Softcap over 65 keys: padding scored −inf must not become −c (llama.cpp PR 29034).", TILES, softcap=3.0, data=numbered)
    yield case("softcap-grouped", "SDPA-5 SDPA-17", "Softcap with grouped heads.", replace(SMALL, hq=4), softcap=2.0)
