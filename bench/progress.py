"""What a run says while it measures: which cell of how many, in which visit, what it gave, and the time left.

On a terminal one line is rewritten; elsewhere a plain line is printed every EVERY seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from bench.outcomes import TIMED, Cell, Outcome

#: Seconds between two lines where there is no terminal.
EVERY = 30.0

#: Columns of a line.
WIDTH = 100

#: Writes a text at once; nothing where nothing is to be said.
Write = Callable[[str], None]


class Progress:
    """Counts cells and estimates the time that is left."""

    def __init__(self, write: Write | None, rewrites: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._write, self._rewrites, self._clock = write, rewrites, clock
        self._said = clock()
        self._cells = self._visits = 0
        #: Visits that are still to be made, by cell, and seconds that the last visit of a cell took.
        self._left: dict[Cell, int] = {}
        self._took: dict[Cell, float] = {}

    def begin(self, cells: Sequence[Cell], visits: int, done: Callable[[Cell], int]) -> None:
        """Before the first cell; ``done`` visits of a cell were made before."""
        self._visits, self._cells = visits, len(cells)
        self._left = {cell: visits - done(cell) for cell in cells}

    def done(self, cell: Cell, outcome: Outcome, visit: int) -> None:
        """A visit of a cell has ended."""
        self._left[cell] = self._visits - visit - 1 if outcome.kind == TIMED else 0
        now = self._clock()
        if self._write is None or (not self._rewrites and now - self._said < EVERY):
            return
        self._said = now
        waiting = sum(left >= self._visits - visit for left in self._left.values())
        where = f"visit {visit + 1} of {self._visits}, cell {self._cells - waiting} of {self._cells}"
        line = ", ".join(filter(None, [where, self._rest(), f"{_result(outcome)}: {cell.id}"]))
        line = line if len(line) <= WIDTH else line[: WIDTH - 1] + "…"
        self._write(f"\r{line:{WIDTH}}" if self._rewrites else f"{line}\n")

    def spent(self, cells: Sequence[Cell], seconds: float) -> None:
        """Cells that took turns took so long together."""
        self._took |= dict.fromkeys(cells, seconds / len(cells))

    def say(self, text: str) -> None:
        """What is done besides timing; only where the line is rewritten."""
        if self._write is not None and self._rewrites:
            self._write(f"\r{text[:WIDTH]:{WIDTH}}")

    def end(self) -> None:
        """After the last cell: the line is cleared."""
        if self._write is not None and self._rewrites:
            self._write("\r" + " " * WIDTH + "\r")

    def _rest(self) -> str:
        """The time left: of each cell what its last visit took, of one without any the mean of the others."""
        if not self._took:
            return ""
        mean = sum(self._took.values()) / len(self._took)
        seconds = sum(left * self._took.get(cell, mean) for cell, left in self._left.items())
        return f"{seconds / 60:.0f} min left" if seconds >= 90 else f"{seconds:.0f} s left"


def _result(outcome: Outcome) -> str:
    if outcome.kind != TIMED:
        return " ".join(filter(None, [outcome.kind, outcome.clause]))
    return f"{1e3 * outcome.interval.value:.3g} ms ± {min(outcome.interval.spread, 9.99):.1%}"
