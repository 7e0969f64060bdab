"""The kill matrix in a report: what is recognised, counted, refused, and shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from attention_conformance.conformance.spec.clauses import clauses
from attention_conformance.reports.input import kill_matrix
from attention_conformance.reports.input.read import ReportError, read
from attention_conformance.reports.markdown.page import page
from attention_conformance.reports.model import faults
from attention_conformance.reports.model.model import Model


def fault(name: str, *caught: str, **fields: Any) -> dict[str, Any]:
    """A fault of the class "scale" that some cases catch."""
    return {
        "name": name,
        "group": "scale_group",
        "clause": "SDPA-3",
        "title": f"the {name} mistake",
        "when": "Always.",
        "sources": {"cf. pytorch 1": "https://github.com/pytorch/pytorch/issues/1", "source 001": ""},
        "smallest": caught[0] if caught else "",
        "caught": dict.fromkeys(caught, "float32"),
        **fields,
    }


def kill_file(path: Path, *known: dict[str, Any], **fields: Any) -> Path:
    """A file of ``attention-conformance kill-matrix``."""
    path.write_text(json.dumps({"format": kill_matrix.FORMAT, "cases": 9, "faults": known, **fields}))
    return path


def test_a_kill_table_is_recognised(tmp_path: Path) -> None:
    """It is recognised by its content; its faults and the number of cases are read."""
    records = read([kill_file(tmp_path / "k.json", fault("one", "a", "b"))])
    assert [source.kind for source in records.sources] == ["kill matrix"]
    assert [each["name"] for each in records.faults] == ["one"]
    assert records.cases == 9


def test_a_fault_without_its_fields_is_refused(tmp_path: Path) -> None:
    """An entry that is not a fault is counted as refused, not dropped silently."""
    source = read([kill_file(tmp_path / "k.json", fault("one", "a"), {"name": "half"})]).sources[0]
    assert (source.read, source.used) == (2, 1)
    assert sum(source.refused.values()) == 1


def test_a_broken_kill_table_is_refused(tmp_path: Path) -> None:
    """A truncated file is named."""
    path = kill_file(tmp_path / "k.json", fault("one", "a"))
    path.write_text(path.read_text()[:-5])
    with pytest.raises(ReportError, match=r"k\.json"):
        read([path])


def test_survivors_are_named_first() -> None:
    """The first line names the faults that fewer than two cases catch, if there are any."""
    assert "1 of them caught by fewer than two of 9 cases**: weak" in faults.verdict([fault("weak", "a")], 9)
    assert "each caught by at least two of 9 cases" in faults.verdict([fault("strong", "a", "b")], 9)


def test_the_frame_has_every_pair() -> None:
    """One row per fault and case, in the order of the file."""
    frame = faults.frame([fault("one", "a", "b"), fault("two", "c")])
    assert list(zip(frame["fault"], frame["case"], strict=True)) == [("one", "a"), ("one", "b"), ("two", "c")]


def test_a_class_shows_its_hardest_fault() -> None:
    """The one that the fewest cases catch, and by how many."""
    (row,) = faults.groups([fault("easy", "a", "b", "c"), fault("hard", "a", "b")]).to_dict("records")
    assert row == {"class": "scale group", "faults": 2, "hardest to catch": "the hard mistake", "caught by": 2}


def test_sources_are_links_where_there_is_an_address() -> None:
    """A thread is linked, an article of the seeds is named."""
    (text,) = faults.table([fault("one", "a", "b")])["seen in"]
    assert text == "[cf. pytorch 1](https://github.com/pytorch/pytorch/issues/1), source 001"


def test_a_source_is_a_link_to_a_web_page_alone() -> None:
    """Any other address is no link, and the characters of an address do not end its link."""
    sources = {"a": "javascript:alert(1)", "b": "https://x/y) ![p](https://z/p.png", "![c](d)": ""}
    (text,) = faults.table([fault("one", "a", sources=sources)])["seen in"]
    assert text == r"a, [b](https://x/y%29%20!%5Bp%5D%28https://z/p.png), !\[c\](d)"


def test_a_name_in_the_verdict_is_text(tmp_path: Path) -> None:
    """The name of a fault that few cases catch comes from a file."""
    text = page(Model(read([kill_file(tmp_path / "k.json", fault("![p](x)", "a"))]), clauses()))
    assert r"**: !\[p\](x)." in text
    assert "![p](x)" not in text


def test_the_report_shows_it(tmp_path: Path) -> None:
    """A section of its own, with the smallest case of each fault."""
    text = page(Model(read([kill_file(tmp_path / "k.json", fault("one", "small", "large"))]), clauses()))
    assert "## Faults that the suite catches" in text
    assert "the one mistake" in text
    assert "small" in text
