"""Progress of a run: how far it is, and what each implementation took."""

from __future__ import annotations

import time
from typing import Any

from attention_conformance.conformance.run.progress import Progress, Spent, spent_rows
from attention_conformance.conformance.targets import Target
from attention_conformance.impls.select import builtin

QUICK, SLOW = (Target(builtin()[name], "cpu", "float32") for name in ("numpy-eager", "torch-compile"))


class Clock:
    """A clock that tests set."""

    now = 0.0

    def __call__(self) -> float:
        """Current seconds of the clock."""
        return self.now


class Processors:
    """A pool whose processor seconds tests set."""

    used = 0.0

    def cpu(self, implementation: Any) -> float:
        """Processor seconds so far."""
        return self.used


def judged(progress: Progress, target: Target, processors: Any = None, cpu: float = 0.0) -> None:
    """Judge a case that takes this many processor seconds."""
    processors = processors or Processors()
    with progress.judging(target, processors):
        processors.used += cpu


def test_the_time_left_is_told_by_what_cases_take() -> None:
    """The time left follows the cases' durations: nine more slow cases after one in 20 s take nine times as long."""
    clock = Clock()
    progress = Progress([QUICK] * 10 + [SLOW] * 10, 10.0, clock)
    for _ in range(10):
        judged(progress, QUICK)
    judged(progress, SLOW)
    clock.now = 20.0
    quick, slow = (target.implementation.case_seconds for target in (QUICK, SLOW))
    share = (10 * quick + slow) / (10 * quick + 10 * slow)
    assert progress.line() == f"11 of 20 results, about {20 * (1 - share) / share / 60:.0f} min left"


def test_no_time_is_told_at_the_beginning() -> None:
    """No time is estimated from a moment's work."""
    clock = Clock()
    progress = Progress([QUICK] + [SLOW] * 10, 10.0, clock)
    judged(progress, QUICK)
    clock.now = 20.0
    assert progress.line() == "1 of 11 results"


def test_lines_come_from_time_to_time() -> None:
    """No line is repeated before its time."""
    clock = Clock()
    progress = Progress([QUICK] * 3, 10.0, clock)
    clock.now = 9.0
    assert progress.line() is None
    clock.now = 10.0
    assert progress.line() is not None
    clock.now = 19.0
    assert progress.line() is None


def test_who_is_judged_now_is_named() -> None:
    """During a case the line names its implementation, and not after it."""
    clock = Clock()
    progress, processors = Progress([QUICK] * 3, 0.0, clock), Processors()
    with progress.judging(QUICK, processors):  # type: ignore[arg-type]
        assert progress.line() == "0 of 3 results; now numpy-eager"
    assert progress.line() == "1 of 3 results, about 0 s left"


def test_processor_seconds_are_those_of_the_process_and_of_judging() -> None:
    """Seconds of calls and of judging are counted by implementation, and other time of the process is not."""
    progress, processors = Progress([QUICK] * 2, 10.0), Processors()
    judged(progress, QUICK, processors, 2.0)
    processors.used += 5.0
    with progress.judging(QUICK, processors):  # type: ignore[arg-type]
        began = time.thread_time()
        while time.thread_time() < began + 0.02:
            pass
    spent = progress.spent["numpy-eager"]
    assert (spent.results, spent.cpu) == (2, 2.0)
    assert spent.judging >= 0.02


def test_rows_are_the_costliest_first_and_their_sum() -> None:
    """Results per second are by the clock; processor seconds include those of judging."""
    rows = spent_rows({"a": Spent(10, 2.0, 1.0, 0.5), "b": Spent(10, 5.0, 8.0, 0.25)})
    assert rows == [
        ("b", "10", "2", "8.2", "0.2"),
        ("a", "10", "5", "1.5", "0.5"),
        ("all", "20", "2.86", "9.8", "0.8"),
    ]


def test_one_implementation_has_no_sum() -> None:
    """A single implementation has no sum, which would repeat its row."""
    assert [row[0] for row in spent_rows({"a": Spent(10, 2.0, 1.0, 0.5)})] == ["a"]
