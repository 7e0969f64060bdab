"""The first screen: clause groups, the matrix as a small picture, and what is folded."""

from __future__ import annotations

from pathlib import Path

from attention_conformance.bench.analysis.statistics import Interval, Verdict
from attention_conformance.conformance.judging.outcomes import Outcome
from attention_conformance.conformance.spec.clauses import Level, clauses
from attention_conformance.reports.compare import pages as compared
from attention_conformance.reports.compare.changes import Comparison, Speed
from attention_conformance.reports.html import changes
from attention_conformance.reports.html.overview import picture
from attention_conformance.reports.html.page import page
from attention_conformance.reports.html.views import Cell, Table, columns, short_names
from attention_conformance.reports.input.read import read
from attention_conformance.reports.model import groups, tables
from attention_conformance.reports.model.model import Model
from attention_conformance.reports.tests.files import conformance_file, failed, result


def test_every_clause_is_in_one_group() -> None:
    """A new part of the spec must have a name too."""
    tested = [name for name, clause in clauses().items() if clause.level is not Level.FREE]
    assert {groups.group(name) for name in tested} <= set(groups.GROUPS)
    numbers = [number for some in groups.SDPA.values() for number in some]
    assert sorted(numbers) == sorted(int(name[5:]) for name in tested if name.startswith("SDPA-"))


def test_a_group_counts_a_case_once() -> None:
    """It does for any number of its clauses; a failure counts at the clause that it broke."""
    found = groups.by_group(tables.conformance([result("x", "c1", clauses=("SDPA-2", "SDPA-3")), failed("x", "c2")]))
    (row,) = found[found["group"] == "Scores"].to_dict("records")
    assert row["passed"] == 1
    assert found["failed"].sum() == 1


def test_a_cell_of_the_picture_is_as_serious_as_its_worst_case() -> None:
    """One failure among passes is red; a group that was not run has no colour."""
    some = [result("x", "c1", clauses=("SDPA-9",)), failed("x", "c2", broken="SDPA-9"), result("y", "c1")]
    found = picture(tables.conformance([*some, result("z", "c1", Outcome.UNSUPPORTED, clauses=("SDPA-9",))]))
    rows = {row["name"]: [tuple(cell[:2]) for cell in row["cells"]] for row in found.cells["rows"]}
    assert rows["Causal"] == [("x", "1 of 2 cases failed"), ("y", "all 1 cases passed"), ("z", "unsupported")]
    assert rows["Scores"] == [("x", "not run"), ("y", "all 1 cases passed"), ("z", "not run")]
    assert set(found.paths) == {"failed", "passed", "unsupported"}


def speed(implementation: str, verdict: Verdict) -> Speed:
    """A cell with this verdict."""
    one = Interval(1.0, 1.0, 1.0)
    return Speed(implementation, "cpu", "float32", "prefill-b1h8d64s128", 1.0, 1.0, one, one, verdict)


def test_what_cannot_be_told_is_a_line_and_no_row() -> None:
    """The others are rows; where every verdict is clear there is no line."""
    speeds = (speed("slow", Verdict.SLOWER), speed("a", Verdict.UNCLEAR), speed("b", Verdict.UNCLEAR))
    found = Comparison(changes=(), speeds=speeds, base=(), new=())
    assert compared.unclear(found) == "2 of 3 cells are unclear."
    (table,) = changes.tables(found)
    assert [row[0].text for row in table.rows] == ["slow"]
    for text in (compared.terminal(found), compared.comment(found)):
        assert "2 of 3 cells are unclear" in text
        assert "| a " not in text
    assert compared.unclear(Comparison(changes=(), speeds=speeds[:1], base=(), new=())) == ""


def test_names_are_capped_and_the_others_open(tmp_path: Path) -> None:
    """Twelve are shown at once."""
    many = [result(f"name-{at}", "plain") for at in range(15)]
    text = page(Model(read([conformance_file(tmp_path / "a.jsonl", *many)]), clauses()))
    assert "<summary>and 3 more</summary>" in text


def test_what_scripts_alone_use_is_no_markup() -> None:
    """Values, tips and links are by column, where there are any."""
    rows = ((Cell("a", look="name"), Cell("1.5 ms", 0.0015, tip="t", link="#x")), (Cell("b", look="name"), Cell("–")))
    table = Table("t", "T", columns("name", "time", numbers=("time",)), rows)
    assert table.extras == {"1": {"v": [0.0015, None], "tip": ["t", None], "link": ["#x", None]}}
    assert table.shape == "n2 w1"


def test_a_column_is_named_without_the_folders_of_a_file() -> None:
    """The end distinguishes functions of one package; where it does not, the whole name stays."""
    found = short_names(
        ["torch-sdpa", "package.kernels.mine:attn@triton", "folder/other.py:attention", "a/same.py:f", "b/same.py:f"]
    )
    assert list(found.values()) == ["torch-sdpa", "mine:attn@triton", "other:attention", "a/same.py:f", "b/same.py:f"]


def test_names_below_the_picture_fit() -> None:
    """The end of a name that is still too long is cut off."""
    names = ("torch-sdpa-efficient-kernel", "package.kernels.mine:attn@triton")
    frame = tables.conformance([result(name, "c1") for name in names])
    assert [text for text, *_ in picture(frame).columns] == ["torch-sdpa-efficie…", "mine:attn@triton"]
