"""(GRAD-1 to 14) Cases of the gradients of sdpa: inputs of sdpa with a gradient of the output."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np

from attention_conformance.conformance.bounds import gradients as bounds
from attention_conformance.conformance.bounds.sdpa import Options
from attention_conformance.conformance.cases.base import ALL_DTYPES, HALVES, AnyCase, Blame
from attention_conformance.conformance.cases.data import (
    GROUPED,
    SMALL,
    SQUARE,
    TALL,
    TILES,
    Data,
    Rng,
    Shape,
    bias_from,
    full_mask,
    lengths,
    mask_without,
    normal,
    random_bias,
    random_mask,
)
from attention_conformance.conformance.spec import gradients as reference
from attention_conformance.conformance.spec.gradients import GradExpected
from attention_conformance.conformance.spec.inputs import GradientInputs
from attention_conformance.impls.contract import Profile

_AXES = {
    "grad_q": ("batch", "head", "row", "column"),
    "grad_k": ("batch", "head", "key", "column"),
    "grad_v": ("batch", "head", "key", "column"),
}
_SCORES = ("batch", "head", "row", "key")


@dataclass(frozen=True)
class GradientCase(AnyCase):
    """A case of sdpa_grad."""

    operator: ClassVar[str] = "sdpa_grad"
    arguments: ClassVar[type] = GradientInputs
    blame: ClassVar[Blame] = Blame(
        "GRAD-1",
        accuracy="GRAD-9",
        value="GRAD-3",
        of_result={"grad_bias": "GRAD-5"},
        dtype="GRAD-10",
        modified="GRAD-13",
        unrepeatable="GRAD-14",
    )
    shape: Shape = SMALL

    def draw(self, rng: Rng) -> tuple[np.ndarray, ...]:
        """Q, k, v and grad_output in float64."""
        s = self.shape
        return *(self.data or normal(1.0))(rng, s), rng.standard_normal((s.b, s.hq, s.sq, s.dv))

    def make_expected(self, inputs: GradientInputs) -> GradExpected:
        """Results of the reference.  Raises InvalidInput for invalid inputs."""
        return reference.sdpa_grad(*inputs.arrays.values(), **inputs.keywords)

    def make_bound(
        self, inputs: GradientInputs, expected: GradExpected, dtype: str, profile: Profile
    ) -> SimpleNamespace:
        """The error bound for inputs under a profile."""
        return SimpleNamespace(**bounds.bound(expected, Options.of(inputs.keywords), dtype, profile))

    def axes(self, result: str) -> tuple[str, ...]:
        """Names of the axes of a result; a bias has the last axes of the scores."""
        if result != "grad_bias":
            return _AXES[result]
        return _SCORES[4 - self.inputs(self.dtypes[0]).keywords["bias"].ndim :]

    def __hash__(self) -> int:
        return hash(self.name)


def case(name: str, clauses: str, why: str, shape: Shape = SMALL, **rest: Any) -> GradientCase:
    """A case from its clauses as one text and its options as keywords."""
    return GradientCase.of(f"grad-{name}", clauses, why, shape, rest)


def cases() -> Iterator[GradientCase]:
    """Every case of this operator."""
    yield from _plain()
    yield from _options()
    yield from _masks()
    yield from _form()


def _plain() -> Iterator[GradientCase]:
    yield case("plain", "GRAD-3 GRAD-2 GRAD-4 GRAD-9", "Five queries, seven keys.", dtypes=ALL_DTYPES, stays="the plain call, in every dtype")
    yield case("shapes", "GRAD-1", "Every length and width another one.", replace(SMALL, b=3, dv=24), dtypes=("float32", *HALVES))
    yield case("value-width", "GRAD-2 GRAD-1", "Dv = 4 with D = 16.", replace(SMALL, d=16, dv=4), stays="the other order of the two widths")
    yield case("value-width-large", "GRAD-3 GRAD-2 GRAD-1", "Dv = 16 with D = 4.", replace(SMALL, d=4, dv=16))
    yield case("tall", "GRAD-2", "More queries than keys: long sums into k and v.", TALL, dtypes=("float32", *HALVES))
    yield case("one-query", "GRAD-3", "One query.", replace(SMALL, sq=1))
    yield case("one-key", "GRAD-3 GRAD-4", "One key: its weight is 1 whatever its score, so q and k have gradients of zero.", replace(SMALL, sk=1))
    yield case("one-key-one-query", "GRAD-3 GRAD-4", "One query and one key, as the first step of a sequence.", replace(SMALL, sq=1, sk=1), stays="asked of kernels that take as many queries as keys")
    yield case("tiles", "GRAD-9", "17 rows and 65 keys: more than one tile both ways.", TILES, dtypes=ALL_DTYPES)
    yield case("tiles-causal", "GRAD-9 GRAD-7", "More than one tile both ways, causal.", replace(TILES, sq=33, sk=33), is_causal=True)
    yield case("large-scores", "GRAD-9", "Scores of tens: weights near 0 and 1.", data=normal(3.0), dtypes=("float32", "float64"), stays="weights near 0 and 1, where errors of the scores count most")
    yield case("grouped", "GRAD-6", "Four query heads over two: k and v sum over the group.", GROUPED, dtypes=ALL_DTYPES, stays="the plainest group, in every dtype")
    yield case("grouped-one", "GRAD-6", "Four query heads over one.", replace(SMALL, hq=4, hkv=1))
    yield case("grouped-causal", "GRAD-6 GRAD-7", "Grouped heads, causal.", GROUPED, is_causal=True, stays="grouped heads and causal, which most models train with")


def _options() -> Iterator[GradientCase]:
    yield case("scale", "GRAD-4", "scale = 0.7.", scale=0.7, stays="a scale that is not the default one")
    yield case("scale-zero", "GRAD-4", "scale = 0: q and k have gradients of zero, v has the mean.", scale=0.0, stays="the scale at which all weights are equal")
    yield case("scale-negative", "GRAD-4", "scale = −0.5.", scale=-0.5, stays="a scale that turns the order of keys around")
    yield case("softcap", "GRAD-4", "softcap = 2 on scores of a few units: the slope is far from 1.", data=_large, softcap=2.0, dtypes=("float32", "float64"))
    yield case("bias", "GRAD-5", "A bias in full shape.", bias=random_bias(2.0), dtypes=ALL_DTYPES)
    yield case("bias-qk", "GRAD-5", "A bias of shape (1, 1, Sq, Sk): its gradient is a sum over samples and heads.", bias=random_bias(2.0, (1, 1, None, None)), stays="the shape of a learned relative position bias")
    for name, axes in {"bqk": (None, 1, None, None), "hqk": (1, None, None, None), "k": (1, 1, 1, None), "rank2": (None, None), "rank1": (None,)}.items():
        yield case(f"bias-{name}", "GRAD-5", f"A bias of shape {axes}, None being the full axis: its gradient is a sum.", bias=random_bias(2.0, axes))
    yield case("bias-softcap", "GRAD-5 GRAD-4", "The slope of softcap does not reach the bias.", data=_large, softcap=2.0, bias=random_bias(1.0))
    yield case("bias-softcap-grouped", "GRAD-5 GRAD-4 GRAD-6", "The same with a bias for every key, and grouped heads.", GROUPED, data=_large, softcap=2.0, bias=random_bias(2.0, (1, 1, 1, None)))
    yield case("bias-grouped", "GRAD-5 GRAD-6", "A bias that differs per query head, with grouped heads.", GROUPED, bias=random_bias(2.0))


def _masks() -> Iterator[GradientCase]:
    row = mask_without(rows=slice(1, 2))
    batch = mask_without(rows=slice(0, 3), batch=slice(1, 2))
    yield case("mask", "GRAD-7", "A random mask.", mask=random_mask(0.5), dtypes=("float32", *HALVES), stays="a mask without a pattern, in half precision too")
    yield case("mask-key", "GRAD-7", "A key that no row may attend to: its gradients are zero.", mask=mask_without(keys=slice(3, 4)), stays="a padded key, by mask")
    yield case("bias-minus-inf", "GRAD-7 GRAD-5", "A bias of −inf: zero there, not NaN.", bias=bias_from(mask_without(keys=slice(2, 5)), -np.inf), stays="a mask as a bias")
    yield case("causal", "GRAD-7", "Causal, as many queries as keys.", SQUARE, is_causal=True, dtypes=ALL_DTYPES, stays="the mask of training, in every dtype")
    yield case("causal-more-keys", "GRAD-7", "Causal with Sq < Sk: the last keys have gradients of zero.", is_causal=True, dtypes=("float32", *HALVES), stays="the last keys have no row")
    yield case("causal-more-queries", "GRAD-7", "Causal with Sq > Sk.", TALL, is_causal=True)
    yield case("causal-bias", "GRAD-7 GRAD-5", "Causal with a bias: what one hides the other does not bring back.", SQUARE, is_causal=True, bias=random_bias(2.0))
    yield case("causal-bias-tiles", "GRAD-7 GRAD-5", "Causal with a bias, and a last tile of one key (pytorch 153799).", replace(TILES, sq=33, sk=33), is_causal=True, bias=random_bias(2.0))
    yield case("lengths", "GRAD-7", "Seven and three valid keys.", kv_lengths=lengths(7, 3, of=7), stays="lengths without another mask")
    yield case("lengths-causal", "GRAD-7", "Causal, with seven and three valid keys.", SQUARE, is_causal=True, kv_lengths=lengths(7, 3, of=7))
    yield case("lengths-one-causal", "GRAD-7", "More queries than keys, causal, and one valid key in a sample (flash-attention 443).", TALL, is_causal=True, kv_lengths=lengths(1, 4))
    yield case("lengths-one", "GRAD-7", "As many queries as keys, and one valid key in a sample.", SQUARE, kv_lengths=lengths(1, 7), stays="asked of kernels that take as many queries as keys")
    yield case("lengths-causal-grouped", "GRAD-7 GRAD-6", "Causal, with seven and two valid keys and grouped heads.", replace(GROUPED, sq=7), is_causal=True, kv_lengths=lengths(7, 2, of=7), stays="asked of kernels that take as many queries as keys")
    yield case("window-bias", "GRAD-7 GRAD-5", "One key to the left, two to the right, and a bias.", SQUARE, window=(1, 2), bias=random_bias(2.0), stays="asked of kernels that take as many queries as keys")
    yield case("window", "GRAD-7", "Two keys to the left, one to the right.", SQUARE, window=(2, 1))
    yield case("window-right", "GRAD-7", "An open left side, no key to the right.", TALL, window=(None, 0))
    yield case("empty-row", "GRAD-8", "A fully masked row among others: zeros, not NaN.", mask=row, dtypes=("float32", *HALVES))
    yield case("empty-rows-batch", "GRAD-8", "Fully masked rows in one batch: the other one is left alone.", mask=batch, stays="NaN of one sample must not reach another")
    yield case("empty-all", "GRAD-8", "No row has a key: all gradients are zero.", mask=full_mask(False), zeros=True)
    yield case("empty-row-window", "GRAD-8", "A window that leaves the last query no key: zeros, not NaN.", TALL, window=(1, 0))
    yield case("empty-row-window-causal", "GRAD-8", "The same with causal, which changes nothing.", TALL, is_causal=True, window=(1, None))
    yield case("empty-row-bias", "GRAD-8 GRAD-5", "A row of −inf, by bias.", bias=bias_from(row, -np.inf), stays="a fully masked row, as a bias")
    yield case("empty-batch-lengths", "GRAD-8", "A padded sample of length 0.", kv_lengths=lengths(0, 5, of=7))


def _form() -> Iterator[GradientCase]:
    yield case("empty-keys", "GRAD-11", "No keys: q has gradients of zero.", replace(SMALL, sk=0), zeros=True)
    yield case("empty-queries", "GRAD-11", "No queries: k and v have gradients of zero.", replace(SMALL, sq=0), zeros=True)
    yield case("dtype", "GRAD-10", "Gradients have the dtype of q.", dtypes=ALL_DTYPES, stays="every dtype")
    yield case("inputs-unchanged", "GRAD-13", "All inputs are the same after the call.", bias=random_bias(1.0), mask=random_mask(0.5), stays="a mask and a bias are inputs, too")
    yield case("repeat", "GRAD-14", "Five equal calls.", repeats=5, is_causal=True)
    yield case("repeat-tiles", "GRAD-14", "Five equal calls over several tiles of keys.", TILES, repeats=5, dtypes=("float32", *HALVES), stays="equal calls in half precision, at every width")
    yield case("repeat-tiles-causal", "GRAD-14", "Ten equal causal calls over several tiles of keys.", TILES, repeats=10, is_causal=True, dtypes=("float32", *HALVES), stays="equal causal calls in half precision, at every width")
    yield case("repeat-bias", "GRAD-14", "Twenty equal calls with a bias (flash-attention 429).", repeats=20, bias=random_bias(2.0))
    yield case("invalid-grad-output", "GRAD-12", "grad_output has 4 rows for 5.", edit=lambda x: replace(x, grad_output=x.grad_output[:, :, :4]), invalid=True)
    yield case("invalid-grad-output-dtype", "GRAD-12", "grad_output in float64 for q in float32.", edit=lambda x: replace(x, grad_output=x.grad_output.astype(np.float64)), invalid=True)


def _large(rng: Rng, s: Shape) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores that reach the softcap."""
    make: Data = normal(1.5)
    return make(rng, s)
