"""The file of rules: what it changes, and that no word of it is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.statistics import LEAST, MARGIN
from reports.__main__ import main
from reports.compare import rules
from reports.compare.changes import Status
from reports.compare.comparing import compare
from reports.reading import read
from reports.source import ReportError
from reports.tests.files import conformance_file, failed, result
from reports.tests.test_compare import run


def given(folder: Path, text: str) -> rules.Rules:
    """The rules of a text."""
    (folder / "rules.toml").write_text(text)
    return rules.read(folder / "rules.toml")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1", "the file has the unknown key 'x', expected rule"),
        ("[rule]\nleast = 2.0", r"expected \[\[rule\]\] in double brackets"),
        ('[[rule]]\nimplemention = "a"', "rule 1 has the unknown key 'implemention'"),
        ("[[rule]]\nleast = 0.9", "rule 1 has least = 0.9, expected a factor above 1"),
        ("[[rule]]\nleast = true", "least = True"),
        ("[[rule]]\nmargin = inf", "margin = inf"),
        ('[[rule]]\nmemory = "2"', "memory = '2'"),
        ('[[rule]]\nignore = ["slowr"]', "rule 1 ignores 'slowr', expected some of slower, new failure"),
        ('[[rule]]\nignore = "slower"', "ignores 'slower', expected"),
        ('[[rule]]\ncase = "a"', "rule 1 says nothing"),
        ("[[rule]]\nleast = 2.0\ncase = 1", "a pattern that is no text"),
        ("[[rule", "cannot be read"),
    ],
)
def test_a_wrong_rule_is_an_error(tmp_path: Path, text: str, said: str) -> None:
    """A misspelt word would otherwise be a threshold that is not in force."""
    with pytest.raises(ReportError, match=rf"rules\.toml.*{said}"):
        given(tmp_path, text)


def test_a_threshold_holds_where_its_patterns_match(tmp_path: Path) -> None:
    """And of several the last; elsewhere the default."""
    found = given(tmp_path, '[[rule]]\nleast = 1.2\n[[rule]]\nimplementation = "torch-*"\nleast = 1.5')
    assert found.threshold("least", implementation="torch-a", device="cpu") == 1.5
    assert found.threshold("least", implementation="jax", device="cpu") == 1.2
    assert found.threshold("margin", implementation="jax", device="cpu") == MARGIN


def test_a_pattern_of_a_case_matches_no_workload(tmp_path: Path) -> None:
    """A rule about cases says nothing of times."""
    found = given(tmp_path, '[[rule]]\ncase = "*"\nleast = 1.2')
    assert found.threshold("least", implementation="a", workload="w") == LEAST


def test_a_larger_threshold_makes_a_change_none(tmp_path: Path) -> None:
    """25 % slower counts by default, and not where a rule asks for half."""
    base, new = read([run(tmp_path / "a.json", 1)]), read([run(tmp_path / "b.json", 2, slow={"b": 1.25})])
    assert compare(base, new).status is Status.WORSE
    assert compare(base, new, given(tmp_path, '[[rule]]\nimplementation = "b"\nleast = 1.5')).status is not Status.WORSE
    assert compare(base, new, given(tmp_path, '[[rule]]\nimplementation = "c"\nleast = 1.5')).status is Status.WORSE


def test_what_is_ignored_is_shown_and_does_not_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A failure that a rule ignores is in the tables; another one still counts."""
    base = conformance_file(tmp_path / "a.jsonl", result("x", "c"), result("x", "d"))
    new = conformance_file(tmp_path / "b.jsonl", failed("x", "c"), result("x", "d"))
    worse = conformance_file(tmp_path / "c.jsonl", failed("x", "c"), failed("x", "d"))
    (tmp_path / "r.toml").write_text('[[rule]]\ncase = "c"\nignore = ["new failure"]')
    assert main(["compare", str(base), str(new), "--rules", str(tmp_path / "r.toml")]) == 0
    assert "new failure" in capsys.readouterr().out
    assert main(["compare", str(base), str(worse), "--rules", str(tmp_path / "r.toml")]) == 1


def test_a_slower_cell_can_be_ignored(tmp_path: Path) -> None:
    """By implementation or workload, as every other change for the worse."""
    base, new = read([run(tmp_path / "a.json", 1)]), read([run(tmp_path / "b.json", 2, slow={"b": 1.25})])
    found = compare(base, new, given(tmp_path, '[[rule]]\nimplementation = "b"\nignore = ["slower"]'))
    assert found.status is Status.NOTHING_WORSE
    assert sum(one.ignored for one in found.speeds) == 3


def test_a_rule_that_matches_nothing_is_said(tmp_path: Path) -> None:
    """It is misspelt, or about what is gone."""
    one = read([conformance_file(tmp_path / "a.jsonl", result("x", "c"), failed("x", "d"))])
    other = read([conformance_file(tmp_path / "b.jsonl", result("x", "c"), result("x", "d"))])
    found = compare(other, one, given(tmp_path, '[[rule]]\nimplementation = "y"\nignore = ["new failure"]'))
    assert found.notes == ("rule 1 matches nothing: {'implementation': 'y'}",)
