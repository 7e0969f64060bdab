"""Random problems on correct implementations: which of them leave the bound of the profile that they declare.

Every problem goes the way of every case (conformance.judging): the implementation's process, a request, a reply, all
results against the reference and its bound.  A failure is a false alarm unless it is excused (excuses.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from conformance.deviations import Ledger
from conformance.evidence.excuses import excuse
from conformance.evidence.once import once
from conformance.evidence.series import SDPA, Series
from conformance.judging.run_case import judge_case
from conformance.outcomes import Outcome
from conformance.targets import Selection, Target
from impls.process.pool import Pool

#: Seconds for one problem on one implementation, compilation included.
TIMEOUT = 120.0


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


@dataclass(frozen=True)
class Jury:
    """The implementations of a run, their processes, and what is known of them."""

    pool: Pool
    selection: Selection
    ledger: Ledger
    series: Series = SDPA

    def verdicts(self, index: int) -> Iterator[Verdict]:
        """What becomes of one problem on every implementation that has its dtype."""
        case = once(self.series.problem(index), self.series.dtype(index))
        for target in self.selection.targets:
            if target.dtype in case.dtypes and index % self.series.every.get(target.implementation.name, 1) == 0:
                yield self.verdict(target, case, index)

    def verdict(self, target: Target, case: Any, index: int = 0) -> Verdict:
        """What becomes of one problem on one implementation, in the problem's dtype."""
        name, versions = target.implementation.name, self.selection.versions
        judged = judge_case(target, case, self.pool, self.selection.keywords[name], Ledger(), versions, TIMEOUT)
        result = judged.result
        verdict = Verdict(index, name, target.dtype, str(result.profile), Kind.KEPT, result.share, result.meets)
        if result.outcome is Outcome.UNSUPPORTED:
            return replace(verdict, kind=Kind.UNSUPPORTED, why=result.reason)
        if result.outcome is Outcome.PASSED:
            return verdict
        record = excuse(target, case, judged, self.ledger, versions)
        return replace(verdict, kind=Kind.KNOWN if record else Kind.ALARM, why=record or result.reason)
