"""Plan of the timing: the numbers of the timing protocol, and the rule for when a cell is measured enough."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from attention_conformance.bench.analysis import statistics
from attention_conformance.bench.sampling.cold_cache import WARM

#: Fewest batches of a process run: the interval comes from their scatter, and each has one call on inputs never seen.
LEAST_BATCHES = 5

#: Fewest calls of a process run: the median of three is that of a quiet machine even if one was disturbed, that of two
#: is not.
LEAST_EACH = 3

#: A cell is skipped if one call is predicted to take this many times the seconds that all may take.
LIMIT = 2

#: Calls before the samples of a batch, as a share of its length.  After a pause a process is slower for some
#: milliseconds, whether other processes worked meanwhile or none did: without these calls by 1 to 9 % in the median of
#: a batch.
LEAD = 0.5

#: Seconds of a call from which those milliseconds are negligible, so that no call must come before.
LONG = 0.1

#: Reasons why sampling ended.
NOISE, TIME, CALLS = "noise target", "time budget", "call limit"


def drawn_seed() -> int:
    """Random seed that almost surely no earlier run had: results that a run left on disk are useless to the next.

    Returns
    -------
    int
        32 random bits.
    """
    return secrets.randbits(32)


@dataclass(frozen=True)
class Plan:
    """Plan of a run: how long and how often each cell is measured, equal for all."""

    #: Seconds of calls that a cell may take, over all process runs.
    seconds: float = 0.6
    #: The spread of the median's interval at which a cell is measured enough.
    noise: float = 0.02
    process_runs: int = 5
    #: Length of a batch: long against waking a process (50 µs), short against the drift of a machine (seconds).
    batch_seconds: float = 0.02
    #: Most calls of a cell, over all process runs.
    most_calls: int = 1500
    #: Seconds that ``least_calls`` calls may be predicted to take; a cell above it is not sampled.
    limit: float = 18.0
    #: Threads of every library.
    threads: int = 1
    #: Seed of all inputs, and of the order within rounds.
    seed: int = 0
    #: Content of the caches when a call begins.
    cache: str = WARM

    @property
    def least_calls(self) -> int:
        """Fewest calls of a cell, over all process runs."""
        return LEAST_EACH * self.process_runs

    @property
    def round_seconds(self) -> float:
        """Length of a batch, shorter where the seconds of a process run would not give LEAST_BATCHES."""
        return min(self.batch_seconds, self.seconds / self.process_runs / LEAST_BATCHES)

    def lead_seconds(self, call_seconds: float, first: bool = False) -> float | None:
        """Seconds of calls before the samples of a batch, where each call takes ``call_seconds``; None for no call.

        The ``first`` batch of a process run always has a call before it: opening the other cells of the process gave
        its free memory back, and the next call takes it again.

        Parameters
        ----------
        call_seconds
            Seconds of one call.
        first
            Whether it is the first batch of a process run.

        Returns
        -------
        float | None
            Seconds.
        """
        if call_seconds < LONG:
            return LEAD * self.round_seconds
        return 0.0 if first else None

    def calls(self, call_seconds: float) -> int:
        """Most samples of a batch.

        Parameters
        ----------
        call_seconds
            Seconds of one call.

        Returns
        -------
        int
            A count.
        """
        return 1 if call_seconds >= self.round_seconds else self.batch_calls

    @property
    def batch_calls(self) -> int:
        """Most calls of a batch, so that LEAST_BATCHES in every process run are within ``most_calls``."""
        return max(2, self.most_calls // self.process_runs // LEAST_BATCHES)

    def stopped(self, earlier: statistics.ProcessRuns, batches: Sequence[Sequence[float]]) -> str:
        """Reason why a process run with these batches is enough, "" while it is not, after ``earlier`` process runs.

        One more batch follows, whose results are checked.

        Every process run has its share of the seconds and calls, and what the earlier ones left of theirs.  Before the
        last one only noise within the process run counts: the differences between process runs are not known yet.

        Parameters
        ----------
        earlier
            Seconds of the process runs before.
        batches
            Seconds of this one, batch by batch.

        Returns
        -------
        str
            One sentence.
        """
        done = len(earlier) + 1
        compared = [*earlier, batches] if done == self.process_runs else [batches]
        calls = sum(len(batch) for process_run in (*earlier, batches) for batch in process_run)
        seconds = sum(sum(batch) for process_run in (*earlier, batches) for batch in process_run)
        if not batches or sum(map(len, batches)) + 1 < LEAST_EACH:
            return ""
        least = LEAST_BATCHES - 1 if len(batches[0]) > 1 else 1  # a call longer than a batch: as few as possible
        if len(batches) >= LEAST_BATCHES and statistics.median(compared).spread <= self.noise:
            return NOISE
        if seconds >= self.seconds * done / self.process_runs and len(batches) >= least:
            return TIME
        return CALLS if calls >= self.most_calls * done // self.process_runs else ""
