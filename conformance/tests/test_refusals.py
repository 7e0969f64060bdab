"""Features that are declared and refused everywhere are found; refusals for another reason are not taken for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from conformance.cases import AnyCase
from conformance.outcomes import Outcome
from conformance.refusals import Refused, refused
from conformance.tests.test_features import results
from impls.operators import SDPA


def found(refuses: Callable[[AnyCase], bool]) -> list[Refused]:
    """What is found of an implementation that refuses these cases and passes the others."""
    return refused(results(lambda case: Outcome.UNSUPPORTED if refuses(case) else Outcome.PASSED))


@pytest.mark.parametrize("keyword", [name for name in SDPA.keywords if name != "past_value"])
def test_a_keyword_that_is_refused_everywhere_is_found(keyword: str) -> None:
    """Each keyword of sdpa, and no other with it but those that no call gives without it."""
    names = [each.keyword for each in found(lambda case: keyword in case.keywords)]
    assert keyword in names
    assert set(names) <= {keyword, "causal_offset"}


def test_a_refused_keyword_is_counted_in_cases() -> None:
    """The line says in how many cases."""
    (each,) = found(lambda case: "return_weights" in case.keywords)
    assert each.line == (f"mine: feature return_weights is declared and refused in all {each.cases} cases that need it")


def test_a_keyword_that_works_once_is_not_refused() -> None:
    """One case that ran is enough, and a failed one ran."""
    assert found(lambda case: "window" in case.keywords and case.name != "window-both") == []
    made = results(lambda case: Outcome.UNSUPPORTED if "window" in case.keywords else Outcome.PASSED)
    failed = [r for r in made if r.case != "window-both"]
    failed += [r for r in results(lambda case: Outcome.FAILED) if r.case == "window-both"]
    assert refused(failed) == []


def test_a_shape_that_is_refused_is_not_taken_for_a_keyword() -> None:
    """Where the same call without the keyword is refused too, the keyword is not to blame."""
    assert found(lambda case: case.shape.sq != case.shape.sk) == []


def test_everything_refused_blames_no_keyword() -> None:
    """If nothing ran, nothing is known of a keyword."""
    assert found(lambda case: True) == []


def test_a_keyword_that_is_not_declared_is_not_refused() -> None:
    """Unsupported for want of the keyword is no refusal."""
    made = results(lambda case: Outcome.UNSUPPORTED if "window" in case.keywords else Outcome.PASSED)
    lacking = [r if r.outcome is Outcome.PASSED else replace(r, reason="no keyword window") for r in made]
    assert refused(lacking) == []
