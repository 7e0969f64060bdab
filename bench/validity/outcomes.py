"""Outcome of a cell: its process runs with their raw samples, or the reason why there are none."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from attention_conformance.bench.analysis import statistics
from attention_conformance.bench.analysis.statistics import Interval
from attention_conformance.bench.clocks import WALL
from attention_conformance.bench.workloads.workload import Workload
from attention_conformance.conformance.targets import Target

TIMED, UNSTABLE, INVALID, SKIPPED = "timed", "unstable", "invalid", "skipped"

#: A cell that fails as a record of the deviation ledger says, and so has no time; the run does not fail by it.
KNOWN_DEVIATION = "known-deviation"

#: The outcomes with times; the time of an unstable cell is shown apart, and compared with nothing.
MEASURED = (TIMED, UNSTABLE)


@dataclass(frozen=True)
class Cell:
    """One workload on one target."""

    target: Target
    workload: Workload

    @property
    def id(self) -> str:
        """Name in test ids, in the worker and in the checkpoint."""
        return f"{self.target.id}-{self.workload.name}"


class Skipped(Exception):
    """The cell is skipped: the implementation lacks it, or it would cost too much.  The text is the reason."""


@dataclass(frozen=True)
class ProcessRun:
    """Process run: seconds of each call, batch by batch, and the other measurements.

    The last call of each batch was on inputs that the implementation had never seen.
    """

    batches: tuple[tuple[float, ...], ...]
    #: Worst error/bound of the checked results, before and after the timing.
    share: float
    prepare_seconds: float = 0.0
    first_call_seconds: float = 0.0
    peak_rss_bytes: int | None = None
    held_rss_bytes: int | None = None
    #: Threads that worked at the same time: CPU time ÷ time, rounded.
    threads: int = 1
    stopped: str = ""
    #: Clock of the seconds, the median of a call by the host's clock where that is another, and the bytes that were
    #: copied before each call to clear the caches.
    clock: str = WALL
    host_seconds: float | None = None
    evicted_bytes: int = 0
    #: Clause and finding of a result that was wrong once, and right in every equal call that followed.
    unstable: tuple[str, str] | None = None


@dataclass(frozen=True)
class Outcome:
    """Outcome of a cell in the process runs so far; ``kind`` is TIMED unless it has ended otherwise.

    It is UNSTABLE where a result was wrong once in some of them; all process runs are still made.
    """

    kind: str = TIMED
    clause: str = ""
    reason: str = ""
    process_runs: tuple[ProcessRun, ...] = field(default=())

    def with_run(self, process_run: ProcessRun) -> Outcome:
        """The outcome with one more process run."""
        runs = (*self.process_runs, process_run)
        found = [run.unstable for run in runs if run.unstable]
        if not found:
            return replace(self, process_runs=runs)
        (clause, text), count = found[0], f"{len(found)} of {len(runs)} process runs"
        return Outcome(UNSTABLE, clause, f"{text}; in {count}", runs)

    @property
    def samples(self) -> list[list[list[float]]]:
        """Seconds by process run and batch."""
        return [[list(batch) for batch in process_run.batches] for process_run in self.process_runs]

    @property
    def seconds(self) -> tuple[float, ...]:
        """Seconds of all calls, in the order of measurement."""
        return tuple(value for process_run in self.samples for batch in process_run for value in batch)

    @property
    def interval(self) -> Interval:
        """The median of all samples with its interval."""
        return statistics.median(self.samples)

    @property
    def share(self) -> float:
        """Worst error/bound of all checks."""
        return max(process_run.share for process_run in self.process_runs)

    @property
    def threads(self) -> int:
        """Most threads that worked at the same time."""
        return max(process_run.threads for process_run in self.process_runs)
