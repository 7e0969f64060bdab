"""(SDPA-9 to 13) Cases of causal masks, offsets, windows, key lengths, and all of them together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from attention_conformance.conformance.cases.base import ALL_DTYPES, HALVES, Case, case
from attention_conformance.conformance.cases.data import (
    GROUPED,
    LONG,
    SMALL,
    SQUARE,
    TALL,
    TILES,
    Maker,
    Rng,
    Shape,
    bias_from,
    bottom_right,
    ends,
    lengths,
    mask_without,
    numbered,
    peak,
    random_bias,
    shifted,
    some_mask,
)


def cases() -> Iterator[Case]:
    """Every case of this group."""
    yield from _causal()
    yield from _offset()
    yield from _window()
    yield from _lengths()
    yield from _combined()


def _causal() -> Iterator[Case]:
    yield case("causal-square", "SDPA-9", "Causal, as many queries as keys.", SQUARE, is_causal=True, data=numbered, dtypes=ALL_DTYPES, needs="Sq = Sk")
    yield case("causal-more-keys", "SDPA-9", "Causal with Sq < Sk: the diagonal starts at the top left, not at the bottom right.", SMALL, is_causal=True, data=numbered, dtypes=ALL_DTYPES, needs="Sq < Sk")
    yield case("causal-more-queries", "SDPA-9", "Causal with Sq > Sk: the last rows see every key.", TALL, is_causal=True, data=numbered, dtypes=("float32", *HALVES))
    yield case("causal-one-query", "SDPA-9", "Causal with one query and seven keys: the first key only (onnxruntime 29020).", replace(SMALL, sq=1), is_causal=True, data=numbered, dtypes=("float32", *HALVES))
    yield case("causal-one-key", "SDPA-9", "Causal with one key: every row sees it.", replace(SMALL, sk=1), is_causal=True, data=numbered)
    yield case("causal-false", "SDPA-9", "is_causal=False masks nothing.", SQUARE, is_causal=False, data=numbered, stays="the keyword given, and false")
    yield case("causal-one-query-grouped", "SDPA-9 SDPA-17", "Causal with one query and grouped heads: the first key only, for every head of a group.", replace(GROUPED, sq=1), is_causal=True, data=numbered)
    yield case("causal-tiles", "SDPA-9", "Causal over several tiles with Sq < Sk.", TILES, is_causal=True, data=numbered, dtypes=("float32", *HALVES), needs="Sq < Sk")
    yield case("causal-tiles-square", "SDPA-9", "Causal over several tiles, 65 by 65: the diagonal crosses the last tile.", replace(TILES, sq=65), is_causal=True, data=numbered, dtypes=("float32", *HALVES), stays="the diagonal crosses the last tile", needs="Sq = Sk")
    yield case("causal-rows-of-four", "SDPA-9", "Causal, 64 by 64 (pytorch 195910: one mask for every four rows in half precision).", replace(TILES, sq=64, sk=64, d=64, dv=64), is_causal=True, data=numbered, dtypes=("float32", *HALVES), needs="Sq > 3")
    yield case("causal-weights", "SDPA-9 SDPA-18", "Causal weights are exactly zero above the diagonal.", SQUARE, is_causal=True, return_weights=True, stays="weights above the diagonal, by themselves")


def _offset() -> Iterator[Case]:
    one = {"is_causal": True, "data": numbered}
    yield case("offset-bottom-right", "SDPA-10 SDPA-9", "Offset Sk − Sq = 2: the last row sees every key.", SMALL, causal_offset=bottom_right, dtypes=("float32", *HALVES), **one, stays="the alignment of flash-attention, asked for", needs="Sq < Sk")
    yield case("offset-zero", "SDPA-10", "Offset 0, given, is the default.", SMALL, causal_offset=0, **one, stays="the keyword given, and 0")
    yield case("offset-negative", "SDPA-10 SDPA-15", "Offset −2: the first two rows have no key.", SMALL, causal_offset=-2, dtypes=("float32", *HALVES), **one, stays="fully masked rows from an offset, in half precision too", needs="Sq > 2")
    yield case("offset-beyond", "SDPA-10", "Offset 100, beyond all keys: nothing is masked.", SMALL, causal_offset=_offset_beyond, **one, stays="past the last key")
    yield case("offset-one-query", "SDPA-10", "One query with offset Sk − 1: a step of decoding sees every key.", replace(SMALL, sq=1), causal_offset=bottom_right, stays="a step of decoding without a past", **one, needs="Sk > 1")
    yield case("offset-more-queries", "SDPA-10 SDPA-15", "Sq > Sk with offset Sk − Sq = −2, bottom right.", TALL, causal_offset=bottom_right, **one)
    yield case("offset-five-batches", "SDPA-10", "Five batches, each with an offset of its own: the third is not read from the second.", replace(SMALL, b=5), causal_offset=lengths(2, 0, 4, 1, 3), **one, needs="B > 2")
    yield case("offset-per-batch", "SDPA-10", "One offset per batch.", SMALL, causal_offset=lengths(2, 0), dtypes=("float32", *HALVES), **one, stays="no other option beside it", needs="B > 1")
    yield case("offset-long", "SDPA-10 SDPA-1", "Offset 256 over 520 keys, the largest score at key 257: bfloat16 takes it for key 256.", LONG, is_causal=True, causal_offset=256, data=peak(257), dtypes=("float32", "bfloat16"))
    yield case("offset-tiles", "SDPA-10", "Offset 48 over several tiles: bottom right.", TILES, causal_offset=bottom_right, stays="the bottom right over several tiles", **one, needs="Sq < Sk")
    yield case("offset-tiles-negative", "SDPA-10 SDPA-15", "Offset −3 over several tiles.", replace(TILES, sq=65), causal_offset=-3, stays="a negative offset over several tiles", **one)


def _window() -> Iterator[Case]:
    one = {"data": numbered}
    yield case("window-both", "SDPA-11", "Two keys to the left, one to the right: at most four keys.", SQUARE, window=(2, 1), dtypes=("float32", *HALVES), **one, stays="both sides, in half precision too")
    yield case("window-left", "SDPA-11", "(2, 0): three keys, not two and not four (transformers 39408).", SQUARE, window=(2, 0), dtypes=("float32", *HALVES), **one)
    yield case("window-open-left", "SDPA-11", "(None, 1): everything up to one key ahead.", SQUARE, window=(None, 1), **one)
    yield case("window-open-right", "SDPA-11", "(1, None): from one key back on.", SQUARE, window=(1, None), **one)
    yield case("window-open", "SDPA-11", "(None, None) masks nothing.", SQUARE, window=(None, None), **one)
    yield case("window-wide", "SDPA-11", "Wider than the keys on both sides: masks nothing (libflash_attn PR 11).", SQUARE, window=_wide, **one)
    yield case("window-wide-causal", "SDPA-11 SDPA-13", "(100, 100) with causal: a window longer than the keys leaves causal in force (libflash_attn PR 11).", SMALL, window=_wide, is_causal=True, **one)
    yield case("window-wide-left-causal", "SDPA-11 SDPA-13", "(100, None) with causal: the same with an open side.", SQUARE, window=_wide_left, is_causal=True, **one)
    yield case("window-causal-right", "SDPA-11 SDPA-13", "(2, 2) with causal: the right side is cut by causal.", SQUARE, window=(2, 2), is_causal=True, **one, stays="two options that cut the same side")
    yield case("window-more-keys", "SDPA-11", "Sq < Sk: the window follows the top-left diagonal.", SMALL, window=(1, 1), stays="a window with Sq < Sk", **one, needs="Sq < Sk")
    yield case("window-more-queries", "SDPA-11 SDPA-15", "Sq > Sk: the last rows are beyond the keys and empty.", replace(TALL, sq=9), window=(1, 0), **one)
    yield case("window-one-query", "SDPA-11", "One query.", replace(SMALL, sq=1), window=(2, 2), **one)
    yield case("window-offset", "SDPA-11 SDPA-10", "A window around the diagonal shifted by 2, without causal.", SMALL, window=(1, 1), causal_offset=2, stays="an offset that only the window uses", **one)
    yield case("window-offset-causal", "SDPA-11 SDPA-10 SDPA-13", "A window and causal, both shifted by 2: sliding-window decoding.", SMALL, window=(2, 0), is_causal=True, causal_offset=2, stays="sliding-window decoding without a past", **one)
    yield case("window-offset-per-batch", "SDPA-11 SDPA-10", "A window shifted by another offset in each batch.", SMALL, window=(2, 0), is_causal=True, causal_offset=lengths(0, 2), stays="ragged sliding-window decoding", **one, needs="B > 1")
    yield case("window-offset-negative", "SDPA-11 SDPA-10 SDPA-15", "A window shifted out of the keys for the first rows.", SMALL, window=(0, 0), causal_offset=-2, **one, needs="Sq > 2")
    yield case("window-tiles", "SDPA-11", "(16, 0) over several tiles: whole tiles are outside.", replace(TILES, sq=65), window=(16, 0), is_causal=True, **one, stays="whole tiles outside a window", needs="Sq > 16")
    yield case("window-tiles-low", "SDPA-11 SDPA-14", "(16, 0) over several tiles, all scores near −625: tiles outside the window leave no maximum behind.", replace(TILES, sq=65), window=(16, 0), data=shifted(-625.0), needs="Sq > 16")
    yield case("window-more-queries-long", "SDPA-11 SDPA-15", "(16, 0) with 530 queries and 520 keys: a second chunk of 512 queries reaches past the keys, and the diagonal does not follow it back.", replace(LONG, sq=530), window=(16, 0), stays="more queries than keys, and chunks of both", **one, needs="Sq > Sk")
    yield case("window-grouped", "SDPA-11 SDPA-17", "A window with grouped heads (vllm 17476).", replace(GROUPED, sq=7), window=(2, 0), is_causal=True, **one)


def _lengths() -> Iterator[Case]:
    one = {"data": numbered}
    yield case("lengths", "SDPA-12", "Seven and three valid keys.", SMALL, kv_lengths=lengths(7, 3, of=7), dtypes=ALL_DTYPES, **one)
    yield case("lengths-five-batches", "SDPA-12", "Five batches, each with a length of its own: the third is not read from the second.", replace(SMALL, b=5), kv_lengths=lengths(7, 3, 5, 1, 6, of=7), needs="B > 2", **one)
    yield case("lengths-zero", "SDPA-12 SDPA-15", "No valid key in the first batch: zeros there, and only there.", SMALL, kv_lengths=lengths(0, 5, of=7), dtypes=("float32", *HALVES), **one, needs="B > 1")
    yield case("lengths-all-zero", "SDPA-12 SDPA-15", "No valid key at all.", SMALL, kv_lengths=lengths(0, 0), zeros=True, **one)
    yield case("lengths-one-query", "SDPA-12", "One query over a padded cache.", replace(SMALL, sq=1), kv_lengths=lengths(4, 6, of=7), stays="a step of decoding over a padded cache", **one)
    yield case("lengths-causal", "SDPA-12 SDPA-9 SDPA-13", "Lengths with causal.", SMALL, kv_lengths=lengths(2, 6, of=7), is_causal=True, **one)
    yield case("lengths-decode", "SDPA-12 SDPA-10 SDPA-13", "Lengths with causal at the end of each: offset = length − Sq (onnx 8054).", SMALL, kv_lengths=lengths(7, 5, of=7), is_causal=True, causal_offset=ends(7, 5, of=7), **one)
    yield case("lengths-tiles", "SDPA-12", "64 of 65 keys: one key behind the tile.", TILES, kv_lengths=lengths(64, of=65), **one, stays="one key behind a tile")
    yield case("lengths-tiles-short", "SDPA-12", "3 of 65 keys: whole tiles are invalid.", TILES, kv_lengths=lengths(3), **one, stays="whole tiles behind the length")
    yield case("lengths-square-causal", "SDPA-12 SDPA-9 SDPA-13", "Lengths with causal and Sq = Sk: the diagonal stays at the top left, and rows behind a length are computed.", SQUARE, kv_lengths=lengths(7, 3, of=7), is_causal=True, **one, needs="Sq = Sk")
    yield case("lengths-long", "SDPA-12 SDPA-1", "261 of 520 keys, the largest score behind them: bfloat16 cannot tell key 261 from key 260.", LONG, kv_lengths=lengths(261), data=peak(261), dtypes=("float32", "bfloat16"))
    yield case("lengths-square-zero", "SDPA-12 SDPA-15", "No valid key in the first batch, with Sq = Sk: zeros there, and only there.", SQUARE, kv_lengths=lengths(0, 5, of=7), **one, needs="Sq = Sk, B > 1")
    yield case("lengths-square", "SDPA-12", "Lengths with Sq = Sk: keys are cut, not queries.", SQUARE, kv_lengths=lengths(7, 3, of=7), **one, needs="Sq = Sk")


def _combined() -> Iterator[Case]:
    one = {"data": numbered}
    off = mask_without(keys=slice(0, 2))
    yield case("combined-mask-causal", "SDPA-13", "A key is allowed only if mask and causal allow it (onnx PR 8068: 0 · −inf).", SMALL, mask=some_mask(0.5), is_causal=True, dtypes=("float32", *HALVES), **one)
    yield case("combined-mask-causal-empty", "SDPA-13 SDPA-15", "Mask and causal each leave keys, together none for the first rows (onnxruntime 28904).", SMALL, mask=off, is_causal=True, **one, needs="Sq > 2")
    yield case("combined-mask-lengths", "SDPA-13", "A mask and lengths.", SMALL, mask=some_mask(0.5), kv_lengths=lengths(5, 3, of=7), **one)
    yield case("combined-mask-window", "SDPA-13", "A mask and a window.", SQUARE, mask=some_mask(0.6), window=(2, 1), **one)
    yield case("combined-bias-causal", "SDPA-13 SDPA-6", "A bias and causal.", SMALL, bias=random_bias(2.0), is_causal=True, **one)
    yield case("combined-mask-bias-minus-inf", "SDPA-13 SDPA-24", "A mask and a bias of −inf that overlap: −inf + −inf, and no key in common for some rows.", SMALL, mask=_some_rows_without(3), bias=bias_from(mask_without(keys=slice(0, 3)), -np.inf), **one)
    yield case("combined-scale-softcap-bias-mask", "SDPA-13 SDPA-5 SDPA-6", "Scale, softcap, bias and mask in this order.", SMALL, scale=1.5, softcap=2.0, bias=random_bias(2.0), mask=some_mask(0.5))
    yield case("combined-mask-causal-empty-tiles", "SDPA-13 SDPA-15", "Mask and causal each leave keys, together none, over several tiles.", TILES, mask=off, is_causal=True, **one)
    yield case("combined-one-query", "SDPA-13 SDPA-4 SDPA-5 SDPA-6", "Every option of a step of decoding, which often has a kernel of its own.", replace(SMALL, sq=1), scale=0.6, softcap=2.0, bias=random_bias(2.0), mask=some_mask(0.6), kv_lengths=lengths(6, 4))
    yield case("combined-broadcast", "SDPA-13 SDPA-8", "A key mask per batch, a bias per head, causal.", SMALL, mask=some_mask(0.6, (None, 1, 1, None)), bias=random_bias(2.0, (1, None, None, None)), is_causal=True)
    yield case("combined-key-mask-causal", "SDPA-8 SDPA-13", "A key mask (B, 1, 1, Sk), as of padded samples, and causal: one row of the mask stands for all, not for the first.", SMALL, mask=some_mask(0.6, (None, 1, 1, None)), is_causal=True, **one)
    yield case("combined-rank1-mask-causal", "SDPA-8 SDPA-13", "A mask (Sk,) and causal.", SMALL, mask=some_mask(0.6, (None,)), is_causal=True, **one)
    yield case("combined-all", "SDPA-13", "Every option at once, grouped heads, all results.", GROUPED, **_everything(lengths(7, 5), (3, 2)))
    yield case("combined-all-tiles", "SDPA-13", "Every option at once over several tiles.", replace(TILES, b=2, hq=4), **_everything(lengths(60, 40), (24, 8)))


def _everything(valid: Maker, window: tuple[int, int]) -> dict[str, Any]:
    return {
        "mask": some_mask(0.7),
        "bias": random_bias(1.0),
        "is_causal": True,
        "causal_offset": lengths(1, 2),
        "window": window,
        "kv_lengths": valid,
        "scale": 0.4,
        "softcap": 3.0,
        "return_weights": True,
        "return_lse": True,
    }


def _offset_beyond(rng: Rng, s: Shape, dtype: np.dtype) -> int:
    return s.sk + 93


def _wide(rng: Rng, s: Shape, dtype: np.dtype) -> tuple[int, int]:
    return (s.sk + 93, s.sk + 93)


def _wide_left(rng: Rng, s: Shape, dtype: np.dtype) -> tuple[int, None]:
    return (s.sk + 93, None)


def _some_rows_without(keys: int) -> Maker:
    """A random mask that leaves some row only these first keys, which chance seldom does with many keys."""

    def make(rng: Rng, s: Shape, dtype: np.dtype) -> np.ndarray:
        mask = some_mask(0.5)(rng, s, dtype)
        if mask[..., keys:].any(-1).all():
            mask[:, :, :1, keys:] = False
        return mask

    return make
