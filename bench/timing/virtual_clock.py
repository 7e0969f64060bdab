"""A virtual clock: pytest-benchmark keeps the statistics of samples that were measured elsewhere.

The samples are taken in the worker process, next to the call, so that no message between processes is in
them.  Here they are played back: the benchmarked function advances the clock by the next sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class VirtualClock:
    """A clock that stops between calls of ``advance``; ``read`` is the timer for pytest-benchmark."""

    def __init__(self) -> None:
        self._now = 0.0

    def read(self) -> float:
        """Seconds since the last ``rewind``."""
        return self._now

    def rewind(self) -> None:
        """Go back to zero.  From zero, start and end differ by the sample exactly; (t + s) − t would round."""
        self._now = 0.0

    def advance(self, seconds: float) -> None:
        """Let this much time pass."""
        self._now += seconds


#: The clock of the session.  It must exist before a test is set up, as its mark names it.
CLOCK = VirtualClock()


def play(benchmark: Any, samples: Sequence[float]) -> None:
    """Make the samples (seconds per call) the rounds of pytest-benchmark's ``benchmark`` fixture.

    The test must be marked ``@pytest.mark.benchmark(timer=CLOCK.read)``.
    """
    coming = iter(samples)
    benchmark.pedantic(lambda: CLOCK.advance(next(coming)), setup=CLOCK.rewind, rounds=len(samples), iterations=1)
