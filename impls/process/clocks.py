"""Clocks as they were before any foreign code was loaded: timings use these, and a replaced clock is detected.

A worker imports this module before its first job.  Code in the same process can replace these too, for as long as a
call takes; the parent's clock detects that (bench/validity/cheating.py).
"""

from __future__ import annotations

import time

_BOUND = {
    name: getattr(time, name)
    for name in ("perf_counter", "perf_counter_ns", "process_time", "process_time_ns", "monotonic", "monotonic_ns")
}

perf_counter, process_time = time.perf_counter, time.process_time


def replaced() -> str:
    """Sentence that names the clocks of ``time`` that were replaced; "" if none was.

    Returns
    -------
    str
        One sentence, or "".
    """
    names = [f"time.{name}" for name, clock in _BOUND.items() if getattr(time, name, None) is not clock]
    return f"the clock was changed: {', '.join(names)} replaced by foreign code" if names else ""
