"""(GRAD-30 to 34) Cases of the gradients of packed sequences: packs with a gradient of the output."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from attention_conformance.conformance.bounds import varlen_gradients as bounds
from attention_conformance.conformance.bounds.sdpa import Options
from attention_conformance.conformance.bounds.varlen_gradients import PackedGradBound
from attention_conformance.conformance.cases.base import ALL_DTYPES, HALVES, Blame
from attention_conformance.conformance.cases.packed import PackedCase, PackedShape, Rng, across
from attention_conformance.conformance.cases.varlen import BOTH, CROSS, HOLES, ONE, SELF
from attention_conformance.conformance.spec import varlen_gradients as reference
from attention_conformance.conformance.spec.inputs import PackedGradientInputs
from attention_conformance.conformance.spec.varlen_gradients import PackedGradExpected
from attention_conformance.impls.contract import Profile

#: Tiles of 16 and 32 rows or keys cross every boundary.
EDGES = PackedShape(q_lengths=(17, 1, 31), k_lengths=(33, 15, 34))


@dataclass(frozen=True)
class PackedGradientCase(PackedCase):
    """A case of varlen_grad."""

    operator: ClassVar[str] = "varlen_grad"
    arguments: ClassVar[type] = PackedGradientInputs
    blame: ClassVar[Blame] = Blame(
        "GRAD-30",
        accuracy="GRAD-33",
        value="GRAD-31",
        dtype="GRAD-10",
        modified="GRAD-13",
        unrepeatable="GRAD-14",
    )

    def draw(self, rng: Rng) -> tuple[np.ndarray, ...]:
        """Q, k, v and grad_output in float64."""
        s = self.shape
        return *(self.data or across)(rng, s), rng.standard_normal((sum(s.q_lengths), s.hq, s.dv))

    def make_expected(self, inputs: PackedGradientInputs) -> PackedGradExpected:  # type: ignore[override]
        """Results of the reference.  Raises InvalidInput for invalid inputs."""
        return reference.varlen_grad(*inputs.arrays.values(), **inputs.keywords)

    def make_bound(self, inputs: Any, expected: Any, dtype: str, profile: Profile) -> PackedGradBound:  # type: ignore[override]
        """The error bound for inputs under a profile."""
        return bounds.bound(expected, Options.of(inputs.keywords), dtype, profile)

    def axes(self, result: str) -> tuple[str, ...]:
        """Names of the axes of a result."""
        return ("row" if result == "grad_q" else "key", "head", "column")

    def __hash__(self) -> int:
        return hash(self.name)


def case(name: str, clauses: str, why: str, shape: PackedShape = SELF, **rest: Any) -> PackedGradientCase:
    """A case from its clauses as one text and its options as keywords, in addition to the maxima."""
    return PackedGradientCase.of(f"varlen-grad-{name}", clauses, why, shape, shape.options | rest)


def cases() -> Iterator[PackedGradientCase]:
    """Every case of this operator."""
    yield case("self", "GRAD-31 GRAD-30 GRAD-33", "Three sequences of 5, 7 and 3 tokens over themselves.", dtypes=ALL_DTYPES, stays="the plain call, in every dtype")
    yield case("cross", "GRAD-31 GRAD-30", "Four sequences with other lengths of queries and of keys.", CROSS, dtypes=("float32", *HALVES), stays="other lengths of queries and keys")
    yield case("widths", "GRAD-30", "Dv = 12 with D = 8.", replace(CROSS, dv=12), stays="Dv ≠ D")
    yield case("causal", "GRAD-31", "Causal over equal lengths.", is_causal=True, dtypes=ALL_DTYPES, stays="the mask of packed training, in every dtype")
    yield case("causal-more-keys", "GRAD-31", "Causal, the queries being the last tokens of longer contexts.", CROSS, is_causal=True, dtypes=("float32", *HALVES), stays="aligned at the bottom right, in half precision")
    yield case("causal-more-queries", "GRAD-31 GRAD-32", "Causal with more queries than keys in one sequence: its first rows have no key.", BOTH, is_causal=True, stays="rows without a key in a pack")
    yield case("causal-top-left", "GRAD-31", "causal_offset = 0, given.", CROSS, is_causal=True, causal_offset=0, stays="the other alignment")
    yield case("causal-offsets", "GRAD-31", "An offset for each sequence.", CROSS, is_causal=True, causal_offset=lambda rng, s, dtype: np.array((4, 6, 1, 3), np.int64), stays="an offset for each sequence")
    yield case("one-query", "GRAD-31", "One query each.", ONE, is_causal=True, stays="steps of decoding")
    yield case("window", "GRAD-31", "Two keys to the left of the diagonal, one to the right.", CROSS, window=(2, 1), stays="a window of both sides")
    yield case("scale", "GRAD-31", "scale = 0.7.", CROSS, scale=0.7, stays="a scale and nothing else")
    yield case("softcap", "GRAD-31", "softcap = 3.", CROSS, softcap=3.0, dtypes=("float32", "float64"), stays="the slope of a softcap in a pack")
    yield case("grouped", "GRAD-31", "Six query heads over two key heads: k and v sum over the group.", replace(CROSS, hq=6), dtypes=("float32", *HALVES), stays="grouped heads in half precision")
    yield case("grouped-causal", "GRAD-31", "Four query heads over one, causal.", replace(BOTH, hq=4, hkv=1), is_causal=True, stays="one key head")
    yield case("empty-keys", "GRAD-32", "A sequence of queries without a key among others: its rows have gradients of zero.", replace(SELF, k_lengths=(5, 0, 3)), dtypes=("float32", *HALVES), stays="zeros and no NaN (flash-attention 1537)")
    yield case("empty-queries", "GRAD-32", "A sequence of keys without a query: gradients of zero.", replace(SELF, q_lengths=(5, 0, 3)), dtypes=("float32", *HALVES), stays="keys that nobody sees")
    yield case("empty-both", "GRAD-32", "Empty sequences of both kinds between others, causal.", HOLES, is_causal=True, stays="every kind of empty sequence at once")
    yield case("empty-all", "GRAD-32", "No sequence has a key.", replace(SELF, k_lengths=(0, 0, 0)), zeros=True, stays="nothing to differentiate")
    yield case("maxima", "GRAD-31", "Maxima of 64 over lengths of up to 10, causal.", CROSS, is_causal=True, max_seqlen_q=64, max_seqlen_k=64, stays="maxima that are no length")
    yield case("behind", "GRAD-32 GRAD-31", "Six more keys behind the last sequence: gradients of zero.", replace(CROSS, behind=6), stays="keys of no sequence")
    yield case("behind-causal", "GRAD-32", "Three more keys behind the last sequence, one query each, causal.", replace(ONE, behind=3), is_causal=True, stays="keys of no sequence")
    yield case("tiles", "GRAD-33 GRAD-31", "Lengths around 16 and 32: every tile of these crosses a boundary.", EDGES, dtypes=("float32", *HALVES), stays="several tiles of a sequence")
    yield case("tiles-causal", "GRAD-33 GRAD-31", "The same, causal.", EDGES, is_causal=True, stays="several tiles of a sequence, causal")
    yield case("accuracy", "GRAD-33", "A sequence of 200 keys next to one of three: each has its own bound.", replace(SELF, q_lengths=(3, 3), k_lengths=(200, 3)), dtypes=("float32", "float64"), stays="a bound for each sequence")
    yield case("repeat", "GRAD-14", "Five equal calls.", CROSS, repeats=5, is_causal=True, stays="equal calls")
    yield case("memory-sliced", "SDPA-30", "Every second element of wider buffers.", CROSS, memory="sliced", stays="strides")
    yield case("invalid-grad-output", "GRAD-34", "grad_output has a row less than q.", edit=lambda x: replace(x, grad_output=x.grad_output[:-1]), invalid=True, stays="an input that must be refused")
    yield case("invalid-boundaries", "VARLEN-11", "Boundaries of three sequences and of two.", edit=lambda x: replace(x, cu_seqlens_k=x.cu_seqlens_k[:-1]), invalid=True, stays="an input that must be refused")
