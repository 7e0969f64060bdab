"""Answers of libraries: one table for each operator, in Markdown."""

from __future__ import annotations

from dataclasses import replace

import pytest

from attention_conformance.conformance.cases import every_case
from attention_conformance.conformance.judging.outcomes import Failure, Outcome, Result
from attention_conformance.conformance.ledger.divergence import OPERATORS, answers, markdown
from attention_conformance.conformance.ledger.load import PLUGGED, read
from attention_conformance.conformance.ledger.questions import DTYPE, QUESTIONS
from attention_conformance.impls.contract import DTYPES

FIRST, SECOND = QUESTIONS[:2]
GRADIENT = next(q for q in QUESTIONS if every_case()[q.case].operator == "sdpa_grad")
PASSED = Result("a", "cpu", "float32", FIRST.case, ("SDPA-15",), Outcome.PASSED)
WRONG = replace(
    PASSED, implementation="b", outcome=Outcome.KNOWN_DEVIATION, failure=Failure.VALUE, error_pattern="the mean of v"
)


def test_operators_have_tables_of_their_own() -> None:
    """Questions without an answer are left out, and implementations without an answer too."""
    first, second = answers([PASSED, replace(WRONG, case=GRADIENT.case)])
    assert (first.operator, first.questions, dict(first.answers)) == ("sdpa", (FIRST,), {("a", "cpu"): (FIRST.right,)})
    assert (second.operator, dict(second.answers)) == ("sdpa_grad", {("b", "cpu"): ("**the mean of v**",)})


def test_every_operator_that_is_asked_has_a_heading() -> None:
    """The questions cover every operator, so that each has a heading."""
    assert {every_case()[q.case].operator for q in QUESTIONS} == set(OPERATORS)


def test_who_deviates_has_a_column_and_the_others_are_named() -> None:
    """Deviating implementations get a column, with versions if any; others are named with their number of answers."""
    lacks = replace(PASSED, case=SECOND.case, outcome=Outcome.UNSUPPORTED)
    page = markdown(answers([PASSED, lacks, WRONG]), {"b": "x 1.0"})
    head, _, versions, first, second = (
        [cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("|")
    )
    assert head == ["question", "spec", "b"]
    assert versions == ["version", "", "x 1.0"]
    assert first == [FIRST.text, FIRST.right, "**the mean of v**"]
    assert second == [SECOND.text, SECOND.right, ""]
    assert page.endswith("Same as the spec on every question they support (number supported, of 2): `a` 1.")
    assert "version" not in markdown(answers([WRONG]), {})


def test_a_wrong_answer_keeps_its_implementation_in_the_table() -> None:
    """A deviation from a SHOULD counts as a wrong answer too."""
    for outcome in (Outcome.FAILED, Outcome.KNOWN_DEVIATION, Outcome.ADVISORY):
        assert "| b" in markdown(answers([replace(WRONG, outcome=outcome)]), {})


@pytest.mark.parametrize("devices", [("cpu",), ("cpu", "cuda")])
def test_devices_are_named_where_there_are_two(devices: tuple[str, ...]) -> None:
    """Devices are named only if there are two."""
    page = markdown(answers([replace(WRONG, device=device) for device in devices]), {})
    assert ("b cuda" in page, "b cpu" in page) == ((True, True) if len(devices) > 1 else (False, False))


def test_what_the_ledger_knows_is_asked() -> None:
    """Each record about the dtype of the questions has a case that asks one, or shares clause and implementation.

    Exempt are records of only cases at the sizes of kernels, which not every implementation runs, of plugged-in
    kernels, which the page does not compare, and of GPUs only.
    """
    asked = {q.case for q in QUESTIONS}
    records = [record for record in read().deviations if DTYPE in (record.dtypes or DTYPES)]
    records = [each for each in records if not all(case.startswith("kernel-") for case in each.cases)]
    records = [each for each in records if not any(PLUGGED in name for name in each.implementations)]
    records = [each for each in records if each.devices != ("cuda",)]
    shown = {record.id: bool(asked & set(record.cases)) for record in records}
    for record in records:
        alike = [
            r for r in records if r.clause == record.clause and set(r.implementations) & set(record.implementations)
        ]
        assert any(shown[each.id] for each in alike), record.id
