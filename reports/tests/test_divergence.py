"""The table of questions on which libraries disagree."""

from __future__ import annotations

from dataclasses import replace

from attention_conformance.conformance.cases import every_case
from attention_conformance.conformance.judging.outcomes import Failure, Outcome, Result
from attention_conformance.conformance.ledger.questions import QUESTIONS
from attention_conformance.reports.model.tables import divergence

ROW = QUESTIONS[0]
PASSED = Result("a", "cpu", "float32", ROW.case, ("SDPA-15",), Outcome.PASSED)


def asked(*results: Result) -> dict[str, str]:
    """The answer to the first question, by implementation."""
    table = divergence(results).reset_index()
    return dict(zip(table["implementation"], table[ROW.text], strict=True))


def test_every_question_is_asked_by_a_case_in_float32() -> None:
    """A question names a case that exists and runs in float32, and no two of an operator have one text."""
    cases = {q: every_case()[q.case] for q in QUESTIONS}
    assert all("float32" in case.dtypes for case in cases.values())
    assert len({(case.operator, q.text) for q, case in cases.items()}) == len(QUESTIONS)


def test_a_pass_is_the_answer_of_the_spec() -> None:
    """An implementation that passes does what the spec says."""
    assert asked(PASSED) == {"a": ROW.right}


def test_a_deviation_says_what_it_does_instead() -> None:
    """A deviation or failure is described by what the output looks like, or by its kind, in bold."""
    wrong = replace(
        PASSED,
        implementation="b",
        outcome=Outcome.KNOWN_DEVIATION,
        failure=Failure.VALUE,
        error_pattern="the mean of v",
    )
    other = replace(wrong, implementation="c", outcome=Outcome.FAILED, error_pattern="")
    error = replace(other, implementation="d", failure=Failure.ERROR)
    expected = {"a": "zeros", "b": "**the mean of v**", "c": "**other values**", "d": "**error**"}
    assert asked(PASSED, wrong, other, error) == expected


def test_unsupported_is_no_answer() -> None:
    """An implementation that lacks the feature is unsupported, and one that did not run the case is left out."""
    lacks = replace(PASSED, implementation="b", outcome=Outcome.UNSUPPORTED)
    elsewhere = replace(PASSED, implementation="c", case="plain")
    assert asked(PASSED, lacks, elsewhere) == {"a": "zeros", "b": "unsupported"}


def test_other_dtypes_are_not_asked() -> None:
    """The questions are asked in float32."""
    assert asked(PASSED, replace(PASSED, implementation="b", dtype="float16")) == {"a": "zeros"}


def test_questions_of_another_operator_say_so() -> None:
    """A question about gradients has its operator in front; it is empty for implementations of another operator."""
    gradient = next(q for q in QUESTIONS if every_case()[q.case].operator == "sdpa_grad" and q.text == ROW.text)
    table = divergence([PASSED, replace(PASSED, implementation="b", case=gradient.case)])
    assert table[f"sdpa_grad: {ROW.text}"].tolist() == ["", gradient.right]
    assert table[ROW.text].tolist() == [ROW.right, ""]
