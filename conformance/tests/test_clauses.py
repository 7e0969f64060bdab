"""Spec and cases agree: every clause has a case, every case names clauses, and no comparison is empty by accident."""

from __future__ import annotations

import numpy as np
import pytest

from attention_conformance.conformance.cases import AnyCase, all_cases, every_case
from attention_conformance.conformance.judging.outcomes import Failure
from attention_conformance.conformance.spec import sdpa as reference
from attention_conformance.conformance.spec.clauses import BY_OPTION, Level, clauses, parse

CASES = list(every_case().values())
VALID = [case for case in CASES if not case.invalid]


BINDING = [c for c in clauses().values() if c.level is not Level.FREE and c.id not in BY_OPTION]


@pytest.mark.parametrize("clause", BINDING, ids=lambda c: c.id)
def test_every_clause_has_a_case_that_breaks_with_it(clause) -> None:  # type: ignore[no-untyped-def]
    """Every binding clause is the first clause, the one that is blamed, of at least one case."""
    assert any(case.clauses[0] == clause.id for case in CASES)


def test_every_case_names_known_clauses() -> None:
    """A case names at least one clause, and only clauses of the spec that bind."""
    binding = {clause.id for clause in clauses().values() if clause.level is not Level.FREE}
    assert [case.name for case in CASES if not case.clauses or not binding.issuperset(case.clauses)] == []


def test_every_case_says_why_it_is_there() -> None:
    """A case's sentence, which is its manual entry, is longer than a word and ends with a full stop."""
    assert [case.name for case in CASES if not case.why.endswith(".") or len(case.why) <= 5] == []


def is_zero(case: AnyCase) -> bool:
    """Whether only zeros are expected."""
    expected = case.expected(case.dtypes[0])
    compared = ["output"] if hasattr(expected, "output") else case.results()  # a single gradient may be zero
    return not any(np.any(getattr(expected, name)) for name in compared)


@pytest.mark.slow(1)
def test_zeros_are_expected_only_where_the_case_says_so() -> None:
    """A case that expects only zeros must say so, as such a comparison can pass by accident."""
    assert [case.name for case in VALID if case.zeros != is_zero(case)] == []


@pytest.mark.parametrize("case", [case for case in CASES if case.invalid], ids=lambda case: case.name)
def test_invalid_cases_break_exactly_their_clause(case: AnyCase) -> None:
    """The reference refuses an invalid case by its first clause."""
    with pytest.raises(reference.InvalidInput) as caught:
        case.expected("float32")
    assert caught.value.clause == case.clauses[0]


def test_other_cases_are_accepted() -> None:
    """The reference accepts every other case, with results of as many axes as they have names."""
    for case in VALID:
        expected = case.expected(case.dtypes[0])
        axes = {name: getattr(expected, name).ndim for name in case.results()}
        assert axes == {name: len(case.axes(name)) for name in case.results()}, case.name


def test_the_output_has_the_shape_of_the_spec() -> None:
    """SDPA-1: the output is (B, Hq, Sq, Dv)."""
    for case in (case for case in all_cases().values() if not case.invalid):
        dtype = case.dtypes[0]
        shape = (*case.inputs(dtype).q.shape[:3], case.shape.dv)
        assert case.expected(dtype).output.shape == shape, case.name


def test_there_are_at_least_250_cases() -> None:
    """The suite has at least 250 cases for sdpa."""
    assert len(all_cases()) >= 250


def test_inputs_do_not_depend_on_order() -> None:
    """A case's data depends only on its seed: regenerated after others, it is the same."""
    case = all_cases()["mask"]
    before = {name: array.tobytes() for name, array in case.make_inputs("float32").arrays.items()}
    for other in CASES[:20]:
        other.make_inputs("float32")
    assert {name: array.tobytes() for name, array in case.make_inputs("float32").arrays.items()} == before


def test_inputs_are_exact_in_their_dtype() -> None:
    """The reference computes with exactly the numbers that the implementation is given."""
    case = all_cases()["plain"]
    np.testing.assert_array_equal(case.expected("bfloat16").q, case.inputs("bfloat16").q.astype(np.float64))


def test_a_clause_that_stands_twice_is_refused() -> None:
    """A clause id that occurs twice is refused."""
    with pytest.raises(ValueError, match="stands twice"):
        parse("### SDPA-1 · A · MUST\nx\n### SDPA-1 · B · MUST\ny\n")


def test_a_clause_is_quoted_without_its_reason() -> None:
    """The quoted sentence of a clause leaves out the reason in italics."""
    text = "### SDPA-1 · A · MUST\nIt is\nso.\n*Why: because.*\n### SDPA-2 · B · SHOULD\nNo.\n"
    assert parse(text)["SDPA-1"].sentence == "It is so."
    assert parse(text)["SDPA-2"].level is Level.SHOULD


def test_failures_have_names_a_user_can_read() -> None:
    """Every kind of failure is named in a word or two."""
    assert all(len(failure.value.split()) <= 2 for failure in Failure)
