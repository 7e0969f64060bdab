"""Speed of reports and their pages: the published numbers keep what the pages promise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from studies import report_speed
from studies.report_speed import COMMANDS, PAGES

pytestmark = pytest.mark.slow


def kept(name: str) -> Any:
    """The measurements of each command, or of each page."""
    return {one["what"]: one for one in report_speed.STUDY.kept()[name][name]}


def test_a_large_report_is_made_in_ten_seconds_and_a_gigabyte() -> None:
    """Every command keeps to it in every run, with a base run of the same size too."""
    commands = kept("commands")
    assert set(commands) == set(COMMANDS)
    runs = [run for one in commands.values() for run in one["runs"]]
    assert all(run["seconds"] < 10 and run["bytes"] < 1e9 for run in runs)


def test_a_large_page_is_small_and_answers_at_once() -> None:
    """Below 5 MB and open within a second; sorting 2,000 cells and opening details take less than half a second."""
    pages = kept("pages")
    assert set(pages) == set(PAGES)
    assert all(one["bytes"] < 5e6 for one in pages.values())
    every = [opening for one in pages.values() for opening in one["openings"]]
    assert all(opening["loaded"] < 1000 for opening in every)
    assert all((opening[name] or 0.0) < 500 for opening in every for name in ("sorted", "details"))


def test_a_command_that_fails_is_no_figure(tmp_path: Path) -> None:
    """A report that could not be made has no time."""
    with pytest.raises(RuntimeError, match="compare nothing nothing ended with 2, not 1"):
        report_speed.timed(("compare", "nothing", "nothing"), 1, tmp_path)


def test_a_command_has_its_time_and_memory(tmp_path: Path) -> None:
    """Pandas alone takes more than 40 MB, and the processor works for some time."""
    found = report_speed.timed(("schema",), 0, tmp_path)
    assert found["bytes"] > 4e7
    assert found["cpu_seconds"] > 0
