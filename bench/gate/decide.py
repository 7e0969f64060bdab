"""Decision of the gate: what is asked of a candidate, in which order, and what its answers amount to."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from attention_conformance.bench.gate import problems, walls
from attention_conformance.bench.gate.verdict import Asked, Decision, Reason, Timed, Verdict
from attention_conformance.bench.gate.worker import NOTED
from attention_conformance.bench.machine.roofline import best_product
from attention_conformance.bench.validity import cheating
from attention_conformance.bench.validity.cheating import Job
from attention_conformance.bench.validity.checks import Invalid
from attention_conformance.conformance.cases.base import Case
from attention_conformance.conformance.judging.judge import judge, unanswered
from attention_conformance.conformance.judging.outcomes import Outcome
from attention_conformance.conformance.judging.run_case import blank_of, request
from attention_conformance.conformance.run.targets import Target
from attention_conformance.impls.calls import Reply
from attention_conformance.impls.contract import Implementation, ImplementationError, Profile
from attention_conformance.impls.envelope import Shape
from attention_conformance.impls.process import limits, threads
from attention_conformance.impls.process.pool import Crashed, Pool, Spent, TimedOut
from attention_conformance.impls.select import with_attributes

WORKER = "attention_conformance.bench.gate.worker"

#: Seconds that a call may take; reasons after which no more is asked; calls that are timed.
CALL_SECONDS, ENOUGH, CALLS = 30.0, 3, 12

#: One call in so many is looked at for calls of libraries.
COUNTED = 6

#: Scores above which a problem is more than this gate asks.
MOST_SCORES = 1 << 25

#: The size that is timed where the task names none.
DEFAULT = Shape(1, 4, 4, 256, 256, 64, 64)


class _Over(Exception):
    """The budget is spent, or the task is larger than what this gate asks."""


@dataclass(frozen=True)
class Task:
    """What is required of a candidate; without ``require`` what its signature promises, without shapes every size."""

    require: tuple[str, ...] = ()
    shapes: tuple[Shape, ...] = ()
    dtypes: tuple[str, ...] = ("float32",)
    profile: Profile | None = None
    device: str = "cpu"
    own_work: bool = False
    named: bool = False


@dataclass
class Gate:
    """One candidate before the gate."""

    candidate: Implementation
    task: Task
    seed: int
    budget: float
    reasons: list[Reason] = field(default_factory=list)
    notes: dict[str, None] = field(default_factory=dict)
    library: dict[str, int] = field(default_factory=dict)
    timing: list[Timed] = field(default_factory=list)
    asked: int = 0
    right: int = 0
    network: str = ""
    _answers: dict[bytes, str] = field(default_factory=dict)
    _overheads: dict[tuple[Shape, str], list[float]] = field(default_factory=dict)

    def run(self) -> Verdict:
        """The verdict.  Never raises for what the candidate does."""
        started = time.monotonic()
        self._until = started + self.budget
        decision: Decision
        self._pool = Pool(
            memory=limits.default(),
            environment={**walls.hidden_environment(), **threads.environment(threads.usable_cores())},
            ready=f"{WORKER}:enter",
        )
        try:
            self._decide()
            decision = "rejected" if self.reasons else "accepted"
            if not self.reasons and not self.asked:
                self._because("nothing", "no problem could be asked")
                decision = "cannot tell"
        except _Over as error:
            decision = "rejected" if self.reasons else "cannot tell"
            self._because("budget", str(error) or f"{self.budget:g} s were not enough")
        finally:
            self._pool.close()
        task = self.task
        return Verdict(
            verdict=decision,
            candidate=self.candidate.name,
            task=Asked(
                "sdpa",
                sorted(task.require),
                [_sizes(s) for s in task.shapes],
                list(task.dtypes),
                task.device,
                task.own_work,
            ),
            seed=self.seed,
            reasons=self.reasons,
            asked=self.asked,
            right=self.right,
            library_calls=self.library,
            notes=list(self.notes),
            timing=self.timing if decision == "accepted" else [],
            network=self.network,
            seconds=time.monotonic() - started,
            budget_seconds=self.budget,
        )

    def _decide(self) -> None:
        if any(s.b * s.hq * s.sq * s.sk > MOST_SCORES for s in self.task.shapes):
            raise _Over(f"a size of the task has more than {MOST_SCORES} scores, more than this gate asks")
        self.network = str(self._job("network"))
        for dtype in self.task.dtypes:
            for shape in self.task.shapes or (DEFAULT,):
                self._overheads[shape, dtype] = self._overhead(shape, dtype)
        if not self._describe():
            return
        for dtype in self.task.dtypes:
            for number, one in enumerate(problems.problems(self.task.require, self.task.shapes, dtype, self.seed)):
                s = one.shape
                if s.b * s.hq * s.sq * s.sk <= MOST_SCORES:
                    self._ask(one, dtype, in_place=number % 2 == 0, counted=number % COUNTED == 0)
                if len(self.reasons) >= ENOUGH:
                    return
        if self.task.own_work and self.library:
            self._because("library", f"the task asks for own work, and it calls {', '.join(self.library)}")
        if not self.reasons:
            for shape in self.task.shapes or (DEFAULT,):
                for dtype in self.task.dtypes:
                    self._time(shape, dtype)

    def _describe(self) -> bool:
        """Import the candidate, and see that it has what the task requires."""
        try:
            found = self._call("attention_conformance.impls.calls:describe", self.candidate)
            changed = with_attributes(
                self.candidate, {n: found.attributes[n] for n in ("layout",) if n in found.attributes}
            )
        except (Crashed, ImplementationError, TimedOut) as error:
            self._because("import", f"it cannot be loaded: {error}")
            return False
        self.candidate = replace(changed, dtypes=self.task.dtypes, profiles={})
        for name in sorted(set(found.attributes) - {"layout"}):
            self.notes[f"its attribute {name} is not believed: the task decides"] = None
        if not self.task.named:
            self.task = replace(self.task, require=tuple(sorted(found.keywords)))
        lacking = sorted(set(self.task.require) - found.keywords)
        if lacking:
            self._because("refuses", f"it has no keyword {', '.join(lacking)}, which the task requires")
        if found.operator != "sdpa":
            self._because("refuses", f"it says that it is {found.operator}; the task is sdpa")
        if self.task.profile is not None:
            self.candidate = replace(self.candidate, profiles=dict.fromkeys(self.task.dtypes, self.task.profile))
        return not self.reasons

    def _ask(self, one: Case, dtype: str, in_place: bool, counted: bool = False) -> Reply | None:
        """One problem: the reply, if it is right."""
        target = Target(self.candidate, self.task.device, dtype)
        asked = request(one, dtype, self.task.device)
        self.asked += 1
        try:
            reply: Reply = self._job("ask", asked, in_place and one.memory == "contiguous", counted)
        except _Over:
            raise
        except TimedOut as error:
            if time.monotonic() >= self._until:
                raise _Over from error
            self._because("no answer", str(error), one)
            return None
        except Crashed as error:
            self._because("crashed", unanswered(error, one).reason, one)
            return None
        except Exception as error:
            self._because("garbage", f"what it sent is no answer: {type(error).__name__}: {error}"[:300], one)
            self._pool.end(self.candidate)
            return None
        before = len(self.reasons)
        self._noticed(reply.side_effects, one)
        plain = replace(reply, side_effects=())
        result = judge(plain, one, blank_of(target, one), every_profile=False)
        if result.outcome is Outcome.UNSUPPORTED:
            self._because("refuses", f"it refuses what the task requires: {result.reason}", one)
        elif result.outcome is Outcome.FAILED:
            kind = result.failure.value if result.failure else "wrong"
            text = self._seen_before(reply, one) or self._copied(reply, asked.arrays) or result.reason
            self._because(kind, text, one, result.broken or "")
        if len(self.reasons) > before:
            return None
        self._remember(reply, one)
        self.right += 1
        return reply

    def _noticed(self, effects: Sequence[str], one: Case) -> None:
        for effect in effects:
            if not effect.startswith(NOTED):
                continue
            kind, _, text = effect.removeprefix(NOTED).partition(": ")
            if kind == "library":
                name, _, count = text.rpartition(" ")
                self.library[name] = self.library.get(name, 0) + int(count)
            elif kind == "started":
                self.notes[text] = None
            elif not any(reason.text == text for reason in self.reasons):
                self._because(kind, text, one)

    def _remember(self, reply: Reply, one: Case) -> None:
        output = reply.results.get("output")
        if output is not None and output.size > 8 and not one.zeros and np.isfinite(output.astype(np.float64)).all():
            self._answers.setdefault(output.tobytes(), one.name)

    def _seen_before(self, reply: Reply, one: Case) -> str:
        output = reply.results.get("output")
        earlier = "" if output is None else self._answers.get(output.tobytes(), "")
        return f"it returned the answer to an earlier call, {earlier}" if earlier and earlier != one.name else ""

    def _copied(self, reply: Reply, arrays: dict[str, np.ndarray]) -> str:
        output = reply.results.get("output")
        same = [] if output is None else [n for n, a in arrays.items() if a.size and np.array_equal(output, a)]
        return f"it returned a copy of {same[0]}" if same else ""

    def _time(self, shape: Shape, dtype: str) -> None:
        overhead = self._overheads[shape, dtype]
        seconds, whole, jobs = [], [], []
        for number in range(CALLS + 2):
            reply = self._ask(problems.timed(shape, dtype, self.seed, number), dtype, number % 2 == 0)
            if reply is None:
                return
            if number >= 2:  # the first ones are there to warm up
                seconds.append(reply.run_seconds)
                spent = self._spent()
                whole.append(spent.waited)
                worked = None if spent.cpu is None else spent.cpu - threads.usable_cores() * reply.run_seconds
                jobs.append(Job(reply.run_seconds, spent.waited - reply.run_seconds, worked))
        share = self._share(shape, dtype, statistics.median(seconds))
        try:
            cheating.disagreeing_clocks(jobs, 2 * max(overhead))
            cheating.beyond_peak(share)
        except Invalid as error:
            self._because(error.clause, error.text)
        median = statistics.median(seconds)
        self.timing.append(Timed(_sizes(shape), dtype, seconds, whole, statistics.median(overhead), median, share))

    def _overhead(self, shape: Shape, dtype: str) -> list[float]:
        """Seconds of a job that only takes the inputs, before the candidate is there and could make it longer."""
        first = request(problems.timed(shape, dtype, self.seed, 0), dtype, self.task.device)
        found = []
        for _ in range(5):
            self._job("echo", first)
            found.append(self._spent().waited)
        return found

    def _share(self, shape: Shape, dtype: str, seconds: float) -> float | None:
        """Operations per second ÷ those of the framework's best matrix product."""
        if seconds <= 0:
            return None
        flops = 2 * shape.b * shape.hq * shape.sq * shape.sk * (shape.d + shape.dv)
        target = Target(self.candidate, self.task.device, dtype)
        measure = functools.partial(best_product, target, count=threads.usable_cores())
        return cheating.share_of_peak(flops, seconds, measure)

    def _because(self, kind: str, text: str, one: Case | None = None, clause: str = "") -> None:
        self.reasons.append(Reason(kind, text, one.name if one else "", clause))

    def _spent(self) -> Spent:
        """What the last job took."""
        spent = self._pool.spent(self.candidate)
        assert spent is not None
        return spent

    def _job(self, name: str, *arguments: Any) -> Any:
        return self._call(f"{WORKER}:{name}", self.candidate, *arguments)

    def _call(self, function: str, *arguments: Any) -> Any:
        left = self._until - time.monotonic()
        if left <= 0:
            raise _Over
        return self._pool.call(self.candidate, function, *arguments, timeout=min(left, CALL_SECONDS))


def _sizes(s: Shape) -> list[int]:
    return [s.b, s.hq, s.hkv, s.sq, s.sk, s.d, s.dv]
