"""What a run ends with in the terminal: adapters, what explains failures, the table, claims, where the time went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from conformance.beyond import Closing
from conformance.outcomes import Result
from conformance.summary import executed, summary, time_lines


@dataclass(frozen=True)
class Ending:
    """What there is to print."""

    results: Sequence[Result]
    #: Missing packages by implementation.
    not_installed: Mapping[str, Sequence[str]]
    #: What was found out about adapters, one line each.
    adapters: Sequence[str]
    #: What explains the failures, one line each.
    diagnoses: Sequence[str]
    closing: Closing
    seconds: float
    #: The result file, if one was written.
    path: str | None


def print_ending(terminal: Any, ending: Ending) -> None:
    """Print it; ``terminal`` is pytest's reporter."""
    for title, lines in (("adapter", ending.adapters), ("diagnosis", ending.diagnoses)):
        if lines:
            terminal.section(title)
            terminal.line("\n".join(lines))
    terminal.section("conformance")
    terminal.line(summary(ending.results, ending.not_installed))
    for line in (*ending.closing.claims, *ending.closing.hints, *ending.closing.side_effects):
        terminal.line(line)
    if ending.results:
        terminal.line(time_lines(ending.results, ending.seconds))
    if ending.path:
        terminal.line(f"results: {ending.path}")
    for line in ending.closing.failures:
        terminal.line(f"FAILED: {line}", red=True)
    if not executed(ending.results):
        terminal.line("FAILED: nothing was executed, so nothing is known", red=True)
