"""The figures of bench/README.md: each is measured by a command, kept as numbers, and printed from these.

``python -m bench COMMAND`` measures and prints; with ``--page`` the numbers go to bench/figures/COMMAND.json and the
table into the page.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.machine import describe, load_average
from impls.figures import Figures

#: The room, its page, and the folder of the numbers.
ROOM = Path(__file__).parent
PAGE, FOLDER = ROOM / "README.md", ROOM / "figures"

#: What a command measures, and the Markdown table of it.
Measured = Mapping[str, Any]
Table = Callable[[Measured], str]


def figures(command: str, table: Table) -> Figures:
    """The figures of a command of this room."""
    return Figures(f"python -m bench {command}", PAGE, FOLDER / f"{command.split()[0]}.json", table)


def option(parser: argparse.ArgumentParser) -> None:
    """The option that replaces the figures of the page."""
    parser.add_argument("--page", action="store_true", help="keep the numbers, and write the table into README.md")


def give(found: Measured, place: Figures, page: bool) -> tuple[str, int]:
    """What a command returns that measured: the table; keeps the numbers if asked to."""
    if page:
        place.keep(found)
    return place.table(found), 0


class Circumstances:
    """When and where something was measured, from its creation to ``record``."""

    def __init__(self) -> None:
        self._load = load_average()

    def record(self, versions: Mapping[str, str], threads: int) -> dict[str, Any]:
        """What is kept with the numbers."""
        return {
            "written": datetime.now(UTC).isoformat(timespec="seconds"),
            "threads": threads,
            "load_average": [self._load, load_average()],
            "machine": describe(versions),
        }


def sentence(found: Measured) -> str:
    """The circumstances as the last line under a table."""
    loads = ", ".join("not told" if load is None else f"{load:.1f}" for load in found["load_average"])
    machine = found["machine"]
    threads = f"{found['threads']} thread{'s' * (found['threads'] != 1)}"
    where = f"{machine['cpu']}, {machine['cores_usable']} cores{', virtual' if machine['virtual'] else ''}"
    return f"{where}; {threads}; load average before and after: {loads}; {found['written']}."
