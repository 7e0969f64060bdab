"""The output of a run while it measures."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from attention_conformance.bench.timing.progress import BAR, EVERY, WIDTH, Progress
from attention_conformance.bench.validity.outcomes import INVALID, Cell, Outcome, ProcessRun
from attention_conformance.bench.workloads.workload import Workload
from attention_conformance.conformance.targets import Target
from attention_conformance.impls.contract import Implementation

CELLS = [Cell(Target(Implementation(name, "nowhere:f"), "cpu", "float32"), Workload(1, 2, 4, 8)) for name in "abcd"]
TIMED = Outcome().with_run(ProcessRun(((0.001,) * 5,) * 5, 0.5))


class Said:
    """A progress with a settable clock, and what it wrote."""

    def __init__(self, terminal: bool, process_runs: int = 3) -> None:
        self.now, self.file = 0.0, io.StringIO()
        self.console = Console(file=self.file, force_terminal=terminal, color_system=None, width=WIDTH)
        self.progress = Progress(self.console, lambda: self.now)
        self.progress.begin(CELLS, process_runs, lambda cell: 0)

    @property
    def last(self) -> str:
        """The last line written, after the bar."""
        return self.file.getvalue().rpartition(COLUMN)[2].lstrip()


#: The character with which a terminal restarts a line.
CLEAR = "\r\x1b[2K"

#: The separator between the bar and the text.
COLUMN = f"\x1b[{BAR + 1}G"


def test_a_line_says_which_cell_of_which_process_run_gave_what() -> None:
    """The line has the cell, its number of how many, the process run, and the median with its spread."""
    said = Said(terminal=True)
    said.progress.done(CELLS[0], TIMED, 0)
    assert said.last.strip() == "process run 1 of 3, cell 1 of 4, 1 ms ± 0.0%: a-cpu-float32-prefill-b1h2d4s8"
    said.progress.done(CELLS[1], Outcome(INVALID, "SDPA-25", "wrong"), 0)
    assert "cell 2 of 4, invalid SDPA-25: b-cpu-float32-prefill" in said.last


def test_cells_are_counted_anew_in_every_process_run() -> None:
    """Cells that ended in an earlier process run count as done."""
    said = Said(terminal=True)
    for cell in CELLS[:3]:
        said.progress.done(cell, TIMED, 0)
    said.progress.done(CELLS[3], Outcome(INVALID), 0)
    said.progress.done(CELLS[0], TIMED, 1)
    assert "process run 2 of 3, cell 2 of 4" in said.last


def test_the_time_left_is_what_the_cells_took_so_far() -> None:
    """Each of two cells took 10 s: four of their process runs are left, and six of cells that are not known yet."""
    said = Said(terminal=True)
    said.progress.done(CELLS[0], TIMED, 0)
    said.progress.done(CELLS[1], TIMED, 0)
    said.progress.spent(CELLS[:2], 20.0)
    said.progress.done(CELLS[2], Outcome(INVALID), 0)
    assert ", 70 s left, " in said.last
    said.progress.spent([CELLS[2]], 100.0)
    said.progress.done(CELLS[3], TIMED, 0)
    assert ", 2 min left, " in said.last


def test_a_terminal_has_one_line_that_is_rewritten_and_cleared() -> None:
    """No line is longer than the terminal, nor ends; the bar shows the share of process runs that are done."""
    said = Said(terminal=True)
    long = Cell(Target(Implementation("x" * 200, "nowhere:f"), "cpu", "float32"), CELLS[0].workload)
    said.progress.begin([long, CELLS[0]], 1, lambda cell: 0)
    said.progress.done(long, TIMED, 0)
    line = said.file.getvalue()
    bar, _, text = line.removeprefix(CLEAR).partition(COLUMN)
    assert bar == "━" * (BAR // 2)
    assert len(text) == WIDTH - BAR - 1
    assert text.endswith("…")
    assert "\n" not in line
    said.progress.end()
    assert said.file.getvalue() == line + CLEAR


def test_a_name_is_no_markup() -> None:
    """A name with markup is shown unchanged."""
    said = Said(terminal=True)
    said.progress.show("[bold]x[/bold] :smile:")
    assert said.last == "[bold]x[/bold] :smile:"


def test_elsewhere_a_line_is_printed_now_and_then() -> None:
    """A whole line without a bar is printed every 30 seconds; activities other than timing are not reported."""
    said = Said(terminal=False)
    said.progress.done(CELLS[0], TIMED, 0)
    said.progress.show("the machine")
    assert said.file.getvalue() == ""
    said.now = EVERY
    said.progress.done(CELLS[1], TIMED, 0)
    line = said.file.getvalue()
    assert line == "process run 1 of 3, cell 2 of 4, 1 ms ± 0.0%: b-cpu-float32-prefill-b1h2d4s8\n"
    said.progress.end()
    assert said.file.getvalue() == line


@pytest.mark.parametrize("quiet", [True, False])
def test_without_a_console_nothing_is_printed(quiet: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """With -q there is no console; with one the same steps print a line."""
    now = iter([0.0, EVERY, 2 * EVERY])
    progress = Progress(None if quiet else Console(), lambda: next(now))
    progress.begin(CELLS, 1, lambda cell: 0)
    progress.done(CELLS[0], TIMED, 0)
    progress.end()
    printed = capsys.readouterr()
    assert (not printed.out) is quiet
    assert not printed.err


def test_a_resumed_run_counts_what_was_done_before() -> None:
    """Cells with all their process runs are not waited for."""
    said = Said(terminal=True)
    said.progress.begin(CELLS, 2, lambda cell: 2 if cell in CELLS[:2] else 0)
    said.progress.done(CELLS[2], TIMED, 0)
    assert "cell 3 of 4" in said.last


@pytest.mark.parametrize("process_run", [0, 1, 2])
def test_the_last_cell_of_a_process_run_is_the_last_number(process_run: int) -> None:
    """The line says N of n."""
    said = Said(terminal=True)
    for each in range(process_run + 1):
        for cell in CELLS:
            said.progress.done(cell, TIMED, each)
    assert f"process run {process_run + 1} of 3, cell 4 of 4" in said.last
