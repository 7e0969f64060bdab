"""Changes that a comparison finds, as immutable records, and the verdict on the whole."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum

import msgspec

from attention_conformance.bench.analysis.statistics import Interval, Verdict
from attention_conformance.reports.input.records import Source


class Level(StrEnum):
    """Level of a change: what it is to the verdict."""

    WORSE = "worse"
    BETTER = "better"
    NOTE = "note"
    #: Worse, but a rule says that it does not count.
    IGNORED = "ignored"


class Kind(StrEnum):
    """Kind of a change beside the time.  These words also name what a rule ignores."""

    FAILURE = "new failure"
    DEVIATION = "new deviation"
    SUPPORT = "lost support"
    RESULT = "missing result"
    CELL = "missing cell"
    INVALID = "invalid"
    UNTIMED = "no longer timed"
    MEMORY = "more memory"
    ACCURACY = "less accurate"
    PASS = "new pass"  # noqa: S105 - a case that passes
    VANISHED = "vanished deviation"
    SUPPORTED = "newly supported"
    OTHER_FAILURE = "fails otherwise"
    OTHER_OUTCOME = "other outcome"
    LESS_MEMORY = "less memory"
    MORE_ACCURATE = "more accurate"
    NEW_RESULT = "new result"
    NEW_CELL = "new cell"


#: What a rule calls a cell that is slower.
SLOWER = "slower"


class Change(msgspec.Struct, frozen=True):
    """Something that is otherwise than it was; ``name`` is the case or the workload."""

    kind: Kind
    level: Level
    implementation: str
    device: str
    dtype: str
    name: str
    base: str
    new: str


@dataclass(frozen=True)
class Speed:
    """One cell that both runs timed: seconds of undisturbed calls, or multiples of a yardstick's, and new ÷ base."""

    implementation: str
    device: str
    dtype: str
    workload: str
    base: float
    new: float
    #: Ratio with its 95 % interval, without the machine's factor.
    ratio: Interval
    #: The interval that changes are judged by, valid for all cells of the device together.
    among_all: Interval
    verdict: Verdict
    #: Reason for an unclear verdict, empty for the others.
    why: str = ""
    ignored: bool = False


@dataclass(frozen=True)
class Finding:
    """Change as a whole: of an implementation in a dtype, or of everything, which has no name."""

    implementation: str
    device: str
    dtype: str
    ratio: Interval
    verdict: Verdict
    #: Number of its cells, and of the cells that have the same verdict.
    cells: int
    changed: int
    #: A rule ignores all of its cells.
    ignored: bool = False
    #: The ratio of the cell that changed most among them.
    most: float = 1.0


@dataclass(frozen=True)
class Machine:
    """Change of the machine between two runs, on one device, and the changes of code that could have been seen."""

    device: str
    #: Factor of time, new ÷ base, that is attributed to the machine, with its 95 % interval.
    factor: Interval
    #: Factors of code that is the same in both runs.
    yardsticks: tuple[tuple[str, float], ...]
    #: Standard deviations of logs: of process runs, and of a cell and an implementation from one run to the next.
    scatter: float
    luck: tuple[float, float]
    cells: int
    #: The slowdown of the median implementation and cell that would have been found nine times in ten.
    seen_implementation: float | None
    seen_cell: float | None
    #: Factors taken off all implementations of a workload in addition, by its dtype and name.
    workloads: tuple[tuple[str, float], ...] = ()


class Status(Enum):
    """The exit status."""

    NOTHING_WORSE = 0
    WORSE = 1
    CANNOT_TELL = 2


@dataclass(frozen=True)
class Comparison:
    """Everything that a comparison found."""

    base: tuple[Source, ...]
    new: tuple[Source, ...]
    speeds: tuple[Speed, ...]
    changes: tuple[Change, ...]
    machines: tuple[Machine, ...] = ()
    findings: tuple[Finding, ...] = ()
    #: What could not be compared, and why: each rules out the verdict "nothing worse".
    unfit: tuple[str, ...] = ()
    #: What a reader should know although it changes no verdict.
    notes: tuple[str, ...] = ()
    yardstick: str = ""
    #: Results and cells that are in both runs.
    results: int = 0
    #: The file of rules that it was judged by, with their number, "" for none.
    rules: str = ""
    #: Most threads that the calls were given, 0 where no run records it.
    threads: int = 0

    @property
    def worse(self) -> tuple[Change, ...]:
        """The changes for the worse that count."""
        return tuple(change for change in self.changes if change.level is Level.WORSE)

    @property
    def slower(self) -> tuple[Speed, ...]:
        """The cells that are slower and count."""
        return tuple(cell for cell in self.speeds if cell.verdict is Verdict.SLOWER and not cell.ignored)

    @property
    def slower_as_a_whole(self) -> tuple[Finding, ...]:
        """Findings that are slower as a whole and count."""
        return tuple(one for one in self.findings if one.verdict is Verdict.SLOWER and not one.ignored)

    @property
    def ignored(self) -> tuple[int, int]:
        """Numbers of cells, and of other changes, that are worse and do not count, as a rule says."""
        cells = sum(cell.ignored for cell in self.speeds)
        return cells, sum(change.level is Level.IGNORED for change in self.changes)

    @property
    def status(self) -> Status:
        """Worse if anything surely is; else whether everything could be compared and any verdict is clear."""
        if self.worse or self.slower or self.slower_as_a_whole:
            return Status.WORSE
        unclear = all(cell.verdict is Verdict.UNCLEAR for cell in self.speeds) if self.speeds else not self.results
        return Status.CANNOT_TELL if self.unfit or unclear else Status.NOTHING_WORSE
