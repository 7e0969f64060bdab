"""A cell of a duet: what is played, how much of it, what came of it, and what that says.

It is played by pairs of processes until the interval of its ratio is narrow.  The rule never looks at the ratio itself,
so that it does not end when chance has brought a change about.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bench.statistics import Interval, Verdict, duet, judge
from bench.workloads import Workload

#: A change has to be at least LEAST large and its interval beyond MARGIN.  Closer than for runs that are made one after
#: the other (bench.statistics): turns leave less scatter.  bench/DUET.md has how much, and what this finds.
LEAST = 1.03
MARGIN = 1.01

#: The sides, in the order in which ratios are formed: new ÷ base.
BASE, NEW = "base", "new"


@dataclass(frozen=True)
class Plan:
    """How many fresh pairs of processes, turns of each side in a pair, and seconds of a turn."""

    pairs: int = 6
    #: More pairs follow until the interval is within this share of the ratio (half of what a change has to be beyond
    #: MARGIN to be one of 5 %), or there are ``most``.
    precision: float = 0.02
    most: int = 24
    turns: int = 12
    seconds: float = 0.01
    #: Seconds that a cell may take in all; calls that are longer than a turn get fewer turns, FEWEST at least.
    limit: float = 60.0


@dataclass(frozen=True)
class Part:
    """A cell of a duet: an implementation that both sides have, and a workload."""

    implementation: str
    device: str
    dtype: str
    workload: Workload
    #: Share by which every call of the new side takes longer: an injected change, to see whether it is found.
    slowdown: float = 0.0


@dataclass
class Played:
    """What became of a cell.  ``outcome`` is "timed", "invalid" (``clause`` says by what) or "skipped"."""

    part: Part
    outcome: str = "timed"
    clause: str = ""
    reason: str = ""
    #: The side that it is the fault of, "" of neither.
    side: str = ""
    #: Seconds of the calls, by pair of processes and turn; the turns of both sides are pairs.
    turns: dict[str, list[list[list[float]]]] = field(default_factory=lambda: {BASE: [], NEW: []})
    shares: dict[str, float] = field(default_factory=dict)
    #: Seconds that it took so far.
    seconds: float = 0.0

    def fail(self, outcome: str, reason: str, side: str = "", clause: str = "") -> None:
        """There is no time of this cell."""
        self.outcome, self.reason, self.side, self.clause = outcome, reason, side, clause

    @property
    def ratio(self) -> Interval | None:
        """New ÷ base, None if it was not timed."""
        return duet(self.turns[BASE], self.turns[NEW]) if self.outcome == "timed" else None

    @property
    def pairs(self) -> int:
        """Pairs of processes that played it."""
        return len(self.turns[BASE])

    def goes_on(self, plan: Plan) -> bool:
        """Whether another pair of processes is to play it.  Its ratio has no say in that, only how well it is known."""
        if self.outcome != "timed" or self.pairs < plan.pairs:
            return self.outcome == "timed"
        assert self.ratio is not None
        return self.ratio.spread > plan.precision and self.pairs < plan.most and self.seconds < plan.limit

    def verdict(self, least: float = LEAST, margin: float = MARGIN) -> Verdict | None:
        """What the ratio says, None if it was not timed."""
        return None if self.ratio is None else judge(self.ratio, least, margin)
