"""Metrics other than time, measured after all times: memory of each timed cell, rooflines, the overhead."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import msgspec

from attention_conformance.bench.analysis import overhead
from attention_conformance.bench.analysis.fits import Fit, Memory, fits, memories
from attention_conformance.bench.memory.peak import Gauge, Peak
from attention_conformance.bench.processes import Processes
from attention_conformance.bench.records import Roofline
from attention_conformance.bench.roofline import costs
from attention_conformance.bench.roofline.peaks import rooflines
from attention_conformance.bench.validity.outcomes import TIMED, Cell, Outcome

#: Seconds after which the memory of a cell is given up: three calls are made, and may have to be compiled again.
TIMEOUT = 120.0

#: Peak of a cell whose memory was not measured.
NOT_MEASURED = Peak(None, reason="not requested")


@dataclass(frozen=True)
class ExtraMetrics:
    """Peak memory by cell, rooflines by device and dtype, and the overhead of timing."""

    peaks: Mapping[Cell, Peak] = field(default_factory=dict)
    rooflines: tuple[Roofline, ...] = ()
    overhead: Mapping[str, Any] = field(default_factory=dict)

    def roofline(self, cell: Cell) -> Roofline | None:
        """The roofline of a cell's device and dtype."""
        of_it = (cell.target.device, cell.target.dtype)
        return next((roofline for roofline in self.rooflines if (roofline.device, roofline.dtype) == of_it), None)

    def info(self, cell: Cell, seconds: float) -> dict[str, Any]:
        """Fields of a timed cell whose median is ``seconds``."""
        peak = self.peaks.get(cell, NOT_MEASURED)
        memory = {"memory_bytes": peak.bytes, "memory_method": peak.method or peak.reason}
        return memory | costs.measures(cell.workload, cell.target.dtype, seconds, self.roofline(cell))

    def fits(self, outcomes: Mapping[Cell, Outcome]) -> list[Fit]:
        """The exponents of time and memory over the length."""
        return fits(self._points(outcomes))

    def memories(self, outcomes: Mapping[Cell, Outcome]) -> list[Memory]:
        """The memory of each implementation and its growth over the length."""
        return memories(self._points(outcomes))

    def _points(self, outcomes: Mapping[Cell, Outcome]) -> Iterable[dict[str, Any]]:
        for cell, outcome in outcomes.items():
            if outcome.kind == TIMED:
                yield {
                    "implementation": cell.target.implementation.name,
                    "device": cell.target.device,
                    "dtype": cell.target.dtype,
                    "family": cell.workload.family,
                    "S": cell.workload.sweep,
                    "B": cell.workload.batch,
                    "H": cell.workload.heads,
                    "seconds": outcome.interval.value,
                    "memory_bytes": self.peaks.get(cell, NOT_MEASURED).bytes,
                }

    def document(self, outcomes: Mapping[Cell, Outcome]) -> dict[str, Any]:
        """Fields of the run in the JSON."""
        return {
            "peaks": msgspec.to_builtins(self.rooflines),
            "fits": [asdict(fit) for fit in self.fits(outcomes)],
            "overhead": dict(self.overhead) or None,
        }


def measure(
    outcomes: Mapping[Cell, Outcome], processes: Processes, threads: int, memory: bool, notify: Callable[[str], None]
) -> ExtraMetrics:
    """Measure, with the threads that the cells had; nothing if nothing was timed.  ``notify`` gets each step's name."""
    timed = [cell for cell, outcome in outcomes.items() if outcome.kind == TIMED]
    if not timed:
        return ExtraMetrics()
    notify("the machine's rooflines")
    try:
        found = tuple(rooflines(processes, dict.fromkeys(cell.target for cell in timed)))
    finally:
        processes.close()
    notify("the overhead")
    cost = overhead.run(processes.in_process)
    peaks = _peaks(timed, threads, notify) if memory and not processes.in_process else {}
    return ExtraMetrics(peaks, found, cost)


def _peaks(cells: Iterable[Cell], threads: int, notify: Callable[[str], None]) -> dict[Cell, Peak]:
    gauge, found = Gauge(threads), {}
    try:
        for cell in sorted(cells, key=lambda cell: cell.target.implementation.process):
            notify(f"memory of {cell.id}")
            target = cell.target
            found[cell] = gauge.peak(target.implementation, cell.workload, target.device, target.dtype, TIMEOUT)
    finally:
        gauge.close()
    return found
