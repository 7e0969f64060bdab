"""What became of a cell: its visits with their raw samples, or why there are none."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from attention_conformance.bench.analysis import statistics
from attention_conformance.bench.analysis.statistics import Interval
from attention_conformance.bench.timing.stopwatch import WALL
from attention_conformance.bench.workloads.workload import Workload
from attention_conformance.conformance.run.targets import Target

TIMED, STRUCK_OUT, NOT_TIMED = "timed", "invalid", "skipped"


@dataclass(frozen=True)
class Cell:
    """One workload on one target."""

    target: Target
    workload: Workload

    @property
    def id(self) -> str:
        """Name in test ids, in the worker and in the journal."""
        return f"{self.target.id}-{self.workload.name}"


class NotTimed(Exception):
    """The cell is left out: the implementation lacks it, or it would cost too much.  The text is the reason."""


@dataclass(frozen=True)
class Visit:
    """What one visit gave: seconds of each call, chunk by chunk, and what was paid and seen besides.

    The last call of each chunk was on inputs that the implementation had never seen.
    """

    chunks: tuple[tuple[float, ...], ...]
    #: Worst error/bound of what is checked, of the results before and after the timing.
    share: float
    prepare_seconds: float = 0.0
    first_call_seconds: float = 0.0
    peak_bytes: int | None = None
    held_bytes: int | None = None
    #: Threads that worked at the same time: CPU time ÷ time, rounded.
    threads: int = 1
    stopped: str = ""
    #: Which clock the seconds are by, the median of a call by the host's where that is another, and the bytes that
    #: were copied before each call to empty the caches.
    clock: str = WALL
    host_seconds: float | None = None
    emptied_bytes: int = 0


@dataclass(frozen=True)
class Outcome:
    """What became of a cell in the visits so far; ``kind`` is TIMED unless it has ended otherwise."""

    kind: str = TIMED
    clause: str = ""
    reason: str = ""
    visits: tuple[Visit, ...] = field(default=())

    def visited(self, visit: Visit) -> Outcome:
        """With one visit more."""
        return replace(self, visits=(*self.visits, visit))

    @property
    def samples(self) -> list[list[list[float]]]:
        """Seconds by visit and chunk."""
        return [[list(chunk) for chunk in visit.chunks] for visit in self.visits]

    @property
    def seconds(self) -> tuple[float, ...]:
        """Seconds of all calls, in the order of measurement."""
        return tuple(value for visit in self.samples for chunk in visit for value in chunk)

    @property
    def interval(self) -> Interval:
        """The median of all samples with its interval."""
        return statistics.median(self.samples)

    @property
    def share(self) -> float:
        """Worst error/bound of all checks."""
        return max(visit.share for visit in self.visits)

    @property
    def threads(self) -> int:
        """Threads that worked at the same time, at most."""
        return max(visit.threads for visit in self.visits)
