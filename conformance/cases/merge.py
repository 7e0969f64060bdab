"""(MERGE-1 to 15) Cases of merge: partial outputs and log-sum-exps of disjoint sets of keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from attention_conformance.conformance.bounds import merge as bounds
from attention_conformance.conformance.bounds.merge import MergeBound
from attention_conformance.conformance.cases.base import ALL_DTYPES, HALVES, AnyCase, Blame
from attention_conformance.conformance.cases.data import Rng, Shape
from attention_conformance.conformance.spec import merge as reference
from attention_conformance.conformance.spec import sdpa as attention
from attention_conformance.conformance.spec.inputs import MergeInputs
from attention_conformance.conformance.spec.merge import MergeExpected
from attention_conformance.impls.contract import Profile


@dataclass(frozen=True)
class Parts(Shape):
    """Sizes of one input: B, H = Hq = Hkv, S = Sq, Dv, and P; D = Dv, and Sk, which no merge sees, is at least Sq."""

    parts: int = 2

    @property
    def elements(self) -> int:
        """Number of elements of the outputs and the log-sum-exps."""
        return self.parts * self.b * self.hq * self.sq * (self.dv + 1)


def sizes(b: int = 2, h: int = 2, s: int = 5, dv: int = 8, parts: int = 2) -> Parts:
    """A shape by the sizes that a merge sees."""
    return Parts(b, h, h, s, max(s, 2), dv, dv, parts)


#: Makes outputs (P, B, H, S, Dv) and log-sum-exps (P, B, H, S) in float64.
Data = Callable[[Rng, Parts], tuple[np.ndarray, np.ndarray]]

#: Two parts of two sequences, two heads, five rows and eight columns.
TWO = sizes()

_AXES = {"output": ("batch", "head", "row", "column"), "lse": ("batch", "head", "row")}


def states(spread: float = 2.0, offset: float = 2.0, values: float = 1.0) -> Data:
    """Normal outputs, and normal log-sum-exps of this spread around an offset."""

    def make(rng: Rng, s: Parts) -> tuple[np.ndarray, np.ndarray]:
        rows = (s.parts, s.b, s.hq, s.sq)
        return values * rng.standard_normal((*rows, s.dv)), offset + spread * rng.standard_normal(rows)

    return make


PLAIN = states()


@dataclass(frozen=True)
class MergeCase(AnyCase):
    """A case of merge."""

    operator: ClassVar[str] = "merge"
    arguments: ClassVar[type] = MergeInputs
    blame: ClassVar[Blame] = Blame(
        "MERGE-1",
        accuracy="MERGE-12",
        value="MERGE-2",
        of_result={"lse": "MERGE-3"},
        dtype="MERGE-13",
        modified="MERGE-14",
        unrepeatable="MERGE-14",
        memory="MERGE-14",
    )
    shape: Parts = TWO
    data: Data = PLAIN

    def draw(self, rng: Rng) -> tuple[np.ndarray, ...]:
        """Outputs and log-sum-exps in float64."""
        return self.data(rng, self.shape)

    def before_edit(self, dtype: str) -> MergeInputs:
        """The inputs before they are edited; log-sum-exps are in float32 where the outputs are in half precision."""
        inputs: MergeInputs = super().before_edit(dtype if dtype == "float64" else "float32")
        return replace(inputs, outputs=super().before_edit(dtype).outputs)

    def make_expected(self, inputs: MergeInputs) -> MergeExpected:
        """Results of the reference.  Raises InvalidInput for invalid inputs."""
        return reference.merge(inputs.outputs, inputs.lses)

    def make_bound(self, inputs: MergeInputs, expected: MergeExpected, dtype: str, profile: Profile) -> MergeBound:
        """The error bound for inputs under a profile."""
        return bounds.bound(expected, dtype, profile)

    def axes(self, result: str) -> tuple[str, ...]:
        """Names of the axes of a result."""
        return _AXES[result]

    def __hash__(self) -> int:
        return hash(self.name)


def case(name: str, clauses: str, why: str, shape: Parts = TWO, **rest: Any) -> MergeCase:
    """A case from its clauses as one text."""
    return MergeCase.of(f"merge-{name}", clauses, why, shape, rest)


def cases() -> Iterator[MergeCase]:
    """Every case of this operator."""
    yield from _values()
    yield from _parts()
    yield from _empty()
    yield from _range()
    yield from _joined()
    yield from _form()


def _values() -> Iterator[MergeCase]:
    yield case("two", "MERGE-2 MERGE-12", "Two parts whose weights differ from row to row.", dtypes=ALL_DTYPES, stays="the plain call, in every dtype")
    yield case("shapes", "MERGE-1", "Every length and width another one, and no multiple of anything.", sizes(3, 2, 5, 12))
    yield case("heads-as-rows", "MERGE-1", "As many heads as rows: log-sum-exps read as (S, H) fit and are wrong (vllm PR 57012).", sizes(2, 4, 4), dtypes=("float32", *HALVES))
    yield case("batches", "MERGE-1", "Four sequences of one row each, with log-sum-exps that differ.", sizes(4, 2, 1))
    yield case("equal-weights", "MERGE-2", "Equal log-sum-exps: the output is the mean, and lse is larger by log 2.", data=equal_weights, stays="equal weights")
    yield case("equal-outputs", "MERGE-2", "Equal outputs: they come back, whatever the weights.", data=equal_outputs, stays="outputs that no weight changes")
    yield case("base", "MERGE-3", "Log-sum-exps 3 apart: a weight of 1/(1 + e³), and 1/9 in base 2 (sglang 40903).", data=lses_apart(3.0), dtypes=("float32", *HALVES))
    yield case("base-lse", "MERGE-3 MERGE-2", "Three parts around 7: lse is a natural logarithm.", sizes(parts=3), data=states(1.0, 7.0))
    yield case("lse-signs", "MERGE-3 MERGE-2", "Log-sum-exps of both signs around 0.", data=states(3.0, 0.0), dtypes=("float32", *HALVES), stays="log-sum-exps on both sides of 0")


def _parts() -> Iterator[MergeCase]:
    yield case("three", "MERGE-4", "Three parts.", sizes(parts=3), dtypes=("float32", *HALVES), stays="the plainest call of more than two parts")
    yield case("five", "MERGE-4", "Five parts, no power of two.", sizes(parts=5), stays="a tree of parts with one left over")
    yield case("parts-33", "MERGE-4", "33 parts: one more than a warp has lanes (flashinfer PR 4573).", sizes(1, 2, 3, 8, 33), data=states(0.5))
    yield case("parts-130", "MERGE-4 MERGE-12", "130 parts of one row: more than kernels have splits for.", sizes(1, 2, 1, 8, 130), data=states(0.5), dtypes=("float32", *HALVES))
    yield case("one", "MERGE-4", "One part is the result.", sizes(parts=1), dtypes=("float32", *HALVES), stays="nothing to merge with")
    yield case("order-ascending", "MERGE-5", "Seven parts, each with a larger log-sum-exp than those before it: each brings a new maximum.", sizes(parts=7), data=ordered(1.5), stays="a new maximum with each part")
    yield case("order-descending", "MERGE-5", "The same from large to small.", sizes(parts=7), data=ordered(-1.5), stays="the other order")


def _empty() -> Iterator[MergeCase]:
    first, last = without(slice(0, 1)), without(slice(-1, None))
    yield case("empty-first", "MERGE-6", "The first part has no key: (0, −inf) and the second, which comes back.", data=first, dtypes=("float32", *HALVES))
    yield case("empty-last", "MERGE-6", "The last part has no key (sgl-kernel-xpu PR 487).", data=last)
    yield case("empty-some-rows", "MERGE-6", "In each part some rows have no key, as at the seam of a causal split.", sizes(s=9, parts=3), data=without_rows, dtypes=("float32", *HALVES))
    yield case("empty-junk", "MERGE-6", "A part without a key whose output holds 1e3: it has no effect (vllm PR 49294).", data=without(slice(0, 1), 1e3), dtypes=("float32", *HALVES))
    yield case("empty-junk-last", "MERGE-6", "The same with the last of three parts.", sizes(parts=3), data=without(slice(-1, None), 1e3))
    yield case("empty-nan", "MERGE-7", "A part without a key whose output is NaN, as in uninitialised memory (ATOM PR 1832).", data=without(slice(0, 1), np.nan), stays="what no MUST says")
    yield case("empty-inf", "MERGE-7", "The same with infinity.", data=without(slice(-1, None), np.inf), stays="what no MUST says")
    yield case("empty-all-row", "MERGE-8", "Rows that are fully masked in every part: (0, −inf), not NaN, beside rows that have some (flashinfer 4051).", data=without(slice(None), rows=slice(1, 3)), dtypes=("float32", *HALVES))
    yield case("empty-all", "MERGE-8", "No row has a key in any part (vllm 27491).", data=without(slice(None)), zeros=True)
    yield case("empty-all-junk", "MERGE-8", "Fully masked rows whose outputs hold 1e3: the result is 0 (vllm PR 28181 copies the first).", data=without(slice(None), 1e3, slice(1, 3)))
    yield case("empty-all-junk-three", "MERGE-8 MERGE-4", "The same in three parts.", sizes(parts=3), data=without(slice(None), 1e3, slice(3, 5)))
    yield case("empty-one", "MERGE-8 MERGE-4", "One part, and no key in some of its rows.", sizes(parts=1), data=without(slice(None), rows=slice(1, 3)), stays="nothing to merge, and no key")
    yield case("nan-lse", "MERGE-9", "NaN as one log-sum-exp: the row is NaN, and no other one (aiter PR 4420 hides it).", data=nan_in(lse=True), dtypes=("float32", *HALVES))
    yield case("nan-lse-three", "MERGE-9 MERGE-4", "The same in the last of three parts, where the first has no key.", sizes(parts=3), data=nan_in(lse=True, empty=True))
    yield case("nan-output", "MERGE-9", "NaN in one element of an output: just that element is NaN.", data=nan_in(lse=False))


def _range() -> Iterator[MergeCase]:
    yield case("large", "MERGE-10", "Log-sum-exps around 200: exp overflows float32 beyond 88 (ring-flash-attention PR 30).", data=states(2.0, 200.0), dtypes=("float32", *HALVES))
    yield case("large-some", "MERGE-10", "Log-sum-exps between −150 and 150 in one call.", sizes(parts=3), data=states(60.0, 0.0), stays="small and large ones in one call")
    yield case("small", "MERGE-10", "Log-sum-exps around −200: powers that start from a maximum of 0 all vanish (flashinfer PR 5262).", data=states(2.0, -200.0), dtypes=("float32", *HALVES))
    yield case("small-three", "MERGE-10 MERGE-4", "Around −1000, three parts.", sizes(parts=3), data=states(2.0, -1000.0))
    yield case("unequal", "MERGE-10", "10,000 apart: the larger part comes back.", data=lses_apart(1e4), dtypes=("float32", *HALVES), stays="a weight that vanishes in every dtype")
    yield case("unequal-some", "MERGE-10 MERGE-12", "8 apart: a weight of 3.4e-4 still counts.", data=lses_apart(8.0), dtypes=("float32", "float64"), stays="a weight that is small and counts")
    yield case("range-outputs", "MERGE-10", "Outputs of three parts that add up to more than float16 has, in some places, before the division.", sizes(parts=3), data=_near_largest, dtypes=("float16",))
    yield case("range-outputs-two", "MERGE-10", "The same of two parts.", data=_near_largest, dtypes=("float16",))


def _joined() -> Iterator[MergeCase]:
    yield case("joined", "MERGE-11", "Attention over 32 keys in two halves: the result is attention over all of them.", data=joined(16, 16), dtypes=ALL_DTYPES, stays="what a merge is for, in every dtype")
    yield case("joined-uneven", "MERGE-11 MERGE-2", "A prefix of 200 keys and the one key behind it.", data=joined(200, 1), dtypes=("float32", *HALVES), stays="a long prefix and one new key")
    yield case("joined-ring", "MERGE-11 MERGE-4", "Four blocks of keys, causal: the first rows have no key in the last blocks.", sizes(s=8, parts=4), data=joined(2, 2, 2, 2, is_causal=True))
    yield case("joined-cascade", "MERGE-11 MERGE-4", "A shared prefix, an own prefix and the new keys: 64, 9 and 3.", sizes(parts=3), data=joined(64, 9, 3), stays="parts of three lengths")
    yield case("joined-large-scores", "MERGE-11 MERGE-10", "Scores of tens.", data=joined(16, 16, spread=3.0), stays="weights near 0 and 1")


def _form() -> Iterator[MergeCase]:
    yield case("accuracy-lse", "MERGE-12", "Log-sum-exps around 300: half precision has no digits behind the point there.", data=states(1.0, 300.0), dtypes=ALL_DTYPES)
    yield case("dtype", "MERGE-13", "The output has the dtype of outputs, lse is in float32 or wider.", dtypes=ALL_DTYPES, stays="every dtype")
    yield case("dtype-parts", "MERGE-13 MERGE-4", "The same of three parts.", sizes(parts=3), dtypes=("float32", *HALVES), stays="the dtype of more than two parts")
    for width in (64, 128, 192, 256):
        yield case(f"width-{width}", "MERGE-1 MERGE-12", f"Eight heads of width {width}, as models have them.", sizes(1, 8, 17, width), dtypes=("float32", *HALVES), stays="a size of kernels")
    yield case("width-tail", "MERGE-1", "A width of 44, no multiple of 8.", sizes(1, 2, 3, 44), dtypes=("float32", *HALVES))
    yield case("decoding", "MERGE-4", "One row of 32 heads in eight splits, as in decoding.", sizes(2, 32, 1, 128, 8), dtypes=("float32", *HALVES), stays="a size of kernels")
    yield case("rows-129", "MERGE-1", "129 rows: one more than a tile.", sizes(1, 2, 129, 64), dtypes=HALVES, stays="a size of kernels")
    yield case("one-row", "MERGE-1", "One row, one head, one column.", sizes(1, 1, 1, 1), stays="every size is one")
    yield case("unchanged", "MERGE-14", "Both inputs are the same after the call (vllm PR 50613 merges in place).", sizes(parts=3))
    yield case("repeat", "MERGE-14", "Five equal calls give equal bits.", sizes(parts=3), repeats=5, dtypes=("float32", *HALVES), stays="several equal calls")
    for memory in ("inner", "sliced", "guarded"):
        yield case(f"memory-{memory}", "MERGE-14", f"Both inputs {memory} in memory.", sizes(parts=3), memory=memory, stays="one memory layout in use")
    yield case("no-rows", "MERGE-1", "No rows.", sizes(s=0), zeros=True, stays="an empty axis")
    yield case("no-batch", "MERGE-1", "No sequence.", sizes(b=0), zeros=True, stays="an empty axis")
    yield case("invalid-parts", "MERGE-15", "Log-sum-exps of two parts for outputs of three.", sizes(parts=3), edit=lambda x: replace(x, lses=x.lses[:2]), invalid=True)
    yield case("invalid-rows", "MERGE-15", "Log-sum-exps of 4 rows for outputs of 5.", edit=lambda x: replace(x, lses=x.lses[..., :4]), invalid=True, needs="Sq > 4")
    yield case("invalid-heads", "MERGE-15", "Log-sum-exps of one head for outputs of two.", edit=lambda x: replace(x, lses=x.lses[:, :, :1]), invalid=True, needs="Hq > 1")
    yield case("invalid-layout", "MERGE-15", "Log-sum-exps (P, B, S, H), which fit no other way (vllm-xpu-kernels PR 479).", sizes(2, 2, 5), edit=lambda x: replace(x, lses=x.lses.swapaxes(2, 3)), invalid=True, needs="Hq < Sq")


def equal_weights(rng: Rng, s: Parts) -> tuple[np.ndarray, np.ndarray]:
    """One log-sum-exp for all parts of a row."""
    outputs, lses = states()(rng, s)
    return outputs, np.broadcast_to(lses[:1], lses.shape)


def equal_outputs(rng: Rng, s: Parts) -> tuple[np.ndarray, np.ndarray]:
    """One output for all parts."""
    outputs, lses = states()(rng, s)
    return np.broadcast_to(outputs[:1], outputs.shape), lses


def lses_apart(gap: float) -> Data:
    """Each part's log-sum-exp below the previous part's, or above it in every second row."""

    def make(rng: Rng, s: Parts) -> tuple[np.ndarray, np.ndarray]:
        outputs, lses = states(0.5)(rng, s)
        p, b, h, row = np.ogrid[: s.parts, : s.b, : s.hq, : s.sq]
        return outputs, lses + gap * p * np.where((b + h + row) % 2, 1, -1)

    return make


def ordered(step: float) -> Data:
    """Log-sum-exps that grow (or fall) from part to part."""

    def make(rng: Rng, s: Parts) -> tuple[np.ndarray, np.ndarray]:
        outputs, lses = states(0.5)(rng, s)
        return outputs, lses + step * np.arange(s.parts)[:, None, None, None]

    return make


def without(parts: slice, junk: float = 0.0, rows: slice = slice(None)) -> Data:
    """Some parts, in some rows, without a key: −inf, and an output of zeros or of junk."""

    def make(rng: Rng, s: Parts) -> tuple[np.ndarray, np.ndarray]:
        outputs, lses = states()(rng, s)
        outputs[parts, :, :, rows], lses[parts, :, :, rows] = junk, -np.inf
        return outputs, lses

    return make


def without_rows(rng: Rng, s: Parts) -> tuple[np.ndarray, np.ndarray]:
    """Part p has no key in the rows before 2 p."""
    outputs, lses = states()(rng, s)
    none = np.broadcast_to((np.arange(s.sq) < 2 * np.arange(s.parts)[:, None])[:, None, None], lses.shape)
    return np.where(none[..., None], 0.0, outputs), np.where(none, -np.inf, lses)


def nan_in(*, lse: bool, empty: bool = False) -> Data:
    """NaN in the last part, as the log-sum-exp of row 1 or in column 0 of its output; the first part without a key."""

    def make(rng: Rng, s: Parts) -> tuple[np.ndarray, np.ndarray]:
        outputs, lses = states()(rng, s)
        if lse:
            lses[-1, :, :, 1:2] = np.nan
        else:
            outputs[-1, :, :, 1:2, 0] = np.nan
        if empty:
            outputs[0], lses[0] = 0.0, -np.inf
        return outputs, lses

    return make


def _near_largest(rng: Rng, s: Parts) -> tuple[np.ndarray, np.ndarray]:
    """Outputs of one sign per column, whose sum over the parts is on both sides of float16's largest number."""
    outputs, lses = states(0.1)(rng, s)
    return np.where(np.arange(s.dv) % 2, -1, 1) * 6e4 / s.parts * (0.8 + 0.3 * np.abs(outputs)), lses


def joined(*keys: int, is_causal: bool = False, spread: float = 1.0) -> Data:
    """Results of the reference of sdpa over each of several blocks of keys, for the same queries."""

    def make(rng: Rng, s: Parts) -> tuple[np.ndarray, np.ndarray]:
        found, first = [], 0
        q, k, v = (scale * rng.standard_normal((s.b, s.hq, n, s.dv)) for n, scale in ((s.sq, spread), (sum(keys), spread), (sum(keys), 1.0)))
        for count in keys:
            block = slice(first, first + count)
            options: dict[str, Any] = {"is_causal": True, "causal_offset": -first} if is_causal else {}
            found.append(attention.sdpa(q, k[:, :, block], v[:, :, block], **options))
            first += count
        return np.stack([each.output for each in found]), np.stack([each.lse for each in found])

    return make
