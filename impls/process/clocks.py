"""Clocks as they were before any foreign code was loaded, so that one that was replaced is seen."""

from __future__ import annotations

import time

_BOUND = {
    name: getattr(time, name)
    for name in ("perf_counter", "perf_counter_ns", "process_time", "process_time_ns", "monotonic", "monotonic_ns")
}


def replaced() -> str:
    """Which clocks of ``time`` are other functions than they were, in a sentence; "" if none is."""
    names = [f"time.{name}" for name, clock in _BOUND.items() if getattr(time, name, None) is not clock]
    return f"the clock was changed: {', '.join(names)} replaced by foreign code" if names else ""
