"""Trial of one example: calls of the implementation, and their results as measured quantities, compared.

A measured quantity is what was returned, with the bound on its error.  If |value − exact| ≤ bound holds for two of
them, it holds for what is computed from them here, because bounds are carried along: a sum has the sum of the bounds, a
multiple the multiple.  So properties need no tolerance of their own.  Arithmetic is in float64; its rounding is below
the reference's own error, which every bound includes.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

import hypothesis
import numpy as np

from attention_conformance.conformance.bounds.sdpa import UNIT_ROUNDOFF
from attention_conformance.conformance.cases.base import AnyCase, Case
from attention_conformance.conformance.cases.packed import PagedCase
from attention_conformance.conformance.cases.store import RANDOM, CaseStore
from attention_conformance.conformance.judging import judge
from attention_conformance.conformance.judging.compare import Comparison, compare
from attention_conformance.conformance.judging.judge import Finding
from attention_conformance.conformance.judging.message import comparison_lines, share_text
from attention_conformance.conformance.judging.outcomes import Failure
from attention_conformance.conformance.ledger import triggers
from attention_conformance.conformance.ledger.load import Deviation
from attention_conformance.conformance.properties.inside import is_outside
from attention_conformance.conformance.properties.problem import Problem
from attention_conformance.conformance.properties.serving import ServingProblem
from attention_conformance.conformance.properties.strategies import pays_for_shapes
from attention_conformance.conformance.run_case import ask, request
from attention_conformance.conformance.spec.inputs import Inputs
from attention_conformance.conformance.targets import Target
from attention_conformance.impls.calls import Reply
from attention_conformance.impls.contract import Profile
from attention_conformance.impls.process.pool import Crashed, Pool, TimedOut

#: Roundings of a merged element: one subtraction, exp, addition, division; two products and a sum; each below 1 ulp,
#: which is two unit roundoffs.
ROUNDINGS = 16 * UNIT_ROUNDOFF["float64"]

Draw = Callable[[Any], Any]


@dataclass(frozen=True, eq=False)
class Measured:
    """Arrays of one shape: what was returned, the reference's result, the bound between both, and what is excused.

    ``excused`` is True where a recorded deviation is known to spoil the element (conformance.ledger.triggers).
    """

    value: np.ndarray
    exact: np.ndarray
    bound: np.ndarray
    excused: np.ndarray

    def __getitem__(self, index: Any) -> Measured:
        """A part, or the parts in another order."""
        return self.each(lambda array: array[index])

    def __add__(self, other: Measured | np.ndarray | float) -> Measured:
        """A sum, with the sum of the bounds; a plain number has none."""
        if isinstance(other, Measured):
            return Measured(
                self.value + other.value,
                self.exact + other.exact,
                self.bound + other.bound,
                self.excused | other.excused,
            )
        return Measured(self.value + other, self.exact + other, self.bound, self.excused)

    def __mul__(self, factor: float) -> Measured:
        """A multiple, with the multiple of the bound."""
        return Measured(factor * self.value, factor * self.exact, abs(factor) * self.bound, self.excused)

    __rmul__ = __mul__

    def each(self, change: Callable[[np.ndarray], np.ndarray]) -> Measured:
        """The same with a change of axes of all four arrays."""
        return Measured(change(self.value), change(self.exact), change(self.bound), change(self.excused))


def constant(exact: np.ndarray) -> Measured:
    """Quantity that is known without measuring: no error, nothing excused."""
    return Measured(exact, exact, np.zeros_like(exact), np.zeros(exact.shape, bool))


# Two parts of the keys merged by their log-sum-exp, as split-key kernels and ring attention do, with the error.
#
# From the outputs o₁, o₂ and lse l₁, l₂ of two disjoint parts of the keys (SDPA-14, SDPA-16, SDPA-19)
#
#     lse = log(exp l₁ + exp l₂),   o = w o₁ + (1 − w) o₂,   w = exp(l₁ − lse) = 1 / (1 + exp(l₂ − l₁)).
#
# A fully masked part has lse −inf and output 0, so that w is 0 or 1 and needs no case of its own (SDPA-15).
#
# Error.  Write b for the bounds of the o and e = e₁ + e₂ for those of the l.  The argument of w moves by at most e, so
# w moves by at most δ = max |w(x ± e) − w(x)|, and with the measured w
#
#     |δo| ≤ w b₁ + (1 − w) b₂ + δ |o₁ − o₂|,   |δlse| ≤ max(e₁, e₂),
#
# the o on the right being the exact ones, and lse a weighted mean of the l to first order along every path.  The
# arithmetic here is in float64: ROUNDINGS of its unit roundoff cover its few operations.


def merged(o1: Measured, l1: Measured, o2: Measured, l2: Measured) -> tuple[Measured, Measured]:
    """Output (B, Hq, Sq, Dv) and lse (B, Hq, Sq) over both parts."""
    with np.errstate(all="ignore"):  # −inf − (−inf) in fully masked rows
        lse = Measured(
            np.logaddexp(l1.value, l2.value),
            np.logaddexp(l1.exact, l2.exact),
            np.maximum(l1.bound, l2.bound) + ROUNDINGS * (1 + size(l1) + size(l2)),
            l1.excused | l2.excused,
        )
        error = l1.bound + l2.bound + ROUNDINGS * (size(l1) + size(l2))
        w, exact = share(l1.value, l2.value, 0.0), share(l1.exact, l2.exact, 0.0)
        moved = np.maximum(
            np.abs(share(l1.exact, l2.exact, error) - exact), np.abs(share(l1.exact, l2.exact, -error) - exact)
        )
        w, exact, moved = w[..., None], exact[..., None], moved[..., None]
        # The measured weights exceed the exact ones by at most ``moved``.
        bound = (exact + moved) * o1.bound + (1 - exact + moved) * o2.bound + moved * np.abs(o1.exact - o2.exact)
        bound += ROUNDINGS * (np.abs(o1.exact) + np.abs(o2.exact))
    excused = o1.excused | o2.excused | lse.excused[..., None]
    return Measured(mixed(w, o1.value, o2.value), mixed(exact, o1.exact, o2.exact), bound, excused), lse


def share(l1: np.ndarray, l2: np.ndarray, shift: np.ndarray | float) -> np.ndarray:
    """The weight of the first part, with its lse shifted; 0 where neither part has a key (both outputs are 0)."""
    return np.where(np.isneginf(l1), 0.0, 1 / (1 + np.exp(l2 - l1 - shift)))


def mixed(w: np.ndarray, o1: np.ndarray, o2: np.ndarray) -> np.ndarray:
    """The mean of two outputs with weight w of the first."""
    return w * o1 + (1 - w) * o2


def size(lse: Measured) -> np.ndarray:
    """|lse|, 0 where it is −inf."""
    return np.where(np.isfinite(lse.exact), np.abs(lse.exact), 0.0)


class Wrong(Exception):
    """An example that fails a property: what is wrong, the problem, and the calls that were made."""

    def __init__(self, finding: Finding, problem: Problem | ServingProblem, calls: tuple[Answer, ...]) -> None:
        super().__init__(finding.reason)
        self.finding = finding
        self.problem = problem
        self.calls = calls


@dataclass(frozen=True)
class Context:
    """Context that all examples of a target share."""

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
        return self.target.profile


@dataclass
class Tally:
    """Tally of the examples so far."""

    examined: int = 0
    #: Reasons of NotImplementedError.
    unsupported: Counter[str] = field(default_factory=Counter)
    #: Records of the ledger that excused something, by id.
    excused: Counter[str] = field(default_factory=Counter)
    prepare_seconds: float = 0.0
    run_seconds: float = 0.0


@dataclass(frozen=True, eq=False)
class Example(Case):
    """A case with given inputs."""

    given: Inputs | None = None

    def make_inputs(self, dtype: str) -> Inputs:
        """The given inputs."""
        assert self.given is not None
        return self.given

    __eq__, __hash__ = object.__eq__, object.__hash__  # two examples may share a name, with different inputs


@dataclass(frozen=True, eq=False)
class Answer:
    """One call: what it was, its case and reply, and its results by name as measured quantities."""

    what: str
    case: AnyCase
    reply: Reply
    results: dict[str, Measured]

    def __getitem__(self, name: str) -> Measured:
        return self.results[name]


class Trial:
    """One example: a problem, what else a property draws, and the calls that it makes.

    Methods raise Wrong for a failure and hypothesis's own exception for an example that does not count.
    """

    def __init__(self, context: Context, problem: Problem | ServingProblem, draw: Draw, tally: Tally) -> None:
        self.context = context
        self.problem = problem
        self.draw = draw
        self.few = context.few
        self.inputs = problem.case().make_inputs(context.target.dtype)
        self._tally = tally
        self._calls: list[Answer] = []

    def call(self, x: Any, what: str) -> Answer:
        """Run the implementation; ``what`` describes the inputs, such as "the problem as drawn"."""
        target = self.context.target
        if is_outside(x, target.implementation.envelope):
            hypothesis.reject()
        case = self._case(x, what)
        try:
            asked = request(case, target.dtype, target.device)
            reply = ask(target, asked, self.context.pool, self.context.timeout)
        except (Crashed, TimedOut) as error:
            self._fail(case, judge.no_answer(error, case), what)
        self._tally.prepare_seconds += reply.prepare_seconds
        self._tally.run_seconds += reply.run_seconds
        if reply.status == "unsupported":
            self._tally.unsupported[reply.text] += 1
            hypothesis.reject()
        finding = (
            self._not_returned(reply)
            or judge.wrong_form(reply, case, case.expected(target.dtype), target.dtype)
            or self._state_finding(reply, case)
        )
        if finding is not None:
            self._fail(case, finding, what)
        answer = Answer(what, case, reply, self._measured(case, reply))
        self._calls.append(answer)
        return answer

    def equal(self, name: str, got: Measured, wanted: Measured) -> None:
        """Check that two results of this name are equal within both bounds; what the ledger excuses is left out."""
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
        """Check that the results of these names, or all of them, are equal."""
        for name in names or got.results:
            if name in got.results:
                self.equal(name, got[name], wanted[name])

    def _compare(self, name: str, got: Measured, wanted: Measured) -> Comparison:
        # A NaN where the reference is a number is wrong even if both calls return it.
        lost = np.isfinite(wanted.exact) & ~np.isfinite(wanted.value)
        stored = judge.dtypes_of(name, self.context.target.dtype)[0]
        value = np.where(lost, np.nan, got.value)
        return compare(name, value, np.where(lost, wanted.exact, wanted.value), got.bound + wanted.bound, stored)

    def _case(self, x: Any, what: str) -> AnyCase:
        case = self.problem.case()
        name = f"{case.name} ({what})"
        if not isinstance(case, Case):
            given: dict[str, Any] = {"options": x.keywords, "edit": lambda _: x, "store": CaseStore()}
            given |= {"stored": ""} if isinstance(case, PagedCase) else {}  # the given caches have their dtype
            return dataclasses.replace(case, name=name, **given)
        return Example(
            name, case.clauses, case.why, case.shape, options=x.keywords, dtypes=case.dtypes, store=RANDOM, given=x
        )

    def _measured(self, case: AnyCase, reply: Reply) -> dict[str, Measured]:
        dtype = self.context.target.dtype
        expected, bound = case.expected(dtype), case.bound(dtype, self.context.profile)
        spoiled = [each.rows for each in self._triggered(case, Failure.VALUE)]
        found = {}
        for name in case.results():
            exact = getattr(expected, name)
            rows = np.zeros(exact.shape, bool)
            if not name.startswith("present"):
                for each in spoiled:
                    rows |= triggers.of_result(each, case.axes(name))
            found[name] = Measured(reply.results[name].astype(np.float64), exact, getattr(bound, name), rows)
        return found

    def _not_returned(self, reply: Reply) -> Finding | None:
        return judge.raised_exception(reply, "") if reply.status == "raised" else None

    def _state_finding(self, reply: Reply, case: AnyCase) -> Finding | None:
        return judge.modified_inputs(reply, case) if reply.modified else judge.changed_state(reply, case)

    def _fail(self, case: AnyCase, finding: Finding, what: str) -> NoReturn:
        """Raise for a call that gives no results to compare: excused by the ledger, or wrong."""
        triggered = self._triggered(case, finding.failure)
        excuses = [each.deviation.id for each in triggered if each.deviation.says in finding.reason]
        if excuses:
            self._tally.excused.update(excuses)
            hypothesis.reject()
        answer = Answer(what, case, Reply("raised", text=finding.failure.value), {})
        raise Wrong(finding, self.problem, (*self._calls, answer))

    def _excuses(self) -> set[str]:
        """Records that may have spoiled values of the calls so far."""
        return {each.deviation.id for one in self._calls for each in self._triggered(one.case, Failure.VALUE)}

    def _triggered(self, case: AnyCase, failure: Failure) -> list[triggers.Triggered]:
        """The records of this kind of failure that a case triggers."""
        if not self.context.records:
            return []
        dtype = self.context.target.dtype
        found = triggers.triggered(self.context.records, case.inputs(dtype), case.expected(dtype))
        return [each for each in found if each.deviation.failure is failure]
