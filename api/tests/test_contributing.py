"""CONTRIBUTING.md and the glossary: one screen each, and everything that they name exists."""

from __future__ import annotations

import re
import shlex

import pytest

from attention_conformance.cli import COMMANDS, parser
from attention_conformance.tests.installed import ROOT

PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
GLOSSARY = (ROOT / "conformance" / "GLOSSARY.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (an? [^|]+) \| ([^|]+) \| ([^|]+) \|$", PAGE, re.MULTILINE)

#: Most lines of a screen.
SCREEN = 45


@pytest.mark.parametrize("page", [PAGE, GLOSSARY], ids=["contributing", "glossary"])
def test_a_page_is_one_screen(page: str) -> None:
    """A page fits on one screen, so that it is read."""
    assert len(page.splitlines()) <= SCREEN


@pytest.mark.parametrize(("what", "touched", "command"), ROWS, ids=[row[0] for row in ROWS])
def test_what_a_row_names_is_there(what: str, touched: str, command: str) -> None:
    """The files of a row exist, and its command is one that the suite, pytest or a study takes."""
    files = re.findall(r"`([^`]+)`", touched)
    assert files
    assert [name for name in files if not (ROOT / name).exists()] == []
    words = shlex.split(re.findall(r"`([^`]+)`", command)[0])
    if words[0] == "attention-conformance":
        parser(words[1:]).parse_args(words[1:])
    else:
        assert words[0] in ("pytest", "python")
        assert all((ROOT / word).exists() for word in words[1:] if "/" in word)


def test_every_command_of_the_page_is_one() -> None:
    """Every command that the page names exists, in the text too."""
    named = set(re.findall(r"attention-conformance ([a-z-]+)", PAGE))
    assert named <= set(COMMANDS)


def test_there_is_a_row_for_everything_that_is_added() -> None:
    """There are rows for a case, a fault, an implementation, a deviation, a workload and a view."""
    rows = " ".join(what for what, *_ in ROWS)
    assert all(word in rows for word in ("case", "fault", "implementation", "deviation", "workload", "view"))
