"""Protocol of the timing of one cell in one process run: open, check, measure batches, check again.

A wrong result has no timing.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from attention_conformance.bench.clocks import HELD
from attention_conformance.bench.processes import Jobs
from attention_conformance.bench.sampling.cold_cache import COLD
from attention_conformance.bench.sampling.sampler import Batch, Opened
from attention_conformance.bench.timing.budget import Cost, Costs, over_time
from attention_conformance.bench.timing.plan import Plan
from attention_conformance.bench.validity import cheating
from attention_conformance.bench.validity.cheating import Job
from attention_conformance.bench.validity.checks import (
    FIRST,
    Invalid,
    References,
    Unstable,
    cause_of_first_call,
    check,
    repeated,
)
from attention_conformance.bench.validity.known import KnownDeviations
from attention_conformance.bench.validity.outcomes import Cell, Outcome, ProcessRun, Skipped
from attention_conformance.bench.workloads import arguments
from attention_conformance.conformance.judging.outcomes import Failure
from attention_conformance.conformance.ledger.load import Deviation
from attention_conformance.impls.calls import lost_gpu
from attention_conformance.impls.contract import Implementation
from attention_conformance.impls.interpreters import NOT_TIMED, interpreted
from attention_conformance.impls.process.pool import Crashed, TimedOut, tells_core_wait
from attention_conformance.impls.process.threads import usable_cores

#: Seconds after which a job is given up.  Compiling for a new shape takes up to 12 s on two cores, and a cell's
#: calls are limited by the plan; this must only end a hang.
TIMEOUT = 180.0

#: Clauses of a cell whose process is gone.
DIED = ("crashed", "timeout")

#: Number of the fresh inputs of the last batch, whose results are checked; equal in all process runs, so that the
#: expected results are computed once.  A process run has its own processes, so to an implementation they are new.
LAST = 0

#: Number of inputs that are new to a cell even after LAST and all batches; and the first numbers of longer batches and
#: of checked ones.
UNSEEN = 10**6
UNSEEN_LONGER, UNSEEN_CHECKED = UNSEEN + 1, UNSEEN + 100

#: Numbers of fresh inputs that each process run has to itself: results left on disk are useless in the next one.
OWN = 10**4

#: Row seeds of the checks before and after the timing.
BEFORE, AFTER = 0, 1


@dataclass
class Live:
    """A cell that is open in its worker, and its measurements in this process run so far."""

    cell: Cell
    opened: Opened
    #: Worst error/bound so far.
    share: float
    #: Seconds of the fastest call so far.
    call_seconds: float
    batches: list[Batch] = field(default_factory=list)
    #: Times of the jobs of the batches.
    jobs: list[Job] = field(default_factory=list)
    #: The wrong result that was right when called again, if there was one.
    unstable: Unstable | None = None
    #: Number of process runs before this one.
    process_run: int = 0

    def goes_on(self, before: Live) -> None:
        """Take over the measurements of the same cell from before its process died."""
        self.batches[:0], self.jobs[:0] = before.batches, before.jobs
        self.share, self.unstable = max(self.share, before.share), before.unstable or self.unstable
        self.call_seconds = min(self.call_seconds, before.call_seconds)

    @property
    def seconds(self) -> list[tuple[float, ...]]:
        """Seconds of each call, by batch."""
        return [batch.seconds for batch in self.batches]

    @property
    def threads(self) -> int:
        """Threads that worked at the same time: CPU time ÷ time over all batches, rounded for their small errors."""
        times = [sum(batch) for batch in self.seconds]
        worked = sum(batch.cores * time for batch, time in zip(self.batches, times, strict=True))
        return max(1, round(worked / sum(times)))

    @property
    def clock(self) -> str:
        """The clock of most calls."""
        held = [each for batch in self.batches for each in batch.held]
        return HELD if 2 * sum(held) > len(held) else self.opened.clock

    @property
    def host_seconds(self) -> float | None:
        """The median over the batches of calls on an idle device by the host's clock; None for calls timed by it."""
        known = [batch.host_seconds for batch in self.batches if batch.host_seconds is not None]
        return median(known) if known else None


class _Once:
    """Checked batches by number, each made only once however often it is requested."""

    def __init__(self, make: Callable[[int], Batch]) -> None:
        self._make = functools.cache(make)

    def __call__(self, count: int) -> Iterator[Batch]:
        return map(self._make, range(count))


@dataclass
class Protocol:
    """Measures cells through worker processes."""

    jobs: Jobs
    plan: Plan
    #: The keywords that an implementation accepts.
    features: Callable[[Implementation], frozenset[str]]
    costs: Costs = field(default_factory=Costs)
    #: Inputs and expected results, drawn by the seed of the plan.
    references: References = field(init=False)
    known: KnownDeviations = field(default_factory=KnownDeviations)
    #: Seconds of the jobs with timed calls, and the part for which the call or the harness had no core.
    job_seconds: float = 0.0
    queued_seconds: float = 0.0

    def __post_init__(self) -> None:
        self.references = References(self.plan.seed)

    @property
    def core_wait(self) -> float | None:
        """Share of timed calls' time for which other processes had their core; None where it is unknown.

        Calls that take all cores wait for each other and for the harness, which shows nothing about other work.
        """
        if not self.job_seconds or self.plan.threads >= usable_cores() or not tells_core_wait():
            return None
        return min(1.0, self.queued_seconds / self.job_seconds)

    def admit(self, cell: Cell) -> None:
        """Raise Skipped for a cell that is not begun: it lacks a feature, is interpreted, or would cost too much.

        Parameters
        ----------
        cell
            A workload on a target.

        Raises
        ------
        Skipped
            With the reason.
        """
        missing = arguments.keywords(cell.workload) - self.features(cell.target.implementation)
        if missing:
            raise Skipped(f"unsupported: no keyword {', '.join(sorted(missing))}")
        if interpreted(cell.target.implementation, cell.target.device):
            raise Skipped(NOT_TIMED)
        refusal = self.costs.refusal(cell.target, cell.workload, self.plan.least_calls, self.plan.limit)
        if refusal:
            raise Skipped(refusal)

    def open(self, cell: Cell, process_run: int = 0) -> Live:
        """Open a cell, check its first results, and make warm calls.

        Parameters
        ----------
        cell
            A workload on a target.
        process_run
            Number of process runs before this one.

        Returns
        -------
        Live
            The cell with its first call, to be given to ``batch`` and ``close``.

        Raises
        ------
        Invalid
            For a wrong result, an exception, or a process that died.
        Skipped
            For a cell that is unsupported, out of memory, or over the time budget.
        """
        target, plan = cell.target, self.plan
        where = (cell.workload, target.dtype, target.device, plan.cache == COLD, plan.seed)
        opened: Opened = self._job(cell, "open_cell", target.implementation, *where)
        with self._closing(cell):
            share, unstable = self._check(cell, FIRST, opened.results, BEFORE)
            warm: Batch = self._job(cell, "warm", plan.round_seconds)
            seconds = min(warm.seconds)
            if seconds * plan.least_calls > plan.limit:
                self.costs.add(target, cell.workload, Cost(seconds, opened.held_rss_bytes))
                raise Skipped(over_time(seconds * plan.least_calls, plan.least_calls, plan.limit))
        opened = replace(opened, results={})  # they were checked, and take up memory
        return Live(cell, opened, share, seconds, unstable=unstable, process_run=process_run)

    def batch(self, live: Live) -> None:
        """One batch of calls.

        Parameters
        ----------
        live
            The cell, as ``open`` gave it.

        Raises
        ------
        Invalid
            For an exception, or a process that died.
        """
        with self._closing(live.cell):
            number = OWN * live.process_run + len(live.batches) + 1
            live.batches.append(self._batch(live, number, last=False))

    def close(self, live: Live, earlier: Outcome, stopped: str) -> ProcessRun:
        """The last batch of a process run, with its checks; the cell is closed in any case.

        Parameters
        ----------
        live
            The cell, as ``open`` gave it.
        earlier
            The process runs before.
        stopped
            Reason why no further batch is made.

        Returns
        -------
        ProcessRun
            Seconds of each call, and the other measurements.

        Raises
        ------
        Invalid
            For a wrong result, and for a cell that only looks fast.
        """
        with self._closing(live.cell):
            last = self._batch(live, LAST, last=True)
            live.batches.append(last)
            cheating.asynchronous_return(last)
            cheating.agreeing_clocks(live.jobs, lambda: self._longer(live))
            share, live.unstable = self._check(live.cell, LAST, last.results, AFTER, live.unstable)
            live.share = max(live.share, share)
            more = _Once(functools.partial(self._checked, live))
            cheating.deferred(live.batches, more)
            every = [batch for process_run in earlier.process_runs for batch in process_run.batches] + live.seconds
            cheating.cached_result(
                every, lambda: self._job(live.cell, "cold_calls", cheating.LEAST_PAIRS).seconds, more
            )
        self._job(live.cell, "close_cell")
        held = live.opened.held_rss_bytes
        self.costs.add(live.cell.target, live.cell.workload, Cost(min(map(min, live.seconds)), held))
        return ProcessRun(
            batches=tuple(live.seconds),
            share=live.share,
            prepare_seconds=live.opened.prepare_seconds,
            first_call_seconds=live.opened.first_call_seconds,
            peak_rss_bytes=live.opened.peak_rss_bytes,
            held_rss_bytes=held,
            threads=live.threads,
            stopped=stopped,
            clock=live.clock,
            host_seconds=live.host_seconds,
            evicted_bytes=live.opened.evicted_bytes,
            unstable=(live.unstable.clause, live.unstable.text) if live.unstable else None,
        )

    def known_deviation(self, cell: Cell, error: Invalid) -> Deviation | None:
        """The ledger's record of the failure that ended a cell.

        Parameters
        ----------
        cell
            A workload on a target.
        error
            Exception that ``open``, ``batch`` or ``close`` raised.

        Returns
        -------
        Deviation | None
            The record, None where the cell is invalid.
        """
        return self.known.find(cell.target, self.references.call(cell.target, cell.workload, FIRST), error)

    def _batch(self, live: Live, number: int, last: bool) -> Batch:
        plan, takes = self.plan, live.call_seconds
        given = (plan.round_seconds, plan.calls(takes), number, last, plan.lead_seconds(takes, first=not live.batches))
        batch: Batch = self._job(live.cell, "batch", *given)
        spent = self.jobs.spent(live.cell.target.implementation)
        if spent is not None:
            live.jobs.append(cheating.job(batch, spent, plan.threads))
            self.job_seconds += spent.waited
            self.queued_seconds += spent.queued
        live.call_seconds = min(live.call_seconds, *batch.seconds)
        return batch

    def _checked(self, live: Live, number: int) -> Batch:
        """A batch like the others, but no sample, whose last call has right results.  Raises Invalid."""
        plan, takes = self.plan, live.call_seconds
        given = (plan.round_seconds, max(2, plan.calls(takes)), UNSEEN_CHECKED + number, True, plan.lead_seconds(takes))
        batch: Batch = self._job(live.cell, "batch", *given)
        cheating.asynchronous_return(batch)
        share, live.unstable = self._check(live.cell, UNSEEN_CHECKED + number, batch.results, AFTER, live.unstable)
        live.share = max(live.share, share)
        return replace(batch, results={})

    def _longer(self, live: Live) -> list[Job]:
        """Jobs of longer batches, which are no samples."""
        seconds = cheating.LONGER * self.plan.round_seconds
        most = max(1, cheating.LONGER * self.plan.calls(live.call_seconds))
        found = []
        for number in range(cheating.LONGER_JOBS):
            batch: Batch = self._job(live.cell, "batch", seconds, most, UNSEEN_LONGER + number)
            spent = self.jobs.spent(live.cell.target.implementation)
            if spent is not None:
                found.append(cheating.job(batch, spent, self.plan.threads))
        return found

    def _check(
        self, cell: Cell, number: int, results: Any, seed: int, earlier: Unstable | None = None
    ) -> tuple[float, Unstable | None]:
        """The worst error/bound, and the wrong result that was right when called again: one a process run.

        A second one, on other inputs, makes the cell invalid: then not only the first call is wrong.
        """
        call = self.references.call(cell.target, cell.workload, number, keep=number < UNSEEN_CHECKED)

        def again() -> Any | None:
            try:
                return self._job(cell, "again", number).results
            except (Invalid, Skipped):  # the process is gone: nothing more is known
                return None

        def right(got: Any) -> float:
            return check(call, got, seed, self.references.expect)

        try:
            return right(results), earlier
        except Invalid as error:
            cause = cause_of_first_call(cell.target.implementation.framework, cell.target.device, number == FIRST)
            found = repeated(error, again, right, cause)
            if not isinstance(found, Unstable):
                raise found from error
            if earlier:
                raise Invalid(found.clause, f"unstable: on the first inputs and on new ones: {found.text}") from error
        if number != FIRST:  # a kernel that is wrong on new inputs is wrong again
            self._check(cell, UNSEEN, self._job(cell, "again", UNSEEN).results, seed, found)
        return found.share, found

    @contextlib.contextmanager
    def _closing(self, cell: Cell) -> Iterator[None]:
        """Close the cell if it ends here, unless its process is gone with it."""
        try:
            yield
        except (Invalid, Skipped) as error:
            if getattr(error, "clause", "") not in DIED:
                self._job(cell, "close_cell")
            raise
        except Exception:
            self._job(cell, "close_cell")
            raise

    def _job(self, cell: Cell, function: str, *rest: Any) -> Any:
        """A job's answer.  Raises Invalid or Skipped where the worker dies or hangs, or answers with a failure."""
        try:
            answer = self.jobs.call(
                cell.target.implementation,
                f"attention_conformance.bench.sampling.sampler:{function}",
                cell.id,
                *rest,
                timeout=TIMEOUT,
            )
        except Crashed as error:
            raise Invalid("crashed", str(error)) from error
        except TimedOut as error:
            raise Invalid("timeout", str(error)) from error
        if answer is not None:
            if cell.target.device != "cpu" and lost_gpu(answer.text):  # every later call of the process would fail, too
                self.jobs.end(cell.target.implementation)
                raise Invalid("crashed", answer.text)
            _returned(answer)
        return answer


def _returned(answer: Opened | Batch) -> None:
    if answer.status == "unsupported":
        raise Skipped(f"unsupported: {answer.text}")
    if answer.status == "memory":
        raise Skipped(f"out of memory: {answer.text}")
    if answer.status == "lost":
        raise Invalid("crashed", answer.text)
    if answer.status == "clock":
        raise Invalid("clock", answer.text)
    if answer.status != "returned":
        raise Invalid("error", answer.text, Failure.ERROR)
