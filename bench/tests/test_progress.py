"""What a run says while it measures."""

from __future__ import annotations

import pytest

from bench.outcomes import STRUCK_OUT, Cell, Outcome, Visit
from bench.progress import EVERY, WIDTH, Progress
from bench.workloads import Workload
from conformance.targets import Target
from impls.contract import Implementation

CELLS = [Cell(Target(Implementation(name, "nowhere:f"), "cpu", "float32"), Workload(1, 2, 4, 8)) for name in "abcd"]
TIMED = Outcome().visited(Visit(((0.001,) * 5,) * 5, 0.5))


class Said:
    """A progress on a clock that is set, and what it wrote."""

    def __init__(self, rewrites: bool, visits: int = 3) -> None:
        self.now, self.texts = 0.0, [""]
        self.progress = Progress(self.texts.append, rewrites, lambda: self.now)
        self.progress.begin(CELLS, visits, lambda cell: 0)

    @property
    def last(self) -> str:
        """The text written last."""
        return self.texts[-1]


def test_a_line_says_which_cell_of_which_visit_gave_what() -> None:
    """The cell, its number of how many, the visit, and the median with its spread."""
    said = Said(rewrites=True)
    said.progress.done(CELLS[0], TIMED, 0)
    assert said.last.strip() == "visit 1 of 3, cell 1 of 4, 1 ms ± 0.0%: a-cpu-float32-prefill-b1h2d4s8"
    said.progress.done(CELLS[1], Outcome(STRUCK_OUT, "SDPA-25", "wrong"), 0)
    assert said.last.strip().endswith("cell 2 of 4, struck out SDPA-25: b-cpu-float32-prefill-b1h2d4s8")


def test_cells_are_counted_anew_in_every_visit() -> None:
    """Those that ended in an earlier visit count as done."""
    said = Said(rewrites=True)
    for cell in CELLS[:3]:
        said.progress.done(cell, TIMED, 0)
    said.progress.done(CELLS[3], Outcome(STRUCK_OUT), 0)
    said.progress.done(CELLS[0], TIMED, 1)
    assert "visit 2 of 3, cell 2 of 4" in said.last


def test_the_time_left_is_what_the_cells_took_so_far() -> None:
    """Each of two cells took 10 s: four visits of theirs are left, and six of cells that are not known yet."""
    said = Said(rewrites=True)
    said.progress.done(CELLS[0], TIMED, 0)
    said.progress.done(CELLS[1], TIMED, 0)
    said.progress.spent(CELLS[:2], 20.0)
    said.progress.done(CELLS[2], Outcome(STRUCK_OUT), 0)
    assert ", 70 s left, " in said.last
    said.progress.spent([CELLS[2]], 100.0)
    said.progress.done(CELLS[3], TIMED, 0)
    assert ", 2 min left, " in said.last


def test_a_terminal_has_one_line_that_is_rewritten_and_cleared() -> None:
    """No line is longer than the width, and none leaves a rest of the one before."""
    said = Said(rewrites=True)
    long = Cell(Target(Implementation("x" * 200, "nowhere:f"), "cpu", "float32"), CELLS[0].workload)
    said.progress.begin([long], 1, lambda cell: 0)
    said.progress.done(long, TIMED, 0)
    assert said.last.startswith("\r")
    assert len(said.last) == WIDTH + 1
    said.progress.end()
    assert said.last == "\r" + " " * WIDTH + "\r"


def test_elsewhere_a_line_is_printed_now_and_then() -> None:
    """Every 30 seconds, whole."""
    said = Said(rewrites=False)
    said.progress.done(CELLS[0], TIMED, 0)
    assert said.texts == [""]
    said.now = EVERY
    said.progress.done(CELLS[1], TIMED, 0)
    assert said.last.startswith("visit 1 of 3, cell 2 of 4")
    assert said.last.endswith("\n")
    said.progress.end()
    assert len(said.texts) == 2


def test_nothing_is_said_where_nothing_is_to_be_said() -> None:
    """As with -q."""
    silent = Progress(None, rewrites=True)
    silent.begin(CELLS, 1, lambda cell: 0)
    silent.done(CELLS[0], TIMED, 0)
    silent.end()


def test_a_resumed_run_counts_what_was_done_before() -> None:
    """Cells with all their visits are not waited for."""
    said = Said(rewrites=True)
    said.progress.begin(CELLS, 2, lambda cell: 2 if cell in CELLS[:2] else 0)
    said.progress.done(CELLS[2], TIMED, 0)
    assert "cell 3 of 4" in said.last


@pytest.mark.parametrize("visit", [0, 1, 2])
def test_the_last_cell_of_a_visit_is_the_last_number(visit: int) -> None:
    """N of n."""
    said = Said(rewrites=True)
    for each in range(visit + 1):
        for cell in CELLS:
            said.progress.done(cell, TIMED, each)
    assert f"visit {visit + 1} of 3, cell 4 of 4" in said.last
