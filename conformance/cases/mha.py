"""(MHA-1 to 23) Cases of the multi-head layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from attention_conformance.conformance.cases.base import ALL_DTYPES, HALVES
from attention_conformance.conformance.cases.data import stated
from attention_conformance.conformance.cases.layer import (
    BIASES,
    CROSS,
    PLAIN,
    WIDTHS,
    LayerShape,
    Maker,
    MhaCase,
    Rng,
    normal,
    w_o,
    x_kv,
)

#: Output projection and all biases; and the biases without it.
FULL: dict[str, Any] = {"w_o": w_o, **BIASES}
INNER: dict[str, Any] = {name: BIASES[name] for name in ("b_q", "b_k", "b_v")}


def case(name: str, clauses: str, why: str, shape: LayerShape = PLAIN, **rest: Any) -> MhaCase:
    """A case from its clauses as one text and its options as keywords; ``heads`` comes from the shape."""
    return MhaCase.of(f"mha-{name}", clauses, why, shape, shape.options | rest)


def cases() -> Iterator[MhaCase]:
    """Every case of this operator."""
    yield from _projections()
    yield from _heads()
    yield from _masks()
    yield from _combining()
    yield from _results()
    yield from _forms()
    yield from _sources()
    yield from _refused()


def _projections() -> Iterator[MhaCase]:
    yield case("widths", "MHA-1 MHA-4", "E, Ekv, H·D, H·Dv and Eo are all different.", WIDTHS, x_kv=x_kv, **FULL)
    yield case("plain", "MHA-2 MHA-12 MHA-18", "Every projection with a bias, E = H·D: a transposed weight fits and is wrong.", dtypes=ALL_DTYPES, stays="the call that every library has", **FULL)
    yield case("no-bias", "MHA-2", "No projection has a bias.", dtypes=("float32", *HALVES), w_o=w_o)
    yield case("bias-of-values", "MHA-2", "Only values have a bias: it reaches every row whole, as weights add up to 1.", w_o=w_o, b_v=BIASES["b_v"])
    yield case("bias-of-keys", "MHA-2", "Only keys have a bias: a number added to all scores of a row changes nothing.", w_o=w_o, b_k=BIASES["b_k"], stays="an implementation may leave this bias out")
    yield case("bias-of-queries", "MHA-2", "Only queries have a bias.", w_o=w_o, b_q=BIASES["b_q"])
    yield case("self", "MHA-3 MHA-2", "Without x_kv keys and values come from x_q; E is not H·D.", replace(PLAIN, e=6, ekv=6), stays="E ≠ H·D in self-attention", **FULL)
    yield case("cross", "MHA-4", "Five queries over seven keys of another input.", CROSS, x_kv=x_kv, dtypes=("float32", *HALVES), stays="cross-attention in half precision", **FULL)
    yield case("cross-narrow", "MHA-4 MHA-2", "Keys and values from an input of width 5.", replace(CROSS, ekv=5), x_kv=x_kv, stays="Ekv ≠ E alone", **FULL)
    yield case("cross-square", "MHA-4", "As many queries as keys: the two inputs can be taken for each other.", PLAIN, x_kv=x_kv, stays="elsewhere inputs that are taken for each other do not fit", **FULL)


def _heads() -> Iterator[MhaCase]:
    yield case("split", "MHA-5 MHA-11", "Two rows in two heads of width 2: heads, rows and columns are as many.", LayerShape(b=1, sq=2, sk=2, e=4, ekv=4, d=2, dv=2, eo=4), **FULL)
    yield case("four-heads", "MHA-5", "Four heads of width 2.", replace(PLAIN, heads=4, d=2, dv=2), stays="elsewhere H = B = 2", **FULL)
    yield case("value-width", "MHA-5 MHA-11", "Heads of D = 4 and Dv = 3.", replace(PLAIN, dv=3), stays="Dv ≠ D in self-attention", **FULL)
    yield case("one-head", "MHA-6", "One head.", replace(PLAIN, heads=1, d=8, dv=8), stays="with one head nothing is split", **FULL)
    yield case("one-row", "MHA-6", "One row: its weight is 1.", replace(PLAIN, sq=1, sk=1), stays="with one row nothing is mixed", **FULL)
    yield case("no-keys", "MHA-6 MHA-13", "Another input without a row: the output is b_o.", replace(CROSS, sk=0), x_kv=x_kv, **FULL)
    yield case("scale-default", "MHA-7", "Eight heads of width 1 and large scores: 1/√D is 1, 1/√(H·D) is 0.35.", replace(PLAIN, heads=8, d=1, dv=1), data=normal(2.0), stays="D = 1, where the scale is 1", **FULL)
    yield case("scale-of-heads", "MHA-7", "Two heads of width 8 over 6 columns: not 1/√E either.", replace(PLAIN, e=6, ekv=6, d=8, dv=8), data=normal(2.0), dtypes=("float32", *HALVES), stays="the scale in half precision", **FULL)
    yield case("scale-given", "MHA-7", "scale = 0.7.", data=normal(2.0), scale=0.7, **FULL)
    yield case("scale-zero", "MHA-7", "scale = 0, given, is not \"none\": all weights are equal.", data=normal(2.0), scale=0.0, **FULL)
    yield case("scale-given-cross", "MHA-7 MHA-4", "scale = 1.5 over another input.", CROSS, x_kv=x_kv, scale=1.5, **FULL)


def _masks() -> Iterator[MhaCase]:
    yield case("mask", "MHA-8", "A mask that differs by batch and head.", mask=_mask(0.5), stays="a full mask and nothing else", **FULL)
    yield case("mask-rows", "MHA-8", "A mask (1, 1, Sq, Sk).", mask=_mask(0.5, (1, 1, None, None)), stays="the shape of mask that most models use", **FULL)
    yield case("mask-padding", "MHA-8 MHA-10", "A mask (B, 1, 1, Sk) of padded keys, the first one among them.", mask=_padding, dtypes=("float32", *HALVES), **FULL)
    yield case("mask-cross", "MHA-8 MHA-4", "A mask over another input.", CROSS, x_kv=x_kv, mask=_mask(0.5), stays="a mask that is not square", **FULL)
    yield case("bias", "MHA-8", "An additive mask that differs by batch and head.", bias=_bias(2.0), **FULL)
    yield case("bias-rows", "MHA-8", "An additive mask (1, 1, Sq, Sk).", bias=_bias(2.0, (1, 1, None, None)), **FULL)
    yield case("bias-minus-inf", "MHA-8 MHA-13", "An additive mask of −inf, a whole row among it.", bias=_minus_inf, **FULL)
    yield case("causal", "MHA-9", "Causal.", is_causal=True, dtypes=ALL_DTYPES, stays="causal in every dtype", **FULL)
    yield case("causal-cross", "MHA-9 MHA-4", "Causal over seven keys of another input: aligned at the top left.", CROSS, x_kv=x_kv, is_causal=True, **FULL)
    yield case("causal-fewer-keys", "MHA-9 MHA-4", "Causal over three keys of another input: the last rows see all of them.", replace(PLAIN, sk=3), x_kv=x_kv, is_causal=True, **FULL)
    yield case("causal-mask", "MHA-9 MHA-8", "Causal and a mask: both hold.", is_causal=True, mask=_mask(0.5, always=0), **FULL)
    yield case("causal-mask-rows", "MHA-9 MHA-8", "Causal and a mask (B, 1, Sq, Sk) without heads: both hold.", is_causal=True, mask=_mask(0.5, (None, 1, None, None), always=0), stays="causal and a mask of every head, where q, k and v are one input", **FULL)
    yield case("causal-mask-cross", "MHA-9 MHA-8", "Causal and a mask (1, 1, Sq, Sk) over another input.", CROSS, x_kv=x_kv, is_causal=True, mask=_mask(0.7, (1, 1, None, None), always=0), **FULL)
    yield case("causal-padding", "MHA-9 MHA-10", "Causal, and padded keys at the end.", is_causal=True, kv_lengths=stated(5, 3), **FULL)
    yield case("lengths", "MHA-10", "Five and three valid keys; a padded key is not zero, as keys have a bias.", kv_lengths=stated(5, 3), dtypes=("float32", *HALVES), **FULL)
    yield case("lengths-cross", "MHA-10 MHA-4", "Four and six of seven keys of another input.", CROSS, x_kv=x_kv, kv_lengths=stated(4, 6), **FULL)
    yield case("empty-row", "MHA-13", "A fully masked row: its output is b_o.", mask=_row_off, dtypes=("float32", *HALVES), **FULL)
    yield case("empty-row-no-bias", "MHA-13", "A fully masked row and no biases: its output is 0.", mask=_row_off, w_o=w_o, stays="the only fully masked row whose output is 0")
    yield case("empty-head", "MHA-13", "Fully masked rows in one of two heads: the other one is left.", mask=_head_off, **FULL)
    yield case("empty-batch", "MHA-13 MHA-10", "A padded sample of length 0.", kv_lengths=stated(0, 4), **FULL)


def _combining() -> Iterator[MhaCase]:
    yield case("batches", "MHA-11 MHA-1", "Three batches of five rows: a view that swaps the two axes scrambles them.", replace(PLAIN, b=3), stays="elsewhere B = H = 2", **FULL)
    yield case("batch-equals-rows", "MHA-11", "As many batches as rows: a swap fits.", replace(PLAIN, b=5), stays="a swap of batch and rows fits, and is wrong", **FULL)
    yield case("no-output-projection", "MHA-12 MHA-11", "Without w_o the combined heads are the output.", stays="no w_o and several heads", **INNER)
    yield case("output-bias", "MHA-12", "Only the output projection has a bias.", w_o=w_o, b_o=BIASES["b_o"])
    yield case("accuracy-wide", "MHA-18", "E = 64 in four heads, 33 rows.", LayerShape(b=1, sq=33, sk=33, e=64, ekv=64, heads=4, d=16, dv=16, eo=64), dtypes=ALL_DTYPES, stays="as many rows and columns as a small model has", **FULL)
    yield case("accuracy-large", "MHA-18", "Scores of up to a hundred.", data=normal(6.0), dtypes=("float32", *HALVES), stays="scores that saturate softmax", **FULL)
    yield case("accuracy-columns", "MHA-18", "512 columns that all add the same: a sum in half precision stops half-way.", LayerShape(b=1, sq=3, sk=3, e=512, ekv=512, heads=1, d=2, dv=2), data=_equal_terms, dtypes=HALVES, **_zeros(*INNER))
    yield case("accuracy-combined", "MHA-18", "The same for the output projection of four heads of width 128.", LayerShape(b=1, sq=3, sk=3, e=4, ekv=4, heads=4, d=1, dv=128, eo=2), data=_equal_terms, dtypes=HALVES, w_o=_equal_weights, **_zeros(*BIASES))
    yield case("memory-inner", "MHA-23", "The last two axes of every array swapped in memory.", memory="inner", **FULL)
    yield case("memory-sliced", "MHA-23", "Every second element of wider buffers.", memory="sliced", **FULL)
    yield case("repeat", "MHA-23", "Five equal calls.", repeats=5, is_causal=True, stays="several equal calls", **FULL)


def _results() -> Iterator[MhaCase]:
    yield case("weights", "MHA-14", "Weights of every head.", return_weights=True, dtypes=("float32", *HALVES), **FULL)
    yield case("weights-mask", "MHA-14 MHA-13", "Weights under a mask, with a fully masked row: zeros.", return_weights=True, mask=_row_off, **FULL)
    yield case("weights-cross", "MHA-14 MHA-4", "Weights over another input.", CROSS, x_kv=x_kv, return_weights=True, stays="weights that are not square", **FULL)
    yield case("weights-empty-head", "MHA-14 MHA-13", "Weights with fully masked rows in one of two heads.", return_weights=True, mask=_head_off, **FULL)
    yield case("weights-causal-padding", "MHA-14 MHA-9", "Weights, causal, with padded keys.", return_weights=True, is_causal=True, kv_lengths=stated(5, 3), **FULL)
    yield case("weights-averaged", "MHA-15", "Weights averaged over four heads.", replace(PLAIN, heads=4, d=2, dv=2), return_weights=True, average_weights=True, dtypes=("float32", *HALVES), **FULL)
    yield case("weights-averaged-causal", "MHA-15 MHA-9", "Averaged weights, causal.", return_weights=True, average_weights=True, is_causal=True, **FULL)


def _forms() -> Iterator[MhaCase]:
    alone = replace(PLAIN, b=1, unbatched=True)
    first = replace(PLAIN, sequence_first=True)
    yield case("unbatched", "MHA-16", "One sample without a batch axis.", alone, stays="the form alone", **FULL)
    yield case("unbatched-cross", "MHA-16 MHA-4", "The same over another input.", replace(alone, sk=7), x_kv=x_kv, stays="two unbatched inputs", **FULL)
    yield case("unbatched-mask", "MHA-16 MHA-8", "A mask (H, Sq, Sk).", alone, mask=_mask(0.5, (None, None, None)), **FULL)
    yield case("unbatched-weights", "MHA-16 MHA-14", "Weights (H, Sq, Sk).", alone, return_weights=True, **FULL)
    yield case("sequence-first", "MHA-17", "Inputs (S, B, E) with B = 2 and S = 5.", first, **FULL)
    yield case("sequence-first-square", "MHA-17 MHA-11", "As many batches as rows: the two axes can be taken for each other.", replace(first, b=5), stays="a swap of batch and rows fits, and is wrong", **FULL)
    yield case("sequence-first-cross", "MHA-17 MHA-4", "Both inputs sequence first.", replace(first, sk=7), x_kv=x_kv, stays="two sequence-first inputs", **FULL)
    yield case("sequence-first-mask", "MHA-17 MHA-8", "The mask stays (B, H, Sq, Sk).", first, mask=_mask(0.5), stays="a mask is not moved with the inputs", **FULL)
    yield case("sequence-first-weights", "MHA-17 MHA-14", "Weights stay (B, H, Sq, Sk).", first, return_weights=True, **FULL)


def _sources() -> Iterator[MhaCase]:
    words = LayerShape(b=1, sq=6, sk=6, e=4, ekv=4, heads=1, d=4, dv=4, eo=4, unbatched=True)
    two = replace(words, heads=2, d=2, dv=2)
    yield case("source-000", "MHA-2 MHA-5", "The layer of article 000: x (2, 3, 4), two heads of width 2, four projections with biases.", LayerShape(sq=3, sk=3, e=4, ekv=4, d=2, dv=2, eo=4), **FULL)
    yield case("source-001", "MHA-4 MHA-14", "The layer of article 001: queries over another input, masked, with the weights of every head.", CROSS, x_kv=x_kv, mask=_mask(0.6, (None, 1, None, None)), return_weights=True, w_o=w_o)
    yield case("source-002-one-head", "MHA-6 MHA-16", "The example of article 002: four words and two pads, identity weights, one head.", words, data=_words, w_o=_identity)
    yield case("source-002-padding", "MHA-8 MHA-16", "The same with an additive mask of −inf over the two pads.", words, data=_words, w_o=_identity, bias=_pads)
    yield case("source-002-two-heads", "MHA-7 MHA-16", "The same in two heads: the scale is 1/√2, not the 1/√4 of the article.", two, data=_words, w_o=_identity)
    yield case("source-002-batches", "MHA-17 MHA-11", "The same for three batches, sequence first: the article's way to combine heads scrambles them.", replace(two, b=3, unbatched=False, sequence_first=True), data=_words_shifted, w_o=_identity)
    yield case("source-004", "MHA-6 MHA-12 MHA-14", "The single-head layer of article 004: x (2, 10, 32), a mask per query, no output projection.", LayerShape(sq=10, sk=10, e=32, ekv=32, heads=1, d=32, dv=32), mask=_mask(0.6, (None, 1, None, None)), return_weights=True, stays="the layer of an article", **INNER)


def _refused() -> Iterator[MhaCase]:
    def refused(name: str, clause: str, why: str, edit: Any, shape: LayerShape = PLAIN, **options: Any) -> MhaCase:
        given: dict[str, Any] = {"w_o": w_o, **options}
        return case(f"invalid-{name}", clause, why, shape, edit=edit, invalid=True, **given)

    yield refused("heads", "MHA-19", "Three heads over eight columns.", lambda x: _with(x, heads=3))
    yield refused("value-heads", "MHA-19", "Four heads over eight columns of keys, but six of values.", lambda x: _with(x, heads=4), replace(PLAIN, dv=3), **FULL)
    yield refused("widths", "MHA-20", "w_q has 7 rows for 8 columns of x_q.", lambda x: replace(x, w_q=x.w_q[:7]))
    yield refused("columns", "MHA-20", "w_k has 6 columns, w_q has 8.", lambda x: replace(x, w_k=x.w_k[:, :6]))
    yield refused("bias", "MHA-20", "b_q has 7 numbers for 8 columns.", lambda x: _with(x, b_q=x.keywords["b_q"][:7]), b_q=BIASES["b_q"])
    yield refused("batch", "MHA-21", "x_q has a batch of 2, x_kv of 3.", lambda x: _with(x, x_kv=np.concatenate([x.keywords["x_kv"], x.keywords["x_kv"][:1]])), CROSS, x_kv=x_kv)
    yield refused("mask", "MHA-22", "A mask over 4 of 5 keys.", lambda x: _with(x, mask=x.keywords["mask"][..., :4]), mask=_mask(0.5))


def _with(x: Any, **keywords: Any) -> Any:
    return replace(x, keywords={**x.keywords, **keywords})


def _mask(keep: float, axes: tuple[int | None, ...] = (None, None, None, None), always: int = 1) -> Maker:
    """Each key allowed with probability ``keep``, the key ``always`` in every row; axes of ``axes`` override."""

    def make(rng: Rng, s: LayerShape, dtype: np.dtype) -> np.ndarray:
        full = s.scores[-len(axes) :]
        mask = rng.random(tuple(f if n is None else n for f, n in zip(full, axes, strict=True))) < keep
        mask[..., always] = True
        return mask

    return make


def _bias(spread: float, axes: tuple[int | None, ...] = (None, None, None, None)) -> Maker:
    def make(rng: Rng, s: LayerShape, dtype: np.dtype) -> np.ndarray:
        shape = tuple(f if n is None else n for f, n in zip(s.scores, axes, strict=True))
        return (spread * rng.standard_normal(shape)).astype(dtype)

    return make


def _padding(rng: Rng, s: LayerShape, dtype: np.dtype) -> np.ndarray:
    mask = np.ones((s.b, 1, 1, s.sk), bool)
    mask[0, ..., :1], mask[1, ..., 3:] = False, False
    return mask


def _row_off(rng: Rng, s: LayerShape, dtype: np.dtype) -> np.ndarray:
    mask = np.ones(s.scores, bool)
    mask[1, :, 2] = False
    return mask


def _head_off(rng: Rng, s: LayerShape, dtype: np.dtype) -> np.ndarray:
    mask = np.ones(s.scores, bool)
    mask[:, 1, :2] = False
    return mask


def _minus_inf(rng: Rng, s: LayerShape, dtype: np.dtype) -> np.ndarray:
    bias = np.zeros(s.scores)
    bias[..., 3:], bias[0, :, 1] = -np.inf, -np.inf
    return bias.astype(dtype)


def _words(rng: Rng, s: LayerShape) -> tuple[np.ndarray, ...]:
    """Rows 1, 2, 3, 4, 0, 0 in the first of four coordinates, and identity weights."""
    x = np.zeros(s.rows(s.sq, s.e))
    x[..., 0] = np.reshape([1, 2, 3, 4, 0, 0], (s.sq, 1) if s.sequence_first else (s.sq,))
    return x, np.eye(4), np.eye(4), np.eye(4)


def _words_shifted(rng: Rng, s: LayerShape) -> tuple[np.ndarray, ...]:
    """The words with their batch in the last coordinate."""
    x, *weights = _words(rng, s)
    x[..., 3] = np.arange(s.b)
    return x, *weights


def _pads(rng: Rng, s: LayerShape, dtype: np.dtype) -> np.ndarray:
    return np.array([[[0, 0, 0, 0, -np.inf, -np.inf]]]).astype(dtype)


def _identity(rng: Rng, s: LayerShape, dtype: np.dtype) -> np.ndarray:
    return np.eye(s.eo).astype(dtype)


def _equal_terms(rng: Rng, s: LayerShape) -> tuple[np.ndarray, ...]:
    """Inputs of ones and weights of one over their rows: every projection is a sum of equal terms, and gives 1."""
    wide, narrow = np.full((s.e, s.heads * s.d), 1 / s.e), np.full((s.ekv, s.heads * s.dv), 1 / s.ekv)
    return np.ones(s.rows(s.sq, s.e)), wide, wide, narrow


def _equal_weights(rng: Rng, s: LayerShape, dtype: np.dtype) -> np.ndarray:
    return np.full((s.heads * s.dv, s.eo), 1 / (s.heads * s.dv)).astype(dtype)


def _zeros(*names: str) -> dict[str, Maker]:
    """Biases of zeros: given, because a fused operator may require them."""

    def zero(make: Maker) -> Maker:
        return lambda rng, s, dtype: 0 * make(rng, s, dtype)

    return {name: zero(BIASES[name]) for name in names}
