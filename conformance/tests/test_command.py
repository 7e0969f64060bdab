"""``attention-conformance``: the manual of cases and clauses."""

from __future__ import annotations

import pytest

from attention_conformance.cli import main
from attention_conformance.conformance.cases import every_case
from attention_conformance.conformance.spec.clauses import clauses


def test_cases_are_listed_with_their_reason(capsys: pytest.CaptureFixture[str]) -> None:
    """Every case is listed once, under the clause that it breaks first, with its sentence."""
    assert main(["cases"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for case in every_case().values():
        (line,) = [line for line in lines if line.startswith(f"  {case.name} (")]
        assert case.why in line


def test_clauses_are_listed_with_their_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    """Every clause is listed with its level and sentence."""
    assert main(["clauses"]) == 0
    printed = capsys.readouterr().out
    for clause in clauses().values():
        assert f"{clause.id} · {clause.title} ({clause.level.value}): {clause.sentence}" in printed


def test_an_unknown_command_names_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    """A misspelt command exits with 2 and lists the existing commands."""
    with pytest.raises(SystemExit) as caught:
        main(["casse"])
    assert caught.value.code == 2
    assert "'cases'" in capsys.readouterr().err
