"""(DEC-1 to 7) Cases of decoding: past keys and values, and caches of fixed size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

from attention_conformance.conformance.cases.base import ALL_DTYPES, HALVES, Case, case
from attention_conformance.conformance.cases.data import (
    GROUPED,
    LONG,
    ONE_QUERY,
    SMALL,
    TILES,
    Shape,
    ends,
    lengths,
    mask_without,
    numbered,
    peak,
    random_bias,
    random_mask,
)
from attention_conformance.conformance.cases.sinks import per_head
from attention_conformance.conformance.spec.inputs import Inputs

#: A step of one token, and one of three, over a past of six and of four keys.
STEP, STEPS = ONE_QUERY, replace(SMALL, sq=3)
#: The steps of a sequence of seven tokens: new tokens, and tokens before them.
SEQUENCE = ((3, 0), (1, 3), (2, 4), (1, 6))


def cases() -> Iterator[Case]:
    """Every case of this group."""
    yield from _past()
    yield from _options()
    yield from _fixed()
    yield from _sequence()
    yield from _invalid()


def _past() -> Iterator[Case]:
    one: dict[str, Any] = {"data": numbered, "is_causal": True}
    yield case("decode-one", "DEC-1 DEC-2 DEC-3", "One new token and six past ones: it sees all seven keys.", STEP, past=6, dtypes=ALL_DTYPES, **one)
    yield case("decode-several", "DEC-2 DEC-3", "Three new tokens: the diagonal begins behind the past, at key four.", STEPS, past=4, dtypes=("float32", *HALVES), stays="the plainest step of several tokens, in half precision too", **one, needs="Sq > 1")
    yield case("decode-several-one-batch", "DEC-2 DEC-3", "Three new tokens in a batch of one, which has a kernel of its own.", replace(GROUPED, b=1, sq=3), past=4, dtypes=("float32", *HALVES), **one)
    yield case("decode-more-queries", "DEC-2", "Three queries and two new keys: the offset is the number of past keys, not Sk − Sq.", STEPS, past=5, **one)
    yield case("decode-fewer-queries", "DEC-2", "One query and two new keys: it stands at the first of them.", STEP, past=5, **one)
    yield case("decode-not-causal", "DEC-1 DEC-3", "Without is_causal every row sees every key.", STEPS, past=4, data=numbered, dtypes=("float32", *HALVES), stays="a past without causal")
    yield case("decode-grouped", "DEC-1 DEC-3 SDPA-17", "Grouped heads: the present has one head per key/value head.", replace(GROUPED, sq=1), past=6, dtypes=("float32", *HALVES), stays="the step of most models, in half precision too", **one)
    yield case("decode-grouped-several", "DEC-2 SDPA-17", "Three new tokens with grouped heads.", replace(GROUPED, sq=3), past=4, stays="several tokens with grouped heads in a batch", **one)
    yield case("decode-multi-query", "DEC-1 SDPA-17", "One key/value head for four query heads.", replace(GROUPED, sq=1, hkv=1), past=6, **one)
    yield case("decode-width-64", "DEC-1 DEC-2", "One new token, heads of 64, the width of most models.", replace(STEP, d=64, dv=64), past=6, stays="the head width of most models", **one)
    yield case("decode-values-wider", "DEC-1 DEC-3 SDPA-1", "Values of another width than the keys.", replace(STEPS, dv=12), past=4, **one)
    yield case("decode-empty-past", "DEC-1 DEC-3", "A past without keys: the first step, with the code of the others.", replace(STEPS, sk=3), past=0, **one)
    yield case("decode-one-past", "DEC-2", "One past key.", replace(STEPS, sk=4), past=1, **one)
    yield case("decode-no-new-key", "DEC-1 DEC-2", "No new key: every row sees the whole past.", STEPS, past=7, **one)
    yield case("decode-tiles", "DEC-2", "Seventeen new tokens over 48 past ones: the diagonal crosses tiles, and the border lies within one.", TILES, past=48, dtypes=("float32", *HALVES), **one)
    yield case("decode-one-tiles", "DEC-1", "One new token behind a past of 64, the length of a tile.", replace(TILES, sq=1), past=64, dtypes=("float32", *HALVES), **one)
    yield case("decode-last-tile", "DEC-1", "The largest score at the new key, alone in its tile.", replace(TILES, sq=1), past=64, is_causal=True, data=peak(-1))
    yield case("decode-long", "DEC-1 DEC-2", "One new token behind 519, the largest score at past key 257: bfloat16 takes it for key 256.", replace(LONG, sq=1), past=519, is_causal=True, data=peak(257), dtypes=("float32", "bfloat16"), stays="more keys than bfloat16 can count")
    yield case("decode-past-transposed", "DEC-3 SDPA-30", "The past as a view of (B, S, H, D), as a cache is often kept.", STEPS, past=4, memory="transposed", **one)
    yield case("decode-past-kept", "DEC-6", "Two calls with one past: a cache that is written in place gives another result.", STEPS, past=4, repeats=2, **one)


def _options() -> Iterator[Case]:
    one: dict[str, Any] = {"past": 4, "data": numbered}
    causal = {**one, "is_causal": True}
    yield case("decode-window", "DEC-2 SDPA-11", "(2, 0): the third key before a new token is the last one that it sees, past or new.", STEPS, window=(2, 0), dtypes=("float32", *HALVES), stays="a window that begins in the past", **causal)
    yield case("decode-window-one", "DEC-2 SDPA-11", "One token and a window of four keys over six past ones.", STEP, window=(3, 0), past=6, is_causal=True, data=numbered)
    yield case("decode-window-grouped", "DEC-2 SDPA-11 SDPA-17", "A window with grouped heads.", replace(GROUPED, sq=1), window=(2, 0), past=6, is_causal=True, data=numbered)
    yield case("decode-window-wide", "DEC-2 SDPA-11", "A window longer than past and new keys.", STEPS, window=_wide, stays="a window longer than all keys", **causal)
    yield case("decode-window-both", "DEC-2 SDPA-11", "(2, 1) without causal follows the shifted diagonal too.", STEPS, window=(2, 1), **one)
    yield case("decode-window-tiles", "DEC-2 SDPA-11", "(16, 0) over several tiles: the first ones are outside.", TILES, past=48, window=(16, 0), is_causal=True, data=numbered)
    yield case("decode-offset", "DEC-2 SDPA-10", "An offset that is given takes the place of P.", STEPS, causal_offset=1, stays="an offset given beside a past", **causal)
    yield case("decode-offset-zero", "DEC-2 SDPA-10", "An offset of 0, given, is not \"none\".", STEPS, causal_offset=0, stays="a value that is easily taken for none", **causal)
    yield case("decode-offset-per-batch", "DEC-2 SDPA-10", "One offset per batch.", STEPS, causal_offset=lengths(4, 2), stays="ragged offsets beside a past", **causal, needs="B > 1")
    yield case("decode-mask", "DEC-1 SDPA-7", "A mask over past and new keys.", STEPS, mask=random_mask(0.6), **one)
    yield case("decode-mask-causal", "DEC-1 DEC-2 SDPA-13", "A mask over all keys, and causal.", STEPS, mask=random_mask(0.6), **causal)
    yield case("decode-left-padding", "DEC-1 SDPA-8", "A mask per batch that leaves out the first past keys of one: sequences of two lengths, padded at the left.", STEP, past=6, is_causal=True, mask=_without_first_keys, data=numbered, dtypes=("float32", *HALVES), needs="B > 1")
    yield case("decode-past-masked", "DEC-3 SDPA-15", "Every key is masked for one batch: zeros there, and the present is whole.", STEP, past=6, mask=mask_without(batch=slice(0, 1)), data=numbered, needs="B > 1")
    yield case("decode-bias", "DEC-1 SDPA-6", "A bias over past and new keys.", STEPS, bias=random_bias(2.0), dtypes=("float32", *HALVES), **causal)
    yield case("decode-bias-one", "DEC-1 SDPA-6", "A bias per head and key, as of ALiBi, for one new token.", replace(GROUPED, sq=1), past=6, bias=random_bias(2.0, (1, None, 1, None)), is_causal=True, data=numbered)
    yield case("decode-lengths", "DEC-1 SDPA-12", "Lengths count past and new keys: all seven, and six.", STEPS, kv_lengths=lengths(7, 6, of=7), **one)
    yield case("decode-lengths-short", "DEC-1 SDPA-12", "A length within the past: no new key for that batch.", STEP, past=6, kv_lengths=lengths(7, 3, of=7), data=numbered)
    yield case("decode-softcap", "DEC-1 SDPA-5", "A softcap.", STEPS, softcap=2.0, **causal)
    yield case("decode-scale-zero", "DEC-1 SDPA-4", "scale = 0, given, is not \"none\".", replace(GROUPED, sq=1), scale=0.0, past=6, is_causal=True, data=numbered)
    yield case("decode-sinks", "DEC-1 SDPA-38", "Sinks with a window over a past, as gpt-oss decodes.", replace(GROUPED, sq=1), past=6, is_causal=True, window=(3, 0), sinks=per_head(1.0), data=numbered)
    yield case("decode-results", "DEC-3 SDPA-18 SDPA-19", "All results: output, weights, lse, then the present.", STEPS, return_weights=True, return_lse=True, **causal)
    yield case("decode-weights", "DEC-3 SDPA-18", "Weights over past and new keys, and the present behind them.", STEPS, return_weights=True, **causal)
    yield case("decode-lse", "DEC-3 SDPA-19", "The present comes behind lse.", STEPS, return_lse=True, **causal)


def _fixed() -> Iterator[Case]:
    one: dict[str, Any] = {"data": numbered, "is_causal": True}
    yield case("decode-fixed-one", "DEC-5", "One token each, at the end of five and of two keys of a cache of seven.", STEP, kv_lengths=lengths(5, 2, of=7), causal_offset=ends(5, 2, of=7), dtypes=("float32", *HALVES), stays="the plainest step over a cache of fixed size", **one)
    yield case("decode-fixed-several", "DEC-5", "Three tokens each, at the end of seven and of four keys.", STEPS, kv_lengths=lengths(7, 4, of=7), causal_offset=ends(7, 4, of=7), dtypes=("float32", *HALVES), **one)
    yield case("decode-fixed-first", "DEC-5", "The first step of one sequence next to a later one of the other.", STEPS, kv_lengths=lengths(3, 6, of=7), causal_offset=ends(3, 6, of=7), **one)
    yield case("decode-fixed-grouped", "DEC-5 SDPA-17", "Grouped heads.", replace(GROUPED, sq=1), kv_lengths=lengths(3, 6, of=7), causal_offset=ends(3, 6, of=7), **one)
    yield case("decode-fixed-window", "DEC-5 SDPA-11", "A window at the end of each sequence.", STEPS, kv_lengths=lengths(7, 5, of=7), causal_offset=ends(7, 5, of=7), window=(2, 0), stays="a window at the end of ragged sequences", **one)
    yield case("decode-fixed-short", "DEC-5 SDPA-15", "Fewer valid keys than new tokens: the rows before the first key are empty.", STEPS, kv_lengths=lengths(7, 2, of=7), causal_offset=ends(7, 2, of=7), needs="Sq > 2", **one)
    yield case("decode-fixed-empty", "DEC-5 SDPA-15", "A sequence without a key, as a slot of a batch that is not in use.", STEP, kv_lengths=lengths(5, 0, of=7), causal_offset=ends(5, 0, of=7), **one, needs="B > 1")
    yield case("decode-fixed-tiles", "DEC-5", "Seventeen tokens at the end of 60 of 65 keys.", TILES, kv_lengths=lengths(60, of=65), causal_offset=ends(60, of=65), stays="a cache of several tiles", **one)
    yield case("decode-fixed-garbage", "DEC-5 SDPA-21", "Large numbers behind the valid keys have no effect.", STEP, kv_lengths=lengths(5, 2, of=7), causal_offset=ends(5, 2, of=7), edit=_large_behind, **one)


def _sequence() -> Iterator[Case]:
    """One sequence in steps, all with the same numbers: those of ``decode-sequence``."""
    shape = replace(GROUPED, sq=7, sk=7)
    yield case("decode-sequence", "DEC-4", "Seven tokens at once, which the neighbouring cases take in steps.", shape, data=_same_sequence, is_causal=True, stays="the sequence that the steps are compared with", needs="Sq = 7, Sk = 7")
    for new, before in SEQUENCE:
        name = f"decode-sequence-{before}-{before + new}"
        yield case(name, "DEC-4", f"Tokens {before} to {before + new - 1} of the sequence, {before} past ones.", replace(shape, sq=new, sk=before + new), past=before, data=_same_sequence, is_causal=True, stays="one of the steps", needs=f"Sq = {new}, Sk = {before + new}")
    yield case("decode-sequence-window", "DEC-4 SDPA-11", "The sequence at once in a window of three keys.", shape, data=_same_sequence, is_causal=True, window=(2, 0), stays="the sequence that the windowed step is compared with", needs="Sq = 7, Sk = 7")
    yield case("decode-sequence-window-4-6", "DEC-4 SDPA-11", "Tokens 4 and 5 of it, four past ones.", replace(shape, sq=2, sk=6), past=4, data=_same_sequence, is_causal=True, window=(2, 0), needs="Sq = 2, Sk = 6")


def _invalid() -> Iterator[Case]:
    wrong: dict[str, Any] = {"past": 4, "invalid": True, "data": numbered}
    yield case("decode-invalid-lengths", "DEC-7", "Past keys and values differ in length.", STEPS, edit=_past_with("past_value", lambda a: a[:, :, 1:]), **wrong)
    yield case("decode-invalid-fewer-keys", "DEC-7", "Fewer past keys than values, in a step of one token.", STEP, edit=_past_with("past_key", lambda a: a[:, :, 1:]), **wrong)
    yield case("decode-invalid-width", "DEC-7", "Past keys are narrower than the new ones.", STEPS, edit=_past_with("past_key", lambda a: a[..., 1:]), stays="one way not to fit", **wrong)
    yield case("decode-invalid-heads", "DEC-7", "The past has one head for each query head, the new keys have fewer.", replace(GROUPED, sq=3), edit=_past_with("both", lambda a: np.repeat(a, 2, 1)), stays="one way not to fit", **wrong)
    yield case("decode-invalid-batch", "DEC-7", "The past has another batch.", STEPS, edit=_past_with("both", lambda a: a[:1]), stays="one way not to fit", **wrong, needs="B > 1")
    yield case("decode-invalid-dtype-narrower", "DEC-7", "The past is narrower than the new keys.", STEPS, edit=_past_with("both", _narrower), **wrong)
    yield case("decode-invalid-dtype", "DEC-7", "The past is wider than the new keys.", STEPS, edit=_past_with("both", lambda a: a.astype(np.float64)), **wrong)


def _without_first_keys(rng: np.random.Generator, s: Shape, dtype: np.dtype) -> np.ndarray:
    """(B, 1, 1, Sk): batch 0 whole, the others without their first two keys."""
    mask = np.ones((s.b, 1, 1, s.sk), bool)
    mask[1:, ..., :2] = False
    return mask


def _large_behind(inputs: Inputs) -> Inputs:
    k, v = inputs.k.copy(), inputs.v.copy()
    for batch, length in enumerate(inputs.keywords["kv_lengths"]):
        k[batch, :, length:] = v[batch, :, length:] = 1000.0
    return replace(inputs, k=k, v=v)


def _wide(rng: np.random.Generator, s: Shape, dtype: np.dtype) -> tuple[int, int]:
    return (s.sk + 93, 0)


def _same_sequence(rng: np.random.Generator, s: Shape) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The last Sq queries, and all keys and values, of the first Sk tokens of one sequence of seven."""
    q, k, v = numbered(np.random.default_rng(7), replace(s, sq=7, sk=7))
    return q[:, :, s.sk - s.sq : s.sk], k[:, :, : s.sk], v[:, :, : s.sk]


def _narrower(a: np.ndarray) -> np.ndarray:
    return a.astype(ml_dtypes.bfloat16 if a.dtype == np.float16 else np.float16)


def _past_with(which: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Inputs], Inputs]:
    """Change ``past_key``, ``past_value`` or both."""
    names = ("past_key", "past_value") if which == "both" else (which,)

    def edit(inputs: Inputs) -> Inputs:
        return replace(inputs, keywords={**inputs.keywords, **{name: change(inputs.keywords[name]) for name in names}})

    return edit
