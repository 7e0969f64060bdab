"""(SDPA-14, 15, 18, 19, 25, 26) Cases of softmax, fully masked rows, weights and lse, accuracy and range."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from attention_conformance.conformance.cases.base import ALL_DTYPES, HALVES, Case, case
from attention_conformance.conformance.cases.data import (
    GROUPED,
    LONG,
    SMALL,
    TILES,
    Data,
    Rng,
    Shape,
    cancelling_values,
    constant_values,
    full_mask,
    integers,
    mask_without,
    normal,
    numbered,
    random_bias,
    random_mask,
    repeated_keys,
    shifted,
)


def cases() -> Iterator[Case]:
    """Every case of this group."""
    yield from _softmax()
    yield from _empty_rows()
    yield from _results()
    yield from _accuracy()
    yield from _range()


def _softmax() -> Iterator[Case]:
    yield case("softmax-equal-keys", "SDPA-14", "Equal keys: every weight is 1/7, the output is the mean.", SMALL, data=repeated_keys, dtypes=ALL_DTYPES)
    yield case("softmax-constant-values", "SDPA-14", "v = 1.5 everywhere: any weights that add up to 1 give 1.5.", SMALL, data=constant_values(1.5), dtypes=ALL_DTYPES)
    yield case("softmax-constant-values-long", "SDPA-14", "v = 1.5 over 520 keys: a sum of weights in bfloat16 stops at 256 (executorch PR 20090).", LONG, data=constant_values(1.5), dtypes=ALL_DTYPES)
    yield case("softmax-mean-long", "SDPA-14", "520 equal keys: every weight is 1/520.", LONG, data=repeated_keys, dtypes=ALL_DTYPES)
    yield case("softmax-one-hot", "SDPA-14", "Scores some hundreds apart: one weight is 1, the others underflow.", SMALL, data=normal(20.0), dtypes=ALL_DTYPES)
    for offset in (625.0, -625.0):
        sign = "plus" if offset > 0 else "minus"
        yield case(f"softmax-shift-{sign}-625", "SDPA-14 SDPA-25", f"All scores shifted by {offset:+g}, a no-op: scores stored in half precision lose it.", SMALL, data=shifted(offset), dtypes=ALL_DTYPES)
    yield case("softmax-shift-minus-1e5", "SDPA-14", "All scores near −1e5, below the finite \"infinities\" of some kernels (flashinfer 4267).", SMALL, data=shifted(-1e5))
    yield case("softmax-shift-plus-1e5", "SDPA-14", "All scores near +1e5: exp without the maximum taken off overflows.", SMALL, data=shifted(1e5), stays="the other sign of the shift")
    yield case("softmax-shift-tiles", "SDPA-14", "Scores near −625 over several tiles: a running maximum that starts at 0 or at −1e2 is wrong.", TILES, data=shifted(-625.0), stays="a running maximum, not one of the row")


def _empty_rows() -> Iterator[Case]:
    row = mask_without(rows=slice(1, 2))
    yield case("empty-row", "SDPA-15", "One fully masked row, among others: zeros, not NaN and not the mean of v.", SMALL, mask=row, dtypes=ALL_DTYPES, needs="Sq > 1")
    yield case("empty-row-one-batch", "SDPA-15", "A fully masked row in the second batch only.", SMALL, mask=mask_without(rows=slice(1, 2), batch=slice(1, 2)), needs="Sq > 1, B > 1")
    yield case("empty-row-last", "SDPA-15", "The last row fully masked.", SMALL, mask=mask_without(rows=slice(-1, None)), needs="Sq > 1")
    yield case("empty-all", "SDPA-15", "No row has a key.", SMALL, mask=full_mask(False), zeros=True, dtypes=("float32", *HALVES))
    yield case("empty-one-query", "SDPA-15", "One query without a key.", replace(SMALL, sq=1), mask=full_mask(False), zeros=True)
    yield case("empty-one-token", "SDPA-15", "One query and one key, masked.", replace(SMALL, sq=1, sk=1), mask=full_mask(False), zeros=True)
    yield case("empty-row-broadcast", "SDPA-15 SDPA-8", "A key mask (B, 1, 1, Sk) that is False throughout for the second batch: a padded sample of length 0.", SMALL, mask=_no_keys_in_second_batch, needs="B > 1")
    yield case("empty-row-tiles", "SDPA-15", "Fully masked rows over several tiles.", TILES, mask=mask_without(rows=slice(3, 6)), dtypes=("float32", *HALVES), needs="Sq > 5")
    yield case("empty-row-grouped", "SDPA-15 SDPA-17", "A fully masked row with grouped heads.", GROUPED, mask=row, needs="Sq > 1")
    yield case("empty-row-constant-values", "SDPA-15", "A fully masked row where v is 1.5 everywhere: the mean of v would stand out.", SMALL, mask=row, data=constant_values(1.5), needs="Sq > 1")
    yield case("empty-row-bias", "SDPA-15 SDPA-6", "A fully masked row and a bias.", SMALL, mask=row, bias=random_bias(), needs="Sq > 1")
    yield case("empty-row-lse", "SDPA-15 SDPA-19", "lse of a fully masked row is −inf, not a large negative number (flashinfer 4452).", SMALL, mask=row, return_lse=True, needs="Sq > 1")
    yield case("empty-row-weights", "SDPA-15 SDPA-18", "Weights of a fully masked row are zero, not 1/Sk.", SMALL, mask=row, return_weights=True, needs="Sq > 1")
    yield case("empty-row-causal-weights", "SDPA-15 SDPA-18 SDPA-10", "Weights with a negative offset.", SMALL, is_causal=True, causal_offset=-2, return_weights=True, needs="Sq > 2")
    yield case("empty-row-causal-lse", "SDPA-15 SDPA-19 SDPA-10", "lse with a negative offset.", SMALL, is_causal=True, causal_offset=-2, return_lse=True, needs="Sq > 2")


def _results() -> Iterator[Case]:
    yield case("weights", "SDPA-18", "Weights after softmax, per query head.", SMALL, return_weights=True, dtypes=ALL_DTYPES)
    yield case("weights-mask", "SDPA-18 SDPA-7", "Weights are exactly zero where masked.", SMALL, return_weights=True, mask=random_mask(0.5), dtypes=("float32", *HALVES))
    yield case("weights-grouped", "SDPA-18 SDPA-17", "Weights have one head per query head.", GROUPED, return_weights=True, stays="weights and grouped heads")
    yield case("weights-long", "SDPA-18", "520 weights of a row add up to 1.", LONG, return_weights=True, dtypes=("float32", *HALVES))
    yield case("lse", "SDPA-19", "Natural logarithm, not base 2.", SMALL, return_lse=True, dtypes=ALL_DTYPES)
    yield case("lse-bias", "SDPA-19 SDPA-6", "lse includes the bias.", SMALL, return_lse=True, bias=random_bias(2.0), stays="lse and bias")
    yield case("lse-mask", "SDPA-19 SDPA-7", "lse is of the allowed keys only.", SMALL, return_lse=True, mask=random_mask(0.5), stays="lse and mask")
    yield case("lse-one-key", "SDPA-19", "lse over one key is its score.", replace(SMALL, sk=1), return_lse=True)
    yield case("lse-shift", "SDPA-19 SDPA-14", "lse near −625.", SMALL, return_lse=True, data=shifted(-625.0), stays="a large negative lse")
    yield case("lse-grouped", "SDPA-19 SDPA-17", "lse has one head per query head.", GROUPED, return_lse=True, stays="lse with grouped heads")
    yield case("lse-tiles", "SDPA-19", "lse over several tiles.", TILES, return_lse=True, dtypes=("float32", *HALVES))
    yield case("weights-and-lse", "SDPA-18 SDPA-19", "Output, weights, lse, in this order.", SMALL, return_weights=True, return_lse=True, stays="the order of the results")


def _accuracy() -> Iterator[Case]:
    for spread, text in ((0.01, "tiny"), (1.0, "ordinary"), (3.0, "large"), (10.0, "very large")):
        yield case(f"accuracy-spread-{spread:g}", "SDPA-25", f"{text.capitalize()} scores over 65 keys of width 16.", TILES, data=normal(spread), dtypes=ALL_DTYPES)
    yield case("accuracy-width-64", "SDPA-25", "Scores of 64 products.", replace(TILES, d=64, dv=64), data=normal(1.0), dtypes=ALL_DTYPES, needs="D >= 64")
    yield case("accuracy-cancellation", "SDPA-25", "Values that cancel: the output is small against them.", LONG, data=cancelling_values, dtypes=ALL_DTYPES)
    yield case("accuracy-large-values", "SDPA-25", "Values around 1000.", SMALL, data=_large_values, dtypes=ALL_DTYPES)
    yield case("accuracy-small-values", "SDPA-25", "Values around 1e-4, near float16's subnormal numbers.", SMALL, data=_small_values, dtypes=ALL_DTYPES)
    yield case("accuracy-outlier-key", "SDPA-25", "One key twenty times as long as the others, as trained models have them.", TILES, data=_outlier_key, dtypes=ALL_DTYPES)
    yield case("accuracy-integers", "SDPA-25", "Small integers, whose scores are exact in every dtype.", SMALL, data=integers(-3, 3), dtypes=ALL_DTYPES)
    yield case("accuracy-causal", "SDPA-25 SDPA-9", "The first rows average few values and have the largest errors.", replace(TILES, sq=65), is_causal=True, dtypes=ALL_DTYPES)


def _range() -> Iterator[Case]:
    yield case("range-product-overflows", "SDPA-26", "q · k = 131072, beyond float16, while the scaled score is 16384 (pytorch 119131).", replace(SMALL, d=64, dv=64), data=_product(131072.0), dtypes=ALL_DTYPES, needs="D >= 64")
    yield case("range-product-overflows-negative", "SDPA-26 SDPA-14", "q · k = −131072.", replace(SMALL, d=64, dv=64), data=_product(-131072.0), dtypes=ALL_DTYPES, needs="D >= 64")
    yield case("range-largest-values", "SDPA-26", "Values of 60000: their unnormalised weighted sum is beyond float16.", SMALL, data=constant_values(60000.0), dtypes=("float16",))
    yield case("range-largest-values-tiles", "SDPA-26", "Values of 60000 over 65 keys.", TILES, data=constant_values(60000.0), dtypes=("float16",))
    yield case("range-product-overflows-width-20", "SDPA-26 SDPA-1", "The same with a width of 20, which many kernels hand to another one (pytorch 110505).", replace(SMALL, d=20, dv=20), data=_product(131072.0), dtypes=("float32", "float16"), needs="D = 20")
    yield case("range-product-overflows-width-20-causal", "SDPA-26 SDPA-9", "Width 20, causal.", replace(SMALL, d=20, dv=20), data=_product(-131072.0), is_causal=True, dtypes=("float16",), needs="D = 20")


def _no_keys_in_second_batch(rng: Rng, s: Shape, dtype: np.dtype) -> np.ndarray:
    mask = np.ones((s.b, 1, 1, s.sk), bool)
    mask[1] = False
    return mask


def _large_values(rng: Rng, s: Shape) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    q, k, v = normal(1.0)(rng, s)
    return q, k, 1000.0 * v


def _small_values(rng: Rng, s: Shape) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    q, k, v = normal(1.0)(rng, s)
    return q, k, 1e-4 * v


def _outlier_key(rng: Rng, s: Shape) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    q, k, v = normal(0.5)(rng, s)
    k[:, :, 11] *= 20.0
    return q, k, v


def _product(size: float) -> Data:
    """Q · k is about ``size`` in every pair, and differs by a few hundreds between keys."""

    def make(rng: Rng, s: Shape) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        q, k, v = numbered(rng, s)
        q[:], k[:] = 32.0, size / 32.0 / s.d
        k[..., 0] += rng.integers(-8, 9, k.shape[:-1])
        return q, k, v

    return make
