"""What a cell will cost, predicted from the shorter workloads of its family, before it is allowed to cost it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import ml_dtypes  # noqa: F401  (registers bfloat16 with NumPy)
import numpy as np

from bench.flops import pairs
from bench.workloads import Workload
from conformance.targets import Target

#: Arrays of B·H·S·S elements that the plainest implementation holds at once: scores, scores minus their
#: maximum, and their exponentials.  Measured: NumPy written out adds 384 MB at B=1, H=8, S=2048 in float32, which is
#: 3 arrays of 128 MiB; torch's math kernel and jax.nn add 2.
SQUARE_ARRAYS = 3

#: Share of the available memory that a cell may be predicted to take; the rest is for what is not predicted.
USABLE = 0.8


@dataclass(frozen=True)
class Cost:
    """What one call cost: seconds, and bytes that the process grew by (None where the system does not tell)."""

    seconds: float
    bytes: int | None


class Costs:
    """What was measured so far, by target and family, and what it predicts.

    Both grow at most with the pairs (i, j), that is fourfold per doubling of S; an implementation that keeps no
    S×S array is predicted too much memory, of the little it takes.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[Target, str], tuple[Workload, Cost]] = {}

    def add(self, target: Target, workload: Workload, cost: Cost) -> None:
        """Remember what a call cost."""
        self._known[target, workload.family] = (workload, cost)

    def seconds(self, target: Target, workload: Workload) -> float | None:
        """Predicted seconds per call, None if no shorter workload was measured."""
        shorter = self._shorter(target, workload)
        return None if shorter is None else shorter[1].seconds * pairs(workload) / pairs(shorter[0])

    def bytes(self, target: Target, workload: Workload) -> int:
        """Predicted bytes: grown from a shorter workload, or those of the plainest implementation."""
        shorter = self._shorter(target, workload)
        if shorter is not None and shorter[1].bytes is not None:
            return shorter[1].bytes * pairs(workload) // pairs(shorter[0])
        return square_bytes(workload, target.dtype)

    def refusal(self, target: Target, workload: Workload, rounds: int, limit: float) -> str:
        """Why a cell is not begun, "" if it is; ``limit`` is in seconds, for ``rounds`` calls."""
        seconds = self.seconds(target, workload)
        if seconds is not None and seconds * rounds > limit:
            return over_time(seconds * rounds, rounds, limit)
        wanted, available = self.bytes(target, workload), available_bytes()
        if target.device == "cpu" and available is not None and wanted > USABLE * available:
            return f"over the memory guard: predicted {wanted / 2**30:.1f} GiB of {available / 2**30:.1f} GiB available"
        return ""

    def _shorter(self, target: Target, workload: Workload) -> tuple[Workload, Cost] | None:
        known = self._known.get((target, workload.family))
        return known if known is not None and known[0].length < workload.length else None


def over_time(seconds: float, rounds: int, limit: float) -> str:
    """The reason of a cell whose ``rounds`` calls would take longer than ``limit`` seconds."""
    return f"over the time budget: predicted {seconds:.1f} s for {rounds} calls, allowed {limit:g} s"


def square_bytes(workload: Workload, dtype: str) -> int:
    """Bytes of SQUARE_ARRAYS arrays (B, H, S, S) of a dtype."""
    elements = workload.batch * workload.heads * workload.length**2
    return SQUARE_ARRAYS * elements * np.dtype(dtype).itemsize


def available_bytes() -> int | None:
    """Memory that a process may still take: what the machine has free, or the control group's rest; None if unknown."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return None
    try:
        allowed, used = (int(Path("/sys/fs/cgroup", f"memory.{name}").read_text()) for name in ("max", "current"))
    except (OSError, ValueError):  # no control group, or "max": no limit
        return free
    return min(free, allowed - used)
