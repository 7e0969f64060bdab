"""A run of the bench: all cells, visit after visit, each visit in fresh processes.

What a process does to timings (where its memory lies, how its threads are placed) and how the machine drifts over
minutes is then part of what the samples scatter by, and so of their intervals.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from bench import memory
from bench.budget import USABLE, Cost
from bench.journal import Journal
from bench.outcomes import NOT_TIMED, TIMED, Cell, NotTimed, Outcome
from bench.processes import Processes
from bench.progress import Progress
from bench.protocol import Protocol
from bench.turns import Turns
from impls.process import limits


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
            needed = memory.there_bytes(w, dtype, cell.target.device, call)
            if not part or needed > rest:
                if part:
                    yield part
                part, rest = [], USABLE * limits.available() - memory.here_bytes(w, dtype)
            part.append(cell)
            rest -= needed
        if part:
            yield part
