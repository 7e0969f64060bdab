"""The ledger applied to a result: a failure that a record expects is a known deviation, and a vanished one fails."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from attention_conformance.conformance.cases import AnyCase
from attention_conformance.conformance.judging.message import failure_message
from attention_conformance.conformance.judging.outcomes import Failure, Outcome, Result
from attention_conformance.conformance.ledger.load import Ledger


def apply(ledger: Ledger, result: Result, case: AnyCase, versions: Mapping[str, str]) -> Result:
    """The result as the record about it says, or unchanged if no record is in force for these versions.

    A pass stays a pass, with a note, if the record's deviation is intermittent: only many results together show that it
    is gone (``ledger stale``).

    Parameters
    ----------
    ledger
        Known deviations.
    result
        Result of a case, or of a clause that takes several calls.
    case
        The case, or the one that the calls were made from.
    versions
        Versions of the packages, which decide whether a record is in force.

    Returns
    -------
    Result
        The result with its final outcome.
    """
    deviation = ledger.find(result.implementation, result.device, result.dtype, result.case, versions)
    if deviation is None:
        return result
    if result.outcome is Outcome.FAILED and deviation.shown_by(result):
        return replace(
            result,
            outcome=Outcome.KNOWN_DEVIATION,
            broken=deviation.clause,
            reason=f"{deviation.instead} [{deviation.id}]",
        )
    if result.outcome is Outcome.PASSED and deviation.seen:
        return replace(result, reason=f"a deviation that was seen in {deviation.seen} did not show [{deviation.id}]")
    if result.outcome is Outcome.FAILED:
        kind = result.failure.value if result.failure else ""
        other = f"not by {kind}" if result.failure is not deviation.failure else f"and to say {deviation.says!r}"
        note = f"Ledger:   record {deviation.name} expects it to fail by {deviation.failure.value}, {other}"
        return replace(result, message=f"{result.message}\n{note}")
    reason = f"the deviation is gone ({result.outcome.value}): remove record {deviation.name}, or narrow what it covers"
    stale = replace(result, outcome=Outcome.FAILED, failure=Failure.STALE, broken=deviation.clause, reason=reason)
    details = (f"Ledger:   {reason}", f"          it says: {deviation.instead}")
    return replace(stale, message=failure_message(stale, case, details))
