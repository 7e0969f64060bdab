"""(SUB-1 to 10) Cases of the residual sub-layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from attention_conformance.conformance.cases.base import ALL_DTYPES, HALVES
from attention_conformance.conformance.cases.layer import (
    BIASES,
    CROSS,
    PLAIN,
    LayerShape,
    Maker,
    Rng,
    SublayerCase,
    columns,
    normal,
    w_o,
    x_kv,
)
from attention_conformance.conformance.cases.mha import _row_off

#: Output projection, all biases, gamma and beta, and the epsilon that most models have.
FULL: dict[str, Any] = {"w_o": w_o, **BIASES, "gamma": columns("gamma"), "beta": columns("beta"), "epsilon": 1e-5}

#: One head of width 2 over many columns.
COLUMNS = LayerShape(b=1, sq=3, sk=3, e=512, ekv=512, heads=1, d=2, dv=2, eo=512)


def case(name: str, clauses: str, why: str, shape: LayerShape = PLAIN, **rest: Any) -> SublayerCase:
    """A case from its clauses as one text and its options as keywords, in addition to those that every call has."""
    return SublayerCase.of(f"sublayer-{name}", clauses, why, shape, shape.options | FULL | rest)


def cases() -> Iterator[SublayerCase]:
    """Every case of this operator."""
    yield case("post-norm", "SUB-1 SUB-9", "LayerNorm(x + mha(x)).", dtypes=ALL_DTYPES, stays="post-norm in every dtype")
    yield case("post-norm-cross", "SUB-1 SUB-8", "Over another input.", CROSS, x_kv=x_kv, stays="the residual is of x_q, not of x_kv")
    yield case("pre-norm", "SUB-2 SUB-9", "x + mha(LayerNorm(x)): x itself is added.", dtypes=ALL_DTYPES, pre_norm=True, stays="pre-norm in every dtype")
    yield case("pre-norm-cross", "SUB-2 SUB-8", "The other input is not normalised.", CROSS, x_kv=x_kv, pre_norm=True)
    yield case("pre-norm-cross-mask", "SUB-2 SUB-8", "The same with a mask that leaves one row no key.", CROSS, x_kv=x_kv, mask=_row_off, pre_norm=True)
    yield case("batches", "SUB-3", "Three batches: every row is normalised by itself.", replace(PLAIN, b=3), dtypes=("float32", *HALVES), stays="more batches than two")
    yield case("variance", "SUB-4", "Four columns: with Bessel's correction everything is 13 % smaller.", replace(PLAIN, e=4, ekv=4, d=2, dv=2, eo=4))
    yield case("epsilon", "SUB-5", "epsilon = 0.5, added to the variance, not to the deviation.", epsilon=0.5)
    yield case("equal-row", "SUB-5", "Pre-norm of rows of equal numbers: they give beta.", data=_equal_rows, pre_norm=True, stays="a variance of 0")
    yield case("gamma-beta", "SUB-6", "gamma alternates in sign and beta counts the columns.", gamma=_alternating, beta=_counting, stays="columns that are told apart by sign and size")
    yield case("unbatched", "SUB-7", "One sample without a batch axis.", replace(PLAIN, b=1, unbatched=True))
    yield case("unbatched-pre-norm", "SUB-7 SUB-5", "One sample without a batch axis in pre-norm, epsilon = 0.1.", replace(PLAIN, b=1, unbatched=True), pre_norm=True, epsilon=0.1)
    yield case("sequence-first", "SUB-7", "Inputs (S, B, E).", replace(PLAIN, sequence_first=True))
    yield case("sequence-first-lengths", "SUB-7 SUB-8", "Sequence first with padded keys.", replace(PLAIN, sequence_first=True), kv_lengths=_lengths)
    yield case("causal", "SUB-8", "Causal.", is_causal=True)
    yield case("causal-pre-norm", "SUB-8 SUB-2", "Causal in pre-norm.", is_causal=True, pre_norm=True)
    yield case("lengths", "SUB-8", "Padded keys, and a sample of length 0: LayerNorm(x + b_o).", kv_lengths=_lengths)
    yield case("mask-pre-norm", "SUB-8", "A fully masked row in pre-norm: x + b_o.", mask=_row_off, pre_norm=True)
    yield case("accuracy-offset", "SUB-9", "Pre-norm of rows around 1000 that vary by 1: mean(z²) − mean(z)² loses most digits.", data=normal(1.0, 1000.0), dtypes=("float32", "float64"), pre_norm=True)
    yield case("accuracy-offset-sum", "SUB-9", "Post-norm of a sum around 1000 that varies by 1: a bias of the output lifts it.", b_o=_lifted, dtypes=("float32", "float64"))
    yield case("accuracy-columns", "SUB-9", "512 columns of ±0.95, and a layer that adds 0: a variance summed in half precision stops half-way.", COLUMNS, data=_signs, dtypes=HALVES, b_v=_zeros("b_v"), b_o=_zeros("b_o"))
    yield case("accuracy-columns-pre-norm", "SUB-9 SUB-2", "The same columns in pre-norm.", COLUMNS, data=_signs_projected, dtypes=HALVES, pre_norm=True)
    yield case("accuracy-wide", "SUB-9", "E = 64 in four heads, 33 rows.", LayerShape(b=1, sq=33, sk=33, e=64, ekv=64, heads=4, d=16, dv=16, eo=64), dtypes=ALL_DTYPES, stays="as many rows and columns as a small model has")
    yield case("invalid-gamma", "SUB-10", "gamma has 7 numbers for 8 columns.", edit=_short("gamma"), invalid=True)
    yield case("invalid-beta", "SUB-10", "beta has 7 numbers for 8 columns.", edit=_short("beta"), invalid=True)


def _equal_rows(rng: Rng, s: LayerShape) -> tuple[np.ndarray, ...]:
    x, *weights = normal()(rng, s)
    return np.repeat(x[..., :1], s.e, axis=-1), *weights


def _alternating(rng: Rng, s: LayerShape, dtype: np.dtype) -> np.ndarray:
    return np.where(np.arange(s.e) % 2, -1.0, 2.0).astype(dtype)


def _counting(rng: Rng, s: LayerShape, dtype: np.dtype) -> np.ndarray:
    return np.arange(s.e).astype(dtype)


def _lengths(rng: Rng, s: LayerShape, dtype: np.dtype) -> np.ndarray:
    return np.array([0, 3], np.int64)


def _lifted(rng: Rng, s: LayerShape, dtype: np.dtype) -> np.ndarray:
    """b_o around 1000: nothing before the sum is large, so the bound on the sum is a few of its roundings."""
    return (columns("b_o")(rng, s, dtype) + 1000.0).astype(dtype)


def _signs_projected(rng: Rng, s: LayerShape) -> tuple[np.ndarray, ...]:
    """Rows of ±0.95 and values that add up all their columns: 0.95² is below half a unit in the last place of 256."""
    signs = rng.choice([-1.0, 1.0], s.e)
    _, w_q, w_k, w_v = normal()(rng, s)
    return np.broadcast_to(0.95 * signs, s.rows(s.sq, s.e)), w_q, w_k, np.broadcast_to(signs[:, None] / s.e, w_v.shape)


def _signs(rng: Rng, s: LayerShape) -> tuple[np.ndarray, ...]:
    """The same rows with values of 0."""
    x_q, w_q, w_k, w_v = _signs_projected(rng, s)
    return x_q, w_q, w_k, 0 * w_v


def _zeros(name: str) -> Maker:
    return lambda rng, s, dtype: 0 * columns(name)(rng, s, dtype)


def _short(name: str) -> Callable[[Any], Any]:
    """An edit that takes the last number off gamma or beta."""
    return lambda x: replace(x, keywords={**x.keywords, name: x.keywords[name][:-1]})
