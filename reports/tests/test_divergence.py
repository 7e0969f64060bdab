"""The table of questions on which libraries disagree."""

from __future__ import annotations

from dataclasses import replace

from conformance.cases import all_cases
from conformance.outcomes import Failure, Outcome, Result
from conformance.questions import QUESTIONS
from reports import tables
from reports.divergence import answers

ROW = QUESTIONS[0]
PASSED = Result("a", "cpu", "float32", ROW.case, ("SDPA-15",), Outcome.PASSED)


def asked(*results: Result) -> dict[str, str]:
    """The answer to the first question, by implementation."""
    table = answers(tables.conformance(results)).reset_index()
    return dict(zip(table["implementation"], table[ROW.text], strict=True))


def test_every_question_is_asked_by_a_case_in_float32() -> None:
    """A question names a case that exists and runs in float32."""
    assert all("float32" in all_cases()[q.case].dtypes for q in QUESTIONS)
    assert len({q.text for q in QUESTIONS}) == len(QUESTIONS)


def test_a_pass_is_the_answer_of_the_spec() -> None:
    """Who passes does what the spec says."""
    assert asked(PASSED) == {"a": ROW.right}


def test_a_deviation_says_what_it_does_instead() -> None:
    """Who deviates or fails is told by what the output looks like, or by the kind of failure, in bold."""
    wrong = replace(PASSED, implementation="b", outcome=Outcome.DEVIATES, failure=Failure.VALUE, looks="the mean of v")
    other = replace(wrong, implementation="c", outcome=Outcome.FAILED, looks="")
    error = replace(other, implementation="d", failure=Failure.ERROR)
    expected = {"a": "zeros", "b": "**the mean of v**", "c": "**other values**", "d": "**error**"}
    assert asked(PASSED, wrong, other, error) == expected


def test_unsupported_is_no_answer() -> None:
    """Who lacks the feature is unsupported, and who was not asked is left out."""
    lacks = replace(PASSED, implementation="b", outcome=Outcome.UNSUPPORTED)
    elsewhere = replace(PASSED, implementation="c", case="plain")
    assert asked(PASSED, lacks, elsewhere) == {"a": "zeros", "b": "unsupported"}


def test_other_dtypes_are_not_asked() -> None:
    """The questions are asked in float32."""
    assert asked(PASSED, replace(PASSED, implementation="b", dtype="float16")) == {"a": "zeros"}
