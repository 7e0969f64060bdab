"""Links of the documents: their targets exist, files and headings alike."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *(p for room in ("impls", "conformance", "bench", "reports") for p in (ROOT / room).rglob("*.md")),
]

#: Pages whose links are relative to another folder: page.md becomes a page of the folder above.
TEMPLATE = "page.md"

_CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\((?P<to>[^)\s]+)\)")
_HEADING = re.compile(r"^#+ (?P<text>.*)$", re.MULTILINE)
_NAMED = re.compile(r'<a (?:id|name)="(?P<name>[^"]+)"')


def broken(text: str, folder: Path, itself: Path) -> list[str]:
    """The relative links of a page in this folder that lead nowhere."""
    return [to for to in _links(text) if not _leads(to, folder, itself)]


def _links(text: str) -> Iterator[str]:
    for match in _LINK.finditer(_CODE.sub("", text)):
        if not re.match(r"[a-z]+:", match["to"]):
            yield match["to"]


def _leads(to: str, folder: Path, itself: Path) -> bool:
    name, _, anchor = to.partition("#")
    target = folder / name if name else itself
    if not target.exists():
        return False
    return not anchor or target.suffix != ".md" or anchor in _anchors(target.read_text(encoding="utf-8"))


def _anchors(text: str) -> set[str]:
    """The anchors that GitHub makes: headings in small letters without punctuation, and names."""
    headings = (re.sub(r"[^\w\- ]", "", match["text"].lower()).replace(" ", "-") for match in _HEADING.finditer(text))
    return {*headings, *(match["name"] for match in _NAMED.finditer(text))}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    """Every relative link has its file, and every anchor its heading."""
    folder = page.parents[1] if page.name == TEMPLATE else page.parent
    assert broken(page.read_text(encoding="utf-8"), folder, page) == []


@pytest.mark.parametrize("to", ["gone.md", "page.md#other", "#other", "../gone/page.md"])
def test_a_link_that_leads_nowhere_is_found(to: str, tmp_path: Path) -> None:
    """A missing file and a missing heading are found."""
    page = tmp_path / "page.md"
    page.write_text(f"# A heading\n[right](page.md#a-heading), [right](#a-heading), [wrong]({to})\n", encoding="utf-8")
    assert broken(page.read_text(encoding="utf-8"), tmp_path, page) == [to]
