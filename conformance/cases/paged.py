"""(PAGED-1 to 15, PAGED-19) Cases of paged caches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from attention_conformance.conformance.cases.base import ALL_DTYPES, HALVES
from attention_conformance.conformance.cases.data import stated
from attention_conformance.conformance.cases.packed import (
    Maker,
    PagedCase,
    PagedShape,
    Rng,
    new_rows,
    over_pages,
    sinks,
)

#: A chunk of a prompt, a step of decoding, a whole prompt, another step, over pages of 4.
MIXED = PagedShape()
DECODE = PagedShape(q_lengths=(1, 1, 1), k_lengths=(9, 8, 5))
HOLES = PagedShape(q_lengths=(1, 0, 2, 1, 3), k_lengths=(5, 6, 0, 9, 3))


def case(name: str, clauses: str, why: str, shape: PagedShape = MIXED, **rest: Any) -> PagedCase:
    """A case from its clauses as one text and its options as keywords, in addition to the maxima."""
    return PagedCase.of(f"paged-{name}", clauses, why, shape, shape.options | rest)


def cases() -> Iterator[PagedCase]:
    """Every case of this operator."""
    yield from _tables()
    yield from _positions()
    yield from _unused()
    yield from _sizes()
    yield from _options()
    yield from _new()
    yield from _shared_new()
    yield from _quantised()
    yield from _form()


def _tables() -> Iterator[PagedCase]:
    yield case("mixed", "PAGED-1 PAGED-2 PAGED-7", "A chunk of a prompt, two steps of decoding and a whole prompt, causal, over pages in no order.", is_causal=True, dtypes=ALL_DTYPES, stays="the plain call, in every dtype")
    yield case("decode", "PAGED-2 PAGED-1", "One query each.", DECODE, dtypes=("float32", *HALVES), stays="a step of decoding, without a mask")
    yield case("shared", "PAGED-2", "All sequences begin with the same two pages.", replace(MIXED, q_lengths=(3, 1, 2, 1), k_lengths=(9, 14, 11, 8), shared=2), is_causal=True, stays="pages of several sequences")
    yield case("whole-pages", "PAGED-1", "Lengths that fill their pages: there is no slot left.", replace(DECODE, k_lengths=(8, 4, 12)), is_causal=True, stays="a last page that is full")
    yield case("one-key-over", "PAGED-1", "Lengths of one key more than whole pages.", replace(DECODE, k_lengths=(9, 5, 13)), is_causal=True, stays="a last page of one key")
    yield case("widths", "PAGED-1 PAGED-2", "Dv = 12 with D = 8.", replace(MIXED, dv=12), stays="Dv ≠ D")
    yield case("lse", "PAGED-10 PAGED-2", "The lse, (Hq, Tq).", is_causal=True, return_lse=True, dtypes=("float32", *HALVES), stays="an lse and nothing else")


def _positions() -> Iterator[PagedCase]:
    yield case("chunk", "PAGED-3", "The third chunk of a prompt: five queries over 21 keys, causal.", replace(MIXED, q_lengths=(5, 4), k_lengths=(21, 12)), is_causal=True, dtypes=("float32", *HALVES), stays="a chunk in the middle of a prompt")
    yield case("more-queries", "PAGED-3 PAGED-7", "More queries than keys: the first rows have none.", replace(MIXED, q_lengths=(5, 2), k_lengths=(3, 9)), is_causal=True, return_lse=True)
    yield case("top-left", "PAGED-3", "causal_offset = 0, given.", is_causal=True, causal_offset=0)
    yield case("offsets", "PAGED-3", "An offset for each sequence.", is_causal=True, causal_offset=stated(4, 9, 1, 2))
    yield case("window", "PAGED-8 PAGED-3", "Causal with five keys to the left: whole pages are out of sight.", replace(MIXED, k_lengths=(19, 14, 7, 23)), is_causal=True, window=(5, None), dtypes=("float32", *HALVES), stays="a window over pages in half precision")
    yield case("window-decode", "PAGED-8 PAGED-3", "One query each and three keys to the left.", replace(DECODE, k_lengths=(9, 18, 5)), window=(3, 0))


def _unused() -> Iterator[PagedCase]:
    yield case("padding", "PAGED-4", "−1 behind the last page in the table.", replace(MIXED, padding=-1), is_causal=True, return_lse=True, stays="the padding that engines write")
    yield case("padding-beyond", "PAGED-4", "Entries behind the last page that are far beyond the cache.", replace(MIXED, padding=2**31 - 1), stays="an entry that is dereferenced ends the process")
    yield case("slots", "PAGED-4", "Unused slots hold numbers of 10,000.", edit=_fill_unused(1e4), stays="what was there before, in numbers")
    yield case("slots-decode", "PAGED-4", "The same with one query each, causal.", DECODE, edit=_fill_unused(1e4), is_causal=True, return_lse=True, stays="what was there before, in numbers")
    yield case("slots-nan", "PAGED-5", "NaN in unused slots and pages.", edit=_fill_unused(np.nan), stays="what engines that clear nothing need")
    yield case("slots-inf", "PAGED-5", "Infinities there, with one query each.", DECODE, edit=_fill_unused(np.inf), is_causal=True, stays="what engines that clear nothing need")
    yield case("empty", "PAGED-7", "A sequence without queries, and one without keys: zeros, and −inf.", HOLES, is_causal=True, return_lse=True, dtypes=("float32", *HALVES), stays="sequences without queries or keys, in half precision")
    yield case("empty-first", "PAGED-7", "The first sequence has no keys, and its row of the table is all junk.", replace(DECODE, k_lengths=(0, 5, 7)), stays="a sequence without a page at the start")
    yield case("empty-all", "PAGED-7", "No sequence has a key.", replace(DECODE, k_lengths=(0, 0, 0)), zeros=True)
    yield case("maxima", "PAGED-8 PAGED-4", "Maxima of 64 over lengths of up to 14.", is_causal=True, max_seqlen_q=64, max_seqlen_k=64, stays="maxima that are no sequence's")
    yield case("maxima-decode", "PAGED-8 PAGED-4", "The same with one query each, and an lse.", DECODE, max_seqlen_q=64, max_seqlen_k=64, return_lse=True, stays="maxima that are no sequence's")


def _sizes() -> Iterator[PagedCase]:
    for page in (1, 16, 17, 64, 128, 256):
        lengths = (2 * page + 3, page, page // 2 + 1, page + 1)
        shape = replace(MIXED, k_lengths=lengths, q_lengths=(3, 1, 1, 2), page=page, unused=3)
        yield case(f"page-{page}", "PAGED-6 PAGED-2", f"Pages of {page}.", shape, is_causal=True, dtypes=("float32", *HALVES), stays="a page size that engines have")
    yield case("page-17-decode", "PAGED-6 PAGED-2", "Pages of 17, one query each, with an lse.", replace(DECODE, k_lengths=(40, 17, 36), page=17), return_lse=True)
    yield case("page-256-window", "PAGED-6 PAGED-8", "Pages of 256 with 200 keys to the left.", replace(MIXED, q_lengths=(3, 1), k_lengths=(700, 300), page=256, unused=2), is_causal=True, window=(200, None), return_lse=True)
    yield case("many-blocks", "PAGED-6", "65,600 pages of one key: block numbers beyond 2¹⁶.", PagedShape((2, 3, 2), (5, 7, 3), hq=1, hkv=1, d=2, dv=2, page=1, unused=65600), data=_plain)
    yield case("many-blocks-causal", "PAGED-6", "The same with 40 sequences, causal.", PagedShape((1, 2) * 20, (5, 7) * 20, hq=1, hkv=1, d=2, dv=2, page=1, unused=65600), data=_plain, is_causal=True)
    yield case("long", "PAGED-6 PAGED-9", "A context of 1,500 keys in pages of 16 next to short ones.", replace(MIXED, q_lengths=(1, 2, 1), k_lengths=(1500, 40, 3), page=16), is_causal=True, dtypes=("float32", *HALVES), stays="many pages")
    yield case("accuracy", "PAGED-9", "A short context next to one of 600 keys: each has its own bound.", replace(MIXED, q_lengths=(2, 2), k_lengths=(600, 3), page=16), dtypes=("float32", "float64"), stays="a bound for each sequence")
    for width in (64, 128):
        wide = replace(MIXED, q_lengths=(17, 1, 1, 64), k_lengths=(80, 129, 1, 64), hq=2, hkv=1, d=width, dv=width, page=16)
        yield case(f"width-{width}", "PAGED-2 PAGED-8", f"Heads of {width}, two over one, causal, in half precision.", wide, dtypes=HALVES, is_causal=True, stays="the width of kernels that ship, without an envelope")


def _options() -> Iterator[PagedCase]:
    yield case("scale", "PAGED-8", "scale = 0.7.", scale=0.7, stays="a scale and nothing else")
    yield case("softcap", "PAGED-8", "softcap = 3, on scores of tens.", data=_large_scores, softcap=3.0)
    yield case("softcap-decode", "PAGED-8", "The same with one query each, causal.", DECODE, data=_large_scores, softcap=3.0, is_causal=True)
    yield case("sinks", "PAGED-8", "A sink per head.", sinks=sinks, is_causal=True, return_lse=True)
    yield case("sinks-decode", "PAGED-8 PAGED-7", "Sinks of six heads over two, one query each, and a sequence without keys.", replace(DECODE, k_lengths=(9, 0, 5), hq=6), sinks=sinks, return_lse=True)
    yield case("grouped", "PAGED-8 PAGED-2", "Six query heads over two key heads.", replace(MIXED, hq=6), is_causal=True, dtypes=("float32", *HALVES), stays="grouped heads in half precision")
    yield case("grouped-one", "PAGED-8", "Four query heads over one, one query each.", replace(DECODE, hq=4, hkv=1), stays="the group of a step of decoding")


def _new() -> Iterator[PagedCase]:
    yield case("new", "PAGED-11", "The new keys of a mixed batch; their slots hold old ones.", is_causal=True, k_new=new_rows("d"), v_new=new_rows("dv"), dtypes=("float32", *HALVES), stays="new keys without shared pages")
    yield case("new-decode", "PAGED-11", "One new key each; one begins a page.", DECODE, k_new=new_rows("d"), v_new=new_rows("dv"), stays="new keys of decoding without shared pages")
    yield case("new-window", "PAGED-11 PAGED-8", "New keys, two keys to the left.", k_new=new_rows("d"), v_new=new_rows("dv"), is_causal=True, window=(2, None), return_lse=True)


def _shared_new() -> Iterator[PagedCase]:
    new: dict[str, Any] = {"k_new": new_rows("d"), "v_new": new_rows("dv")}
    branched = replace(MIXED, q_lengths=(3, 1, 2, 1), k_lengths=(9, 14, 7, 6), shared=1)
    yield case("shared-new", "PAGED-19 PAGED-11", "One page that all share, and new keys in the pages of each, causal.", branched, is_causal=True, dtypes=("float32", *HALVES), **new)
    yield case("shared-new-plain", "PAGED-19 PAGED-11", "The same without a mask, with an lse.", branched, return_lse=True, **new)
    yield case("shared-new-decode", "PAGED-19 PAGED-11", "One new key each behind a shared page; the last one begins a page.", replace(DECODE, k_lengths=(10, 8, 5), shared=1), is_causal=True, return_lse=True, dtypes=("float32", *HALVES), **new)
    yield case("shared-new-decode-two", "PAGED-19 PAGED-11", "One new key each behind two shared pages.", replace(DECODE, k_lengths=(11, 14, 9), shared=2), is_causal=True, **new, stays="decoding behind shared pages")
    yield case("shared-new-grouped", "PAGED-19 PAGED-8", "Six query heads over two key heads.", replace(branched, hq=6), is_causal=True, **new, stays="grouped heads behind shared pages")
    yield case("shared-new-grouped-one", "PAGED-19 PAGED-8", "Four query heads over one, one new key each.", replace(DECODE, q_lengths=(1, 1), k_lengths=(7, 6), hq=4, hkv=1, shared=1), is_causal=True, **new)


def _quantised() -> Iterator[PagedCase]:
    def stored(
        name: str, why: str, form: str, per: str, shape: PagedShape = MIXED, *, clauses: str = "PAGED-14", **rest: Any
    ) -> PagedCase:
        return case(name, clauses, why, shape, stored=form, **scales(per, form), **{"edit": stored_as(form), **rest})

    def quantised(name: str, *rest: Any, **options: Any) -> PagedCase:
        return stored(f"quantised-{name}", *rest, **options)

    for per, what in PER.items():
        yield quantised(f"int8-{per}", f"Keys and values in int8, a scale for {what}.", "int8", per, replace(MIXED, unused=7), is_causal=True, dtypes=("float32", *HALVES), stays="a kind of scale that engines have")
    for form in ("float8_e4m3fn", "float8_e5m2"):
        for per in ("tensor", "head"):
            yield quantised(f"{form[7:]}-{per}", f"Keys and values in {form}, a scale for {PER[per]}.", form, per, is_causal=True, dtypes=("float32", *HALVES), stays="a format of caches that engines have")
    yield quantised("e4m3fn-token-decode", "One query each, a scale for each token.", "float8_e4m3fn", "token", DECODE, return_lse=True, stays="a step of decoding over a quantised cache")
    yield quantised("int8-token-head", "A scale for each token and head, grouped heads, pages of 16.", "int8", "token_head", replace(MIXED, hq=6, k_lengths=(40, 17, 7, 33), page=16), is_causal=True, dtypes=("float32", *HALVES), stays="the scales of per-token-head caches")
    yield quantised("e4m3fn-token-head-decode", "A scale for each token and head in float8_e4m3fn, grouped heads, one query each.", "float8_e4m3fn", "token_head", replace(DECODE, hq=4), return_lse=True)
    yield quantised("int8-page-shared", "A scale for each page, pages that all share.", "int8", "page", replace(MIXED, q_lengths=(3, 1, 2, 1), k_lengths=(9, 14, 11, 8), shared=2), is_causal=True)
    yield quantised("e4m3fn-head-shared", "One query each, two pages that all share, a scale for each head.", "float8_e4m3fn", "head", replace(DECODE, k_lengths=(11, 14, 9), shared=2), is_causal=True)
    yield quantised("int8-head-empty", "A sequence without queries, and one without keys.", "int8", "head", HOLES, is_causal=True, return_lse=True, stays="nothing to dequantise")
    yield quantised("e4m3fn-head-window", "Causal with five keys to the left.", "float8_e4m3fn", "head", replace(MIXED, k_lengths=(19, 14, 7, 23)), is_causal=True, window=(5, None), stays="a window over a quantised cache")
    yield quantised("int8-head-softcap", "softcap = 3, on scores of tens.", "int8", "head", data=_large_scores, softcap=3.0, stays="a softcap over a quantised cache")
    yield quantised("e4m3fn-head-sinks", "A sink per head.", "float8_e4m3fn", "head", sinks=sinks, is_causal=True, return_lse=True, stays="sinks over a quantised cache")
    yield quantised("int8-head-memory", "Every second element of wider buffers, scales too.", "int8", "head", memory="sliced", stays="strided scales")
    yield quantised("e4m3fn-head-width-128", "Heads of 128, two over one, causal, in half precision.", "float8_e4m3fn", "head", replace(MIXED, q_lengths=(17, 1, 1, 64), k_lengths=(80, 129, 1, 64), hq=4, d=128, dv=128, page=16), is_causal=True, dtypes=HALVES, stays="the width of kernels that ship")
    yield quantised("accuracy", "A context of 600 keys in int8, a scale for each token.", "int8", "token", replace(MIXED, q_lengths=(2, 2), k_lengths=(600, 3), page=16), clauses="PAGED-15 PAGED-14", dtypes=("float32", "float64"), stays="a bound for dequantised values")
    for name, per, axis in (("scale", "head", 2), ("scale-pages", "page", 0)):
        yield stored(f"invalid-{name}", f"A scale more than there are: for {PER[per]} and another.", "int8", per, edit=_one_scale_more(axis), invalid=True, stays="an input that must be refused")
    alone: dict[str, Any] = {"k_scale": scales("tensor", "int8")["k_scale"]}
    yield case("invalid-scale-alone", "PAGED-14", "Keys in int8 with their scale, values without one.", edit=_keys_scaled_alone, **alone, invalid=True, stays="an input that must be refused")


def _form() -> Iterator[PagedCase]:
    yield case("repeat", "SDPA-29", "Five equal calls.", repeats=5, is_causal=True, stays="equal calls")
    yield case("memory-sliced", "SDPA-30", "Every second element of wider buffers.", memory="sliced", stays="strides of caches and tables")

    def refused(name: str, why: str, edit: Callable[[Any], Any]) -> PagedCase:
        return case(f"invalid-{name}", "PAGED-12", why, edit=edit, invalid=True, stays="an input that must be refused")

    yield refused("pages", "Keys of 16 pages, values of one less.", lambda x: replace(x, v_cache=x.v_cache[:-1]))
    yield refused("lengths", "Four sequences, and lengths of three.", lambda x: replace(x, kv_lengths=x.kv_lengths[:-1]))
    yield refused("table", "Four sequences, and a table of three.", lambda x: replace(x, block_table=x.block_table[:-1]))
    yield refused("width", "q is 8 wide and the keys 7.", lambda x: replace(x, k_cache=x.k_cache[..., :7]))


#: Parts of a cache that may have a scale each (PAGED-14), and the axes (pages, slots, heads, columns) of the scales.
PER = {"tensor": "everything", "head": "each key head", "token": "each token", "channel": "each channel", "page": "each page"}
_AXES = {"tensor": "", "head": "2", "token": "01", "channel": "3", "page": "0", "token_head": "012"}

#: Scales with which normal numbers fill a format without overflow, its largest number, and for a floating-point format
#: the bits of its fraction and its smallest exponent.
_FORMS = {
    "int8": (1 / 24, 127.0, 0, 0),
    "float8_e4m3fn": (1 / 32, 448.0, 3, -6),
    "float8_e5m2": (1 / 64, 57344.0, 2, -14),
}


def scales(per: str, form: str) -> dict[str, Maker]:
    """The scales of both caches; those of values are smaller, so that swapping them shows."""
    return {"k_scale": scales_per(per, form, "d", 1.0), "v_scale": scales_per(per, form, "dv", 0.6)}


def scales_per(per: str, form: str, width: str, size: float) -> Maker:
    """Scales in float32 that differ by up to a factor of three, including those of unused slots."""

    def make(rng: Rng, s: Any, dtype: np.dtype) -> np.ndarray:
        full = (s.pages, s.page, s.hkv, getattr(s, width))
        shape = tuple(n if str(axis) in _AXES[per] else 1 for axis, n in enumerate(full))
        return (size * _FORMS[form][0] * rng.uniform(0.6, 1.8, shape)).astype(np.float32)

    return make


def stored_as(form: str) -> Callable[[Any], Any]:
    """An edit that quantises both caches to the numbers of a format, with the scales of the call.

    Numbers of int8 are stored as int8, others as float32.  They are made from numbers that are rounded to bfloat16, so
    that they are the same in every dtype.
    """

    def edit(x: Any) -> Any:
        _, largest, bits, least = _FORMS[form]
        caches = {}
        for name in ("k", "v"):
            numbers = _on_grid(getattr(x, f"{name}_cache").astype(np.float32), 7, -126) / x.keywords[f"{name}_scale"]
            numbers = np.clip(np.rint(numbers) if form == "int8" else _on_grid(numbers, bits, least), -largest, largest)
            caches[f"{name}_cache"] = numbers.astype(np.int8 if form == "int8" else np.float32)
        return replace(x, **caches)

    return edit


def _on_grid(numbers: np.ndarray, bits: int, least: int) -> np.ndarray:
    """The nearest numbers with a fraction of some bits, and exponents from ``least`` on."""
    step = np.exp2(np.maximum(np.frexp(numbers)[1] - 1, least) - bits).astype(np.float32)
    return np.rint(numbers / step) * step


def _one_scale_more(axis: int) -> Callable[[Any], Any]:
    """An edit that stores the caches in int8, and gives the scales one more entry along an axis."""

    def edit(x: Any) -> Any:
        x = stored_as("int8")(x)
        more = {n: np.concatenate([each := x.keywords[n], each.take([0], axis)], axis) for n in ("k_scale", "v_scale")}
        return replace(x, keywords=x.keywords | more)

    return edit


def _keys_scaled_alone(x: Any) -> Any:
    """Both caches in int8 with the scale of the keys; only that scale is given."""
    both = stored_as("int8")(replace(x, keywords={"k_scale": x.keywords["k_scale"], "v_scale": x.keywords["k_scale"]}))
    return replace(both, keywords=x.keywords)


def _large_scores(rng: Rng, s: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    q, k, v = over_pages(rng, s)
    return 2 * q, k, v


def _plain(rng: Rng, s: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Normal numbers, for caches that are too large for anything else."""
    k, v = (rng.standard_normal((s.pages, s.page, s.hkv, width)) for width in (s.d, s.dv))
    return rng.standard_normal((sum(s.q_lengths), s.hq, s.d)), k, v


def _fill_unused(value: float) -> Callable[[Any], Any]:
    """An edit that writes a number to every slot that no sequence uses."""

    def edit(x: Any) -> Any:
        size = x.k_cache.shape[1]
        used = np.zeros(x.k_cache.shape[:2], bool)
        for row, length in zip(x.block_table, x.kv_lengths.tolist(), strict=True):
            j = np.arange(length)
            used[row[j // size], j % size] = True
        caches = [np.where(used[..., None, None], a, a.dtype.type(value)) for a in (x.k_cache, x.v_cache)]
        return replace(x, k_cache=caches[0], v_cache=caches[1])

    return edit
