"""Spec and cases hold together: every clause has a case, every case names clauses, and none is empty by accident."""

from __future__ import annotations

import numpy as np
import pytest

from attention_conformance.conformance.cases import AnyCase, Case, all_cases, every_case
from attention_conformance.conformance.judging.outcomes import Failure
from attention_conformance.conformance.spec import sdpa as reference
from attention_conformance.conformance.spec.clauses import Level, clauses, parse

CASES = list(every_case().values())
each_case = pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)


@pytest.mark.parametrize("clause", [c for c in clauses().values() if c.level is not Level.FREE], ids=lambda c: c.id)
def test_every_clause_has_a_case_that_breaks_with_it(clause) -> None:  # type: ignore[no-untyped-def]
    """Every clause that binds is the first clause, the one that is blamed, of at least one case."""
    assert any(case.clauses[0] == clause.id for case in CASES)


@each_case
def test_every_case_names_known_clauses(case: AnyCase) -> None:
    """A case names at least one clause, and only clauses that the spec has and that bind."""
    assert case.clauses
    for clause in case.clauses:
        assert clauses()[clause].level is not Level.FREE


@each_case
def test_every_case_says_why_it_is_there(case: AnyCase) -> None:
    """A case's sentence is the manual: it begins with a capital or a symbol and ends with a full stop."""
    assert case.why.endswith(".")
    assert len(case.why) > 5


@pytest.mark.parametrize("case", [c for c in CASES if not c.invalid], ids=lambda c: c.name)
def test_zeros_are_expected_only_where_the_case_says_so(case: AnyCase) -> None:
    """A comparison with nothing but zeros can pass by accident, so the case has to say that it means it."""
    expected = case.expected(case.dtypes[0])
    compared = ["output"] if hasattr(expected, "output") else case.results()  # of gradients one may be zero
    assert case.zeros == (not any(np.any(getattr(expected, name)) for name in compared))


@each_case
def test_invalid_cases_break_exactly_their_clause(case: AnyCase) -> None:
    """The reference refuses an invalid case by its first clause, and accepts every other one."""
    if case.invalid:
        with pytest.raises(reference.InvalidInput) as caught:
            case.expected("float32")
        assert caught.value.clause == case.clauses[0]
    else:
        expected = case.expected(case.dtypes[0])
        assert {name: getattr(expected, name).ndim for name in case.results()} == {
            name: len(case.axes(name)) for name in case.results()
        }


@pytest.mark.parametrize("case", [c for c in all_cases().values() if not c.invalid], ids=lambda c: c.name)
def test_the_output_has_the_shape_of_the_spec(case: Case) -> None:
    """SDPA-1: the output is (B, Hq, Sq, Dv)."""
    dtype = case.dtypes[0]
    assert case.expected(dtype).output.shape == (*case.inputs(dtype).q.shape[:3], case.shape.dv)


def test_there_are_at_least_250_cases() -> None:
    """The suite has at least 250 cases for sdpa."""
    assert len(all_cases()) >= 250


def test_inputs_do_not_depend_on_order() -> None:
    """A case's data comes from its own seed: made anew after others, it is the same."""
    case = all_cases()["mask"]
    before = {name: array.tobytes() for name, array in case.make_inputs("float32").arrays.items()}
    for other in CASES[:20]:
        other.make_inputs("float32")
    assert {name: array.tobytes() for name, array in case.make_inputs("float32").arrays.items()} == before


def test_inputs_are_exact_in_their_dtype() -> None:
    """The reference sees the very numbers that the implementation is given."""
    case = all_cases()["plain"]
    np.testing.assert_array_equal(case.expected("bfloat16").q, case.inputs("bfloat16").q.astype(np.float64))


def test_a_clause_that_stands_twice_is_refused() -> None:
    """Clause ids are unique."""
    with pytest.raises(ValueError, match="stands twice"):
        parse("### SDPA-1 · A · MUST\nx\n### SDPA-1 · B · MUST\ny\n")


def test_a_clause_is_quoted_without_its_reason() -> None:
    """The sentence of a clause leaves out the reason in italics."""
    text = "### SDPA-1 · A · MUST\nIt is\nso.\n*Why: because.*\n### SDPA-2 · B · SHOULD\nNo.\n"
    assert parse(text)["SDPA-1"].sentence == "It is so."
    assert parse(text)["SDPA-2"].level is Level.SHOULD


def test_failures_have_names_a_user_can_read() -> None:
    """Every way to fail is a word or two."""
    assert all(len(failure.value.split()) <= 2 for failure in Failure)
