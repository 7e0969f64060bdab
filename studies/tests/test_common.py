"""Figures in pages: printed from their file, between their marks, and nowhere else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from studies import common, cores, steps
from studies.common import END, Study


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    """A study whose page has a place for its table between two paragraphs."""
    monkeypatch.setattr(common, "ROOT", tmp_path)
    monkeypatch.setattr(common, "DATA", tmp_path)
    options = {"--count": {"type": int}}
    made = Study("count", "", lambda count: {"count": count}, {"page.md": lambda f: f"| {f['count']} |"}, options)
    (tmp_path / "page.md").write_text(f"before\n{BEGIN}old\n{END}after\n{END}", encoding="utf-8")
    return made


BEGIN = "<!-- figures: python -m studies count --page -->\n"


def test_the_numbers_are_kept_and_printed(study: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The text between the marks is replaced; the rest of the page is unchanged."""
    assert study.main(["--count", "7", "--page", "-o", str(tmp_path / "out.json")]) == 0
    assert (tmp_path / "page.md").read_text(encoding="utf-8") == f"before\n{BEGIN}| 7 |\n{END}after\n{END}"
    assert capsys.readouterr().out == "| 7 |\n"
    kept = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert kept == study.kept()
    assert {"written", "seconds", "threads", "load_average", "machine"} < set(kept)


def test_a_page_that_was_edited_differs(study: Study, tmp_path: Path) -> None:
    """The block of the file is no longer in it, so the test of the page fails."""
    study.main(["--count", "7", "--page"])
    ((page, begin, block),) = study.blocks()
    assert begin + block in page.read_text(encoding="utf-8")
    page.write_text(page.read_text(encoding="utf-8").replace("| 7 |", "| 8 |"), encoding="utf-8")
    assert begin + block not in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("text", ["", END, BEGIN])
def test_a_page_without_a_place_is_an_error(study: Study, tmp_path: Path, text: str) -> None:
    """Nothing is written into it."""
    (tmp_path / "page.md").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"page\.md has no place for the figures of studies\.count"):
        study.main(["--count", "7", "--page"])
    assert (tmp_path / "page.md").read_text(encoding="utf-8") == text


@pytest.mark.parametrize(("renamed", "now"), [(cores.STUDY, "--batches"), (steps.STUDY, "--rounds")])
def test_a_renamed_option_says_its_new_name(renamed: Study, now: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is measured."""
    with pytest.raises(SystemExit) as ended:
        renamed.main(["--turns", "3"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.rstrip().endswith(f"error: --turns is now {now}")
