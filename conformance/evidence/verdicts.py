"""Random problems on correct implementations: which of them leave the bound of the profile that they declare.

Every problem goes the way of every case (conformance.judge): the implementation's process, a request, a reply, all
results against the reference and its bound.  A failure is a false alarm unless the deviation ledger knows the library
to fail so, in those rows (conformance.known).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np

from conformance import bounds, known
from conformance.cases.base import Case, Inputs, bound_of, make_inputs, reference_of
from conformance.deviations import Ledger
from conformance.evidence.problems import dtype_of, random_problem
from conformance.judge import Judged, comparisons, judge
from conformance.outcomes import Failure, Outcome
from conformance.problem import Problem
from conformance.reference import Expected
from conformance.targets import Pool, Selection, Target
from impls.calls import Reply
from impls.contract import Profile

#: Seconds for one problem on one implementation, compilation included.
TIMEOUT = 120.0

#: Not a record of the ledger: where a score overflows the dtype, nothing is promised to a program that stores scores.
RANGE = "SDPA-26"


class Kind(StrEnum):
    """What became of a problem on an implementation."""

    KEPT = "kept"
    UNSUPPORTED = "unsupported"
    #: Failed as the ledger says, in the rows that it says.
    KNOWN = "known"
    #: Left the bound of the profile that it declares, or failed otherwise.
    ALARM = "alarm"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One problem on one implementation; ``share`` and ``meets`` as in a Result, ``why`` a record's id or a reason."""

    index: int
    implementation: str
    dtype: str
    profile: str
    kind: Kind
    share: float | None = None
    meets: tuple[str, ...] = ()
    why: str = ""


@dataclass(frozen=True, eq=False)
class Once(Case):
    """A case in one dtype that keeps its inputs, reference and bounds itself, and is forgotten with them."""

    dtype: str = ""
    held: dict[Profile, bounds.Bound] = field(default_factory=dict)

    def inputs(self, dtype: str) -> Inputs:
        """The inputs."""
        return self._inputs

    def expected(self, dtype: str) -> Expected:
        """What the reference says of them."""
        return self._expected

    def bound(self, dtype: str, profile: Profile) -> bounds.Bound:
        """The error bound for them."""
        if profile not in self.held:
            self.held[profile] = bound_of(self._inputs, self._expected, self.dtype, profile)
        return self.held[profile]

    @functools.cached_property
    def _inputs(self) -> Inputs:
        return make_inputs(self, self.dtype)

    @functools.cached_property
    def _expected(self) -> Expected:
        return reference_of(self._inputs)


def once(problem: Problem, dtype: str) -> Once:
    """The case of a problem, in a dtype."""
    return Once(**vars(problem.case()), dtype=dtype)


@dataclass(frozen=True)
class Jury:
    """The implementations of a run, their processes, and what is known of them."""

    pool: Pool
    selection: Selection
    ledger: Ledger
    #: By implementation, n for every n-th problem; otherwise every one.
    every: Mapping[str, int] = field(default_factory=dict)

    def verdicts(self, index: int) -> Iterator[Verdict]:
        """What becomes of one problem on every implementation that has its dtype."""
        case = once(random_problem(index), dtype_of(index))
        for target in self.selection.targets:
            if target.dtype == case.dtype and index % self.every.get(target.implementation.name, 1) == 0:
                yield self.verdict(target, case, index)

    def verdict(self, target: Target, case: Once, index: int = 0) -> Verdict:
        """What becomes of one problem on one implementation, in the problem's dtype."""
        name, versions = target.implementation.name, self.selection.versions
        judged = judge(target, case, self.pool, self.selection.keywords[name], Ledger(), versions, TIMEOUT)
        result = judged.result
        verdict = Verdict(index, name, target.dtype, str(result.profile), Kind.KEPT, result.share, result.meets)
        if result.outcome is Outcome.UNSUPPORTED:
            return replace(verdict, kind=Kind.UNSUPPORTED, why=result.reason)
        if result.outcome is Outcome.PASSED:
            return verdict
        record = self._excuse(target, case, judged)
        return replace(verdict, kind=Kind.KNOWN if record else Kind.ALARM, why=record or result.reason)

    def _excuse(self, target: Target, case: Once, judged: Judged) -> str:
        """The records that excuse a failure, joined, or "" if they do not excuse all of it."""
        name, dtype, failure = target.implementation.name, target.dtype, judged.result.failure
        records = known.records(name, target.device, dtype, self.ledger, self.selection.versions)
        met = known.triggered(records, case.inputs(dtype), case.expected(dtype))
        spoiled = {each.deviation.id: each.rows for each in met if each.deviation.failure is failure}
        if failure is Failure.VALUE and judged.reply is not None:
            profile = target.implementation.profile(dtype)
            if profile is Profile.STORAGE:
                spoiled[RANGE] = _overflows(case.expected(dtype), dtype)
            wrong = _wrong_rows(judged.reply, case, profile)
            if (wrong & ~np.logical_or.reduce([np.zeros_like(wrong), *spoiled.values()])).any():
                return ""
            spoiled = {record: rows for record, rows in spoiled.items() if (rows & wrong).any()}
        return ", ".join(spoiled)


def _wrong_rows(reply: Reply, case: Once, profile: Profile) -> np.ndarray:
    """The rows with an element outside the bound, (B, Hq, Sq)."""
    wrong = np.zeros(case.expected(case.dtype).lse.shape, bool)
    for comparison in comparisons(reply, case, case.dtype, profile):
        wrong |= comparison.outside.reshape(*wrong.shape, -1).any(axis=3)
    return wrong


def _overflows(expected: Expected, dtype: str) -> np.ndarray:
    """SDPA-26: rows with an allowed score beyond the largest number of the dtype, (B, Hq, Sq)."""
    size = np.maximum(np.abs(expected.raw), np.abs(np.where(expected.allowed, expected.scores, 0.0)))
    return ((size > bounds.LARGEST[dtype]) & expected.allowed).any(axis=3)
