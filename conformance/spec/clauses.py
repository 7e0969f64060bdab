"""Clauses of SPEC.md as records, so that cases, messages and reports quote the page itself."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

SPEC = Path(__file__).parents[1] / "SPEC.md"

_HEADING = re.compile(r"^### (?P<id>[A-Z]+-\d+) · (?P<title>.+) · (?P<level>[A-Z]+)$")


#: Clauses that options test and no case can: a process has one first call (``--fresh N``), a case is one call
#: (``--invariance``, run.offsets), and only a GPU has streams (run.streams).
BY_OPTION = frozenset(
    {"SDPA-39", "SDPA-40", "SDPA-41", "SDPA-45", "SDPA-46", "VARLEN-14", "VARLEN-15", "PAGED-17", "PAGED-18"}
)


class Level(StrEnum):
    """Level of a clause: what it means not to follow it."""

    MUST = "MUST"
    SHOULD = "SHOULD"
    FREE = "FREE"


@dataclass(frozen=True)
class Clause:
    """One numbered sentence of the spec."""

    id: str
    title: str
    level: Level
    #: The clause's text without its reason, on one line.
    sentence: str


@functools.cache
def clauses() -> dict[str, Clause]:
    """Every clause by its id, in the order of the page.

    Returns
    -------
    dict[str, Clause]
        Clauses by id.

    Raises
    ------
    ValueError
        If an id occurs twice.
    """
    return parse(SPEC.read_text(encoding="utf-8"))


def parse(text: str) -> dict[str, Clause]:
    """The clauses of a page in the form of SPEC.md.

    Parameters
    ----------
    text
        Markdown in the form of SPEC.md.

    Returns
    -------
    dict[str, Clause]
        Clauses by id, in their order.
    """
    found: dict[str, Clause] = {}
    lines = text.splitlines()
    for number, line in enumerate(lines):
        heading = _HEADING.match(line)
        if heading is None:
            continue
        if heading["id"] in found:
            raise ValueError(f"clause {heading['id']} stands twice in the spec")
        found[heading["id"]] = Clause(
            heading["id"], heading["title"], Level(heading["level"]), _sentence(lines[number + 1 :])
        )
    return found


def _sentence(lines: list[str]) -> str:
    """The lines up to the reason (in italics), the next clause or the next section."""
    kept = []
    for line in lines:
        if line.startswith(("#", "*Why")):
            break
        kept.append(line.strip())
    return " ".join(filter(None, kept))
