"""Cells take turns: a chunk of calls each, in an order that is shuffled anew for every pass.

A machine that drifts hits all cells of a group alike, and none always works after the same other one.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from attention_conformance.bench.memory import predict
from attention_conformance.bench.output.checkpoint import Journal
from attention_conformance.bench.output.progress import Progress
from attention_conformance.bench.timing.budget import USABLE, Cost
from attention_conformance.bench.timing.processes import Processes, process_of
from attention_conformance.bench.timing.protocol import DIED, Live, Protocol
from attention_conformance.bench.validity.checks import StruckOut
from attention_conformance.bench.validity.outcomes import NOT_TIMED, STRUCK_OUT, TIMED, Cell, NotTimed, Outcome
from attention_conformance.impls.process import limits


@dataclass
class Turns:
    """One visit of cells that are open at the same time."""

    protocol: Protocol
    #: What each cell gave in the visits before.
    earlier: Mapping[Cell, Outcome]
    #: The order of turns.
    order: random.Random
    #: Is told of each cell when its visit has ended.
    ended: Callable[[Cell, Outcome], None]
    _live: dict[Cell, Live] = field(default_factory=dict)

    def take(self, cells: Sequence[Cell]) -> None:
        """Open the cells and let them take turns until each has ended."""
        for cell in cells:
            self._attempt(cell, self._open)
        while self._live:
            passing = [*self._live]
            self.order.shuffle(passing)
            for cell in passing:
                if cell in self._live:
                    self._attempt(cell, self._turn)

    def _attempt(self, cell: Cell, step: Callable[[Cell], None]) -> None:
        try:
            step(cell)
        except NotTimed as error:
            self._end(cell, replace(self.earlier[cell], kind=NOT_TIMED, reason=str(error)))
        except StruckOut as error:
            self._end(cell, replace(self.earlier[cell], kind=STRUCK_OUT, clause=error.clause, reason=error.text))
            if error.clause in DIED:
                self._open_again(process_of(cell.target.implementation))

    def _open(self, cell: Cell) -> None:
        self._live[cell] = self.protocol.open(cell)

    def _turn(self, cell: Cell) -> None:
        live, earlier = self._live[cell], self.earlier[cell]
        stopped = self.protocol.plan.stopped(earlier.samples, live.seconds)
        if stopped:
            self._end(cell, earlier.visited(self.protocol.close(live, earlier, stopped)))
        else:
            self.protocol.turn(live)

    def _end(self, cell: Cell, outcome: Outcome) -> None:
        self._live.pop(cell, None)
        self.ended(cell, outcome)

    def _open_again(self, process: str) -> None:
        """The other cells of a process that died, with what they gave so far."""
        for cell, live in [*self._live.items()]:
            if process_of(cell.target.implementation) == process and cell in self._live:
                self._attempt(cell, self._open)
                if cell in self._live:
                    self._live[cell].chunks[:0] = live.chunks


# A run of the bench: all cells, visit after visit, each visit in fresh processes.


@dataclass
class Campaign:
    """Measures cells, and keeps what became of each."""

    cells: Sequence[Cell]
    protocol: Protocol
    processes: Processes
    progress: Progress
    journal: Journal | None = None
    outcomes: dict[Cell, Outcome] = field(default_factory=dict)

    def run(self) -> None:
        """Every cell in every visit, but for what ``outcomes`` has already."""
        for cell in self.cells:
            outcome = self.outcomes.setdefault(cell, Outcome())
            for known in outcome.visits:
                seconds = min(min(chunk) for chunk in known.chunks)
                self.protocol.costs.add(cell.target, cell.workload, Cost(seconds, known.held_bytes))
        plan = self.protocol.plan
        self.progress.begin(self.cells, plan.visits, self._visited)
        for visit in range(plan.visits):
            try:
                for number, group in enumerate(self._groups()):
                    waiting = [cell for cell in group if self._visited(cell) == visit]
                    self._group(waiting, visit, random.Random(f"{plan.seed} {visit} {number}"))  # noqa: S311
            finally:
                self.processes.close()
        self.progress.end()

    def _groups(self) -> Iterator[list[Cell]]:
        """Cells of one workload, device and dtype; shorter workloads first, as they predict the longer ones."""

        def key(cell: Cell) -> tuple:
            return cell.workload.family, cell.workload.sweep, cell.target.device, cell.target.dtype

        for _, group in groupby(sorted(self.cells, key=key), key):
            yield list(group)

    def _visited(self, cell: Cell) -> int:
        """How many visits of a cell need not be made any more."""
        outcome = self.outcomes[cell]
        return len(outcome.visits) if outcome.kind == TIMED else self.protocol.plan.visits

    def _group(self, cells: Sequence[Cell], visit: int, order: random.Random) -> None:
        def ended(cell: Cell, outcome: Outcome) -> None:
            self.outcomes[cell] = outcome
            if self.journal is not None:
                self.journal.add(cell.id, outcome, visit)
            self.progress.done(cell, outcome, visit)

        admitted = []
        for cell in cells:
            try:
                if visit == 0:
                    self.protocol.admit(cell)
                admitted.append(cell)
            except NotTimed as error:
                ended(cell, replace(self.outcomes[cell], kind=NOT_TIMED, reason=str(error)))
        for part in self._parts(admitted):
            started = time.perf_counter()
            self.processes.start(cell.target.implementation for cell in part)
            Turns(self.protocol, self.outcomes, order, ended).take(part)
            self.progress.spent(part, time.perf_counter() - started)

    def _parts(self, cells: Sequence[Cell]) -> Iterator[list[Cell]]:
        """Cells that fit into memory together; they are all open while they take turns."""
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
