"""Factors of gradients: named by a formula or a number, and only where they give the whole results."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from attention_conformance.conformance.cases import case_named
from attention_conformance.conformance.diagnosis.gradient_factors import gradient_factors
from attention_conformance.conformance.diagnosis.match import diagnose
from attention_conformance.conformance.faults.models.gradients import Backward
from attention_conformance.conformance.faults.models.sdpa import Array, Inputs
from attention_conformance.conformance.spec.sdpa import Expected
from attention_conformance.conformance.tests.test_diagnosis_choice import sorted_out

NAMES = ("grad-plain", "grad-grouped", "grad-grouped-one", "grad-scale", "grad-softcap", "grad-bias", "grad-causal")


class ValueGradientScaled(Backward):
    """The scale acts on the gradient of v."""

    def grad_v(self, x: Inputs, weights: Array, g: Array) -> Array:
        """The gradient of v."""
        return super().grad_v(x, weights, g) * x.work(self.inner.scale(x))


class GroupAveraged(Backward):
    """Gradients of a group are averaged."""

    def of_group(self, grouped: Array) -> Array:
        """The mean, not the sum."""
        return grouped.mean(axis=2)


class Dropped(Backward):
    """The gradient of q lacks a factor of dropout."""

    def grad_q(self, x: Inputs, found: Expected, d_raw: Array) -> Array:
        """The gradient of q."""
        return super().grad_q(x, found, d_raw) * x.work(0.9)


class LastOfGroup(Backward):
    """The gradient of v is that of the last query head of a group."""

    def grad_v(self, x: Inputs, weights: Array, g: Array) -> Array:
        """The gradient of v."""
        every = weights.swapaxes(2, 3) @ g
        return every[:, x.group - 1 :: x.group]


@pytest.mark.parametrize(
    ("make", "title"),
    [
        (ValueGradientScaled, "the gradient of v is the expected one times the scale (0.35355 where D = 8)"),
        (GroupAveraged, "the gradients of k and v are the expected ones times 1/G (0.25 where G = 4)"),
        (Dropped, "the gradient of q is the expected one times 0.9"),
        (LastOfGroup, "the gradient of v of the last query head of each group alone, not their sum"),
    ],
)
def test_a_factor_of_a_gradient_is_named(make: type[Backward], title: str) -> None:
    """The gradients, and their factor or the head that they are of, are named for all failures."""
    failed, passed = sorted_out(make, [case_named(name) for name in NAMES])
    (found,) = diagnose(failed, passed, pairs=False)
    assert found.title == f"“{title}”"
    assert found.fits == frozenset(failed)


def test_a_gradient_with_another_wrong_number_has_no_factor() -> None:
    """One number that the factor does not give refutes it."""
    (failed,), _ = sorted_out(ValueGradientScaled, [case_named("grad-plain")])
    assert gradient_factors([failed])
    wrong = failed.reply.results["grad_v"].copy()
    wrong[0, 0, 0, 0] += np.float32(1e-3)
    results = {**failed.reply.results, "grad_v": wrong}
    assert gradient_factors([replace(failed, reply=replace(failed.reply, results=results))]) == []
