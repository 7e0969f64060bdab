"""The study of first attempts: its functions are wrong by one mistake each, and its reports are of no other set."""

from __future__ import annotations

import re

import pytest

from studies.bug_reports import REPORTS as BUG_REPORTS
from studies.diagnosis import examined
from studies.first_attempts import FUNCTIONS, REPORTS, TRUE, made_attention, made_layer


def test_reports_are_of_no_earlier_set() -> None:
    """Each has a function and a thread of its own, and words that are not true of every function."""
    threads = [report.thread for report in REPORTS]
    assert len(set(threads)) == len(REPORTS) == len(FUNCTIONS) >= 15
    assert not set(threads) & {report.thread for report in BUG_REPORTS}
    assert [report.function for report in REPORTS] == list(FUNCTIONS)
    assert not [report for report in REPORTS if re.search(report.says, "“inputs of unequal dtype accepted”")]
    assert not re.search(TRUE, "“the output is 0.5 times the expected one”, only where Sq ≠ Sk")


@pytest.mark.slow(2)
@pytest.mark.parametrize(
    ("function", "words"),
    [(made_attention(), "NaN in fully masked rows"), (made_layer(), "cannot reshape array")],
    ids=["attention", "layer"],
)
def test_without_its_mistake_a_function_is_right_but_for_its_form(function: object, words: str) -> None:
    """Attention has no guard for fully masked rows, and the layer takes no unbatched input."""
    found = examined(function)  # type: ignore[arg-type]
    assert found.passed > 5 * found.failed
    assert [words in each.title for each in found.explanations] == [True]
    assert len(found.explanations[0].fits) == found.failed
