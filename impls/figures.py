"""Figures in pages: a table that a command measured stands between two marks, with its numbers in a file beside it.

A page is never edited there: the command replaces what stands between the marks, and a test holds the page against the
file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: The line after a table.
END = "<!-- end of figures -->\n"


@dataclass(frozen=True)
class Figures:
    """Where the figures of a command stand: the page, and the file of the numbers."""

    command: str
    page: Path
    file: Path
    #: The table, from what the file has.
    table: Callable[[Mapping[str, Any]], str]

    @property
    def begin(self) -> str:
        """The line before the table."""
        return f"<!-- figures: {self.command} -->\n"

    def block(self) -> str:
        """What the page has to have: the marks, and the table of the file between them."""
        return f"{self.begin}{self.table(json.loads(self.file.read_text(encoding='utf-8')))}\n{END}"

    def keep(self, measured: Mapping[str, Any]) -> None:
        """Write the file, and its table into the page."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text(json.dumps(measured, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        self.print()

    def print(self) -> None:
        """Write the table of the file into the page.  Raises ValueError if the page has no place for it."""
        text = self.page.read_text(encoding="utf-8")
        before, found, rest = text.partition(self.begin)
        _, ended, after = rest.partition(END)
        if not found or not ended:
            raise ValueError(f"{self.page.name} has no place for the figures of {self.command}")
        self.page.write_text(before + self.block() + after, encoding="utf-8")
