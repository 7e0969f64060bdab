"""Figures in pages: printed from their file, between their marks, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from impls.figures import END, Figures


@pytest.fixture
def figures(tmp_path: Path) -> Figures:
    """Figures of a page that has a place for them between two paragraphs."""
    file = tmp_path / "figures" / "count.json"
    made = Figures("count", tmp_path / "page.md", file, lambda found: f"| {found['count']} |")
    made.page.write_text(f"before\n{made.begin}old\n{END}after\n{END}", encoding="utf-8")
    return made


def test_the_numbers_are_kept_and_printed(figures: Figures) -> None:
    """What stood between the marks is replaced; the rest of the page is left alone."""
    figures.keep({"count": 7})
    assert figures.page.read_text(encoding="utf-8") == f"before\n{figures.begin}| 7 |\n{END}after\n{END}"
    assert figures.block() in figures.page.read_text(encoding="utf-8")


def test_a_page_that_was_edited_differs(figures: Figures) -> None:
    """The block of the file is not in it any more, which is how a test of a page fails."""
    figures.keep({"count": 7})
    figures.page.write_text(figures.page.read_text(encoding="utf-8").replace("| 7 |", "| 8 |"), encoding="utf-8")
    assert figures.block() not in figures.page.read_text(encoding="utf-8")


@pytest.mark.parametrize("text", ["", END, "<!-- figures: count -->\n"])
def test_a_page_without_a_place_is_an_error(figures: Figures, text: str) -> None:
    """Nothing is written into it."""
    figures.page.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"page\.md has no place for the figures of count"):
        figures.keep({"count": 7})
    assert figures.page.read_text(encoding="utf-8") == text
