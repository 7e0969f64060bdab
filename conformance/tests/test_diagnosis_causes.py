"""Causes other than known mistakes: forms, layers, narrower dtypes, an exception's words, and two in one function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from attention_conformance.conformance.cases import every_case
from attention_conformance.conformance.diagnosis.candidates import candidates_of
from attention_conformance.conformance.diagnosis.explanation import Explanation, combined
from attention_conformance.conformance.diagnosis.forms import forms_of
from attention_conformance.conformance.diagnosis.match import diagnose
from attention_conformance.conformance.faults import FAULTS
from attention_conformance.conformance.faults.models.sdpa import Array, Attention, Inputs, Model
from attention_conformance.conformance.tests.test_diagnosis_match import called, sorted_out

pytestmark = pytest.mark.slow(40)

CASES = ("plain", "mask", "bias", "causal-more-keys", "causal-square", "empty-row", "bias-minus-inf", "lengths")


def said(make: type[Model], names: Sequence[str] = CASES) -> list[Explanation]:
    """The diagnosis of an implementation on some cases."""
    asked = [(case, dtype) for name in names for case in [every_case()[name]] for dtype in case.dtypes]
    failed, passed = sorted_out([(case, dtype, called(make(), case, dtype)) for case, dtype in asked])
    assert failed
    return diagnose(failed, passed, pairs=False)


class Refused(Attention):
    """A bias is refused."""

    def check(self, x: Inputs) -> None:
        """Refuse a bias."""
        if x.bias is not None:
            raise RuntimeError(f"no kernel for bias of shape {x.bias.shape}")


def test_an_exception_is_a_cause_in_its_own_words() -> None:
    """An exception is named by its words, with numbers left out, and by what the refused calls have in common."""
    (one,) = said(Refused)
    assert one.title == "“an exception: RuntimeError: no kernel for bias of shape (…, …, …, …)”, only with bias"
    assert {failed.case.name for failed in one.fits} == {"bias", "bias-minus-inf"}


class SoftmaxInFloat32(Attention):
    """Weights of a float64 call rounded to float32."""

    def normalized(self, x: Inputs, powers: Array, total: Array, allowed: Array) -> Array:
        """The weights."""
        return super().normalized(x, powers, total, allowed).astype(np.float32).astype(x.work)


def test_a_narrower_dtype_is_said() -> None:
    """A narrower dtype is named where the errors are those of float32 and no mistake gives them."""
    titles = [one.title for one in said(SoftmaxInFloat32, ("plain", "plain-tall", "one-query"))]
    assert any("float32" in title for title in titles)


class Sines(Attention):
    """Scores with their sines added."""

    def capped(self, x: Inputs, s: Array) -> Array:
        """The scores before a bias."""
        return super().capped(x, s) + np.sin(s)


def test_a_wrong_number_is_no_narrower_dtype() -> None:
    """An error larger than that of float16 is not blamed on a dtype."""
    assert said(Sines, ("plain", "plain-tall", "one-query", "mask")) == []


class Almost(Attention):
    """Weights that are 1e-12 too large, a thousandth of an error of float32."""

    def normalized(self, x: Inputs, powers: Array, total: Array, allowed: Array) -> Array:
        """The weights."""
        return super().normalized(x, powers, total, allowed) * (1 + 1e-12 * np.abs(np.sin(powers)))


def test_an_error_far_below_a_step_of_float32_is_no_narrower_dtype() -> None:
    """An error far below a step of float32 is not blamed on float32."""
    titles = [one.title for one in said(Almost, ("plain", "plain-tall", "one-query"))]
    assert not any("float32" in title for title in titles)


class KeysBefore(Attention):
    """Causal from the bottom right, with two keys fewer."""

    def default_offset(self, x: Inputs) -> int:
        """The offset of the diagonal."""
        return x.shape[3] - x.shape[2] - 2


def test_a_form_with_another_number_is_found() -> None:
    """A form with another number is found; the registry only has bottom-right and one ahead."""
    (one,) = said(KeysBefore, ("plain", "causal-more-keys", "causal-square", "causal-tiles", "causal-weights"))
    assert "bottom right lets a row see 2 keys fewer" in one.title


def test_two_causes_that_never_show_alone_are_both_named() -> None:
    """Two causes are named where calls without causal show one, and causal calls show both."""
    make = combined([FAULTS["scale-of-model-width"], FAULTS["causal-last-row-sees-all"]])
    assert make is not None
    names = {name for one in said(make) for name in one.names}
    assert names == {"scale-of-model-width", "causal-last-row-sees-all"}


def test_forms_are_of_attention_and_of_layers() -> None:
    """Attention and layers have hundreds of forms with different titles; gradients have a few."""
    assert len(forms_of("mha")) == len(forms_of("sublayer")) > len(forms_of("sdpa")) > 200
    for operator in ("sdpa", "mha", "sublayer"):
        assert len({form.title for form in forms_of(operator)}) == len(forms_of(operator))
    assert {form.operator for form in forms_of("sdpa_grad")} == {"sdpa_grad"}


@pytest.mark.parametrize("operator", ["mha", "sublayer"])
def test_a_layer_has_the_faults_of_the_attention_within(operator: str) -> None:
    """A layer has its own faults first, and no fault of attention twice."""
    titles: list[Any] = [fault.title for fault in candidates_of(operator)]
    assert FAULTS["heads-tiled"].title in titles
    assert all(fault.operator == operator for fault in candidates_of(operator))


def test_an_operator_without_attention_has_its_own_faults() -> None:
    """Gradients of sdpa, which contain no attention, have only their own faults."""
    assert {fault.operator for fault in candidates_of("sdpa_grad")} == {"sdpa_grad"}
