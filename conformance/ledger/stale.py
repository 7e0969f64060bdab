"""Stale records: those that result files show to be gone, in whole or in part, and those that they do not exercise.

What a run said about the ledger is ignored: each result that a record covers shows the recorded failure, or shows that
it is gone, whatever ledger was in force when the file was written.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from attention_conformance.conformance.judging.outcomes import Failure, Outcome, Result
from attention_conformance.conformance.ledger.load import Deviation, Ledger
from attention_conformance.conformance.ledger.versions import PROCESSOR, counted_version
from attention_conformance.conformance.results import Run


class Standing(StrEnum):
    """Standing of a record, as result files show it."""

    HOLDS = "holds"
    GONE = "gone"
    PARTLY_GONE = "partly gone"
    NOT_EXERCISED = "not exercised"


@dataclass(frozen=True)
class Verdict:
    """Verdict on a record from result files, with notes on what to do or why it was not exercised."""

    record: Deviation
    standing: Standing
    notes: tuple[str, ...] = ()

    def text(self) -> str:
        """The record's name with its standing, and a line for each note."""
        return "\n".join([f"{self.standing.value}: {self.record.name}", *(f"  {note}" for note in self.notes)])


@dataclass(frozen=True)
class _Shown:
    """A result that a record covers, with the package version that was run."""

    result: Result
    version: str
    holds: bool
    #: The outcome in words, used if the record does not hold.
    became: str


def stale(runs: Sequence[Run], ledger: Ledger) -> list[Verdict]:
    """A verdict for each record, in the order of the ledger."""
    return [_verdict(record, runs) for record in ledger.deviations]


def _verdict(record: Deviation, runs: Sequence[Run]) -> Verdict:
    shown = [
        _Shown(result, run.header.versions[record.package], _holds(result, record), _became(result, record))
        for run in runs
        if record.in_force(run.header.versions)
        for result in _covered(record, run)
    ]
    if not shown:
        return Verdict(record, Standing.NOT_EXERCISED, tuple(dict.fromkeys(_why_not(record, run) for run in runs)))
    gone = [each for each in shown if not each.holds]
    if not gone:
        return Verdict(record, Standing.HOLDS)
    if record.seen and all(each.result.outcome is Outcome.PASSED for each in gone):
        if len(gone) < len(shown):
            return Verdict(record, Standing.HOLDS)
        if len(gone) < record.enough:
            few = (
                f"{len(gone)} passed; seen in {record.seen}, so it takes {record.enough} passes to show that it is gone"
            )
            return Verdict(record, Standing.NOT_EXERCISED, (few,))
    if len(gone) == len(shown):
        return Verdict(record, Standing.GONE, (f"remove it: {_instead(gone)}",))
    return Verdict(record, Standing.PARTLY_GONE, tuple(_narrow(gone, [each for each in shown if each.holds])))


def _covered(record: Deviation, run: Run) -> list[Result]:
    """The results that a record covers; globs are tried once per implementation, as there are thousands of results."""
    of = {name for name in {result.implementation for result in run.results} if record.speaks_of(name)}
    mine = (result for result in run.results if result.implementation in of)
    return [each for each in mine if record.covers(each.implementation, each.device, each.dtype, each.case)]


def _holds(result: Result, record: Deviation) -> bool:
    """Whether a result fails as the record says, whether or not a ledger was applied.

    A known deviation has the ledger's words instead of the exception's, which were compared when it became one.
    """
    if result.outcome is Outcome.KNOWN_DEVIATION:
        return result.failure is record.failure
    return result.outcome is Outcome.FAILED and record.shown_by(result)


def _narrow(gone: Sequence[_Shown], holding: Sequence[_Shown]) -> Iterable[str]:
    """Implementations, then cases, to remove from a record as they no longer show it, and then single results."""
    for name in sorted({g.result.implementation for g in gone} - {h.result.implementation for h in holding}):
        which = [g for g in gone if g.result.implementation == name]
        gone = [g for g in gone if g not in which]
        yield f"remove implementation {name}: {_instead(which)}"
    for case in sorted({g.result.case for g in gone} - {h.result.case for h in holding}):
        which = [g for g in gone if g.result.case == case]
        gone = [g for g in gone if g not in which]
        yield f"remove case {case}: {_instead(which)}"
    for each in gone:
        result = each.result
        yield (
            f"narrow it: case {result.case} of {result.implementation} on {result.device} in {result.dtype},"
            f" version {each.version}: {_instead([each])}"
        )


def _instead(gone: Sequence[_Shown]) -> str:
    """Outcome of the results instead: "passed", "unsupported", or another failure."""
    return ", ".join(dict.fromkeys(each.became for each in gone))


def _became(result: Result, record: Deviation) -> str:
    if result.outcome is not Outcome.FAILED or result.failure is None:
        return result.outcome.value
    if result.failure is Failure.STALE:  # with the case's outcome in brackets
        return result.reason.partition("(")[2].partition(")")[0] or Outcome.PASSED.value
    words = f" that does not say {record.says!r}" if result.failure is record.failure else ""
    return f"fails by {result.failure.value}{words}"


def _why_not(record: Deviation, run: Run) -> str:
    """Reason why a file does not exercise a record: the first thing that is missing."""
    versions = run.header.versions
    named = [result for result in run.results if record.speaks_of(result.implementation)]
    missing = [name for name in run.header.not_installed if record.speaks_of(name)]
    if not named:
        return f"not installed: {', '.join(missing)}" if missing else "none of its implementations was run"
    if record.package not in versions:
        return f"the file does not say which version of {record.package} was run"
    if not record.of_processor(versions):
        return f"processor not in force: {versions[PROCESSOR]} is not one of {', '.join(record.processors)}"
    if not record.in_force(versions):
        version = versions[record.package]
        no = "is not one of" if counted_version(version) else "is no version (PEP 440), so not one of"
        return f"version not in force: {record.package} {version} {no} {record.versions}"
    if record.devices and not any(result.device in record.devices for result in named):
        return f"device not run: {', '.join(record.devices)}"
    if record.dtypes and not any(result.dtype in record.dtypes for result in named):
        return f"dtype not run: {', '.join(record.dtypes)}"
    return "none of its cases was run"
