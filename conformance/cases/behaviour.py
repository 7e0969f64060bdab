"""(SDPA-21 to 23, 27 to 36) Cases of NaN and infinity, inputs, repetition, memory layout, and what must be refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

from attention_conformance.conformance.cases.base import ALL_DTYPES, HALVES, Case, case
from attention_conformance.conformance.cases.data import (
    SMALL,
    SQUARE,
    TILES,
    constant_values,
    lengths,
    mask_without,
    numbered,
    random_bias,
    random_mask,
    repeated_keys,
)
from attention_conformance.conformance.spec.inputs import Inputs

#: Keys that the poisoned cases mask in every row.
POISONED = slice(2, 5)


def cases() -> Iterator[Case]:
    """Every case of this group."""
    yield from _masked_values()
    yield from _nan()
    yield from _calls()
    yield from _memory()
    yield from _invalid()


def _masked_values() -> Iterator[Case]:
    off = mask_without(keys=POISONED)
    large = {"edit": poison("kv", 1e4, POISONED), "data": numbered}
    yield case("masked-large-values", "SDPA-21", "Masked keys and values of 1e4 change nothing.", SMALL, mask=off, dtypes=("float32", *HALVES), **large, stays="the common form of stale memory, in half precision too")
    yield case("masked-largest-values", "SDPA-21", "Masked keys and values of 3e38: their scores overflow and still change nothing.", SMALL, mask=off, edit=poison("kv", 3e38, POISONED))
    yield case("masked-largest-values-half", "SDPA-21", "Masked keys and values of 60000: their scores are beyond float16 and still change nothing.", SMALL, mask=off, edit=poison("kv", 60000.0, POISONED), dtypes=("float16",))
    yield case("masked-large-causal", "SDPA-21 SDPA-9", "Keys above the diagonal hold 1e4.", SQUARE, is_causal=True, data=numbered, edit=poison("kv", 1e4, slice(-1, None)), dtypes=("float32", *HALVES), stays="stale memory above the diagonal", needs="Sq > 1")
    yield case("masked-large-lengths", "SDPA-21 SDPA-12", "Keys behind the lengths hold 1e4, as a reused cache does.", SMALL, kv_lengths=lengths(5, 5), edit=poison("kv", 1e4, slice(5, None)), data=numbered, dtypes=("float32", *HALVES))
    yield case("masked-large-empty-row", "SDPA-21 SDPA-15", "A fully masked row, with values of 1e4: zeros.", SMALL, mask=mask_without(rows=slice(1, 2)), data=constant_values(1e4), needs="Sq > 1")
    for what, text in (("k", "keys"), ("v", "values")):
        for value in (np.nan, np.inf):
            yield case(f"masked-{value}-{text}", "SDPA-22", f"Masked {text} of {value} do not reach the output.", SMALL, mask=off, data=numbered, edit=poison(what, value, POISONED), stays="a SHOULD, which no fault can fail")
    yield case("masked-nan-causal", "SDPA-22 SDPA-9", "NaN in the last key and value reaches only the last row.", SQUARE, is_causal=True, data=numbered, edit=poison("kv", np.nan, slice(-1, None)), stays="a SHOULD, which no fault can fail", needs="Sq > 1")
    yield case("masked-nan-lengths", "SDPA-22 SDPA-12", "NaN behind the lengths, as in an uninitialised cache.", SMALL, kv_lengths=lengths(5, 5), data=numbered, edit=poison("kv", np.nan, slice(5, None)), stays="a SHOULD, which no fault can fail")
    yield case("masked-nan-bias", "SDPA-22 SDPA-6", "NaN in the bias of masked keys.", SMALL, mask=off, bias=random_bias(), edit=_poison_bias(np.nan, POISONED), stays="a SHOULD, which no fault can fail")
    yield case("masked-nan-empty-row", "SDPA-22 SDPA-15", "NaN in every value, and a fully masked row: that row is zero.", SMALL, mask=mask_without(rows=slice(1, 2)), edit=poison("v", np.nan, slice(None)), stays="a SHOULD, which no fault can fail", needs="Sq > 1")


def _nan() -> Iterator[Case]:
    yield case("nan-query", "SDPA-23", "NaN in one query row: NaN in that row, and in no other (pytorch 141128 gave zeros).", SMALL, edit=_nan_query, dtypes=("float32", *HALVES), needs="Sq > 2")
    yield case("nan-key", "SDPA-23", "NaN in an allowed key reaches every row.", SMALL, edit=poison("k", np.nan, slice(3, 4)), stays="a key of NaN beside others")
    yield case("nan-value", "SDPA-23", "NaN in one column of an allowed value reaches only that column.", SMALL, edit=nan_in_column, needs="Dv > 1")
    yield case("nan-key-other-batch", "SDPA-23", "NaN in the second batch does not reach the first.", SMALL, edit=_nan_in_second_batch, needs="B > 1")
    yield case("nan-query-causal", "SDPA-23 SDPA-9", "NaN in a query row, causal.", SQUARE, is_causal=True, edit=_nan_query, needs="Sq > 2")
    yield case("nan-query-tiles", "SDPA-23", "NaN in a query row over several tiles: max and comparison must not drop it.", TILES, edit=_nan_query, needs="Sq > 2")
    yield case("nan-key-last-tile", "SDPA-23", "NaN in the last of 65 keys: a later tile must not drop it.", TILES, edit=poison("k", np.nan, slice(-1, None)))
    yield case("nan-key-alone", "SDPA-23", "NaN in the only key: its weight is NaN, not 1.", replace(SMALL, sk=1), edit=poison("k", np.nan, slice(None)))
    yield case("nan-all", "SDPA-23", "Every query is NaN.", SMALL, edit=_all_nan)


def _calls() -> Iterator[Case]:
    yield case("dtype", "SDPA-27", "The output has the dtype of the inputs.", SMALL, dtypes=ALL_DTYPES)
    yield case("dtype-bias", "SDPA-27 SDPA-6", "A bias does not widen the output.", SMALL, bias=random_bias(), dtypes=ALL_DTYPES)
    yield case("dtype-scale", "SDPA-27 SDPA-4", "A scale given as a Python float does not widen the output.", SMALL, scale=0.3, softcap=None, dtypes=ALL_DTYPES)
    yield case("dtype-weights", "SDPA-27 SDPA-18", "The weights have the dtype of the inputs.", SMALL, return_weights=True, dtypes=ALL_DTYPES)
    yield case("inputs-unchanged", "SDPA-28", "q, k, v, mask and bias are the same after the call.", SMALL, mask=random_mask(0.5), bias=random_bias(), stays="the only case about all inputs")
    yield case("inputs-unchanged-plain", "SDPA-28", "q, k and v are the same after the call.", SMALL, scale=0.3, dtypes=("float32", *HALVES), stays="half precision, where a kernel may cast in place")
    yield case("inputs-unchanged-lengths", "SDPA-28 SDPA-12", "Lengths and offsets are the same after the call.", SMALL, kv_lengths=lengths(7, 3, of=7), is_causal=True, causal_offset=lengths(2, 0))
    yield case("repeat", "SDPA-29", "Five equal calls give equal bits.", TILES, repeats=5, dtypes=("float32", *HALVES), stays="several equal calls")
    yield case("repeat-causal-mask", "SDPA-29", "Five equal calls with causal.", replace(TILES, sq=65), is_causal=True, repeats=5, stays="several equal calls with causal")
    yield case("repeat-one-query-long", "SDPA-29", "Five equal calls of one query over 4,096 keys, which kernels split.", replace(TILES, hq=4, sq=1, sk=4096), repeats=5)
    yield case("repeat-long", "SDPA-29", "Five equal calls of 130 queries over 600 keys, with grouped heads.", replace(TILES, hq=4, sq=130, sk=600), repeats=5)
    yield case("repeat-long-causal", "SDPA-29 SDPA-9", "Five equal causal calls of 300 queries over as many keys.", replace(TILES, sq=300, sk=300), is_causal=True, repeats=5)
    yield case("repeat-after-other-shape", "SDPA-29", "The same after a call of another shape (pytorch 148545).", SMALL, after="long", repeats=2)
    yield case("repeat-after-nan", "SDPA-29 SDPA-23", "NaN of the call before does not stay behind.", SMALL, after="nan-all", repeats=2)
    yield case("repeat-after-mask", "SDPA-29 SDPA-7", "The mask of the call before does not stay behind.", SMALL, after="mask-one-key", stays="a pair of calls made for this")
    yield case("repeat-after-scale", "SDPA-29 SDPA-3", "The scale of the call before does not stay behind.", SMALL, after="scale-given", stays="a pair of calls made for this")


def _memory() -> Iterator[Case]:
    stays = "one memory layout in use"
    for layout, text in (
        ("transposed", "Heads and sequence swapped in memory (pytorch 181133)."),
        ("inner", "The innermost stride is not 1 (pytorch PR 187506)."),
        ("sliced", "Every second element of a buffer, with NaN between."),
        ("guarded", "NaN directly before and behind every input: a read past the end shows."),
    ):
        dtypes = ("float32", *HALVES) if layout in ("transposed", "guarded") else ("float32",)
        yield case(f"memory-{layout}", "SDPA-30", text, SMALL, memory=layout, data=numbered, dtypes=dtypes, stays=stays)
        yield case(f"memory-{layout}-tiles", "SDPA-30", f"{text[:-1]}, over several tiles.", TILES, memory=layout, stays=stays)
        yield case(f"memory-{layout}-mask", "SDPA-30 SDPA-7", f"{text[:-1]}, with a mask.", SMALL, memory=layout, mask=random_mask(0.5), stays=stays)
    yield case("memory-expanded-keys", "SDPA-30", "Keys with stride 0 along the sequence (pytorch 191937).", SMALL, memory="expanded", data=repeated_keys)
    for keys in (33, 65):
        yield case(f"memory-expanded-keys-{keys}", "SDPA-30", f"{keys} keys with stride 0, one more than a tile: the lone last key counts (pytorch 191937).", replace(TILES, sk=keys), memory="expanded", data=repeated_keys)
    yield case("memory-expanded-values", "SDPA-30", "Values with stride 0 everywhere.", SMALL, memory="expanded", data=constant_values(1.5), stays="stride 0 in v")
    yield case("memory-expanded-mask", "SDPA-30 SDPA-7", "A mask expanded from one row, with stride 0.", SMALL, memory="expanded", mask=mask_without(keys=slice(2, 4)), data=numbered, stays="stride 0 in a mask")


def _invalid() -> Iterator[Case]:
    def refused(name: str, clause: str, why: str, edit: Callable[[Inputs], Inputs], **rest: Any) -> Case:
        return case(f"invalid-{name}", clause, why, invalid=True, edit=edit, **rest)

    yield refused("lengths", "SDPA-31", "k has 7 keys, v has 6.", lambda x: replace(x, v=x.v[:, :, :-1]))
    yield refused("lengths-longer-values", "SDPA-31", "k has 6 keys, v has 7.", lambda x: replace(x, k=x.k[:, :, :-1]))
    yield refused("batch-keys", "SDPA-31", "q has a batch of 2, k and v of 3.", _more_batches)
    yield refused("batch-values", "SDPA-31", "k has a batch of 2, v of 3.", lambda x: replace(x, v=np.concatenate([x.v, x.v[:1]])))
    yield refused("widths", "SDPA-32", "q has width 8, k has 7.", lambda x: replace(x, k=x.k[..., :-1]), stays="a key that is narrower")
    yield refused("widths-query", "SDPA-32", "q has width 7, k has 8.", lambda x: replace(x, q=x.q[..., :-1]), stays="a query that is narrower")
    yield refused("heads", "SDPA-33", "3 query heads over 2.", lambda x: replace(x, q=np.concatenate([x.q, x.q[:, :1]], 1)), needs="Hkv > 1")
    yield refused("heads-fewer-queries", "SDPA-33", "2 query heads over 4.", lambda x: replace(x, k=np.repeat(x.k, 2, 1), v=np.repeat(x.v, 2, 1)), needs="group = 1")
    yield refused("heads-keys", "SDPA-33", "k has 4 heads, v has 2, under 4 query heads.", lambda x: replace(x, q=np.repeat(x.q, 2, 1), k=np.repeat(x.k, 2, 1)), needs="group = 1")
    yield refused("heads-values", "SDPA-33", "k has 2 heads, v has 4, under 4 query heads.", lambda x: replace(x, q=np.repeat(x.q, 2, 1), v=np.repeat(x.v, 2, 1)), needs="group = 1")
    yield refused("ranks", "SDPA-34", "q has rank 4, k and v have rank 3.", lambda x: replace(x, k=x.k[0], v=x.v[0]))
    yield refused("ranks-query", "SDPA-34", "q has rank 3, k and v have rank 4.", lambda x: replace(x, q=x.q[0]))
    yield refused("dtypes", "SDPA-35", "q has the dtype of the call, k and v are float64.", lambda x: replace(x, k=x.k.astype(np.float64), v=x.v.astype(np.float64)))
    yield refused("dtypes-values", "SDPA-35", "q and k have the dtype of the call, v has another one.", lambda x: replace(x, v=x.v.astype(_other_half(x.q.dtype))))
    yield refused("mask-keys", "SDPA-36", "A mask over 6 of 7 keys.", _with("mask", lambda x: np.ones_like(x.keywords["mask"][..., 1:])), mask=random_mask(0.5))
    yield refused("mask-queries", "SDPA-36", "A mask over 4 of 5 rows.", _with("mask", lambda x: np.ones_like(x.keywords["mask"][..., 1:, :])), mask=random_mask(0.5), needs="Sq > 2", stays="a mask of fewer rows")
    yield refused("mask-heads", "SDPA-36", "A mask with 3 heads for 2.", _with("mask", lambda x: np.ones((x.q.shape[0], x.q.shape[1] + 1, x.q.shape[2], x.k.shape[2]), bool)), mask=random_mask(0.5), stays="a mask of more heads")
    yield refused("mask-rank5", "SDPA-36", "A mask of rank 5.", _with("mask", lambda x: np.ones_like(x.keywords["mask"][None])), mask=random_mask(0.5))
    yield refused("bias-keys", "SDPA-36", "A bias over 6 of 7 keys.", _with("bias", lambda x: np.zeros_like(x.keywords["bias"][..., 1:])), bias=random_bias())
    yield refused("bias-larger", "SDPA-36", "A bias with a batch of 4 over a batch of 2.", _with("bias", lambda x: np.zeros_like(np.repeat(x.keywords["bias"], 2, 0))), bias=random_bias(), stays="a bias of more batches")


def poison(what: str, value: float, keys: slice) -> Callable[[Inputs], Inputs]:
    """``value`` in k, v or both, at these keys."""

    def edit(x: Inputs) -> Inputs:
        arrays = {name: getattr(x, name).copy() for name in what}
        for array in arrays.values():
            array[:, :, keys] = value
        return replace(x, **arrays)

    return edit


def _poison_bias(value: float, keys: slice) -> Callable[[Inputs], Inputs]:
    def edit(x: Inputs) -> Inputs:
        bias = x.keywords["bias"].copy()
        bias[..., keys] = value
        return replace(x, keywords={**x.keywords, "bias": bias})

    return edit


def _with(name: str, make: Callable[[Inputs], np.ndarray]) -> Callable[[Inputs], Inputs]:
    return lambda x: replace(x, keywords={**x.keywords, name: make(x)})


def _other_half(dtype: np.dtype) -> np.dtype:
    return np.dtype(ml_dtypes.bfloat16 if dtype == np.float16 else np.float16)


def _nan_query(x: Inputs) -> Inputs:
    q = x.q.copy()
    q[:, :, 2, 1] = np.nan
    return replace(x, q=q)


def _all_nan(x: Inputs) -> Inputs:
    return replace(x, q=np.full_like(x.q, np.nan))


def nan_in_column(x: Inputs) -> Inputs:
    """NaN in one column of one value."""
    v = x.v.copy()
    v[:, :, 3, 1] = np.nan
    return replace(x, v=v)


def _nan_in_second_batch(x: Inputs) -> Inputs:
    k = x.k.copy()
    k[1, :, 3] = np.nan
    return replace(x, k=k)


def _more_batches(x: Inputs) -> Inputs:
    return replace(x, k=np.concatenate([x.k, x.k[:1]]), v=np.concatenate([x.v, x.v[:1]]))
