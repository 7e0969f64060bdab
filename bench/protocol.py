"""The timing protocol of one cell: predict, open, check, sample, check again.  A wrong result has no timing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bench import sampler
from bench.budget import Cost, Costs, over_time
from bench.workloads import Workload
from conformance import sampling
from conformance.targets import Pool, Target
from impls.calls import Request
from impls.contract import Implementation
from impls.isolation import Crashed, TimedOut

#: Input sets that are rotated, so that no call finds its own inputs in the nearest cache or its result remembered.
SETS = 3

#: Seconds after which a job is given up.  Compiling for a new shape takes up to 12 s on two cores, and a cell's
#: calls are limited by the plan; this only has to end a hang.
TIMEOUT = 180.0

#: Query rows of every head that a check recomputes: MOST_ROWS, and fewer of longer sequences, so that a check costs
#: PAIRS pairs (i, j), about 0.2 s on one core; but FEWEST_ROWS at least.
MOST_ROWS, FEWEST_ROWS, PAIRS = 32, 8, 2**17

#: The clauses that a timed output is checked for.
SHAPE, ACCURACY, DTYPE = "SDPA-1", "SDPA-25", "SDPA-27"


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
    #: Worst error/bound of the checked rows, of the outputs before and after the timing.
    share: float


class StruckOut(Exception):
    """The cell's result is wrong, by ``clause``: it has no timing."""

    def __init__(self, clause: str, text: str) -> None:
        super().__init__(f"struck out: {clause}: {text}")
        self.clause, self.text = clause, text


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
        missing = workload.keywords.keys() - self.features(target.implementation)
        if missing:
            raise NotTimed(f"unsupported: no keyword {', '.join(sorted(missing))}")
        refusal = self.costs.refusal(target, workload, plan.rounds, plan.limit)
        if refusal:
            raise NotTimed(refusal)
        inputs = [workload.inputs(target.dtype, seed) for seed in range(SETS)]
        requests = tuple(Request.qkv(target.device, *arrays, dict(workload.keywords)) for arrays in inputs)
        with _alive(), self._opened(cell, requests) as opened:
            before = check(cell, requests[0], opened.output, seed=0)
            samples: sampler.Samples = self._job(target, "sample", cell.id, plan)
            if samples.status == "over":
                self.costs.add(target, workload, Cost(samples.predicted / plan.rounds, opened.peak_bytes))
                raise NotTimed(over_time(samples.predicted, plan.rounds, plan.limit))
            _returned(samples)
            after = check(cell, requests[samples.last], samples.output, seed=1)
        self.costs.add(target, workload, Cost(min(samples.seconds), opened.peak_bytes))
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


def check(cell: Cell, request: Request, output: np.ndarray | None, seed: int) -> float:
    """The worst error/bound of sampled rows of an output.  Raises StruckOut if it breaks a clause.

    ``seed`` chooses the rows; the first and the last are always among them.
    """
    dtype = cell.target.dtype
    wanted = (*request.arrays["q"].shape[:3], request.arrays["v"].shape[3])
    if output is None or output.shape != wanted:
        raise StruckOut(SHAPE, f"the output has shape {None if output is None else output.shape}, expected {wanted}")
    if str(output.dtype) != dtype:
        raise StruckOut(DTYPE, f"the output is {output.dtype}, the inputs are {dtype}")
    profile = cell.target.implementation.profile(dtype)
    rows = checked_rows(cell.workload)
    q, k, v = request.arrays.values()
    options = request.keywords
    compared = sampling.check_rows(q, k, v, options, output, dtype=dtype, profile=profile, rows=rows, seed=seed)
    if not compared.ok:
        raise StruckOut(
            ACCURACY,
            f"{compared.wrong} of {compared.total} checked elements are outside the bound of profile {profile.value};"
            f" worst: expected {compared.expected:.6g}, got {compared.got:.6g}, bound {compared.bound:.2g}",
        )
    return compared.share


def checked_rows(workload: Workload) -> int:
    """How many query rows of every head are recomputed."""
    affordable = PAIRS // (workload.batch * workload.heads * workload.length)
    return max(FEWEST_ROWS, min(MOST_ROWS, affordable))


def _returned(answer: sampler.Opened | sampler.Samples) -> None:
    if answer.status == "unsupported":
        raise NotTimed(f"unsupported: {answer.text}")
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
