"""(GRAD-16 to 28) Cases of the gradients of the multi-head layer: inputs of mha with a gradient of the output."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np

from attention_conformance.conformance.bounds import mha_gradients as layer_bounds
from attention_conformance.conformance.bounds.sdpa import Options
from attention_conformance.conformance.cases.base import ALL_DTYPES, HALVES, AnyCase, Blame
from attention_conformance.conformance.cases.data import stated
from attention_conformance.conformance.cases.layer import (
    BIASES,
    CROSS,
    PLAIN,
    WIDTHS,
    LayerShape,
    Rng,
    normal,
    w_o,
    x_kv,
)
from attention_conformance.conformance.cases.mha import (
    FULL,
    INNER,
    _bias,
    _head_off,
    _mask,
    _minus_inf,
    _row_off,
)
from attention_conformance.conformance.spec import mha_gradients as layer_reference
from attention_conformance.conformance.spec.inputs import LayerGradientInputs
from attention_conformance.conformance.spec.mha_gradients import LayerGradExpected
from attention_conformance.impls.contract import Profile

#: Enough rows in each of two samples for half precision to lose some in the sum over a weight's rows.
LONG = LayerShape(sq=257, sk=257, e=4, ekv=4, heads=1, d=4, dv=4, eo=4)
SINGLE = ("float32", "float64")


@dataclass(frozen=True)
class MhaGradientCase(AnyCase):
    """A case of mha_grad."""

    operator: ClassVar[str] = "mha_grad"
    arguments: ClassVar[type] = LayerGradientInputs
    blame: ClassVar[Blame] = Blame(
        "GRAD-16",
        accuracy="GRAD-26",
        value="GRAD-20",
        of_result={
            "grad_w_q": "GRAD-17",  # where grad_x_q, which comes first, is right
            "grad_w_o": "GRAD-21",
            "grad_b_q": "GRAD-18",
            "grad_b_k": "GRAD-18",
            "grad_b_v": "GRAD-18",
            "grad_b_o": "GRAD-21",
            "grad_bias": "GRAD-22",
        },
        dtype="GRAD-10",
        modified="GRAD-13",
        unrepeatable="GRAD-14",
        memory="GRAD-28",
    )
    shape: LayerShape = PLAIN

    def draw(self, rng: Rng) -> tuple[np.ndarray, ...]:
        """x_q, the weights and grad_output in float64."""
        s = self.shape
        width = s.eo if "w_o" in self.options else s.heads * s.dv
        return *(self.data or normal())(rng, s), rng.standard_normal(s.rows(s.sq, width))

    def make_expected(self, inputs: LayerGradientInputs) -> LayerGradExpected:
        """Results of the reference.  Raises InvalidInput for invalid inputs."""
        return layer_reference.mha_grad(*inputs.arrays.values(), **inputs.keywords)

    def make_bound(
        self, inputs: LayerGradientInputs, expected: LayerGradExpected, dtype: str, profile: Profile
    ) -> SimpleNamespace:
        """The error bound for inputs under a profile."""
        return SimpleNamespace(**layer_bounds.bound(expected, Options.of(inputs.keywords), dtype, profile))

    def axes(self, result: str) -> tuple[str, ...]:
        """Names of the axes of a result, for inputs in the form of the call; a bias has the last axes of the scores."""
        if result == "grad_bias":
            return ("batch", "head", "row", "key")[4 - self.inputs(self.dtypes[0]).keywords["bias"].ndim :]
        if result.startswith("grad_w"):
            return ("input column", "column")
        if result.startswith("grad_b"):
            return ("column",)
        if self.shape.unbatched:
            return ("row", "column")
        return ("row", "batch", "column") if self.shape.sequence_first else ("batch", "row", "column")

    def __hash__(self) -> int:
        return hash(self.name)


def case(name: str, clauses: str, why: str, shape: LayerShape = PLAIN, **rest: Any) -> MhaGradientCase:
    """A case from its clauses as one text and its options as keywords; ``heads`` comes from the shape."""
    return MhaGradientCase.of(f"mha-grad-{name}", clauses, why, shape, shape.options | rest)


def cases() -> Iterator[MhaGradientCase]:
    """Every case of this operator."""
    yield from _projections()
    yield from _heads()
    yield from _masks()
    yield from _form()
    yield from _refused()


def _projections() -> Iterator[MhaGradientCase]:
    yield case("widths", "GRAD-16 GRAD-19", "E, Ekv, H·D, H·Dv and Eo are all different.", WIDTHS, x_kv=x_kv, **FULL)
    yield case("plain", "GRAD-17 GRAD-20 GRAD-26", "Every projection with a bias, E = H·D: a transposed gradient fits and is wrong.", dtypes=ALL_DTYPES, stays="the call that every library has", **FULL)
    yield case("no-bias", "GRAD-17", "No projection has a bias.", dtypes=("float32", *HALVES), w_o=w_o, stays="nothing has a bias, in half precision too")
    yield case("no-output-projection", "GRAD-21 GRAD-20", "Without w_o grad_output is the gradient of the combined heads.", **INNER)
    yield case("bias-of-queries", "GRAD-18", "Only queries have a bias.", w_o=w_o, b_q=BIASES["b_q"])
    yield case("bias-of-keys", "GRAD-18", "Only keys have a bias: its gradient is zero but for rounding.", w_o=w_o, b_k=BIASES["b_k"], dtypes=SINGLE, stays="the gradient that has to vanish, alone")
    yield case("bias-of-values", "GRAD-18", "Only values have a bias: its gradient is the sum of dC, as weights add up to 1.", w_o=w_o, b_v=BIASES["b_v"])
    yield case("bias-of-output", "GRAD-21", "Only the output projection has a bias: its gradient is the sum of grad_output.", w_o=w_o, b_o=BIASES["b_o"], stays="the only bias that is not within the heads")
    yield case("self", "GRAD-19 GRAD-17", "Without x_kv the gradient of x_q goes through all three projections; E is not H·D.", replace(PLAIN, e=6, ekv=6), dtypes=ALL_DTYPES, **FULL)
    yield case("cross", "GRAD-19", "Five queries over seven keys of another input, which has a gradient of its own.", CROSS, x_kv=x_kv, dtypes=("float32", *HALVES), stays="cross-attention in half precision", **FULL)
    yield case("cross-square", "GRAD-19", "As many queries as keys: the gradients of two inputs can be taken for each other.", PLAIN, x_kv=x_kv, stays="elsewhere inputs that are taken for each other do not fit", **FULL)
    yield case("batches", "GRAD-17 GRAD-18", "Three samples: gradients of weights and biases are sums over all of them, not means.", replace(PLAIN, b=3), dtypes=SINGLE, stays="elsewhere B = H = 2", **FULL)
    yield case("many-rows", "GRAD-26", "257 equal rows in each of two samples, and a gradient of ones: sums of 514 equal terms.", LONG, data=_equal_rows, edit=_ones, dtypes=("float32", *HALVES), **FULL)
    yield case("many-samples", "GRAD-26", "The same in 257 samples of two rows each.", replace(LONG, b=257, sq=2, sk=2), data=_equal_rows, edit=_ones, dtypes=HALVES, **FULL)


def _heads() -> Iterator[MhaGradientCase]:
    yield case("one-head", "GRAD-20", "One head.", replace(PLAIN, heads=1, d=8, dv=8), stays="with one head nothing is split", **FULL)
    yield case("three-heads", "GRAD-20", "Three heads of width 2 over 8 columns.", replace(PLAIN, heads=3, d=2, dv=2), stays="as many heads as divide no power of two", **FULL)
    yield case("value-width", "GRAD-20", "Heads of D = 4 and Dv = 3.", replace(PLAIN, dv=3), stays="Dv ≠ D in self-attention", **FULL)
    yield case("split", "GRAD-20", "Two rows in two heads of width 2: heads, rows and columns are as many.", LayerShape(b=1, sq=2, sk=2, e=4, ekv=4, d=2, dv=2, eo=4), stays="every view has the right shape", **FULL)
    yield case("one-row", "GRAD-20", "One row: its weight is 1, and only values have a gradient.", replace(PLAIN, sq=1, sk=1), stays="with one row queries and keys have gradients of zero", **FULL)
    yield case("scale-of-heads", "GRAD-20", "Two heads of width 8 over 6 columns: neither 1/√E nor 1/√(H·D).", replace(PLAIN, e=6, ekv=6, d=8, dv=8), dtypes=("float32", *HALVES), stays="the scale in half precision", **FULL)
    yield case("scale-zero", "GRAD-20", "scale = 0: only values have gradients.", scale=0.0, stays="the scale at which all weights are equal", **FULL)
    yield case("scale-negative", "GRAD-20", "scale = −0.5 over another input.", CROSS, x_kv=x_kv, scale=-0.5, stays="a scale that turns the order of keys around", **FULL)
    yield case("large-scores", "GRAD-26", "Scores of tens: weights near 0 and 1.", data=normal(3.0), dtypes=SINGLE, stays="weights near 0 and 1, where errors of the scores count most", **FULL)
    yield case("wide", "GRAD-26", "E = 64 in four heads, 33 rows.", LayerShape(b=1, sq=33, sk=33, e=64, ekv=64, heads=4, d=16, dv=16, eo=64), dtypes=ALL_DTYPES, stays="as many rows and columns as a small model has", **FULL)


def _masks() -> Iterator[MhaGradientCase]:
    yield case("mask", "GRAD-23", "A mask that differs by batch and head.", mask=_mask(0.5), stays="a full mask and nothing else", **FULL)
    yield case("bias", "GRAD-22", "A bias that differs by batch and head.", bias=_bias(2.0), dtypes=("float32", *HALVES), **FULL)
    for name, axes in {"rows": (1, 1, None, None), "batch": (None, 1, None, None), "heads": (1, None, None, None), "keys": (1, 1, 1, None)}.items():
        yield case(f"bias-{name}", "GRAD-22", f"A bias of shape {axes}, None being the full axis: its gradient is a sum.", bias=_bias(2.0, axes), **FULL)
    yield case("bias-minus-inf", "GRAD-23 GRAD-22", "A bias of −inf, a whole row among it: zero there, not NaN.", bias=_minus_inf, **FULL)
    yield case("causal", "GRAD-23", "Causal.", is_causal=True, dtypes=ALL_DTYPES, stays="the mask of training, in every dtype", **FULL)
    yield case("causal-more-keys", "GRAD-23 GRAD-19", "Causal over seven keys of another input: the last two have gradients of zero.", CROSS, x_kv=x_kv, is_causal=True, stays="the last keys have no row", **FULL)
    yield case("causal-fewer-keys", "GRAD-23 GRAD-19", "Causal over three keys of another input.", replace(PLAIN, sk=3), x_kv=x_kv, is_causal=True, **FULL)
    yield case("causal-padding", "GRAD-23", "Causal, and padded keys at the end.", is_causal=True, kv_lengths=stated(5, 3), **FULL)
    yield case("causal-padding-cross", "GRAD-23 GRAD-19", "Causal over another input whose keys are padded: they have gradients of zero.", replace(PLAIN, sk=4), x_kv=x_kv, is_causal=True, kv_lengths=stated(2, 3), **FULL)
    yield case("lengths", "GRAD-23", "Five and three valid keys; in self-attention a padded row still is a query.", kv_lengths=stated(5, 3), dtypes=("float32", *HALVES), **FULL)
    yield case("empty-row", "GRAD-24", "A fully masked row: it reaches only b_o (pytorch 41508).", mask=_row_off, dtypes=("float32", *HALVES), **FULL)
    yield case("empty-head", "GRAD-24", "Fully masked rows in one of two heads: the other one is left.", mask=_head_off, stays="a head that has no key beside one that has", **FULL)
    yield case("empty-batch", "GRAD-24 GRAD-23", "A padded sample of length 0.", kv_lengths=stated(0, 4), **FULL)
    yield case("empty-all", "GRAD-24", "No row has a key: all gradients are zero.", kv_lengths=stated(0, 0), w_o=w_o, zeros=True)


def _form() -> Iterator[MhaGradientCase]:
    alone, first = replace(PLAIN, b=1, unbatched=True), replace(PLAIN, sequence_first=True)
    yield case("unbatched", "GRAD-25", "One sample without a batch axis.", alone, **FULL)
    yield case("unbatched-bias", "GRAD-25 GRAD-22", "A bias (H, Sq, Sk) over another input.", replace(alone, sk=7), x_kv=x_kv, bias=_bias(2.0, (None, None, None)), **FULL)
    yield case("sequence-first", "GRAD-25", "Inputs and their gradients (S, B, E) with B = 2 and S = 5.", first, dtypes=("float32", *HALVES), **FULL)
    yield case("sequence-first-square", "GRAD-25", "As many samples as rows: the two axes can be taken for each other.", replace(first, b=5), stays="a swap of samples and rows fits, and is wrong", **FULL)
    yield case("sequence-first-cross", "GRAD-25 GRAD-19", "Both inputs sequence first.", replace(first, sk=7), x_kv=x_kv, **FULL)
    yield case("sequence-first-square-cross", "GRAD-25 GRAD-19", "As many samples as rows, over three rows of another input.", replace(first, b=5, sk=3), x_kv=x_kv, **FULL)
    yield case("no-keys", "GRAD-28 GRAD-24", "Another input without a row: only b_o has a gradient.", replace(CROSS, sk=0), x_kv=x_kv, **FULL)
    yield case("no-queries", "GRAD-28", "No rows: every gradient is zero in its shape.", replace(CROSS, sq=0), x_kv=x_kv, zeros=True, **FULL)
    yield case("memory-inner", "GRAD-28", "The last two axes of every array swapped in memory.", memory="inner", **FULL)
    yield case("memory-sliced", "GRAD-28", "Every second element of wider buffers.", memory="sliced", **FULL)
    yield case("repeat", "GRAD-14", "Five equal calls.", repeats=5, is_causal=True, **FULL)
    yield case("repeat-rows", "GRAD-14", "Five equal calls of 33 rows.", LayerShape(sq=33, sk=33), repeats=5, **FULL)
    yield case("unchanged", "GRAD-13", "All inputs are the same after the call.", CROSS, x_kv=x_kv, bias=_bias(1.0), stays="two inputs, all weights and a bias at once", **FULL)


def _refused() -> Iterator[MhaGradientCase]:
    def refused(name: str, clause: str, why: str, edit: Any, **options: Any) -> MhaGradientCase:
        return case(f"invalid-{name}", clause, why, edit=edit, invalid=True, w_o=w_o, **options)

    yield refused("grad-output", "GRAD-27", "grad_output has 4 rows for 5.", lambda x: replace(x, grad_output=x.grad_output[:, :4]))
    yield refused("grad-output-width", "GRAD-27", "grad_output has 7 columns for 8.", lambda x: replace(x, grad_output=x.grad_output[..., :7]))
    yield refused("grad-output-dtype", "GRAD-27", "grad_output in float64 for x_q in float32.", lambda x: replace(x, grad_output=x.grad_output.astype(np.float64)))
    yield refused("heads", "MHA-19", "Three heads over eight columns.", lambda x: replace(x, keywords={**x.keywords, "heads": 3}), stays="what mha refuses is refused")


def _equal_rows(rng: Rng, s: LayerShape) -> tuple[np.ndarray, ...]:
    """The layer's normal data, with the first row in place of all."""
    x, *weights = normal()(rng, s)
    return np.broadcast_to(x[:1, :1], x.shape), *weights


def _ones(x: LayerGradientInputs) -> LayerGradientInputs:
    """The gradient of a sum over the output."""
    return replace(x, grad_output=np.ones_like(x.grad_output))
