"""Lifted faults: attention and its backward pass within other operators, and two of them together."""

from __future__ import annotations

from typing import Any

import pytest

from attention_conformance.conformance.cases import every_case
from attention_conformance.conformance.diagnosis.candidates import candidates_of, in_operator, inner
from attention_conformance.conformance.diagnosis.explanation import combined
from attention_conformance.conformance.diagnosis.match import diagnose
from attention_conformance.conformance.faults import FAULTS
from attention_conformance.conformance.faults.models.mha_gradients import LayerBackward
from attention_conformance.conformance.faults.models.sdpa import Attention, Model
from attention_conformance.conformance.faults.models.varlen_gradients import PackedBackward
from attention_conformance.conformance.faults.registry import Fault
from attention_conformance.conformance.faults.trials import Failed, trial
from attention_conformance.impls.contract import Profile

#: Operators whose backward pass contains that of attention.
BACKWARD: dict[str, type[Model]] = {"mha_grad": LayerBackward, "varlen_grad": PackedBackward}


def failures(make: type[Model], most: int = 6) -> list[Failed]:
    """The smallest cases of an operator that a model fails in float32."""
    cases = sorted((c for c in every_case().values() if c.operator == make.operator), key=lambda case: case.size)
    failed: list[Failed] = []
    for case in (case for case in cases if "float32" in case.dtypes):
        found = trial(make, case, "float32", Profile.WIDE)
        if found.verdict.failure is not None:
            failed.append(Failed(case, "float32", Profile.WIDE, found.verdict.failure, found.reply))
        if len(failed) == most:
            break
    return failed


def lifted(name: str, operator: str) -> Fault:
    """A fault of attention, or of its backward pass, as a candidate of another operator."""
    return next(fault for fault in candidates_of(operator) if fault.name == name)


@pytest.mark.slow
@pytest.mark.parametrize("operator", BACKWARD)
def test_a_fault_of_the_backward_pass_explains_gradients_around_it(operator: str) -> None:
    """A softmax gradient without δ is named within a layer and over packed sequences."""
    members: dict[str, Any] = {"backward": FAULTS["delta-missing"].make}
    failed = failures(type("Forgetful", (BACKWARD[operator],), members))
    (found,) = diagnose(failed, [], pairs=False)
    assert found.names == ("delta-missing",)
    assert found.fits == set(failed)


@pytest.mark.parametrize("operator", BACKWARD)
def test_a_fault_that_an_operator_has_of_its_own_is_not_lifted(operator: str) -> None:
    """A fault that an operator has itself is not lifted too, as it would be named twice."""
    own = {inner(fault.make) for fault in FAULTS.values() if fault.operator == operator}
    titles = [inner(fault.make) for fault in candidates_of(operator)]
    assert all(titles.count(make) == 1 for make in own)


@pytest.mark.parametrize(
    ("operator", "names", "attribute"),
    [
        ("latent", ("scale-twice", "causal-bottom-right"), "attention"),
        ("mha_grad", ("delta-missing", "query-gradient-unscaled"), "backward"),
        ("varlen_grad", ("delta-missing", "query-gradient-unscaled"), "backward"),
        ("mha", ("causal-one-ahead", "lengths-one-more"), "attention"),
    ],
)
def test_two_lifted_faults_are_both_in_what_they_give_together(
    operator: str, names: tuple[str, ...], attribute: str
) -> None:
    """Both faults are in the combined inner model."""
    both = combined([lifted(name, operator) for name in names])
    assert both is not None
    assert all(issubclass(getattr(both, attribute), FAULTS[name].make) for name in names)


def test_a_lifted_fault_is_said_by_what_is_within() -> None:
    """A lifted fault has the fault of attention as its inner model; a model that is not lifted has itself."""
    make = FAULTS["scale-twice"].make
    assert inner(in_operator(make, "latent")) is make
    assert inner(make) is make
    assert inner(Attention) is Attention
