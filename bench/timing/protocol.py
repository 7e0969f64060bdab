"""The timing protocol of one cell in one visit: open, check, take turns, check again.  A wrong result has no timing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any
from typing import Protocol as Interface

from attention_conformance.bench.timing.budget import Cost, Costs, over_time
from attention_conformance.bench.timing.cold_cache import COLD
from attention_conformance.bench.timing.plan import Plan
from attention_conformance.bench.timing.sampler import Chunk, Opened
from attention_conformance.bench.validity import cheating
from attention_conformance.bench.validity.checks import FIRST, References, StruckOut, check
from attention_conformance.bench.validity.outcomes import Cell, NotTimed, Outcome, Visit
from attention_conformance.bench.workloads import arguments
from attention_conformance.impls.contract import Implementation
from attention_conformance.impls.process.pool import Crashed, TimedOut

#: Seconds after which a job is given up.  Compiling for a new shape takes up to 12 s on two cores, and a cell's
#: calls are limited by the plan; this only has to end a hang.
TIMEOUT = 180.0

#: What a cell is struck out by whose process is gone.
DIED = ("crashed", "timeout")

#: Number of the fresh inputs of the last turn, whose results are checked; equal in all visits, so that what is expected
#: is computed once.  A visit has processes of its own, so to an implementation they are new.
LAST = 0

#: Row seeds of the checks before and after the timing.
BEFORE, AFTER = 0, 1


class Jobs(Interface):
    """Runs jobs in the processes of implementations (attention_conformance.bench.timing.processes)."""

    def call(self, implementation: Implementation, function: str, *arguments: Any, timeout: float | None = None) -> Any:
        """The result of ``module:function``."""


@dataclass
class Live:
    """A cell that is open in its worker, and what this visit gave so far."""

    cell: Cell
    opened: Opened
    #: Worst error/bound so far.
    share: float
    #: Seconds of the fastest call so far.
    call_seconds: float
    chunks: list[Chunk] = field(default_factory=list)

    @property
    def seconds(self) -> list[tuple[float, ...]]:
        """Seconds of each call, by chunk."""
        return [chunk.seconds for chunk in self.chunks]

    @property
    def threads(self) -> int:
        """Threads that worked at the same time: CPU time ÷ time over all chunks, rounded, as both have small errors."""
        times = [sum(chunk) for chunk in self.seconds]
        worked = sum(chunk.cores * time for chunk, time in zip(self.chunks, times, strict=True))
        return max(1, round(worked / sum(times)))

    @property
    def host_seconds(self) -> float | None:
        """The median over the chunks by the host's clock, where the calls were timed by another."""
        known = [chunk.host_seconds for chunk in self.chunks if chunk.host_seconds is not None]
        return median(known) if known else None


@dataclass
class Protocol:
    """Measures cells through worker processes."""

    jobs: Jobs
    plan: Plan
    #: The keywords that an implementation accepts.
    features: Callable[[Implementation], frozenset[str]]
    costs: Costs = field(default_factory=Costs)
    references: References = field(default_factory=References)

    def admit(self, cell: Cell) -> None:
        """Raise NotTimed for a cell that is not begun: it lacks a feature, or is predicted to cost too much."""
        missing = arguments.keywords(cell.workload) - self.features(cell.target.implementation)
        if missing:
            raise NotTimed(f"unsupported: no keyword {', '.join(sorted(missing))}")
        refusal = self.costs.refusal(cell.target, cell.workload, self.plan.rounds, self.plan.limit)
        if refusal:
            raise NotTimed(refusal)

    def open(self, cell: Cell) -> Live:
        """Open a cell, check its first results, and make warm calls.  Raises StruckOut or NotTimed."""
        target, plan = cell.target, self.plan
        where = (cell.workload, target.dtype, target.device, plan.cache == COLD)
        opened: Opened = self._job(cell, "open_cell", target.implementation, *where)
        with self._closing(cell):
            share = self._check(cell, FIRST, opened.results, BEFORE)
            warm: Chunk = self._job(cell, "warm", plan.turn_seconds)
            seconds = min(warm.seconds)
            if seconds * plan.rounds > plan.limit:
                self.costs.add(target, cell.workload, Cost(seconds, opened.held_bytes))
                raise NotTimed(over_time(seconds * plan.rounds, plan.rounds, plan.limit))
        return Live(cell, replace(opened, results={}), share, seconds)  # they were checked, and take up memory

    def turn(self, live: Live) -> None:
        """One chunk of calls."""
        with self._closing(live.cell):
            live.chunks.append(self._chunk(live, len(live.chunks) + 1, last=False))

    def close(self, live: Live, earlier: Outcome, stopped: str) -> Visit:
        """The last chunk of a visit, whose results are checked.  Raises StruckOut; the cell is closed in any case."""
        with self._closing(live.cell):
            last = self._chunk(live, LAST, last=True)
            live.chunks.append(last)
            cheating.unfinished(last)
            live.share = max(live.share, self._check(live.cell, LAST, last.results, AFTER))
            cheating.lazy(live.chunks)
            every = [chunk for visit in earlier.visits for chunk in visit.chunks] + live.seconds
            cheating.remembers(every, lambda: self._job(live.cell, "emptied", cheating.LEAST_PAIRS).seconds)
        self._job(live.cell, "close_cell")
        held = live.opened.held_bytes
        self.costs.add(live.cell.target, live.cell.workload, Cost(min(map(min, live.seconds)), held))
        return Visit(
            chunks=tuple(live.seconds),
            share=live.share,
            prepare_seconds=live.opened.prepare_seconds,
            first_call_seconds=live.opened.first_call_seconds,
            peak_bytes=live.opened.peak_bytes,
            held_bytes=held,
            threads=live.threads,
            stopped=stopped,
            clock=live.opened.clock,
            host_seconds=live.host_seconds,
            emptied_bytes=live.opened.emptied_bytes,
        )

    def _chunk(self, live: Live, number: int, last: bool) -> Chunk:
        plan, takes = self.plan, live.call_seconds
        given = (plan.turn_seconds, plan.calls(takes), number, last, plan.lead_seconds(takes, first=not live.chunks))
        chunk: Chunk = self._job(live.cell, "chunk", *given)
        live.call_seconds = min(live.call_seconds, *chunk.seconds)
        return chunk

    def _check(self, cell: Cell, number: int, results: Any, seed: int) -> float:
        call = self.references.call(cell.target, cell.workload, number)
        return check(call, results, seed, self.references.expect)

    @contextlib.contextmanager
    def _closing(self, cell: Cell) -> Iterator[None]:
        """Close the cell if it ends here, unless its process is gone with it."""
        try:
            yield
        except (StruckOut, NotTimed) as error:
            if getattr(error, "clause", "") not in DIED:
                self._job(cell, "close_cell")
            raise
        except Exception:
            self._job(cell, "close_cell")
            raise

    def _job(self, cell: Cell, function: str, *rest: Any) -> Any:
        """A job's answer.  A worker that dies or hangs says something of the cell, as does what it answers."""
        try:
            answer = self.jobs.call(
                cell.target.implementation,
                f"attention_conformance.bench.timing.sampler:{function}",
                cell.id,
                *rest,
                timeout=TIMEOUT,
            )
        except Crashed as error:
            raise StruckOut("crashed", str(error)) from error
        except TimedOut as error:
            raise StruckOut("timeout", str(error)) from error
        if answer is not None:
            _returned(answer)
        return answer


def _returned(answer: Opened | Chunk) -> None:
    if answer.status == "unsupported":
        raise NotTimed(f"unsupported: {answer.text}")
    if answer.status == "memory":
        raise NotTimed(f"out of memory: {answer.text}")
    if answer.status == "lost":
        raise StruckOut("crashed", answer.text)
    if answer.status != "returned":
        raise StruckOut("error", answer.text)
