"""The file of rules: what it changes, and that no word in it is silently ignored."""

from __future__ import annotations

from pathlib import Path

import pytest

from attention_conformance.bench.analysis.statistics import LEAST, MARGIN
from attention_conformance.cli import main
from attention_conformance.conformance.judging.outcomes import Outcome
from attention_conformance.reports.compare import rules
from attention_conformance.reports.compare.changes import Status
from attention_conformance.reports.compare.compare import compare
from attention_conformance.reports.html import changes
from attention_conformance.reports.input.read import read
from attention_conformance.reports.input.records import ReportError
from attention_conformance.reports.markdown import changes as since
from attention_conformance.reports.tests import pages
from attention_conformance.reports.tests.files import bench_run, cell, conformance_file, failed, result
from attention_conformance.reports.tests.test_compare import run


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
        ('[[rule]]\ncase = "a"', "rule 1 has no effect"),
        ("[[rule]]\nleast = 2.0\ncase = 1", "a pattern that is not a string"),
        ("[[rule", "cannot be read"),
    ],
)
def test_a_wrong_rule_is_an_error(tmp_path: Path, text: str, said: str) -> None:
    """A misspelt word would otherwise be a threshold without effect."""
    with pytest.raises(ReportError, match=rf"rules\.toml.*{said}"):
        given(tmp_path, text)


def test_a_threshold_holds_where_its_patterns_match(tmp_path: Path) -> None:
    """The last of several matching ones holds; elsewhere the default."""
    found = given(tmp_path, '[[rule]]\nleast = 1.2\n[[rule]]\nimplementation = "torch-*"\nleast = 1.5')
    assert found.threshold("least", implementation="torch-a", device="cpu") == 1.5
    assert found.threshold("least", implementation="jax", device="cpu") == 1.2
    assert found.threshold("margin", implementation="jax", device="cpu") == MARGIN


def test_a_pattern_of_a_case_matches_no_workload(tmp_path: Path) -> None:
    """A rule about cases does not apply to times."""
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
    """It is ignored by implementation or workload, like every other change for the worse."""
    base, new = read([run(tmp_path / "a.json", 1)]), read([run(tmp_path / "b.json", 2, slow={"b": 1.25})])
    found = compare(base, new, given(tmp_path, '[[rule]]\nimplementation = "b"\nignore = ["slower"]'))
    assert found.status is Status.NOTHING_WORSE
    assert sum(one.ignored for one in found.speeds) == 3


def test_a_rule_that_matches_nothing_is_said(tmp_path: Path) -> None:
    """It is misspelt or out of date."""
    one = read([conformance_file(tmp_path / "a.jsonl", result("x", "c"), failed("x", "d"))])
    other = read([conformance_file(tmp_path / "b.jsonl", result("x", "c"), result("x", "d"))])
    found = compare(other, one, given(tmp_path, '[[rule]]\nimplementation = "y"\nignore = ["new failure"]'))
    assert found.notes == ("rule 1 matches nothing: {'implementation': 'y'}",)


def test_a_rule_that_matches_is_not_said_to_match_nothing(tmp_path: Path) -> None:
    """It may match where nothing changed: a case that stays unsupported, a cell that stays skipped."""
    same = result("x", "c", Outcome.UNSUPPORTED)
    files = [
        conformance_file(tmp_path / "a.jsonl", same),
        bench_run(tmp_path / "a.json", *pages.cells(), cell("z", 128, "skipped")),
    ]
    given_rules = """
        [[rule]]
        case = "c"
        ignore = ["lost support"]
        [[rule]]
        implementation = "z"
        workload = "*"
        ignore = ["slower"]
    """
    assert compare(read(files), read(files), given(tmp_path, given_rules)).notes == ()


SLOW = '[[rule]]\nimplementation = "square"\nignore = ["slower"]\n'


@pytest.mark.slow(1)
@pytest.mark.parametrize(
    ("text", "status", "answer"),
    [
        ("", 1, "Worse: square float32 is 50 % slower (all 4 cells)."),
        (SLOW, 0, "Nothing: 12 cells compared"),
        ("[[rule]]\nleast = 1.6\n", 0, "Nothing: 12 cells compared"),
        ("[[rule]]\nleast = 1.4\n", 1, "Worse: square float32 is 50 % slower (all 4 cells)."),
    ],
)
def test_a_page_and_a_comparison_judge_by_the_same_rules(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, status: int, answer: str
) -> None:
    """The verdict of ``compare`` is that of the HTML page, the Markdown page and the summary."""
    base, new, file = tmp_path / "base.json", tmp_path / "new.json", tmp_path / "rules.toml"
    bench_run(base, *pages.cells())
    bench_run(new, *pages.cells(1.5))
    file.write_text(text)
    by = ["--rules", str(file)]
    assert main(["compare", str(base), str(new), *by]) == status
    headline = capsys.readouterr().out.splitlines()[0]
    assert main(["report", str(new), "--base", str(base), *by, "-o", str(tmp_path / "out")]) == 0
    assert answer in (tmp_path / "out" / "report.html").read_text()
    for name in ("report.md", "summary.md"):
        assert f"**Since the base run**: {headline}." in (tmp_path / "out" / name).read_text()


def test_a_page_names_its_rules_and_counts_what_they_ignore(tmp_path: Path) -> None:
    """The answer and the verdict of the Markdown pages have both."""
    base, new = (
        read([bench_run(tmp_path / "a.json", *pages.cells())]),
        read([bench_run(tmp_path / "b.json", *pages.cells(1.5))]),
    )
    found = compare(base, new, given(tmp_path, SLOW))
    said = "udged by rules.toml (1 rule): 4 slower cells and 0 other changes ignored."
    assert changes.worse(found).note.endswith(f"J{said}")
    assert since.verdict(found).endswith(f"J{said}")
    assert "udged" not in changes.worse(compare(base, new)).note


def test_a_wrong_rule_ends_both_commands_with_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown key is named, and no page is written."""
    one = str(bench_run(tmp_path / "a.json", *pages.cells()))
    (tmp_path / "r.toml").write_text("[[rule]]\nslower = 2.0")
    by = ["--rules", str(tmp_path / "r.toml")]
    assert main(["compare", one, one, *by]) == 2
    said = capsys.readouterr().err
    assert main(["report", one, "--base", one, *by, "-o", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == said
    assert "rule 1 has the unknown key 'slower'" in said
    assert not (tmp_path / "out").exists()


def test_rules_without_a_base_are_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They would judge nothing."""
    one = str(bench_run(tmp_path / "a.json", *pages.cells()))
    assert main(["report", one, "--rules", one, "-o", str(tmp_path / "out")]) == 2
    assert "it needs --base" in capsys.readouterr().err
