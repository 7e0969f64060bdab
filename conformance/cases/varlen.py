"""(VARLEN-1 to 11, VARLEN-16) Cases of packed sequences."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from attention_conformance.conformance.cases.base import ALL_DTYPES, HALVES
from attention_conformance.conformance.cases.data import random_bias, stated
from attention_conformance.conformance.cases.packed import Maker, PackedCase, PackedShape, Rng, across, sinks

SELF = PackedShape()
#: Fewer queries than keys, as when new tokens of a context are added; more; and as many.
CROSS = PackedShape(q_lengths=(3, 1, 6, 4), k_lengths=(9, 7, 6, 10))
BOTH = PackedShape(q_lengths=(3, 8, 5, 6), k_lengths=(9, 2, 5, 7))
#: One token each, over contexts of several lengths: a step of decoding.
ONE = PackedShape(q_lengths=(1, 1, 1, 1), k_lengths=(6, 1, 9, 4))
HOLES = PackedShape(q_lengths=(3, 4, 0, 2, 0, 5), k_lengths=(4, 0, 5, 6, 0, 3))
#: Tiles of 16, 32, 64 and 128 rows or keys cross every boundary.
EDGES = PackedShape(q_lengths=(17, 1, 64, 31, 66), k_lengths=(33, 65, 64, 15, 130), d=16, dv=16)


def case(name: str, clauses: str, why: str, shape: PackedShape = SELF, **rest: Any) -> PackedCase:
    """A case from its clauses as one text and its options as keywords, in addition to the maxima."""
    return PackedCase.of(f"varlen-{name}", clauses, why, shape, shape.options | rest)


def cases() -> Iterator[PackedCase]:
    """Every case of this operator."""
    yield from _packs()
    yield from _positions()
    yield from _empty()
    yield from _options()
    yield from _biases()
    yield from _others()
    yield from _large()
    yield from _form()


def _packs() -> Iterator[PackedCase]:
    yield case("self", "VARLEN-2 VARLEN-1 VARLEN-9", "Three sequences of 5, 7 and 3 tokens over themselves.", dtypes=ALL_DTYPES, stays="the plain call, in every dtype")
    yield case("cross", "VARLEN-2 VARLEN-1", "Four sequences with other lengths of queries and of keys.", CROSS, dtypes=ALL_DTYPES, stays="other lengths of queries and keys, in every dtype")
    yield case("widths", "VARLEN-1 VARLEN-2", "Dv = 12 with D = 8: the output is as wide as v.", replace(CROSS, dv=12), stays="Dv ≠ D")
    yield case("widths-narrow", "VARLEN-1 VARLEN-2", "Dv = 4 with D = 16.", replace(SELF, d=16, dv=4), stays="the other order of the two widths")
    yield case("one-sequence", "VARLEN-2", "A pack of one sequence.", replace(SELF, q_lengths=(6,), k_lengths=(9,)), is_causal=True)
    yield case("equal", "VARLEN-2", "Four sequences of equal lengths, which a view as a batch would take.", replace(SELF, q_lengths=(4,) * 4, k_lengths=(4,) * 4), stays="the lengths at which padded and packed are one layout")
    yield case("ones", "VARLEN-2 VARLEN-3", "Five sequences of one token: each output is its own value.", replace(SELF, q_lengths=(1,) * 5, k_lengths=(1,) * 5), is_causal=True)
    yield case("lse", "VARLEN-10 VARLEN-2", "The lse of packs, (Hq, Tq).", CROSS, return_lse=True, dtypes=("float32", *HALVES), stays="an lse and nothing else")
    yield case("lse-heads", "VARLEN-10", "As many heads as rows: an lse of the other layout fits.", replace(SELF, q_lengths=(3, 1), k_lengths=(5, 2), hq=4, hkv=4), return_lse=True, stays="the other layout fits, and is wrong")


def _positions() -> Iterator[PackedCase]:
    yield case("causal", "VARLEN-3 VARLEN-2", "Causal over equal lengths.", is_causal=True, dtypes=ALL_DTYPES, stays="the mask of packed training, in every dtype")
    yield case("causal-more-keys", "VARLEN-3", "Causal, the queries being the last tokens of longer contexts.", CROSS, is_causal=True, dtypes=("float32", *HALVES), stays="the mask of chunked prefill")
    yield case("causal-more-queries", "VARLEN-3 VARLEN-4", "Causal with more queries than keys in one sequence: its first rows have no key.", BOTH, is_causal=True, return_lse=True, stays="fully masked rows at the start of a sequence")
    yield case("causal-one-query", "VARLEN-3", "Causal with one query each: every key is allowed.", ONE, is_causal=True, dtypes=("float32", *HALVES), stays="a step of decoding")
    yield case("causal-top-left", "VARLEN-3", "causal_offset = 0, given: the first query sees only the first key.", CROSS, is_causal=True, causal_offset=0)
    yield case("causal-offsets", "VARLEN-3", "An offset for each sequence.", CROSS, is_causal=True, causal_offset=stated(4, 6, 1, 3))
    yield case("window", "VARLEN-5 VARLEN-3", "Two keys to the left of the diagonal, one to the right, which ends with the last key.", CROSS, window=(2, 1), dtypes=("float32", *HALVES), stays="a window without a bias")
    yield case("window-right-zero", "VARLEN-5 VARLEN-3", "Two keys to the left of the diagonal and none to the right, without causal: a side of 0 is not open (flash-attention 2574).", CROSS, window=(2, 0))
    yield case("window-left-zero", "VARLEN-5 VARLEN-3", "No key to the left of the diagonal, two to the right, over both orders of lengths.", BOTH, window=(0, 2))
    yield case("window-own-key", "VARLEN-5", "Causal, and no key to the left either: each query sees the key at its own place alone.", SELF, is_causal=True, window=(0, 0))
    yield case("window-own-key-tiles", "VARLEN-5", "The same over sequences of several tiles.", PackedShape(q_lengths=(33, 20), k_lengths=(33, 20)), is_causal=True, window=(0, 0))
    yield case("window-causal", "VARLEN-5 VARLEN-3", "Causal with three keys to the left, over both orders of lengths.", BOTH, is_causal=True, window=(3, None), return_lse=True, stays="both sides of a window, with fully masked rows")
    yield case("window-one-query", "VARLEN-5 VARLEN-3", "One query each and three keys to the left.", ONE, is_causal=True, window=(3, None))


def _empty() -> Iterator[PackedCase]:
    yield case("empty-keys", "VARLEN-4", "A sequence of queries without a key among others: zeros, and −inf.", replace(SELF, k_lengths=(5, 0, 3)), return_lse=True, dtypes=("float32", *HALVES))
    yield case("empty-queries", "VARLEN-4", "A sequence of keys without a query: no row sees them (flash-attention 1537).", replace(SELF, q_lengths=(5, 0, 3)), dtypes=("float32", *HALVES))
    yield case("empty-both", "VARLEN-4", "Empty sequences of both kinds between others, causal.", HOLES, is_causal=True, return_lse=True, stays="every kind of empty sequence at once")
    yield case("empty-first", "VARLEN-4", "The first sequences have no keys: there is nothing before them.", replace(SELF, q_lengths=(2, 3, 4), k_lengths=(0, 0, 5)), stays="a sequence without keys at the start of the pack")
    yield case("empty-last", "VARLEN-4", "The last sequence has no keys: there is nothing behind it.", replace(SELF, k_lengths=(5, 7, 0)), return_lse=True)
    yield case("empty-ones", "VARLEN-4", "Lengths of 0, 1, 0, 1 over 0, 3, 0, 5 keys (flash-attention 1537: shape error).", replace(SELF, q_lengths=(0, 1, 0, 1), k_lengths=(0, 3, 0, 5)), is_causal=True)
    yield case("empty-one-query", "VARLEN-4", "One query each and a sequence without one, in a pack of decoding steps.", replace(SELF, q_lengths=(1, 0, 1, 1), k_lengths=(4, 3, 5, 6)), is_causal=True)
    yield case("empty-few-rows", "VARLEN-4", "Fewer rows than sequences, with grouped heads (flash-attention 1619).", replace(SELF, q_lengths=(0, 0, 0, 0, 1), k_lengths=(0, 0, 0, 0, 1), hq=6, hkv=2))
    yield case("empty-all", "VARLEN-4", "No sequence has a key.", replace(SELF, k_lengths=(0, 0, 0)), zeros=True)
    yield case("empty-sinks", "VARLEN-4 VARLEN-5", "Sinks, and a sequence without keys: zeros, and the logit as lse.", replace(SELF, k_lengths=(5, 0, 3)), sinks=sinks, return_lse=True)


def _options() -> Iterator[PackedCase]:
    yield case("scale", "VARLEN-5", "scale = 0.7.", CROSS, scale=0.7, stays="a scale and nothing else")
    yield case("softcap", "VARLEN-5", "softcap = 3, on scores of tens.", CROSS, data=_large_scores, softcap=3.0, stays="a softcap without a bias")
    yield case("softcap-causal", "VARLEN-5 VARLEN-3", "softcap = 3, causal, with a scale.", BOTH, data=_large_scores, softcap=3.0, scale=0.5, is_causal=True, stays="a softcap with causal order, without a bias")
    yield case("sinks", "VARLEN-5", "A sink per head.", CROSS, sinks=sinks, return_lse=True)
    yield case("grouped", "VARLEN-5 VARLEN-2", "Six query heads over two key heads.", replace(CROSS, hq=6), dtypes=("float32", *HALVES), stays="grouped heads in half precision")
    yield case("grouped-one", "VARLEN-5 VARLEN-3", "Four query heads over one key head, one query each, causal.", replace(ONE, hq=4, hkv=1), is_causal=True)
    yield case("grouped-sinks", "VARLEN-5", "Sinks of six query heads over two key heads, causal.", replace(BOTH, hq=6), sinks=sinks, is_causal=True)


def _biases() -> Iterator[PackedCase]:
    def biased(name: str, why: str, shape: PackedShape = CROSS, *, clauses: str = "VARLEN-16", **rest: Any) -> PackedCase:
        return case(f"bias{name and '-'}{name}", clauses, why, shape, **{"bias": random_bias(3.0), **rest})

    yield biased("", "A bias of each sequence and head, padded to the maxima with numbers like the others.", dtypes=ALL_DTYPES, stays="a bias and nothing else, in every dtype")
    yield biased("self", "Sequences over themselves, as in training.", SELF, return_lse=True, dtypes=("float32", *HALVES), stays="as many queries as keys")
    yield biased("causal", "Causal: the bias is of places in the sequence, the diagonal at the bottom right.", is_causal=True, return_lse=True, dtypes=("float32", *HALVES), stays="two things that say who counts")
    yield biased("causal-self", "Causal over equal lengths.", SELF, is_causal=True, dtypes=("float32", *HALVES), stays="the bias of packed training")
    yield biased("causal-more-queries", "Causal with more queries than keys in one sequence: its first rows have no key.", BOTH, clauses="VARLEN-16 VARLEN-4", is_causal=True)
    yield biased("offsets", "Causal with an offset for each sequence, which moves the diagonal and not the bias.", is_causal=True, causal_offset=stated(4, 6, 1, 3))
    yield biased("one-query", "One query each: a step of decoding.", ONE, dtypes=("float32", *HALVES), stays="a row of bias for each sequence")
    yield biased("one-head", "One head of bias for all heads, another for each sequence.", bias=random_bias(3.0, (None, 1, None, None)), stays="repeated along heads")
    yield biased("one-sequence", "A bias for all sequences, another for each head.", SELF, bias=random_bias(3.0, (1, None, None, None)), is_causal=True, stays="repeated along sequences")
    yield biased("one", "One bias for all sequences and heads, as of positions.", BOTH, bias=random_bias(3.0, (1, 1, None, None)), stays="repeated along both")
    yield biased("grouped", "Six query heads over two key heads: the bias is of query heads.", replace(CROSS, hq=6), dtypes=("float32", *HALVES), stays="grouped heads in half precision")
    yield biased("grouped-causal", "Four query heads over one, causal.", replace(BOTH, hq=4, hkv=1), is_causal=True)
    yield biased("grouped-self", "Six over two over equal lengths, causal.", replace(SELF, hq=6), is_causal=True, stays="the grouped heads of packed training")
    yield biased("grouped-self-one", "Four over one over equal lengths.", replace(SELF, hq=4, hkv=1), stays="the grouped heads of packed training")
    yield biased("scale", "scale = 0.25, which the bias is not multiplied with.", scale=0.25, stays="a scale beside a bias")
    yield biased("softcap", "softcap = 3: the bias comes behind it.", clauses="VARLEN-16 VARLEN-5", data=_large_scores, softcap=3.0)
    yield biased("softcap-causal", "softcap = 3, causal.", BOTH, clauses="VARLEN-16 VARLEN-5", data=_large_scores, softcap=3.0, is_causal=True)
    yield biased("softcap-self", "softcap = 3 over equal lengths, causal.", SELF, clauses="VARLEN-16 VARLEN-5", data=_large_scores, softcap=3.0, is_causal=True, stays="the softcap of packed training")
    yield biased("softcap-self-plain", "softcap = 3 over equal lengths.", SELF, clauses="VARLEN-16 VARLEN-5", data=_large_scores, softcap=3.0, stays="the softcap of packed training")
    yield biased("window", "Two keys to the left of the diagonal, one to the right.", clauses="VARLEN-16 VARLEN-5", window=(2, 1))
    yield biased("minus-inf", "−inf in the bias is a mask; every row keeps its first key.", bias=_minus_inf(keep_first=True), return_lse=True, dtypes=("float32", *HALVES))
    yield biased("minus-inf-rows", "Whole rows of −inf: zeros, and −inf as lse.", SELF, bias=_minus_inf(keep_first=False), return_lse=True, dtypes=("float32", *HALVES))
    yield biased("minus-inf-rows-causal", "Rows that bias and diagonal leave no key together.", bias=_minus_inf(keep_first=False), is_causal=True, return_lse=True)
    yield biased("minus-inf-rows-self", "Rows of −inf under a causal mask over equal lengths.", SELF, bias=_minus_inf(keep_first=False), is_causal=True, return_lse=True, stays="a mask of packed training as a bias")
    yield biased("empty", "Empty sequences of both kinds, which have a place in the bias.", HOLES, clauses="VARLEN-16 VARLEN-4", is_causal=True, return_lse=True)
    yield biased("maxima", "Maxima of 16 and 24 over lengths of up to 10: the strides of the bias are theirs.", clauses="VARLEN-16 VARLEN-6", max_seqlen_q=16, max_seqlen_k=24, bias=_bias_of(16, 24), stays="maxima beyond all lengths, beside a bias")
    yield biased("behind-nan", "NaN behind the rows and keys of each sequence.", clauses="VARLEN-16 VARLEN-13", edit=_poison_bias, stays="what is not added cannot reach")
    yield biased("tiles", "Lengths around 16, 32, 64 and 128, causal.", EDGES, clauses="VARLEN-16 VARLEN-9", is_causal=True, dtypes=("float32", *HALVES), stays="several tiles of a sequence")

    def refused(name: str, why: str, edit: Callable[[np.ndarray], np.ndarray]) -> PackedCase:
        return biased(f"invalid-{name}", why, SELF, edit=_edited_bias(edit), is_causal=True, invalid=True, stays="an input that must be refused")

    yield refused("sequences", "Three sequences, and a bias of two.", lambda bias: bias[:2])
    yield refused("heads", "Two query heads, and a bias of three.", lambda bias: np.repeat(bias[:, :1], 3, axis=1))
    yield refused("keys", "A bias of one key less than the maximum.", lambda bias: bias[..., :-1])


def _others() -> Iterator[PackedCase]:
    yield case("maxima", "VARLEN-6", "Maxima of 64 over lengths of up to 10, causal.", CROSS, is_causal=True, max_seqlen_q=64, max_seqlen_k=64, dtypes=("float32", *HALVES), stays="maxima that are no sequence's")
    yield case("maxima-window", "VARLEN-6 VARLEN-3", "The same with a window and an lse.", BOTH, window=(2, 1), max_seqlen_q=32, max_seqlen_k=128, return_lse=True)
    yield case("behind", "VARLEN-7", "Six more keys behind the last sequence, to which queries point.", replace(CROSS, behind=6), is_causal=False, return_lse=True)
    yield case("behind-one-query", "VARLEN-7", "The same with one query each and three more keys.", replace(ONE, behind=3))
    yield case("behind-nan", "VARLEN-13", "NaN in k and infinities in v behind the last sequence.", replace(SELF, behind=20), edit=_poison_behind, stays="what is not multiplied cannot reach")
    yield case("nan-neighbour", "VARLEN-13", "A sequence whose keys and values are NaN: its own rows are NaN, and no other.", CROSS, edit=_poison_sequence, stays="what is not multiplied cannot reach")
    yield case("nan-neighbour-unused", "VARLEN-13 VARLEN-4", "NaN in a sequence without queries: no row sees it.", replace(SELF, q_lengths=(5, 0, 3)), edit=_poison_sequence, is_causal=True, return_lse=True, stays="what is not multiplied cannot reach")


def _large() -> Iterator[PackedCase]:
    short = tuple(int(n) for n in np.random.default_rng(22).integers(0, 5, 300))
    longer = tuple(int(n) for n in np.random.default_rng(23).integers(0, 6, 300))
    yield case("many", "VARLEN-8", "300 sequences of 0 to 4 tokens over themselves, causal.", PackedShape(short, short, hq=1, hkv=1, d=4, dv=4), is_causal=True)
    yield case("many-cross", "VARLEN-8 VARLEN-4", "300 sequences of 0 to 4 queries over 0 to 5 keys, with an lse.", PackedShape(short, longer, hq=1, hkv=1, d=4, dv=4), return_lse=True)
    one = tuple(int(n) for n in np.random.default_rng(24).integers(0, 2, 2048))
    yield case("thousands", "VARLEN-8 VARLEN-4", "2,048 sequences of at most one token over themselves: each output is its own value.", PackedShape(one, one, hq=1, hkv=1, d=1, dv=1), stays="thousands of sequences")
    yield case("sum-keys", "VARLEN-8", "65,530 keys, then three short sequences across 2¹⁶.", PackedShape((2, 3, 2, 3), (65530, 4, 5, 7), hq=1, hkv=1, d=2, dv=2))
    yield case("sum-queries", "VARLEN-8", "65,530 queries, then three short sequences across 2¹⁶.", PackedShape((65530, 4, 5, 7), (1, 4, 3, 6), hq=1, hkv=1, d=1, dv=1), is_causal=False)
    yield case("sum-half", "VARLEN-8", "40,000 keys, across 2¹⁵, causal.", PackedShape((2, 3, 2), (32765, 4, 7231), hq=1, hkv=1, d=2, dv=2), is_causal=True)
    yield case("tiles", "VARLEN-9 VARLEN-2", "Lengths around 16, 32, 64 and 128: every tile of these crosses a boundary.", EDGES, dtypes=("float32", *HALVES), stays="every tile of a pack crosses a boundary")
    yield case("tiles-causal", "VARLEN-3 VARLEN-9", "The same, causal, with an lse.", EDGES, is_causal=True, return_lse=True, dtypes=("float32", *HALVES))
    for width in (64, 128):
        wide = replace(EDGES, hq=2, hkv=1, d=width, dv=width)
        yield case(f"width-{width}", "VARLEN-2 VARLEN-5", f"Heads of {width}, two over one, in half precision.", wide, dtypes=HALVES, stays="the width of kernels that ship, without an envelope")
        yield case(f"width-{width}-causal", "VARLEN-3 VARLEN-5", f"Heads of {width}, causal, with 40 keys to the left.", wide, dtypes=HALVES, is_causal=True, window=(40, None), stays="the width of kernels that ship, without an envelope")


def _form() -> Iterator[PackedCase]:
    yield case("repeat", "SDPA-29", "Five equal calls.", CROSS, repeats=5, is_causal=True, stays="equal calls")
    yield case("memory-sliced", "SDPA-30", "Every second element of wider buffers.", CROSS, memory="sliced", stays="strides of q, k, v and the boundaries")

    def refused(name: str, why: str, edit: Callable[[Any], Any]) -> PackedCase:
        return case(f"invalid-{name}", "VARLEN-11", why, edit=edit, invalid=True, stays="an input that must be refused")

    yield refused("boundaries", "Boundaries of three sequences of queries, and of two of keys.", lambda x: replace(x, cu_seqlens_k=x.cu_seqlens_k[:-1]))
    yield refused("boundaries-queries", "Boundaries of two sequences of queries, and of three of keys.", lambda x: replace(x, cu_seqlens_q=x.cu_seqlens_q[:-1]))
    yield refused("heads", "Two query heads over three key heads.", lambda x: replace(x, k=np.repeat(x.k[:, :1], 3, 1), v=np.repeat(x.v[:, :1], 3, 1)))
    yield refused("width", "q is 8 wide and k 7.", lambda x: replace(x, k=x.k[:, :, :7]))
    yield refused("values", "15 keys and 14 values.", lambda x: replace(x, v=x.v[:14]))


def _large_scores(rng: Rng, s: PackedShape) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    q, k, v = across(rng, s)
    return 2 * q, k, v


def _minus_inf(keep_first: bool) -> Maker:
    """A bias that is −inf at every third key, shifted by row, and in every second row at all keys, or all but one."""

    def make(rng: Rng, s: PackedShape, dtype: np.dtype) -> np.ndarray:
        bias = 3 * rng.standard_normal(s.scores)
        i, j = np.arange(s.sq)[:, None], np.arange(s.sk)
        bias[:, :, (i + j) % 3 == 1] = -np.inf
        bias[:, :, 1::2, int(keep_first) :] = -np.inf
        bias[..., 0] = np.where(keep_first, 0.0, bias[..., 0])
        return bias.astype(dtype)

    return make


def _bias_of(queries: int, keys: int) -> Maker:
    """Normal numbers, for maxima other than the longest sequences."""
    return lambda rng, s, dtype: (3 * rng.standard_normal((s.b, s.hq, queries, keys))).astype(dtype)


def _edited_bias(edit: Callable[[np.ndarray], np.ndarray]) -> Callable[[Any], Any]:
    """An edit of only the bias."""
    return lambda x: replace(x, keywords=x.keywords | {"bias": edit(x.keywords["bias"])})


def _poison_bias(x: Any) -> Any:
    bias = x.keywords["bias"].copy()
    for n, (rows, keys) in enumerate(zip(np.diff(x.cu_seqlens_q), np.diff(x.cu_seqlens_k), strict=True)):
        bias[n, :, rows:], bias[n, :, :, keys:] = np.nan, np.nan
    return replace(x, keywords=x.keywords | {"bias": bias})


def _poison_behind(x: Any) -> Any:
    k, v = x.k.copy(), x.v.copy()
    k[x.cu_seqlens_k[-1] :], v[x.cu_seqlens_k[-1] :] = np.nan, np.inf
    return replace(x, k=k, v=v)


def _poison_sequence(x: Any) -> Any:
    k, v = x.k.copy(), x.v.copy()
    k[x.cu_seqlens_k[1] : x.cu_seqlens_k[2]], v[x.cu_seqlens_k[1] : x.cu_seqlens_k[2]] = np.nan, np.nan
    return replace(x, k=k, v=v)
