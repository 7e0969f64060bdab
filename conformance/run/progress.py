"""Progress of a run: results judged of all, the time left, implementations being judged, and what each one took.

The time left is estimated from what cases are known to take (``Implementation.case_seconds``) and from what the judged
ones took.  Lines are plain: pytest draws on the terminal as well.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from attention_conformance.conformance.cases import stopwatch
from attention_conformance.conformance.targets import Target
from attention_conformance.impls.process.pool import Pool

#: Seconds between two lines on a terminal, and elsewhere.
EVERY_TERMINAL, EVERY = 10.0, 30.0

#: Share of a run, by estimated case times, from which on the time left is shown.
TOLD_FROM = 0.05


@dataclass
class Spent:
    """Seconds that the results of an implementation took."""

    results: int = 0
    #: Seconds by the clock, from a case's start to its verdict.
    seconds: float = 0.0
    #: Processor seconds: in the implementation's process, and here, where references, bounds and verdicts are made.
    cpu: float = 0.0
    judging: float = 0.0
    #: Parts of ``seconds``: waiting for the implementation's process, and making inputs, references and bounds.
    calls: float = 0.0
    references: float = 0.0


class Progress:
    """Counts judged results.  Threads, each of which judges one case at a time, share it.

    Parameters
    ----------
    targets
        Target of each result that is still to come.
    every
        Seconds between two lines.
    """

    def __init__(self, targets: Iterable[Target], every: float, clock: Callable[[], float] = time.monotonic) -> None:
        expected = [target.implementation.case_seconds for target in targets]
        self._results, self._seconds = len(expected), sum(expected)
        self._every, self._clock = every, clock
        self._began = self._told = clock()
        self._done, self._done_seconds = 0, 0.0
        self._now: dict[int, str] = {}
        self._lock = threading.Lock()
        #: Time by implementation.
        self.spent: dict[str, Spent] = defaultdict(Spent)

    @contextmanager
    def judging(self, target: Target, pool: Pool) -> Iterator[None]:
        """A context in which this thread judges one case."""
        implementation = target.implementation
        with self._lock:
            self._now[threading.get_ident()] = implementation.name
        cpu, here, began = pool.cpu(implementation), time.thread_time(), time.perf_counter()
        calls, references = stopwatch.seconds(stopwatch.CALLS), stopwatch.seconds(stopwatch.REFERENCES)
        try:
            yield
        finally:
            with self._lock:
                self._now.pop(threading.get_ident(), None)
                spent = self.spent[implementation.name]
                spent.results += 1
                spent.seconds += time.perf_counter() - began
                spent.cpu += pool.cpu(implementation) - cpu
                spent.judging += time.thread_time() - here
                spent.calls += stopwatch.seconds(stopwatch.CALLS) - calls
                spent.references += stopwatch.seconds(stopwatch.REFERENCES) - references
                self._done += 1
                self._done_seconds += implementation.case_seconds

    def line(self) -> str | None:
        """Line about the progress of the run; None if the last one was less than ``every`` seconds ago."""
        now = self._clock()
        if now - self._told < self._every:
            return None
        self._told = now
        with self._lock:
            names = list(dict.fromkeys(self._now.values()))
            parts = [f"{self._done} of {self._results} results", self._rest(now - self._began)]
        return ", ".join([part for part in parts if part]) + (f"; now {', '.join(names)}" if names else "")

    def _rest(self, elapsed: float) -> str:
        share = self._done_seconds / self._seconds if self._seconds else 0.0
        if share < TOLD_FROM:
            return ""
        seconds = elapsed * (1 - share) / share
        return f"about {seconds / 60:.0f} min left" if seconds >= 90 else f"about {seconds:.0f} s left"


def spent_rows(spent: Mapping[str, Spent]) -> list[tuple[str, ...]]:
    """A row for each implementation, the costliest first, and their sum: results a second, and processor seconds."""
    ordered = sorted(spent.items(), key=lambda item: -(item[1].cpu + item[1].judging))
    total = Spent(*(sum(getattr(s, f) for s in spent.values()) for f in ("results", "seconds", "cpu", "judging")))
    return [_row(name, each) for name, each in [*ordered, *([("all", total)] if len(ordered) > 1 else [])]]


#: Heads of the columns of ``spent_rows``.
SPENT = ("implementation", "results", "a second", "processor s", "of it judging")


def _row(name: str, spent: Spent) -> tuple[str, ...]:
    rate = spent.results / spent.seconds if spent.seconds else 0.0
    both = spent.cpu + spent.judging
    return (name, str(spent.results), f"{rate:.3g}", f"{both:.1f}", f"{spent.judging:.1f}")
