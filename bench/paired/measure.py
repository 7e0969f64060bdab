"""A cell of a duet: what is played, how much of it, what came of it, and what that says.

It is played by pairs of processes until the interval of its ratio is narrow.  The rule never looks at the ratio itself,
so that it does not end when chance has brought a change about.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from attention_conformance.bench.analysis.statistics import Interval, Verdict, duet, judge
from attention_conformance.bench.paired import worker
from attention_conformance.bench.paired.process import PLAYER, Process
from attention_conformance.bench.paired.sides import Side, SideError
from attention_conformance.bench.timing.protocol import LAST
from attention_conformance.bench.timing.sampler import Chunk
from attention_conformance.bench.validity import cheating
from attention_conformance.bench.validity.checks import Call, References, StruckOut, check
from attention_conformance.bench.workloads import arguments
from attention_conformance.bench.workloads.arguments import SETS
from attention_conformance.bench.workloads.workload import Workload
from attention_conformance.impls.contract import Profile
from attention_conformance.impls.process.pool import Crashed, TimedOut

#: A change has to be at least LEAST large and its interval beyond MARGIN.  Closer than for runs that are made one after
#: the other (bench.analysis.statistics): turns leave less scatter.  bench/DUET.md has how much, and what this finds.
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


# The duet itself: both sides alive at the same time, a few milliseconds each in random order, in fresh pairs.


#: Most calls of a turn: as many as of the shortest kernels fit in (20 µs).
CALLS = 500

#: What a status of attention_conformance.bench.timing.sampler says of a cell that has no time and is not to blame.
WITHOUT_TIME = {"unsupported": "unsupported", "memory": "out of memory"}

#: Fewer pairs of turns than this in a pair of processes say nothing.
FEWEST = 3


class Duet:
    """Plays cells on two sides."""

    def __init__(self, base: Side, new: Side, plan: Plan | None = None, seed: int = 0) -> None:
        self.sides = {BASE: base, NEW: new}
        self.plan = plan or Plan()
        self._expected = References()
        self._order = random.Random(seed)  # noqa: S311  (an order of turns)

    def casts(self, patterns: list[str], device: str, dtype: str) -> dict[str, dict[str, Any]]:
        """By side what it can play (player.cast).  Raises SideError for a side that cannot run the suite."""
        return {name: self._cast(name, patterns, device, dtype) for name in self.sides}

    def play(self, parts: Iterable[Part], casts: dict[str, Any], said: Callable[[str], None]) -> list[Played]:
        """Play all cells in fresh pairs of processes.  ``said`` is told what is being done."""
        played = [Played(part) for part in parts]
        for one in played:
            _miss(one, casts)
        for pair in range(max(self.plan.pairs, self.plan.most)):
            for library, group in _by_process([one for one in played if one.goes_on(self.plan)], casts):
                processes = {name: Process(side, lot=pair + 1) for name, side in self.sides.items()}
                try:
                    _load(group[0], processes)
                    for one in group:
                        said(f"pair {pair + 1} of {self.plan.pairs} to {self.plan.most}, {library}: {_name(one.part)}")
                        started = time.perf_counter()
                        self._pair(one, processes, casts, pair)
                        one.seconds += time.perf_counter() - started
                finally:
                    for each in processes.values():
                        each.close()
        return played

    def _pair(self, one: Played, processes: dict[str, Process], casts: dict[str, Any], pair: int) -> None:
        part = one.part
        # Other values in every pair of processes, so that no result can be kept from an earlier one.
        inputs = [arguments.make(part.workload, part.dtype, seed) for seed in range(SETS * pair, SETS * (pair + 1))]
        key = _name(part)
        seconds = {}
        for name, process in processes.items():
            slowdown = part.slowdown if name == NEW else 0.0
            given = (key, part.implementation, part.workload.name, part.device, part.dtype, inputs, slowdown)
            begun = _job(one, process, name, "begin", *given)
            if begun is None or not _usable(one, name, begun):
                return
            if not _right(one, name, inputs[0], begun["results"], casts, 2 * pair, self._expected):
                return
            seconds[name] = begun["seconds"]
        turn = sum(max(self.plan.seconds, call) for call in seconds.values())
        count = min(self.plan.turns, int(self.plan.limit / self.plan.pairs / turn))
        if count < FEWEST:
            reason = f"{FEWEST} turns in {self.plan.pairs} pairs take {FEWEST * self.plan.pairs * turn:.0f} s"
            one.fail("skipped", f"over the time budget: {reason}, allowed {self.plan.limit:g} s")
            return
        chunks = self._turns(one, processes, count, max(seconds.values()))
        last = arguments.fresh(part.workload, *inputs[0], LAST)
        for name, process in processes.items():
            if one.outcome == "timed" and _honest(one, name, chunks[name], process):
                _right(one, name, last, chunks[name][-1].results, casts, 2 * pair + 1, self._expected)
                _job(one, process, name, "end", key)

    def _turns(self, one: Played, processes: dict[str, Process], count: int, call: float) -> dict[str, list[Chunk]]:
        """So many turns of each side, by side.  Of the last ones there are the results."""
        chunks: dict[str, list[Chunk]] = {name: [] for name in processes}
        most = 1 if call >= self.plan.seconds else CALLS
        for name in processes:
            one.turns[name].append([])
        for number in range(count, 0, -1):
            names = list(processes)
            self._order.shuffle(names)
            last = number == 1
            for name in names:
                given = (_name(one.part), self.plan.seconds, most, LAST if last else number, last)
                taken = _job(one, processes[name], name, "turn", *given)
                if taken is None or not _usable(one, name, taken):
                    return chunks
                chunks[name].append(Chunk(**taken))
            for name in names:
                one.turns[name][-1].append(list(chunks[name][-1].seconds))
        return chunks

    def _cast(self, name: str, patterns: list[str], device: str, dtype: str) -> dict[str, Any]:
        side = self.sides[name]
        process = Process(side)
        try:
            spoken = process.play("form")
            if spoken != worker.FORM:
                raise SideError(f"{name} {side.name} speaks form {spoken} of the duet, this suite {worker.FORM}")
            found: dict[str, Any] = process.play("cast", patterns, device, dtype)
            return found
        except Crashed as error:
            last = (error.stderr.strip().splitlines() or [str(error)])[-1]
            raise SideError(f"{name} {side.name} ({side.python}) cannot run the suite: {last}") from None
        except SideError:
            raise
        except Exception as error:  # what the other side's own code raises
            if PLAYER in str(error):
                reason = "its suite has no duet; revisions of it that are older than the duet cannot be compared"
                raise SideError(f"{name} {side.name}: {reason}") from None
            raise SideError(f"{name} {side.name}: {error}") from None
        finally:
            process.close()


def _load(one: Played, processes: dict[str, Process]) -> None:
    """Have both sides import their libraries at the same time; what goes wrong will go wrong again when it counts."""
    part = one.part
    for process in processes.values():
        process.start()

    def load(process: Process) -> None:
        with contextlib.suppress(Exception):
            process.play("load", part.implementation, part.device, part.dtype)

    with ThreadPoolExecutor(len(processes)) as pool:
        list(pool.map(load, processes.values()))


def _job(one: Played, process: Process, side: str, function: str, *given: Any) -> Any:
    """The job's answer, or None if it killed its process, which strikes the cell out."""
    try:
        return process.play(function, *given)
    except (Crashed, TimedOut) as error:
        clause = "crashed" if isinstance(error, Crashed) else "timeout"
        one.fail("invalid", str(error), side, clause)
        return None


def _usable(one: Played, side: str, begun: dict[str, Any]) -> bool:
    if begun["status"] == "returned":
        return True
    if begun["status"] in WITHOUT_TIME:
        one.fail("skipped", f"{WITHOUT_TIME[begun['status']]}: {begun['text']}", side)
    else:
        one.fail("invalid", begun["text"], side, "error")
    return False


def _honest(one: Played, side: str, chunks: Sequence[Chunk], process: Process) -> bool:
    """Strike out what looks fast and is not, by the rules of ``pytest bench`` (bench.validity.cheating)."""

    def emptied() -> Sequence[float]:
        found = _job(one, process, side, "emptied", _name(one.part), cheating.LEAST_PAIRS)
        return found["seconds"] if found is not None and _usable(one, side, found) else ()

    try:
        cheating.unfinished(chunks[-1])
        cheating.lazy(chunks)
        cheating.remembers(one.turns[side][-1], emptied)
    except StruckOut as error:
        if one.outcome == "timed":  # else it broke when it was called from emptied caches, which says more
            one.fail("invalid", error.text, side, error.clause)
    return one.outcome == "timed"


def _right(
    one: Played,
    side: str,
    given: worker.Inputs,
    results: dict,
    casts: dict[str, Any],
    seed: int,
    expected: References,
) -> bool:
    part = one.part
    profile = Profile(casts[side]["players"][part.implementation]["profile"])
    try:
        # Inputs and rows are those of the number in every cell of the workload, so what is expected is computed once.
        share = check(Call(part.workload, *given, part.dtype, profile, seed), results, seed, expected.expect)
    except StruckOut as error:
        one.fail("invalid", error.text, side, error.clause)
        return False
    one.shares[side] = max(share, one.shares.get(side, 0.0))
    return True


def _miss(one: Played, casts: dict[str, Any]) -> None:
    """Leave a cell out that one of the sides does not have, or has without the keywords that it needs."""
    for side, cast in casts.items():
        has = cast["players"].get(one.part.implementation)
        absent = cast["not_installed"].get(one.part.implementation)
        lacks = arguments.keywords(one.part.workload) - set(has["keywords"]) if has else set()
        if absent:
            one.fail("skipped", f"not installed: {', '.join(absent)}", side)
        elif has is None:
            one.fail("skipped", "no such implementation on this device, in this dtype", side)
        elif lacks:
            one.fail("skipped", f"unsupported: no keyword {', '.join(sorted(lacks))}", side)


def _by_process(played: list[Played], casts: dict[str, Any]) -> Iterator[tuple[str, list[Played]]]:
    """The timed cells, by the process that runs them: libraries do not share one."""
    groups: dict[str, list[Played]] = {}
    for one in played:
        if one.outcome == "timed":
            groups.setdefault(casts[BASE]["players"][one.part.implementation]["process"], []).append(one)
    yield from groups.items()


def _name(part: Part) -> str:
    injected = f" {part.slowdown:+.0%}" if part.slowdown else ""
    return f"{part.implementation} {part.device} {part.dtype} {part.workload.name}{injected}"
