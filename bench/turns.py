"""Cells take turns: a chunk of calls each, in an order that is shuffled anew for every pass.

A machine that drifts hits all cells of a group alike, and none always works after the same other one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from bench.checks import StruckOut
from bench.outcomes import NOT_TIMED, STRUCK_OUT, Cell, NotTimed, Outcome
from bench.processes import process_of
from bench.protocol import DIED, Live, Protocol


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
