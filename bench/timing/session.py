"""Session: measures all cells of a run, process run after process run, each in fresh processes.

In a process run the cells of one workload are open at the same time and are measured in rounds: a batch of calls of
each, in an order that is shuffled for every round.  So drift of the machine affects all of them alike, and none
always runs after the same other one.
"""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from attention_conformance.bench.memory import predict
from attention_conformance.bench.processes import Processes, process_of
from attention_conformance.bench.timing.budget import USABLE, Cost
from attention_conformance.bench.timing.checkpoint import Checkpoint
from attention_conformance.bench.timing.progress import Progress
from attention_conformance.bench.timing.protocol import DIED, Live, Protocol
from attention_conformance.bench.validity.checks import Invalid
from attention_conformance.bench.validity.outcomes import (
    INVALID,
    KNOWN_DEVIATION,
    MEASURED,
    SKIPPED,
    Cell,
    Outcome,
    Skipped,
)
from attention_conformance.impls.contract import Implementation
from attention_conformance.impls.process import limits


@dataclass
class Rounds:
    """One process run of cells that are open at the same time, round after round."""

    protocol: Protocol
    #: Outcome of each cell in the process runs before.
    earlier: Mapping[Cell, Outcome]
    #: The order within rounds.
    order: random.Random
    #: Called with each cell and its outcome when its process run has ended.
    ended: Callable[[Cell, Outcome], None]
    #: Runs tasks that each have the process of an implementation to themselves, at the same time where cores are free.
    side_by_side: Callable[[Sequence[tuple[Implementation, Callable[[], None]]]], None] = lambda tasks: None
    _live: dict[Cell, Live] = field(default_factory=dict)

    def run(self, cells: Sequence[Cell]) -> None:
        """Open the cells, and make rounds until each has ended."""
        early = self._open_all(cells)
        for cell in cells:
            self._attempt(cell, lambda cell: self._open(cell, early.get(cell)))
        while self._live:
            order = [*self._live]
            self.order.shuffle(order)
            for cell in order:
                if cell in self._live:
                    self._attempt(cell, self._batch)

    def _attempt(self, cell: Cell, step: Callable[[Cell], None]) -> None:
        try:
            step(cell)
        except Skipped as error:
            self._end(cell, replace(self.earlier[cell], kind=SKIPPED, reason=str(error)))
        except Invalid as error:
            self._end(cell, self._failed(cell, error))
            if error.clause in DIED:
                self._open_again(process_of(cell.target.implementation))

    def _failed(self, cell: Cell, error: Invalid) -> Outcome:
        """The outcome of a failed cell: a known deviation where a record fits, else invalid.

        After good process runs a record only fits if it is of a deviation that shows at times.
        """
        earlier = self.earlier[cell]
        record = self.protocol.known_deviation(cell, error)
        if record is None or (earlier.process_runs and not record.seen):
            return replace(earlier, kind=INVALID, clause=error.clause, reason=error.text)
        return Outcome(KNOWN_DEVIATION, record.clause, f"{record.instead} [{record.id}]")

    def _open_all(self, cells: Sequence[Cell]) -> dict[Cell, Live | Exception]:
        """Open cells, those of different processes at the same time: live or an exception; nothing for some cells."""
        found: dict[Cell, Live | Exception] = {}

        def each(cells: Sequence[Cell]) -> None:
            for cell in cells:
                try:
                    found[cell] = self.protocol.open(cell, len(self.earlier[cell].process_runs))
                except (Skipped, Invalid) as error:
                    found[cell] = error
                    if getattr(error, "clause", "") in DIED:
                        return  # its other cells are opened in the next process

        processes: dict[str, list[Cell]] = {}
        for cell in cells:
            processes.setdefault(process_of(cell.target.implementation), []).append(cell)
        self.side_by_side(
            [(those[0].target.implementation, functools.partial(each, those)) for those in processes.values()]
        )
        return found

    def _open(self, cell: Cell, early: Live | Exception | None = None) -> None:
        if isinstance(early, Exception):
            raise early
        self._live[cell] = early or self.protocol.open(cell, len(self.earlier[cell].process_runs))

    def _batch(self, cell: Cell) -> None:
        live, earlier = self._live[cell], self.earlier[cell]
        stopped = self.protocol.plan.stopped(earlier.samples, live.seconds)
        if stopped:
            self._end(cell, earlier.with_run(self.protocol.close(live, earlier, stopped)))
        else:
            self.protocol.batch(live)

    def _end(self, cell: Cell, outcome: Outcome) -> None:
        self._live.pop(cell, None)
        self.ended(cell, outcome)

    def _open_again(self, process: str) -> None:
        """Reopen the other cells of a process that died, with their measurements and wrong results so far."""
        for cell, live in [*self._live.items()]:
            if process_of(cell.target.implementation) == process and cell in self._live:
                self._attempt(cell, self._open)
                if cell in self._live:
                    self._live[cell].goes_on(live)


@dataclass
class Session:
    """Measures cells, and keeps the outcome of each."""

    cells: Sequence[Cell]
    protocol: Protocol
    processes: Processes
    progress: Progress
    checkpoint: Checkpoint | None = None
    outcomes: dict[Cell, Outcome] = field(default_factory=dict)

    def run(self) -> None:
        """Measure every cell in every process run, except those that ``outcomes`` has already."""
        for cell in self.cells:
            outcome = self.outcomes.setdefault(cell, Outcome())
            for known in outcome.process_runs:
                seconds = min(min(batch) for batch in known.batches)
                self.protocol.costs.add(cell.target, cell.workload, Cost(seconds, known.held_rss_bytes))
        plan = self.protocol.plan
        self.progress.begin(self.cells, plan.process_runs, self._runs_done)
        for process_run in range(plan.process_runs):
            try:
                for number, group in enumerate(self._groups()):
                    waiting = [cell for cell in group if self._runs_done(cell) == process_run]
                    self._group(waiting, process_run, random.Random(f"{plan.seed} {process_run} {number}"))  # noqa: S311
            finally:
                self.processes.close()
        self.progress.end()

    def _groups(self) -> Iterator[list[Cell]]:
        """Cells of one workload, device and dtype; shorter workloads first, as they predict the longer ones."""

        def key(cell: Cell) -> tuple:
            return cell.workload.family, cell.workload.sweep, cell.target.device, cell.target.dtype

        for _, group in groupby(sorted(self.cells, key=key), key):
            yield list(group)

    def _runs_done(self, cell: Cell) -> int:
        """Number of process runs of a cell that are done or no longer needed."""
        outcome = self.outcomes[cell]
        return len(outcome.process_runs) if outcome.kind in MEASURED else self.protocol.plan.process_runs

    def _group(self, cells: Sequence[Cell], process_run: int, order: random.Random) -> None:
        def ended(cell: Cell, outcome: Outcome) -> None:
            self.outcomes[cell] = outcome
            if self.checkpoint is not None:
                self.checkpoint.add(cell.id, outcome, process_run)
            self.progress.done(cell, outcome, process_run)

        admitted = []
        for cell in cells:
            try:
                if process_run == 0:
                    self.protocol.admit(cell)
                admitted.append(cell)
            except Skipped as error:
                ended(cell, replace(self.outcomes[cell], kind=SKIPPED, reason=str(error)))
        for part in self._parts(admitted):
            started = time.perf_counter()
            self.processes.start(cell.target.implementation for cell in part)
            Rounds(self.protocol, self.outcomes, order, ended, self.processes.side_by_side).run(part)
            self.progress.spent(part, time.perf_counter() - started)

    def _parts(self, cells: Sequence[Cell]) -> Iterator[list[Cell]]:
        """Groups of cells that fit into memory together, as all cells of a round are open."""
        part: list[Cell] = []
        rest = 0.0
        for cell in cells:
            w, dtype = cell.workload, cell.target.dtype
            call = self.protocol.costs.bytes(cell.target, w)
            needed = predict.there_bytes(w, dtype, cell.target.device, call)
            if not part or needed > rest:
                if part:
                    yield part
                part, rest = [], USABLE * limits.available() - predict.here_bytes(w, dtype)
            part.append(cell)
            rest -= needed
        if part:
            yield part
