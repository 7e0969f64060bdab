"""What a run ends with in the terminal: what explains the failures, the table, where the time went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from conformance.outcomes import Result
from conformance.summary import executed, summary, time_lines


@dataclass(frozen=True)
class Closing:
    """What there is to print."""

    results: Sequence[Result]
    #: Missing packages by implementation.
    not_installed: Mapping[str, Sequence[str]]
    #: What explains the failures, one a line.
    diagnoses: Sequence[str]
    seconds: float
    #: The result file, if one was written.
    path: str | None


def print_closing(terminal: Any, closing: Closing) -> None:
    """Print it; ``terminal`` is pytest's reporter."""
    if closing.diagnoses:
        terminal.section("diagnosis")
        terminal.line("\n".join(closing.diagnoses))
    terminal.section("conformance")
    terminal.line(summary(closing.results, closing.not_installed))
    if closing.results:
        terminal.line(time_lines(closing.results, closing.seconds))
    if closing.path:
        terminal.line(f"results: {closing.path}")
    if not executed(closing.results):
        terminal.line("FAILED: nothing was executed, so nothing is known", red=True)
