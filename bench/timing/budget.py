"""Cost of a cell, predicted from the shorter workloads of its family before it begins."""

from __future__ import annotations

from dataclasses import dataclass

from attention_conformance.bench.memory import predict
from attention_conformance.bench.roofline.costs import flops
from attention_conformance.bench.workloads.workload import Workload
from attention_conformance.conformance.targets import Target
from attention_conformance.impls.process import limits

#: Share of the available memory that a cell may be predicted to take; the rest is for unpredicted memory.
USABLE = 0.8


@dataclass(frozen=True)
class Cost:
    """Cost of one call: seconds, and bytes that the process held for it (None where the system does not report it)."""

    seconds: float
    bytes: int | None


class Costs:
    """Costs measured so far, by target and family, and predictions from them.

    Time grows with the operations; memory as attention_conformance.bench.memory.predict says.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[Target, str], dict[int, tuple[Workload, Cost]]] = {}

    def add(self, target: Target, workload: Workload, cost: Cost) -> None:
        """Remember what a call cost.

        Parameters
        ----------
        target
            An implementation on a device in a dtype.
        workload
            Workload of the cell.
        cost
            Seconds and bytes of a call.
        """
        self._known.setdefault((target, workload.family), {})[workload.sweep] = (workload, cost)

    def seconds(self, target: Target, workload: Workload) -> float | None:
        """Predicted seconds per call, None if no workload was measured that is at most as long.

        Parameters
        ----------
        target
            An implementation on a device in a dtype.
        workload
            Workload of the cell.

        Returns
        -------
        float | None
            Seconds.
        """
        nearest = self._nearest(target, workload)
        return None if nearest is None else nearest[1].seconds * flops(workload) / flops(nearest[0])

    def bytes(self, target: Target, workload: Workload) -> int:
        """Predicted bytes of a call: from those of a shorter workload, or those of square arrays.

        Parameters
        ----------
        target
            An implementation on a device in a dtype.
        workload
            Workload of the cell.

        Returns
        -------
        int
            Bytes.
        """
        quadratic = predict.quadratic_bytes(workload, target.dtype)
        measured = self._nearest(target, workload)
        if measured is None or measured[1].bytes is None:
            return quadratic
        shorter, held = measured[0], measured[1].bytes
        if predict.holds_no_square(shorter, held):
            return held * _linear(workload, target.dtype) // _linear(shorter, target.dtype)
        return min(held * predict.scores(workload) // predict.scores(shorter), held + quadratic)

    def refusal(self, target: Target, workload: Workload, calls: int, limit: float) -> str:
        """Reason why a cell is not begun, "" if it is; ``limit`` is in seconds, for ``calls`` calls.

        Parameters
        ----------
        target
            An implementation on a device in a dtype.
        workload
            Workload of the cell.
        calls
            Fewest calls that a cell needs.
        limit
            Seconds.

        Returns
        -------
        str
            One sentence.
        """
        seconds = self.seconds(target, workload)
        if seconds is not None and seconds * calls > limit:
            return over_time(seconds * calls, calls, limit)
        needed = predict.needed_bytes(workload, target.dtype, target.device, self.bytes(target, workload))
        available = limits.available()
        if needed > USABLE * available:
            return over_memory(needed, available)
        return ""

    def _nearest(self, target: Target, workload: Workload) -> tuple[Workload, Cost] | None:
        """The longest measured workload of the family that is not longer: in later process runs this one itself."""
        known = self._known.get((target, workload.family), {})
        lengths = [length for length in known if length <= workload.sweep]
        return known[max(lengths)] if lengths else None


def _linear(workload: Workload, dtype: str) -> int:
    return predict.input_bytes(workload, dtype) + predict.result_bytes(workload, dtype)


def over_time(seconds: float, calls: int, limit: float) -> str:
    """The reason of a cell whose ``calls`` calls would take longer than ``limit`` seconds."""
    return f"over the time budget: predicted {seconds:.1f} s for {calls} calls, allowed {limit:g} s"


def over_memory(needed: int, available: int) -> str:
    """The reason of a cell that would not fit."""
    return (
        f"over the memory guard: needs {needed / 2**30:.1f} GiB, {available / 2**30:.1f} GiB are free,"
        f" of which {USABLE:.0%} may be used"
    )
