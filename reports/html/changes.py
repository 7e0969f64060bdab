"""What changed since a base run: the page shows it, another module finds it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reports.html.views import Answer, Cell, Group, Table, columns, number

QUESTION = "What got worse since the base run?"


@dataclass(frozen=True)
class Change:
    """One thing that is not as it was."""

    #: "speed", "conformance", "accuracy" or "memory".
    kind: str
    implementation: str
    device: str
    dtype: str
    #: The case or the workload.
    at: str
    #: As the comparison has it: "SLOWER", "new failure" …
    verdict: str
    worse: bool
    #: New over base, where that means something, and a sentence with the interval.
    ratio: float | None = None
    text: str = ""
    #: The fragment that opens the cell or the case.
    link: str = ""


def worse(changes: Sequence[Change] | None) -> Answer:
    """What got worse, by kind."""
    if changes is None:
        return Answer("worse", QUESTION, "Not known: this page was made without a base run to compare with.")
    bad = [change for change in changes if change.worse]
    if not bad:
        return Answer("worse", QUESTION, f"Nothing. {len(changes)} changes, none for the worse.", more="changes")
    groups = tuple(
        Group(f"{kind.capitalize()} ({sum(one.kind == kind for one in bad)})", "failed", tuple(_items(bad, kind)))
        for kind in dict.fromkeys(change.kind for change in bad)
    )
    return Answer("worse", QUESTION, f"{len(bad)} of {len(changes)} changes are for the worse.", groups, more="changes")


def table(changes: Sequence[Change]) -> Table:
    """One row per change, what is worse first."""
    rows = tuple(
        (
            Cell(
                "✗ worse" if change.worse else "✓ not worse",
                int(change.worse),
                look="failed" if change.worse else "passed",
            ),
            Cell(change.kind),
            Cell(change.implementation, look="name"),
            Cell(change.device),
            Cell(change.dtype),
            Cell(change.at, link=change.link),
            Cell(change.verdict),
            number(change.ratio, tip=change.text),
            Cell(change.text),
        )
        for change in sorted(changes, key=lambda change: not change.worse)
    )
    titles = ("", "kind", "implementation", "device", "dtype", "case or workload", "verdict", "new ÷ base", "in words")
    return Table("changes", "Since the base run", columns(*titles, numbers=("new ÷ base",)), rows)


def _items(bad: Sequence[Change], kind: str) -> list[Cell]:
    some = [one for one in bad if one.kind == kind]
    return [
        Cell(f"{one.implementation} {one.dtype} {one.at}: {one.verdict}", tip=one.text, link=one.link) for one in some
    ]
