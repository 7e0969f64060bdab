"""(GRAD-36 to 43) Cases of the gradients of a merge: parts with a gradient of the merged output, and of the merged lse."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from attention_conformance.conformance.bounds import merge_gradients as bounds
from attention_conformance.conformance.bounds.merge_gradients import MergeGradBound
from attention_conformance.conformance.cases.base import ALL_DTYPES, HALVES, AnyCase, Blame
from attention_conformance.conformance.cases.data import Rng
from attention_conformance.conformance.cases.merge import (
    TWO,
    MergeCase,
    Parts,
    equal_outputs,
    equal_weights,
    joined,
    lses_apart,
    nan_in,
    ordered,
    sizes,
    states,
    without,
    without_rows,
)
from attention_conformance.conformance.spec import merge_gradients as reference
from attention_conformance.conformance.spec.inputs import MergeGradientInputs
from attention_conformance.conformance.spec.merge_gradients import MergeGradExpected
from attention_conformance.impls.contract import Profile

_AXES = ("part", "batch", "head", "row", "column")


@dataclass(frozen=True)
class MergeGradientCase(MergeCase):
    """A case of merge_grad."""

    operator: ClassVar[str] = "merge_grad"
    arguments: ClassVar[type] = MergeGradientInputs
    blame: ClassVar[Blame] = Blame(
        "GRAD-36",
        accuracy="GRAD-40",
        value="GRAD-37",
        dtype="GRAD-36",
        modified="GRAD-13",
        unrepeatable="GRAD-14",
    )

    def draw(self, rng: Rng) -> tuple[np.ndarray, ...]:
        """Outputs, log-sum-exps and grad_output in float64."""
        s = self.shape
        return *self.data(rng, s), rng.standard_normal((s.b, s.hq, s.sq, s.dv))

    def before_edit(self, dtype: str) -> MergeGradientInputs:  # type: ignore[override]
        """The inputs before they are edited; log-sum-exps and their gradient are in float32 in half precision."""
        wide: MergeGradientInputs = AnyCase.before_edit(self, dtype if dtype == "float64" else "float32")
        own = AnyCase.before_edit(self, dtype)
        return replace(wide, outputs=own.outputs, grad_output=own.grad_output)

    def make_expected(self, inputs: MergeGradientInputs) -> MergeGradExpected:  # type: ignore[override]
        """Results of the reference.  Raises InvalidInput for invalid inputs."""
        return reference.merge_grad(*inputs.arrays.values(), **inputs.keywords)

    def make_bound(self, inputs: Any, expected: Any, dtype: str, profile: Profile) -> MergeGradBound:  # type: ignore[override]
        """The error bound for inputs under a profile."""
        return bounds.bound(expected, dtype, profile)

    def axes(self, result: str) -> tuple[str, ...]:
        """Names of the axes of a result."""
        return _AXES if result == "grad_outputs" else _AXES[:-1]

    def __hash__(self) -> int:
        return hash(self.name)


def of_lse(rng: Rng, s: Parts, dtype: np.dtype) -> np.ndarray:
    """A gradient with respect to the merged log-sum-exp, in float32 or wider."""
    return rng.standard_normal((s.b, s.hq, s.sq)).astype(np.float64 if dtype == np.float64 else np.float32)


def case(name: str, clauses: str, why: str, shape: Parts = TWO, **rest: Any) -> MergeGradientCase:
    """A case from its clauses as one text; ``lse=True`` gives a gradient of the merged log-sum-exp, too."""
    options = {"grad_lse": of_lse} if rest.pop("lse", False) else {}
    return MergeGradientCase.of(f"merge-grad-{name}", clauses, why, shape, options | rest)


def cases() -> Iterator[MergeGradientCase]:
    """Every case of this operator."""
    yield from _values()
    yield from _parts()
    yield from _empty()
    yield from _range()
    yield from _form()


def _values() -> Iterator[MergeGradientCase]:
    yield case("two", "GRAD-37 GRAD-36 GRAD-40", "Two parts and a gradient of their output.", dtypes=ALL_DTYPES, stays="the plain call, in every dtype")
    yield case("lse", "GRAD-37 GRAD-40", "The same with a gradient of lse, too.", lse=True, dtypes=ALL_DTYPES, stays="both gradients, in every dtype")
    yield case("lse-alone", "GRAD-37", "A gradient of lse, and zeros as the gradient of the output (flash-attention 1817).", lse=True, edit=_no_grad_output, dtypes=("float32", *HALVES))
    yield case("lse-some-rows", "GRAD-37", "A gradient of lse in all rows, of the output in the first two: the others are not to be skipped.", lse=True, edit=_grad_output_of_two_rows)
    yield case("equal-weights", "GRAD-37", "Equal log-sum-exps: two maxima in every row, and equal weights.", data=equal_weights, lse=True, stays="equal weights")
    yield case("equal-outputs", "GRAD-37", "Equal outputs: no weight changes them, and log-sum-exps have gradients of zero but for grad_lse.", data=equal_outputs, lse=True, stays="a cancellation of all of the first term")
    yield case("base", "GRAD-37", "Log-sum-exps 3 apart, with both gradients: other weights, and a factor ln 2, in base 2.", data=lses_apart(3.0), lse=True, dtypes=("float32", *HALVES), stays="log-sum-exps in another base")
    yield case("signs", "GRAD-37", "Log-sum-exps of both signs around 0.", data=states(3.0, 0.0), lse=True, stays="log-sum-exps on both sides of 0")
    yield case("joined", "GRAD-37", "The halves of attention over 32 keys.", data=joined(16, 16), lse=True, dtypes=("float32", *HALVES), stays="what a merge is for")


def _parts() -> Iterator[MergeGradientCase]:
    yield case("three", "GRAD-37", "Three parts, with both gradients.", sizes(parts=3), lse=True, dtypes=("float32", *HALVES), stays="the plainest call of more than two parts")
    yield case("parts-33", "GRAD-37", "33 parts.", sizes(1, 2, 3, 8, 33), data=states(0.5), stays="more parts than a warp has lanes")
    yield case("one", "GRAD-37", "One part: the gradients come back, and the output does not matter.", sizes(parts=1), lse=True, dtypes=("float32", *HALVES))
    yield case("order-ascending", "GRAD-37", "Seven parts, each with a larger log-sum-exp than those before it.", sizes(parts=7), data=ordered(1.5), lse=True, stays="a new maximum with each part")


def _empty() -> Iterator[MergeGradientCase]:
    yield case("empty-first", "GRAD-38", "The first part has no key.", data=without(slice(0, 1)), lse=True, dtypes=("float32", *HALVES))
    yield case("empty-last", "GRAD-38", "The last of three parts has no key, without a gradient of lse.", sizes(parts=3), data=without(slice(-1, None)), stays="no key in the last part, without a gradient of lse")
    yield case("empty-some-rows", "GRAD-38", "In each part some rows have no key, as at the seam of a causal split.", sizes(s=9, parts=3), data=without_rows, lse=True, dtypes=("float32", *HALVES), stays="parts without a key in some rows")
    yield case("empty-junk", "GRAD-38", "A part without a key whose output holds 1e3: it has no effect.", data=without(slice(0, 1), 1e3), lse=True, dtypes=("float32", *HALVES))
    yield case("empty-junk-last", "GRAD-38", "The same with the last of three parts.", sizes(parts=3), data=without(slice(-1, None), 1e3), stays="junk in the last part")
    yield case("empty-all-row", "GRAD-38", "Rows that are fully masked in every part, beside rows that have keys (pytorch 31829).", data=without(slice(None), rows=slice(1, 3)), lse=True, dtypes=("float32", *HALVES))
    yield case("empty-all", "GRAD-38", "No row has a key in any part: zeros (jax 6811).", data=without(slice(None)), lse=True, zeros=True, dtypes=("float32", *HALVES))
    yield case("empty-all-output", "GRAD-38", "The same in some rows, with only a gradient of the output.", data=without(slice(None), rows=slice(1, 3)))
    yield case("empty-one", "GRAD-38", "One part, and no key in some of its rows.", sizes(parts=1), data=without(slice(None), rows=slice(1, 3)), lse=True, stays="nothing to merge, and no key")
    yield case("empty-nan", "GRAD-43", "A part without a key whose output is NaN, as in uninitialised memory.", data=without(slice(0, 1), np.nan), lse=True, stays="what no MUST says")


def _range() -> Iterator[MergeGradientCase]:
    yield case("unequal", "GRAD-39", "80 apart: a weight of 1.8e-35, below the least number of float16 and within the range of float32.", data=lses_apart(80.0), lse=True, dtypes=ALL_DTYPES, stays="a weight that is small in every dtype")
    yield case("unequal-more", "GRAD-39", "10,000 apart: the larger part has both gradients, the other zeros.", data=lses_apart(1e4), lse=True, dtypes=("float32", *HALVES), stays="a weight that vanishes in every dtype")
    yield case("unequal-some", "GRAD-39 GRAD-40", "8 apart: a weight of 3.4e-4 still counts.", data=lses_apart(8.0), lse=True, dtypes=("float32", "float64"), stays="a weight that is small and counts")
    yield case("large", "GRAD-39", "Log-sum-exps around 200: exp overflows float32 beyond 88.", data=states(2.0, 200.0), lse=True, dtypes=("float32", *HALVES))
    yield case("small", "GRAD-39", "Log-sum-exps around −200.", data=states(2.0, -200.0), lse=True)
    yield case("nan-lse", "GRAD-41", "NaN as one log-sum-exp: the gradients of that row are NaN, and of no other one.", data=nan_in(lse=True), lse=True)
    yield case("nan-output", "GRAD-41", "NaN in one element of an output: gradients of log-sum-exps are NaN in that row, those of outputs are not.", data=nan_in(lse=False), lse=True)
    yield case("nan-grad-output", "GRAD-41", "NaN in one element of grad_output.", edit=_nan_grad_output, lse=True)
    yield case("nan-grad-lse", "GRAD-41", "NaN in grad_lse in one row.", edit=_nan_grad_lse, lse=True)


def _form() -> Iterator[MergeGradientCase]:
    yield case("shapes", "GRAD-36", "Every length and width another one, and no multiple of anything.", sizes(3, 2, 5, 12), lse=True, stays="sizes that differ from each other")
    yield case("heads-as-rows", "GRAD-36", "As many heads as rows: arrays read as (S, H) fit and are wrong.", sizes(2, 4, 4), lse=True, dtypes=("float32", *HALVES), stays="as many heads as rows")
    yield case("one-head", "GRAD-36", "One row of one head of one sequence, one column.", sizes(1, 1, 1, 1), lse=True, stays="every size is one")
    yield case("width-256", "GRAD-40 GRAD-36", "Eight heads of width 256: a sum of 256 products.", sizes(1, 8, 17, 256), lse=True, dtypes=("float32", *HALVES), stays="the largest width of heads")
    yield case("width-1024", "GRAD-40", "1,024 products of one sign: their sum stalls at 256 in bfloat16, and is rounded to whole numbers in float16.", sizes(1, 2, 2, 1024), data=_of_one_sign, edit=_positive, dtypes=("float32", *HALVES))
    yield case("width-512-three", "GRAD-40", "512 of three parts, with a gradient of lse.", sizes(1, 2, 2, 512, 3), data=_of_one_sign, edit=_positive, lse=True, dtypes=("float32", *HALVES))
    yield case("decoding", "GRAD-40", "One row of 32 heads in eight splits.", sizes(2, 32, 1, 128, 8), dtypes=("float32", *HALVES), stays="a size of kernels")
    yield case("accuracy-lse", "GRAD-40", "Log-sum-exps around 300.", data=states(1.0, 300.0), lse=True, dtypes=ALL_DTYPES)
    yield case("dtype", "GRAD-36", "Gradients of outputs have their dtype, those of log-sum-exps are in float32 or wider.", sizes(parts=3), lse=True, dtypes=ALL_DTYPES, stays="every dtype")
    yield case("unchanged", "GRAD-13", "All inputs are the same after the call.", sizes(parts=3), lse=True, stays="inputs that are not written to")
    yield case("repeat", "GRAD-14", "Five equal calls.", sizes(parts=3), lse=True, repeats=5, stays="equal calls")
    for memory in ("inner", "sliced"):
        yield case(f"memory-{memory}", "SDPA-30", f"All inputs {memory} in memory.", sizes(parts=3), lse=True, memory=memory, stays="one memory layout in use")
    yield case("no-rows", "GRAD-36", "No rows.", sizes(s=0), lse=True, zeros=True, stays="an empty axis")
    yield case("invalid-parts", "MERGE-15", "Log-sum-exps of two parts for outputs of three.", sizes(parts=3), edit=lambda x: replace(x, lses=x.lses[:2]), invalid=True, stays="parts that do not fit")
    yield case("invalid-grad-output", "GRAD-42", "grad_output has a row less than the output.", edit=lambda x: replace(x, grad_output=x.grad_output[:, :, :-1]), invalid=True, needs="Sq > 1")
    yield case("invalid-grad-output-heads", "GRAD-42", "grad_output of one head for two, which would be broadcast.", edit=lambda x: replace(x, grad_output=x.grad_output[:, :1]), invalid=True, needs="Hq > 1")
    yield case("invalid-grad-lse", "GRAD-42", "grad_lse of one head for two, which would be broadcast.", lse=True, edit=_one_head_of_grad_lse, invalid=True, needs="Hq > 1")


def _of_one_sign(rng: Rng, s: Parts) -> tuple[np.ndarray, np.ndarray]:
    """Outputs around 1 in every second part, around −1 in the others, and log-sum-exps that differ little."""
    outputs, lses = states(0.3)(rng, s)
    return np.where(np.arange(s.parts) % 2, -1, 1)[:, None, None, None, None] + 0.1 * outputs, lses


def _positive(x: MergeGradientInputs) -> MergeGradientInputs:
    return replace(x, grad_output=np.abs(x.grad_output))


def _no_grad_output(x: MergeGradientInputs) -> MergeGradientInputs:
    return replace(x, grad_output=np.zeros_like(x.grad_output))


def _grad_output_of_two_rows(x: MergeGradientInputs) -> MergeGradientInputs:
    grad_output = x.grad_output.copy()
    grad_output[:, :, 2:] = 0
    return replace(x, grad_output=grad_output)


def _nan_grad_output(x: MergeGradientInputs) -> MergeGradientInputs:
    grad_output = x.grad_output.copy()
    grad_output[:, :, 1:2, 0] = np.nan
    return replace(x, grad_output=grad_output)


def _nan_grad_lse(x: MergeGradientInputs) -> MergeGradientInputs:
    grad_lse = x.keywords["grad_lse"].copy()
    grad_lse[:, :, 1:2] = np.nan
    return replace(x, keywords=x.keywords | {"grad_lse": grad_lse})


def _one_head_of_grad_lse(x: MergeGradientInputs) -> MergeGradientInputs:
    return replace(x, keywords=x.keywords | {"grad_lse": x.keywords["grad_lse"][:, :1]})
