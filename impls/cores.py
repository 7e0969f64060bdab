"""The core that a turn begins on.

A thread stays on the core that it was on, turn after turn, and on a shared machine one core may be slower than another
by half for seconds, while a neighbour works on its other hardware thread.  Then one process is slow and another is not,
by the core that they happened to be on.  So turns begin on the cores by their numbers; ``python -m bench cores`` shows
what that is about.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable
from pathlib import Path

#: Where Linux tells which cores share which cache.
PROCESSORS = Path("/sys/devices/system/cpu")


def begin_on(number: int) -> None:
    """Move the calling thread to the core whose turn it is by ``number``, and the others off it.

    The system may then place them all as it likes.  The cores are those that this process may use and that share the
    last cache with the first of them, so that a move never takes a thread away from its memory.  A thread that spins on
    that core, as those of ONNX Runtime do between two calls, would otherwise stay there for tens of milliseconds.
    Nothing is moved where the system does not let.  Threads that are started later may use all cores, as ever.
    """
    found = near()
    if len(found) > 1:
        core = found[number % len(found)]
        for thread in _others():
            _through(thread, lambda usable: usable - {core})
        _through(0, lambda usable: {core})


def _through(thread: int, wanted: Callable[[set[int]], set[int]]) -> None:
    """Let a thread use the wanted ones of its cores for a moment, and then all that it might."""
    with contextlib.suppress(OSError):  # a thread that ended meanwhile, a core that was taken away
        usable = os.sched_getaffinity(thread)
        if some := wanted(usable):
            os.sched_setaffinity(thread, some)
            os.sched_setaffinity(thread, usable)


def _others() -> list[int]:
    """The other threads of this process; none where that is not told."""
    try:
        return [int(name) for name in os.listdir("/proc/self/task") if int(name) != threading.get_native_id()]
    except OSError:
        return []


def near() -> tuple[int, ...]:
    """The cores that turns begin on, in order; none where the system does not let a thread be moved."""
    return _near(frozenset(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()


def description() -> str:
    """Where turns begin, for the record of a run."""
    return "on each core in turn" if len(near()) > 1 else "where the system likes"


@functools.cache
def _near(usable: frozenset[int]) -> tuple[int, ...]:
    """Those of the cores that share the last cache with the first of them, in order; all where that is not known."""
    first = min(usable)
    try:
        levels = (PROCESSORS / f"cpu{first}/cache").glob("index*/shared_cpu_list")
        last = max(levels, key=lambda path: path.parent.name)
        shared = _listed(last.read_text())
    except (OSError, ValueError):
        shared = usable
    return tuple(sorted(usable & shared)) or (first,)


def _listed(text: str) -> frozenset[int]:
    """The numbers of a list as Linux prints it: ``0-3,8``."""
    ranges = (part.partition("-") for part in text.strip().split(","))
    return frozenset(number for low, _, high in ranges for number in range(int(low), int(high or low) + 1))
