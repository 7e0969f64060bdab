"""False alarms in the forms that serve: the same problems, variants that pass, and wrong ones that would not."""

from __future__ import annotations

import pytest

from attention_conformance.conformance.evidence.serving_variants import SERVING, alarm
from attention_conformance.conformance.faults.registry import FAULTS
from attention_conformance.conformance.properties.serving import FORMS
from attention_conformance.impls.contract import Profile
from studies import serving_alarms

#: A fault of each form that its random problems show.
WRONG = {
    "varlen": "packed-prefix-seen",
    "varlen_grad": "packed-gradient-top-left",
    "paged": "paged-next-page",
    "quantised": "quantised-value-scale-ignored",
    "merge": "parts-averaged",
}


def test_problems_are_the_same_again() -> None:
    """Every form in every dtype, with the caches of quantised ones in a format of their own."""
    met = set()
    for index in range(20):
        (form, one, dtype), (_, other, _) = serving_alarms.problem(index), serving_alarms.problem(index)
        arrays = [[a.tobytes() for a in each.inputs(dtype).arrays.values()] for each in (one, other)]
        assert arrays[0] == arrays[1]
        met.add((form, dtype))
    assert len(met) == 4 * len(FORMS)


def test_every_form_has_five_variants() -> None:
    """That are correct, each in a way of its own."""
    assert set(SERVING) == set(FORMS)
    assert all(len(variants) >= 5 for variants in SERVING.values())


def test_correct_variants_raise_no_alarm() -> None:
    """Over the first problems."""
    assert serving_alarms.measure(50)["alarms"] == []


@pytest.mark.parametrize("form", WRONG)
def test_a_wrong_one_would_be_seen(form: str) -> None:
    """A fault of each form raises alarms on the same problems."""
    function = FAULTS[WRONG[form]].make()
    problems = (serving_alarms.problem(index) for index in range(200))
    found = [alarm(form, function, case, dtype, Profile.WIDE) for each, case, dtype in problems if each == form]
    assert any(found)


def test_the_published_figures_have_no_alarm() -> None:
    """And say how many problems there were."""
    found = serving_alarms.STUDY.kept()
    assert found["alarms"] == []
    assert found["problems"] >= serving_alarms.PROBLEMS
