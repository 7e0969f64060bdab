"""The cases of a quick run: few, about every clause, and chosen by what they add."""

from __future__ import annotations

from pathlib import Path

import pytest

from attention_conformance.conformance import cases
from attention_conformance.conformance.cases import every_case, quick_cases
from attention_conformance.conformance.faults.kill_matrix import quick


def test_they_are_about_every_clause() -> None:
    """Every clause with a case has a quick one."""
    clauses = {clause for case in every_case().values() for clause in case.clauses}
    assert clauses - {clause for case in quick_cases().values() for clause in case.clauses} == set()


def test_a_clause_that_is_new_brings_its_smallest_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clause that got cases after the list was chosen is not left out."""
    (tmp_path / "quick.txt").write_text("plain\n")
    monkeypatch.setattr(cases, "QUICK", tmp_path / "quick.txt")
    found = quick_cases()
    assert "plain" in found
    assert {c for case in found.values() for c in case.clauses} == {c for e in every_case().values() for c in e.clauses}


def test_they_are_few() -> None:
    """Quick cases are at most two in five of all: few faults need cases of their own for each set of keywords."""
    assert len(quick_cases()) <= len(every_case()) * 2 / 5


def test_what_is_chosen_catches_every_fault() -> None:
    """A case that is the only one to catch a fault is added, and a fault that a chosen case catches adds none."""
    without = quick({})
    other = next(name for name in every_case() if name not in without)
    assert other in quick({"subtle": {other: ("float32",)}})
    assert quick({"plain": {without[0]: ("float32",)}}) == without


def test_a_case_that_is_gone_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name in the list that no case has raises."""
    few = dict(list(every_case().items())[:3])
    monkeypatch.setattr(cases, "every_case", lambda: few)
    with pytest.raises(KeyError):
        quick_cases()
