"""Progress of a run: the cell and the process run, of how many, its result, and the time left.

On a terminal one line is rewritten, with a bar; elsewhere a plain line is printed every EVERY seconds.  No thread draws
it, as it would work while cells are timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.control import Control
from rich.progress_bar import ProgressBar
from rich.segment import ControlType
from rich.text import Text

from attention_conformance.bench.validity.outcomes import KNOWN_DEVIATION, MEASURED, TIMED, Cell, Outcome

#: Seconds between two lines where there is no terminal.
EVERY = 30.0

#: Columns of a line where there is no terminal, and of the bar on one.
WIDTH, BAR = 100, 20

_CLEAR = Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2))


class Progress:
    """Counts cells and estimates the time that is left; prints nothing if the console is None."""

    def __init__(self, console: Console | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock = console, clock
        self._printed = clock()
        self._cells = self._process_runs = 0
        #: Process runs that are left, by cell, and seconds that the last process run of a cell took.
        self._left: dict[Cell, int] = {}
        self._took: dict[Cell, float] = {}

    def begin(self, cells: Sequence[Cell], process_runs: int, done: Callable[[Cell], int]) -> None:
        """Start, before the first cell; ``done`` gives the process runs of a cell that were made before."""
        self._process_runs, self._cells = process_runs, len(cells)
        self._left = {cell: process_runs - done(cell) for cell in cells}

    def done(self, cell: Cell, outcome: Outcome, process_run: int) -> None:
        """Count a process run of a cell that has ended."""
        self._left[cell] = self._process_runs - process_run - 1 if outcome.kind in MEASURED else 0
        now, console = self._clock(), self._console
        if console is None or (not console.is_terminal and now - self._printed < EVERY):
            return
        self._printed = now
        waiting = sum(left >= self._process_runs - process_run for left in self._left.values())
        where = f"process run {process_run + 1} of {self._process_runs}, cell {self._cells - waiting} of {self._cells}"
        line = ", ".join(filter(None, [where, self._rest(), f"{_result(outcome)}: {cell.id}"]))
        if console.is_terminal:
            self.show(line, "" if outcome.kind in (TIMED, KNOWN_DEVIATION) else "red")
        else:
            console.out(line if len(line) <= WIDTH else f"{line[: WIDTH - 1]}…", highlight=False)

    def spent(self, cells: Sequence[Cell], seconds: float) -> None:
        """Note the seconds that the cells of a round took together."""
        self._took |= dict.fromkeys(cells, seconds / len(cells))

    def show(self, text: str, style: str = "") -> None:
        """Rewrite the line, with the share of the process runs that are made; nothing where there is no terminal."""
        console = self._console
        if console is None or not console.is_terminal:
            return
        total = self._cells * self._process_runs
        line = Text(f" {text}", style)
        line.truncate(console.width - BAR - 1, overflow="ellipsis")
        console.control(_CLEAR)
        console.print(ProgressBar(total, total - sum(self._left.values()), BAR), end="")
        console.control(Control.move_to_column(BAR))  # a bar without colours ends where it is full
        console.print(line, end="")

    def end(self) -> None:
        """Clear the line after the last cell."""
        if self._console is not None and self._console.is_terminal:
            self._console.control(_CLEAR)

    def _rest(self) -> str:
        """The time left, by the time of each cell's last process run, or the mean of the others where it has none."""
        if not self._took:
            return ""
        mean = sum(self._took.values()) / len(self._took)
        seconds = sum(left * self._took.get(cell, mean) for cell, left in self._left.items())
        return f"{seconds / 60:.0f} min left" if seconds >= 90 else f"{seconds:.0f} s left"


def _result(outcome: Outcome) -> str:
    if outcome.kind != TIMED:
        return " ".join(filter(None, [outcome.kind.replace("-", " "), outcome.clause]))
    return f"{1e3 * outcome.interval.value:.3g} ms ± {min(outcome.interval.spread, 9.99):.1%}"
