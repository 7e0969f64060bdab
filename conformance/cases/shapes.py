"""(SDPA-1, 16, 17, 20) Cases of lengths, widths, heads and empty axes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from attention_conformance.conformance.cases.base import ALL_DTYPES, HALVES, Case, case
from attention_conformance.conformance.cases.data import (
    LONG,
    ONE_QUERY,
    SMALL,
    SQUARE,
    TALL,
    TILES,
    Rng,
    Shape,
    ascending,
    numbered,
    peak,
    random_bias,
)

ONE = Shape(b=1, hq=1, hkv=1, sq=1, sk=1, d=1, dv=1)


def cases() -> Iterator[Case]:
    """Every case of this group."""
    yield from _plain()
    yield from _tails()
    yield from _large()
    yield from _grouped()
    yield from _empty()


def _plain() -> Iterator[Case]:
    yield case("plain", "SDPA-1 SDPA-2 SDPA-3 SDPA-14 SDPA-16 SDPA-25", "Five queries, seven keys.", SMALL, dtypes=ALL_DTYPES)
    yield case("plain-square", "SDPA-1", "As many queries as keys, the shape everybody tests.", SQUARE, stays="some operators take no other", needs="Sq = Sk")
    yield case("plain-tall", "SDPA-1", "More queries than keys.", TALL, dtypes=ALL_DTYPES)
    yield case("one-query", "SDPA-1", "One query, as in decoding; some kernels take another path.", ONE_QUERY, dtypes=ALL_DTYPES)
    yield case("one-key", "SDPA-1 SDPA-14", "One key has weight 1 whatever its score: the output is its value.", replace(SMALL, sk=1), dtypes=ALL_DTYPES)
    yield case("one-of-everything", "SDPA-1", "Every axis of length 1.", ONE, dtypes=("float32", "bfloat16"))
    yield case("one-batch", "SDPA-1", "A batch of one.", replace(SMALL, b=1))
    yield case("batch-and-heads-differ", "SDPA-1", "Three batches of two heads: the two axes cannot be taken for each other.", replace(SMALL, b=3), stays="elsewhere B = Hq", needs="B != Hq")
    yield case("values-tell-their-key", "SDPA-16 SDPA-1", "v tells its batch, head and key, so that a wrong one is read off.", SMALL, data=numbered, dtypes=ALL_DTYPES)
    yield case("width-1", "SDPA-3 SDPA-1", "Head width 1: the default scale is 1.", replace(SMALL, d=1, dv=1))
    yield case("width-odd", "SDPA-1", "Head width 13.", replace(SMALL, d=13, dv=13), dtypes=("float32", *HALVES), stays="a width that no vector instruction divides", needs="D = 13")
    yield case("width-6", "SDPA-1", "Head width 6, not a multiple of 8 (pytorch 110505).", replace(SMALL, d=6, dv=6), dtypes=("float32", *HALVES), needs="D = 6")
    yield case("width-64", "SDPA-1", "Head width 64, the one most kernels are tuned for.", replace(SMALL, d=64, dv=64), dtypes=ALL_DTYPES, needs="D = 64")
    yield case("width-80", "SDPA-1 SDPA-3", "Head width 80: the default scale is of 80, not of the 96 or 128 it is padded to (ipex-llm PR 12619).", replace(SMALL, d=80, dv=80), needs="D = 80")
    yield case("width-128", "SDPA-1", "Head width 128.", replace(SMALL, d=128, dv=128), dtypes=("float32", *HALVES), stays="kernels are compiled per width", needs="D = 128")
    yield case("width-256", "SDPA-1", "Head width 256, the largest of many kernels.", replace(SMALL, d=256, dv=256), stays="kernels are compiled per width", needs="D = 256")
    yield case("value-width-larger", "SDPA-1", "Dv = 24 with D = 8.", replace(SMALL, dv=24), dtypes=ALL_DTYPES)
    yield case("value-width-smaller", "SDPA-1", "Dv = 4 with D = 16 (pytorch 176767 returned D columns).", replace(SMALL, d=16, dv=4), dtypes=("float32", *HALVES))
    yield case("value-width-1", "SDPA-1", "Dv = 1.", replace(SMALL, dv=1))
    yield case("value-width-20", "SDPA-1", "Dv = 20: columns behind the last full vector of 8.", replace(SMALL, dv=20), dtypes=("float32", "float16"), needs="Dv = 20")
    yield case("keys-8", "SDPA-1", "Eight keys: all of a vector, half of a block of 16.", replace(SMALL, sk=8), needs="Sk = 8")
    yield case("value-width-causal", "SDPA-1 SDPA-9", "Dv ≠ D together with causal.", replace(SMALL, dv=24), is_causal=True)


def _tails() -> Iterator[Case]:
    """The tile sizes of kernels, one less and one more, with the largest score in the last key."""
    for keys in (15, 16, 17, 32, 33, 63, 64, 65, 128, 129, 256, 257):
        yield case(
            f"keys-{keys}-peak-last",
            "SDPA-1 SDPA-14",
            f"{keys} keys, the largest score at the last one: a lost or padded tail shows.",
            replace(TILES, sq=3, sk=keys),
            data=peak(-1),
            needs=f"Sk = {keys}",
            stays="one edge of the tile sizes in use",
        )
    for queries in (16, 17, 33, 65, 129):
        yield case(
            f"queries-{queries}",
            "SDPA-1",
            f"{queries} query rows over 17 keys: rows of the last tile are computed, and not those behind it.",
            replace(TILES, sq=queries, sk=17),
            data=numbered,
            needs=f"Sq = {queries}",
            stays="one edge of the tile sizes in use",
        )
    yield case("tiles", "SDPA-1 SDPA-25", "17 rows and 65 keys: more than one tile both ways.", TILES, dtypes=ALL_DTYPES, needs="Sq > 16")
    yield case("tiles-ascending", "SDPA-14", "Scores grow with the key: every tile brings a new maximum.", TILES, data=ascending(), stays="the input that rescaling is for")
    yield case("tiles-descending", "SDPA-14", "Scores fall with the key: no tile brings a new maximum.", TILES, data=ascending(-1.0), stays="the opposite of the input that rescaling is for")
    yield case("long", "SDPA-1 SDPA-25", "520 keys, more than bfloat16 can count.", LONG, dtypes=ALL_DTYPES)
    yield case("long-causal", "SDPA-9 SDPA-1", "200 rows, causal: tiles above, on and below the diagonal.", replace(TILES, sq=200, sk=200), is_causal=True, dtypes=("float32", "bfloat16"), stays="more tiles than any other causal case", needs="Sq > 64")


def _large() -> Iterator[Case]:
    """One or two more than 16 bits can count: indices wrap and grids end there."""
    many = replace(ONE, sq=2, sk=65538, d=2, dv=2)
    yield case("keys-65538-causal", "SDPA-9", "65538 keys, causal: a 16-bit index takes key 65536 for key 0 (pytorch 162588).", many, is_causal=True, data=numbered, needs="Sq < 65")
    yield case("keys-65538-window", "SDPA-11", "65538 keys and a window of two.", many, window=(1, 0), data=numbered, needs="Sq < 65")
    yield case("keys-65538-mask", "SDPA-7", "65538 keys, only the last two allowed: their mask is not that of the first two.", many, mask=_last_two, data=numbered, needs="Sq < 65")
    yield case("keys-65538-bias", "SDPA-6", "65538 keys and a bias that decides for the last two.", many, bias=_last_two_raised, data=numbered, needs="Sq < 65")
    yield case("batch-65537", "SDPA-1", "65537 samples: beyond the grid of a CUDA launch (pytorch 142228).", replace(ONE, b=65537, sk=2, d=2, dv=2), needs="B >= 65537, Sk < 65")
    yield case("heads-65537", "SDPA-1", "65537 heads.", replace(ONE, hq=65537, hkv=65537, sk=2, d=2, dv=2), needs="Hq >= 65537, Sk < 65")


def _last_two(rng: Rng, s: Shape, dtype: np.dtype) -> np.ndarray:
    mask = np.zeros((1, 1, 1, s.sk), bool)
    mask[..., -2:] = True
    return mask


def _last_two_raised(rng: Rng, s: Shape, dtype: np.dtype) -> np.ndarray:
    bias = np.zeros((1, 1, 1, s.sk), dtype)
    bias[..., -2:] = 16.0
    return bias


def _grouped() -> Iterator[Case]:
    for hq, hkv, dtypes in ((4, 2, ALL_DTYPES), (6, 3, ("float32",)), (4, 1, ("float32", *HALVES))):
        yield case(
            f"heads-{hq}-over-{hkv}",
            "SDPA-17",
            f"{hq} query heads over {hkv}: head h reads key head h // {hq // hkv}, not h mod {hkv}.",
            replace(SMALL, hq=hq, hkv=hkv),
            data=numbered,
            dtypes=dtypes,
            needs=f"group = {hq // hkv}",
            stays="one ratio of heads in use",
        )
    grouped = replace(SMALL, hq=4, hkv=2)
    yield case("heads-batch-equals-heads", "SDPA-17", "B = Hq = 4: a swap of the two axes fits and is wrong.", replace(grouped, b=4), data=numbered, stays="the only case where B = Hq = 4", needs="B = Hq")
    yield case("heads-grouped-one-query", "SDPA-17", "Grouped heads with one query.", replace(grouped, sq=1), stays="grouped heads with one query, a kernel of its own")
    yield case("heads-grouped-causal", "SDPA-17 SDPA-9", "Grouped heads, causal.", replace(grouped, sq=7), is_causal=True, stays="two options that index rows by head")
    yield case("heads-grouped-tiles", "SDPA-17", "Grouped heads over several tiles.", replace(TILES, hq=4, hkv=2), dtypes=("float32", *HALVES), stays="grouped heads and tiles meet nowhere else without options")


def _empty() -> Iterator[Case]:
    yield case("empty-keys", "SDPA-20 SDPA-15", "No keys: zeros, not NaN and not an error.", replace(SMALL, sk=0), zeros=True)
    yield case("empty-keys-lse", "SDPA-20 SDPA-15 SDPA-19", "No keys: lse is −inf.", replace(SMALL, sk=0), return_lse=True, zeros=True)
    yield case("empty-queries", "SDPA-20", "No queries: an empty output of shape (B, H, 0, Dv).", replace(SMALL, sq=0), zeros=True)
    yield case("empty-batch", "SDPA-20", "A batch of none.", replace(SMALL, b=0), zeros=True)
    yield case("empty-values", "SDPA-20", "Dv = 0: an empty output.", replace(SMALL, dv=0), zeros=True)
    yield case("empty-width", "SDPA-20 SDPA-2", "D = 0: every score is 0, so each row is the mean of all values (pytorch 184330 gave zeros).", replace(SMALL, d=0), scale=0.5)
    yield case("empty-width-causal", "SDPA-20 SDPA-9", "D = 0, causal: row i is the mean of the first i + 1 values.", replace(SMALL, d=0), scale=0.5, is_causal=True)
    yield case("empty-width-bias", "SDPA-20 SDPA-6", "D = 0 with a bias: the weights are the softmax of the bias, twice; scores that are never written show.", replace(SMALL, d=0), scale=0.5, bias=random_bias(), repeats=2)
    yield case("empty-keys-causal", "SDPA-20 SDPA-9", "No keys, causal.", replace(SMALL, sk=0), is_causal=True, zeros=True)
    yield case("empty-keys-grouped", "SDPA-20 SDPA-17", "No keys with grouped heads.", replace(SMALL, sk=0, hq=4), zeros=True, needs="group > 1")
