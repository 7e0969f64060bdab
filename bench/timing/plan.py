"""When a cell is measured enough: the numbers of the timing protocol, and the rule that ends it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from attention_conformance.bench.analysis import statistics
from attention_conformance.bench.timing.cold_cache import WARM

#: Chunks of a visit at least: the interval comes from their scatter, and each has one call on inputs never seen.
LEAST_CHUNKS = 5

#: Calls before the samples of a turn, as a share of its length.  After a pause a process is slower for some
#: milliseconds, whether others worked meanwhile or nobody did: without these calls by 1 to 9 % in the median of a turn.
LEAD = 0.5

#: Seconds of a call in which those milliseconds are lost, so that none has to come before.
LONG = 0.1

#: Why sampling ended.
NOISE, TIME, CALLS = "noise target", "time budget", "call limit"


@dataclass(frozen=True)
class Plan:
    """How long and how often each cell is measured; equal for all cells of a run."""

    #: Seconds of calls that a cell may take, over all visits.
    seconds: float = 0.6
    #: The spread of the interval of the median that is enough.
    noise: float = 0.02
    visits: int = 3
    #: Length of a turn: long against waking a process (50 µs), short against the drift of a machine (seconds).
    chunk_seconds: float = 0.02
    #: Least and most calls of a cell, over all visits.  Nine are three in each of three visits: the median of three is
    #: that of a quiet machine if one turn was disturbed, and of two it is not.
    rounds: int = 9
    most: int = 1500
    #: Seconds that ``rounds`` calls may be predicted to take; a cell above it is not sampled.
    limit: float = 10.8
    #: Threads that every library is given.
    threads: int = 1
    #: Of the order of turns.
    seed: int = 0
    #: What is in the caches when a call begins.
    cache: str = WARM

    @property
    def turn_seconds(self) -> float:
        """Length of a turn, shorter where the seconds of a visit would not give LEAST_CHUNKS."""
        return min(self.chunk_seconds, self.seconds / self.visits / LEAST_CHUNKS)

    def lead_seconds(self, call_seconds: float, first: bool = False) -> float | None:
        """How long a turn's calls go on before they are samples, of which each takes this long; None for no call.

        Before the ``first`` turn of a visit there is one in any case: when the other cells of a process were opened,
        its free memory was given back, and the next call takes it anew.
        """
        if call_seconds < LONG:
            return LEAD * self.turn_seconds
        return 0.0 if first else None

    def calls(self, call_seconds: float) -> int:
        """Most samples of a turn."""
        return 1 if call_seconds >= self.turn_seconds else self.turn_calls

    @property
    def turn_calls(self) -> int:
        """Most calls of a turn, so that LEAST_CHUNKS in every visit are within ``most``."""
        return max(2, self.most // self.visits // LEAST_CHUNKS)

    def stopped(self, earlier: statistics.Visits, chunks: Sequence[Sequence[float]]) -> str:
        """Why a visit with these chunks is enough, "" while it is not; ``earlier`` visits of the cell are done.

        One more chunk follows, whose results are checked.

        Every visit has its share of the seconds and calls, and what the earlier ones left of theirs.  Before the last
        one the noise is that of the visit alone: what the visits differ by is not known yet.
        """
        done = len(earlier) + 1
        visits = [*earlier, chunks] if done == self.visits else [chunks]
        calls = sum(len(chunk) for visit in (*earlier, chunks) for chunk in visit)
        seconds = sum(sum(chunk) for visit in (*earlier, chunks) for chunk in visit)
        if not chunks or sum(map(len, chunks)) + 1 < math.ceil(self.rounds / self.visits):
            return ""
        turns = LEAST_CHUNKS - 1 if len(chunks[0]) > 1 else 1  # a call longer than a turn is made no more than need be
        if len(chunks) >= LEAST_CHUNKS and statistics.median(visits).spread <= self.noise:
            return NOISE
        if seconds >= self.seconds * done / self.visits and len(chunks) >= turns:
            return TIME
        return CALLS if calls >= self.most * done // self.visits else ""
