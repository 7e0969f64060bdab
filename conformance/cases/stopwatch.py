"""Stopwatch: seconds that a thread spends on a part of a run, such as references and bounds."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class _Thread(threading.local):
    """The seconds of one thread by part, and for each running part the seconds of the parts within it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.within: list[float] = []


_THREAD = _Thread()

#: Parts: inputs, expected results and bounds; and waiting for an implementation's process.
REFERENCES, CALLS = "references", "calls"


@contextmanager
def measured(part: str) -> Iterator[None]:
    """A context whose seconds count for a part, except those of contexts within it."""
    began = time.perf_counter()
    _THREAD.within.append(0.0)
    try:
        yield
    finally:
        whole = time.perf_counter() - began
        _THREAD.seconds[part] += whole - _THREAD.within.pop()
        if _THREAD.within:
            _THREAD.within[-1] += whole


def seconds(part: str) -> float:
    """Seconds that this thread has spent on a part so far."""
    return _THREAD.seconds[part]
