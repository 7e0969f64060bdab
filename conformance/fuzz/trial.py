"""One example of one property: calls of the implementation, and comparisons within the bounds of their results.

A call goes the way of every case: the target's process, a request, a reply.  What an implementation does not support
is not an example; what the deviation ledger excuses is noted, and is not a failure.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

import hypothesis
import numpy as np

from conformance import known
from conformance.cases.base import Case, Inputs
from conformance.cases.store import RANDOM
from conformance.deviations import Deviation
from conformance.fuzz.measured import Measured
from conformance.fuzz.strategies import pays_for_shapes
from conformance.judging import judge
from conformance.judging.compare import Comparison, compare
from conformance.judging.judge import Finding
from conformance.judging.message import comparison_lines, share_text
from conformance.judging.run_case import ask, request
from conformance.outcomes import Failure
from conformance.problem import Problem
from conformance.targets import Target
from impls.calls import Reply
from impls.contract import Profile
from impls.process.pool import Crashed, Pool, TimedOut

Draw = Callable[[Any], Any]


class Wrong(Exception):
    """An example that fails a property: what is wrong, the problem, and the calls that were made."""

    def __init__(self, finding: Finding, problem: Problem, calls: tuple[Answer, ...]) -> None:
        super().__init__(finding.reason)
        self.finding = finding
        self.problem = problem
        self.calls = calls


@dataclass(frozen=True)
class Context:
    """What all examples of a target share."""

    target: Target
    pool: Pool
    keywords: frozenset[str]
    #: The records of the ledger that random inputs of the target can meet.
    records: tuple[Deviation, ...] = ()
    timeout: float | None = None

    @property
    def few(self) -> bool:
        """Whether every new shape costs a compilation or an export, so that shapes are few."""
        return pays_for_shapes(self.target.implementation)

    @property
    def profile(self) -> Profile:
        """The precision profile that the implementation declares."""
        return self.target.implementation.profile(self.target.dtype)


@dataclass
class Tally:
    """What became of the examples so far."""

    examined: int = 0
    #: Reasons of NotImplementedError.
    unsupported: Counter[str] = field(default_factory=Counter)
    #: Records of the ledger that excused something, by id.
    excused: Counter[str] = field(default_factory=Counter)
    prepare_seconds: float = 0.0
    run_seconds: float = 0.0


@dataclass(frozen=True, eq=False)
class Example(Case):
    """A case whose inputs are given as they are."""

    given: Inputs | None = None

    def make_inputs(self, dtype: str) -> Inputs:
        """The given inputs."""
        assert self.given is not None
        return self.given

    __eq__, __hash__ = object.__eq__, object.__hash__  # two examples may have one name, and other inputs


@dataclass(frozen=True, eq=False)
class Answer:
    """One call: what it was, its case and reply, and its results by name as measured quantities."""

    what: str
    case: Example
    reply: Reply
    results: dict[str, Measured]

    def __getitem__(self, name: str) -> Measured:
        return self.results[name]


class Trial:
    """One example: a problem, what a property draws beside it, and the calls that it makes.

    Methods raise Wrong for a failure and hypothesis's own exception for an example that does not count.
    """

    def __init__(self, context: Context, problem: Problem, draw: Draw, tally: Tally) -> None:
        self.context = context
        self.problem = problem
        self.draw = draw
        self.few = context.few
        self.inputs = problem.case().make_inputs(context.target.dtype)
        self._tally = tally
        self._calls: list[Answer] = []

    def call(self, x: Inputs, what: str) -> Answer:
        """Run the implementation; ``what`` says what the inputs are, "the problem as drawn"."""
        target = self.context.target
        case = self._case(x, what)
        try:
            asked = request(case, target.dtype, target.device)
            reply = ask(target, asked, self.context.pool, self.context.timeout)
        except (Crashed, TimedOut) as error:
            self._fail(case, judge.unanswered(error, case), what)
        self._tally.prepare_seconds += reply.prepare_seconds
        self._tally.run_seconds += reply.run_seconds
        if reply.status == "unsupported":
            self._tally.unsupported[reply.text] += 1
            hypothesis.reject()
        finding = (
            self._not_returned(reply)
            or judge.malformed(reply, case, case.expected(target.dtype), target.dtype)
            or self._left(reply, case)
        )
        if finding is not None:
            self._fail(case, finding, what)
        answer = Answer(what, case, reply, self._measured(case, reply))
        self._calls.append(answer)
        return answer

    def equal(self, name: str, got: Measured, wanted: Measured) -> None:
        """The two results of this name are equal, give or take both bounds; what the ledger excuses is left out."""
        comparison = self._compare(name, got, wanted)
        if comparison.ok:
            return
        excused = got.excused | wanted.excused
        if (comparison.outside & excused).any():
            self._tally.excused.update(self._excuses())
            exact = dataclasses.replace(wanted, value=np.where(excused, wanted.exact, wanted.value))
            comparison = self._compare(
                name, dataclasses.replace(got, value=np.where(excused, wanted.exact, got.value)), exact
            )
            if comparison.ok:
                return
        words = f"{share_text(comparison.share)} the bound, {comparison.wrong} of {comparison.total} elements wrong"
        lines = tuple(comparison_lines(comparison, self.problem.case().axes(name)))
        finding = Finding(Failure.VALUE, "", f"{name} {words}", lines)
        raise Wrong(finding, self.problem, tuple(self._calls))

    def same(self, got: Answer, wanted: Answer, *names: str) -> None:
        """The results of these names, or all of them, are equal."""
        for name in names or got.results:
            if name in got.results:
                self.equal(name, got[name], wanted[name])

    def _compare(self, name: str, got: Measured, wanted: Measured) -> Comparison:
        # A NaN where the reference is a number is wrong even if both calls return it.
        lost = np.isfinite(wanted.exact) & ~np.isfinite(wanted.value)
        dtype = self.context.target.dtype
        stored = dtype if name != "lse" or dtype == "float64" else "float32"
        value = np.where(lost, np.nan, got.value)
        return compare(name, value, np.where(lost, wanted.exact, wanted.value), got.bound + wanted.bound, stored)

    def _case(self, x: Inputs, what: str) -> Example:
        case = self.problem.case()
        name = f"{case.name} ({what})"
        return Example(
            name, case.clauses, case.why, case.shape, options=x.keywords, dtypes=case.dtypes, store=RANDOM, given=x
        )

    def _measured(self, case: Example, reply: Reply) -> dict[str, Measured]:
        dtype = self.context.target.dtype
        expected, bound = case.expected(dtype), case.bound(dtype, self.context.profile)
        spoiled = np.zeros(expected.allowed.shape[:3], bool)
        for each in known.triggered(self.context.records, case.inputs(dtype), expected):
            if each.deviation.failure is Failure.VALUE:
                spoiled |= each.rows
        found = {}
        for name in case.results():
            exact = getattr(expected, name)
            if name.startswith("present"):
                rows = np.zeros(exact.shape, bool)
            else:
                rows = spoiled if exact.ndim == 3 else np.broadcast_to(spoiled[..., None], exact.shape)
            found[name] = Measured(reply.results[name].astype(np.float64), exact, getattr(bound, name), rows)
        return found

    def _not_returned(self, reply: Reply) -> Finding | None:
        return judge.raised(reply, "") if reply.status == "raised" else None

    def _left(self, reply: Reply, case: Example) -> Finding | None:
        return judge.modified(reply, case) if reply.modified else judge.changed(reply, case)

    def _fail(self, case: Example, finding: Finding, what: str) -> NoReturn:
        """A call that gives no results to compare: excused by the ledger, or wrong."""
        dtype = self.context.target.dtype
        triggered = known.triggered(self.context.records, case.inputs(dtype), case.expected(dtype))
        excuses = [each.deviation.id for each in triggered if each.deviation.failure is finding.failure]
        if excuses:
            self._tally.excused.update(excuses)
            hypothesis.reject()
        answer = Answer(what, case, Reply(finding.failure.value), {})
        raise Wrong(finding, self.problem, (*self._calls, answer))

    def _excuses(self) -> set[str]:
        """Records that may have spoiled values of the calls so far."""
        dtype = self.context.target.dtype
        return {
            each.deviation.id
            for answer in self._calls
            for each in known.triggered(self.context.records, answer.case.inputs(dtype), answer.case.expected(dtype))
            if each.deviation.failure is Failure.VALUE
        }
