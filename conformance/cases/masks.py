"""(SDPA-6 to 8, 24) Cases of masks, biases, and how they broadcast."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from attention_conformance.conformance.cases.base import ALL_DTYPES, HALVES, Case, case
from attention_conformance.conformance.cases.data import (
    CHUNKS,
    SMALL,
    SQUARE,
    TILES,
    Maker,
    Rng,
    Shape,
    bias_from,
    constant_bias,
    constant_values,
    full_mask,
    mask_without,
    numbered,
    random_bias,
    random_mask,
    shifted,
    some_mask,
    zero_queries,
)

#: Shapes that broadcast to (B, Hq, Sq, Sk); None is the full axis.  Each names the axes it keeps.
BROADCAST: dict[str, tuple[int | None, ...]] = {
    "bqk": (None, 1, None, None),
    "hqk": (1, None, None, None),
    "qk": (1, 1, None, None),
    "bk": (None, 1, 1, None),
    "hk": (1, None, 1, None),
    "k": (1, 1, 1, None),
    "bhk": (None, None, 1, None),
    "rank2": (None, None),
    "rank1": (None,),
    "rank3": (None, None, None),
}
#: Shapes with one entry for all keys: a mask then switches whole rows.
ONE_KEY_COLUMN: dict[str, tuple[int | None, ...]] = {
    "bq": (None, 1, None, 1),
    "hq": (1, None, None, 1),
    "one": (1, 1, 1, 1),
}


def cases() -> Iterator[Case]:
    """Every case of this group."""
    yield from _mask()
    yield from _bias()
    yield from _infinite_and_smallest()


def _mask() -> Iterator[Case]:
    yield case("mask", "SDPA-7", "A random mask in full shape; True keeps.", SMALL, mask=some_mask(0.5), data=numbered, dtypes=ALL_DTYPES)
    yield case("mask-all-true", "SDPA-7", "A mask that masks nothing (openvino 31630).", SMALL, mask=full_mask(True), dtypes=("float32", *HALVES))
    yield case("mask-square", "SDPA-7", "A random mask with Sq = Sk: rows and keys can be taken for each other.", SQUARE, mask=some_mask(0.5), data=numbered, needs="Sq = Sk")
    yield case("mask-one-key", "SDPA-7", "Only the fourth key is allowed: the output is its value.", SMALL, mask=_only_key(3), data=numbered, stays="the expected output can be read off v")
    yield case("mask-one-query", "SDPA-7", "A mask with one query.", replace(SMALL, sq=1), mask=some_mask(0.5), data=numbered, stays="a step of decoding with a mask")
    yield case("mask-one-batch-row", "SDPA-7", "Masked in the second batch only, so that batches cannot be mixed up.", SMALL, mask=mask_without(keys=slice(2, 5), batch=slice(1, 2)), data=numbered, stays="batches that differ in their masks alone", needs="B > 1")
    yield case("mask-five-batches", "SDPA-7", "Five batches, each with a mask of its own: the third is not read from the second.", replace(SMALL, b=5), mask=random_mask(0.5), needs="B > 2")
    yield case("mask-one-token", "SDPA-7 SDPA-15", "One query and one key, masked in the second batch only: zeros there.", replace(SMALL, sq=1, sk=1), mask=mask_without(keys=slice(0, 1), batch=slice(1, 2)), data=numbered, needs="B > 1")
    yield case("mask-tiles", "SDPA-7", "A random mask over several tiles.", TILES, mask=some_mask(0.5), dtypes=("float32", *HALVES), stays="a mask and tiles, in half precision too")
    yield case("mask-first-tile-off", "SDPA-7 SDPA-14", "The first 64 of 65 keys masked: exp(−inf + inf) in a kernel's first tile (pytorch 127055).", TILES, mask=mask_without(keys=slice(0, 64)), data=numbered, dtypes=("float32", *HALVES))
    yield case("mask-first-tile-off-low", "SDPA-7 SDPA-14", "The first 64 of 65 keys masked, and the score of the last near −625: a maximum of 0 left by the masked tile drowns it (flash-attention 2082).", TILES, mask=mask_without(keys=slice(0, 64)), data=shifted(-625.0))
    yield case("mask-first-chunk-off", "SDPA-7 SDPA-14", "The first 1,024 of 1,025 keys masked: whole chunks of 512 and of 1,024 have no key (executorch PR 10466).", CHUNKS, mask=mask_without(keys=slice(0, 1024)), data=numbered)
    yield case("mask-last-tile-off", "SDPA-7", "All keys from the 17th on masked.", TILES, mask=mask_without(keys=slice(16, None)), data=numbered, stays="whole tiles that are masked at the end")
    yield case("mask-largest-score-off", "SDPA-7 SDPA-14", "The masked key has the largest score by far: the maximum is of the allowed keys.", SMALL, mask=mask_without(keys=slice(0, 1)), data=_huge_first_key, stays="a maximum that must not be taken over masked keys")
    yield case("mask-allowed-very-small", "SDPA-7 SDPA-14", "All allowed scores lie near −1e5: a fill of −1e4 or −1e9 in its place would win or drown.", SMALL, mask=mask_without(keys=slice(0, 3)), data=_allowed_very_small)
    yield case("mask-grouped", "SDPA-7 SDPA-17", "A mask that differs per query head, with grouped heads (torch-xpu-ops 5090).", replace(SMALL, hq=4), mask=some_mask(0.5), data=numbered)
    for name, shape in BROADCAST.items():
        yield case(f"mask-broadcast-{name}", "SDPA-8 SDPA-7", f"A mask of shape {_text(shape)}.", SMALL, mask=some_mask(0.5, shape), data=numbered, stays="one shape of a mask in use")
    for name, shape in ONE_KEY_COLUMN.items():
        yield case(f"mask-broadcast-{name}", "SDPA-8 SDPA-7", f"A mask of shape {_text(shape)}, all True: it is not read past its one key (pytorch PR 128816).", SMALL, mask=random_mask(1.0, shape), data=numbered)
    yield case("mask-broadcast-square-bk", "SDPA-8 SDPA-7", "A mask (B, 1, 1, Sk) with Sq = Sk: it masks keys, not rows (transformer PR 40).", SQUARE, mask=some_mask(0.5, (None, 1, 1, None)), data=numbered, needs="Sq = Sk")
    yield case("mask-broadcast-tiles-k", "SDPA-8", "A mask (1, 1, 1, 65) over several tiles.", TILES, mask=some_mask(0.5, (1, 1, 1, None)), data=numbered)
    yield case("mask-broadcast-tiles-bq", "SDPA-8 SDPA-15", "A mask (1, 1, 17, 1) switches whole rows off.", TILES, mask=_rows_off, data=numbered, needs="Sq > 5")


def _bias() -> Iterator[Case]:
    yield case("bias", "SDPA-6", "A random bias in full shape.", SMALL, bias=random_bias(2.0), dtypes=ALL_DTYPES)
    yield case("bias-five-batches", "SDPA-6", "Five batches, each with a bias of its own: the third is not read from the second.", replace(SMALL, b=5), bias=random_bias(3.0), needs="B > 2")
    yield case("bias-zero-one", "SDPA-6", "A bias of zeros and ones is not a mask.", SMALL, bias=_zero_one, data=numbered, stays="tells a bias from a mask by its values")
    yield case("bias-per-head", "SDPA-6 SDPA-8", "Distances times a slope per head (ALiBi).", SQUARE, bias=_alibi, stays="the bias that most models with one use")
    yield case("bias-one-query", "SDPA-6", "A bias with one query.", replace(SMALL, sq=1), bias=random_bias(2.0))
    yield case("bias-grouped", "SDPA-6 SDPA-17", "A bias that differs per query head, with grouped heads.", replace(SMALL, hq=4), bias=random_bias(2.0))
    for name, shape in {**BROADCAST, **ONE_KEY_COLUMN}.items():
        yield case(f"bias-broadcast-{name}", "SDPA-8 SDPA-6", f"A bias of shape {_text(shape)}.", SMALL, bias=random_bias(2.0, shape), stays="one shape of a bias in use")
    yield case("bias-broadcast-square-k", "SDPA-8 SDPA-6", "A bias (1, 1, 1, Sk) with Sq = Sk: it belongs to the keys.", SQUARE, bias=random_bias(2.0, (1, 1, 1, None)), needs="Sq = Sk")


def _infinite_and_smallest() -> Iterator[Case]:
    off = mask_without(keys=slice(2, 5))
    row = mask_without(rows=slice(1, 2))
    yield case("bias-minus-inf", "SDPA-24 SDPA-6", "A bias of −inf is a mask.", SMALL, bias=bias_from(off, -np.inf), data=numbered, dtypes=ALL_DTYPES)
    yield case("bias-minus-inf-row", "SDPA-24 SDPA-15", "A row of −inf has no key: zeros, not NaN.", SMALL, bias=bias_from(row, -np.inf), dtypes=("float32", *HALVES), needs="Sq > 1")
    yield case("bias-minus-inf-all", "SDPA-24 SDPA-15", "A bias of −inf everywhere: zeros everywhere.", SMALL, bias=constant_bias(-np.inf), zeros=True)
    yield case("bias-minus-inf-first-tile", "SDPA-24 SDPA-14", "−inf on the first 64 of 65 keys.", TILES, bias=bias_from(mask_without(keys=slice(0, 64)), -np.inf), data=numbered, stays="a masked first tile, by bias")
    yield case("bias-minus-inf-first-chunk", "SDPA-24 SDPA-14", "−inf on the first 1,024 of 1,025 keys: whole chunks of 512 and of 1,024 have no key (executorch PR 10466).", CHUNKS, bias=bias_from(mask_without(keys=slice(0, 1024)), -np.inf), data=numbered)
    yield case("bias-minus-inf-causal", "SDPA-24 SDPA-13", "−inf on the first key, with causal: the first row has no key.", SMALL, bias=bias_from(mask_without(keys=slice(0, 1)), -np.inf), is_causal=True, data=numbered, needs="Sq > 1")
    yield case("bias-minus-inf-softcap", "SDPA-24 SDPA-13", "−inf with softcap: masked keys must not leak with weight exp(−c).", SMALL, bias=bias_from(off, -np.inf), softcap=2.0, data=numbered, stays="two options that meet at −inf")
    yield case("bias-smallest", "SDPA-24", "The smallest finite number on some keys: their weight underflows to 0.", SMALL, bias=bias_from(off, None), data=numbered, dtypes=("float32", *HALVES), stays="the fill that transformers writes")
    yield case("bias-smallest-row", "SDPA-24", "The smallest finite number on a whole row: the row is not empty (pytorch 110213).", SMALL, bias=bias_from(row, None), data=zero_queries, dtypes=("float32", *HALVES), needs="Sq > 1")
    yield case("bias-smallest-all", "SDPA-24", "The smallest finite number everywhere, with one query: v is 1.5, so is any mean, and zeros are wrong.", replace(SMALL, sq=1), bias=bias_from(full_mask(False), None), data=constant_values(1.5))
    yield case("bias-smallest-first-tile", "SDPA-24", "The smallest finite number on the first 64 of 65 keys (pytorch 109517).", TILES, bias=bias_from(mask_without(keys=slice(0, 64)), None), data=numbered)
    yield case("bias-minus-1e4", "SDPA-24", "A bias of −1e4 everywhere is a common shift, not a mask.", SMALL, bias=constant_bias(-1e4))


def _only_key(key: int) -> Maker:
    def make(rng: Rng, s: Shape, dtype: np.dtype) -> np.ndarray:
        mask = np.zeros(s.scores, bool)
        mask[..., key] = True
        return mask

    return make


def _rows_off(rng: Rng, s: Shape, dtype: np.dtype) -> np.ndarray:
    mask = np.ones((1, 1, s.sq, 1), bool)
    mask[:, :, 3:6] = False
    return mask


def _zero_one(rng: Rng, s: Shape, dtype: np.dtype) -> np.ndarray:
    return rng.integers(0, 2, s.scores).astype(dtype)


def _alibi(rng: Rng, s: Shape, dtype: np.dtype) -> np.ndarray:
    h, i, j = np.ogrid[: s.hq, : s.sq, : s.sk]
    return (-(2.0 ** -(h + 1)) * np.abs(i - j))[None].astype(dtype)


def _huge_first_key(rng: Rng, s: Shape) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    q, k, v = numbered(rng, s)
    q[..., 0], k[:, :, 0, 0] = 30.0, 100.0
    return q, k, v


def _allowed_very_small(rng: Rng, s: Shape) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    q, k, v = numbered(rng, s)
    q[..., 0], k[..., 0] = 512.0, -512.0
    k[:, :, :3, 0] = 0.0
    return q, k, v


def _text(shape: tuple[int | None, ...]) -> str:
    names = ("B", "Hq", "Sq", "Sk")[4 - len(shape) :]
    inner = ", ".join(name if n is None else str(n) for name, n in zip(names, shape, strict=True))
    return f"({inner},)" if len(shape) == 1 else f"({inner})"
