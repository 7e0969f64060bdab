"""The timing protocol of one cell: predict, open, check, sample, check again.  A wrong result has no timing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from bench import arguments, sampler
from bench.budget import Cost, Costs, over_time
from bench.checks import Call, StruckOut, check
from bench.memory import SETS
from bench.workloads import Workload
from conformance.targets import Pool, Target
from impls.calls import Request
from impls.contract import Implementation
from impls.isolation import Crashed, TimedOut

#: Seconds after which a job is given up.  Compiling for a new shape takes up to 12 s on two cores, and a cell's
#: calls are limited by the plan; this only has to end a hang.
TIMEOUT = 180.0


@dataclass(frozen=True)
class Cell:
    """One workload on one target."""

    target: Target
    workload: Workload

    @property
    def id(self) -> str:
        """Name in test ids and in the worker."""
        return f"{self.target.id}-{self.workload.name}"


@dataclass(frozen=True)
class Measured:
    """What a cell gave: raw samples (seconds per call), and what was paid before them."""

    seconds: tuple[float, ...]
    prepare_seconds: float
    first_call_seconds: float
    peak_bytes: int | None
    #: Worst error/bound of what is checked, of the results before and after the timing.
    share: float


class NotTimed(Exception):
    """The cell is left out: the implementation lacks it, or it would cost too much.  The text is the reason."""


@dataclass
class Protocol:
    """Measures cells through the pool's worker processes."""

    pool: Pool
    plan: sampler.Plan
    #: The keywords that an implementation accepts.
    features: Callable[[Implementation], frozenset[str]]
    costs: Costs = field(default_factory=Costs)

    def measure(self, cell: Cell) -> Measured:
        """Measure one cell.  Raises StruckOut or NotTimed."""
        plan, target, workload = self.plan, cell.target, cell.workload
        missing = arguments.keywords(workload) - self.features(target.implementation)
        if missing:
            raise NotTimed(f"unsupported: no keyword {', '.join(sorted(missing))}")
        refusal = self.costs.refusal(target, workload, plan.rounds, plan.limit)
        if refusal:
            raise NotTimed(refusal)
        inputs = [arguments.make(workload, target.dtype, seed) for seed in range(SETS)]
        requests = tuple(Request(target.device, arrays, keywords) for arrays, keywords in inputs)
        with _alive(), self._opened(cell, requests) as opened:
            before = check(_call(cell, requests[0]), opened.results, seed=0)
            samples: sampler.Samples = self._job(target, "sample", cell.id, plan)
            if samples.status == "over":
                self.costs.add(target, workload, Cost(samples.predicted / plan.rounds, opened.held_bytes))
                raise NotTimed(over_time(samples.predicted, plan.rounds, plan.limit))
            _returned(samples)
            after = check(_call(cell, requests[samples.last]), samples.results, seed=1)
        self.costs.add(target, workload, Cost(min(samples.seconds), opened.held_bytes))
        paid = (opened.prepare_seconds, opened.first_call_seconds, opened.peak_bytes)
        return Measured(samples.seconds, *paid, share=max(before, after))

    @contextlib.contextmanager
    def _opened(self, cell: Cell, requests: tuple[Request, ...]) -> Iterator[sampler.Opened]:
        opened: sampler.Opened = self._job(cell.target, "open_cell", cell.id, cell.target.implementation, requests)
        _returned(opened)
        try:
            yield opened
        except (Crashed, TimedOut):
            raise  # the cell is gone with its process
        except BaseException:
            self._job(cell.target, "close_cell", cell.id)
            raise
        self._job(cell.target, "close_cell", cell.id)

    def _job(self, target: Target, function: str, *arguments: Any) -> Any:
        return self.pool.call(target.implementation, f"bench.sampler:{function}", *arguments, timeout=TIMEOUT)


def _call(cell: Cell, request: Request) -> Call:
    target = cell.target
    profile = target.implementation.profile(target.dtype)
    return Call(cell.workload, request.arrays, request.keywords, target.dtype, profile)


def _returned(answer: sampler.Opened | sampler.Samples) -> None:
    if answer.status == "unsupported":
        raise NotTimed(f"unsupported: {answer.text}")
    if answer.status == "memory":
        raise NotTimed(f"out of memory: {answer.text}")
    if answer.status != "returned":
        raise StruckOut("error", answer.text)


@contextlib.contextmanager
def _alive() -> Iterator[None]:
    """A worker that dies or hangs says something of the cell."""
    try:
        yield
    except Crashed as error:
        raise StruckOut("crashed", str(error)) from error
    except TimedOut as error:
        raise StruckOut("timeout", str(error)) from error
