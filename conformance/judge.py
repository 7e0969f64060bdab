"""Judging one case on one target: run it, compare every result, name the broken clause, consult the ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from conformance import bounds
from conformance.cases import AnyCase, Case, every_case
from conformance.clauses import Level, clauses
from conformance.compare import Comparison, compare
from conformance.deviations import Deviation, Ledger
from conformance.message import comparison_lines, failure_message, share_text, with_lines
from conformance.outcomes import Failure, Outcome, Result
from conformance.resembles import plain, resembles
from conformance.targets import Target
from impls.calls import Reply, Request
from impls.contract import Profile
from impls.process.limits import KEPT, size_text
from impls.process.pool import Crashed, OutOfMemory, Pool, TimedOut

#: How the reason of a case begins whose keyword the implementation's signature has not.
LACKING = "no keyword "

#: What an exception on a valid input may have been meant to be.
UNSUPPORTED_HINT = (
    "Hint:     raise NotImplementedError (a program: exit with 77) for what the implementation does not have"
)


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: in which way, against which clause, in one line and in detail."""

    failure: Failure
    broken: str
    reason: str
    details: tuple[str, ...] = ()
    #: What a wrong output looks like, "" for nothing known.
    error_pattern: str = ""


@dataclass(frozen=True)
class Judged:
    """A result, and the reply that it was made from where there was one."""

    result: Result
    reply: Reply | None = None


def judge(
    target: Target,
    case: AnyCase,
    pool: Pool,
    keywords: frozenset[str],
    ledger: Ledger,
    versions: Mapping[str, str],
    timeout: float | None,
) -> Judged:
    """What becomes of one case on one target.  Never raises for what the implementation does."""
    blank = blank_of(target, case)
    lacking = sorted(case.keywords - keywords)
    if lacking:
        judged = Judged(replace(blank, outcome=Outcome.UNSUPPORTED, reason=f"{LACKING}{', '.join(lacking)}"))
    else:
        judged = _run(target, case, pool, timeout, blank)
    deviation = ledger.find(blank.implementation, blank.device, blank.dtype, case.name, versions)
    return judged if deviation is None else Judged(_against_ledger(judged.result, case, deviation), judged.reply)


def blank_of(target: Target, case: AnyCase) -> Result:
    """What is known of a result before the case is run."""
    return Result(
        implementation=target.implementation.name,
        device=target.device,
        dtype=target.dtype,
        case=case.name,
        clauses=case.clauses,
        outcome=Outcome.PASSED,
        profile=target.implementation.profile(target.dtype).value,
    )


def reply_of(target: Target, case: AnyCase, pool: Pool, timeout: float | None) -> Reply:
    """The reply to a case, after the call that comes before it, if there is one.  Raises Crashed or TimedOut."""
    if case.after:
        ask(target, request(every_case()[case.after], target.dtype, target.device), pool, timeout)
    return ask(target, request(case, target.dtype, target.device), pool, timeout)


def _run(target: Target, case: AnyCase, pool: Pool, timeout: float | None, blank: Result) -> Judged:
    try:
        reply = reply_of(target, case, pool, timeout)
    except (Crashed, TimedOut) as error:
        return Judged(_failed(blank, case, unanswered(error, case)))
    return Judged(result_of(reply, case, blank), reply)


def unanswered(error: Crashed | TimedOut, case: AnyCase) -> Finding:
    """What is wrong where a worker gave no answer."""
    failure, label = next((failure, label) for kind, failure, label in _NO_ANSWER if isinstance(error, kind))
    last = error.stderr.splitlines() if isinstance(error, Crashed) else []
    details = (f"{label:<9} {error}", *(f"          {line}" for line in last))
    return Finding(failure, case.clauses[0], str(error), details)


#: The first that fits.
_NO_ANSWER = (
    (OutOfMemory, Failure.MEMORY, "Memory:"),
    (Crashed, Failure.CRASHED, "Crashed:"),
    (TimedOut, Failure.TIMEOUT, "Timeout:"),
)


def request(case: AnyCase, dtype: str, device: str) -> Request:
    """What a worker is asked for a case."""
    inputs = case.inputs(dtype)
    return Request(device, inputs.arrays, dict(inputs.keywords), memory=case.memory, repeats=case.repeats)


def ask(target: Target, asked: Request, pool: Pool, timeout: float | None) -> Reply:
    """The reply of a target's worker, which goes if the next call would suffer from it.  Raises Crashed or TimedOut."""
    reply: Reply = pool.call(target.implementation, "impls.calls:call", target.implementation, asked, timeout=timeout)
    if reply.spoilt:
        pool.end(target.implementation)
    if pool.memory is not None and reply.resident > KEPT * pool.memory:
        pool.end(target.implementation)
        kept = f"memory kept: {size_text(reply.resident)} after the call, so the next one gets a fresh process"
        return replace(reply, remarks=(*reply.remarks, kept))
    return reply


def result_of(reply: Reply, case: AnyCase, blank: Result) -> Result:
    """The result that a reply amounts to; ``blank`` holds what is known before."""
    blank = replace(
        blank, run_seconds=reply.run_seconds, prepare_seconds=reply.prepare_seconds, side_effects=reply.remarks
    )
    result = _result_of(reply, case, blank)
    state = changed(reply, case)
    if state is None:
        return result
    if result.outcome is Outcome.FAILED:  # by something worse
        return replace(result, message=with_lines(result.message, state.details))
    return _failed(result, case, state) if result.outcome is Outcome.PASSED else result


def changed(reply: Reply, case: AnyCase) -> Finding | None:
    """What a call left changed in its process, or None: later calls depend on it, as SDPA-29 says they must not."""
    if not reply.changed:
        return None
    labels = ("Changed:", *[""] * len(reply.changed))
    details = tuple(f"{label:<9} {each}" for label, each in zip(labels, reply.changed, strict=False))
    return Finding(Failure.STATE, case.blame.unrepeatable, "; ".join(reply.changed), details)


def _result_of(reply: Reply, case: AnyCase, blank: Result) -> Result:
    if reply.status == "unsupported":
        return replace(blank, outcome=Outcome.UNSUPPORTED, reason=reply.text)
    if case.invalid:
        if reply.status == "raised":
            return replace(blank, reason=reply.text)
        shapes = ", ".join(f"{name} {array.shape}" for name, array in reply.results.items())
        reason = f"accepted, and returned {shapes}"
        return _failed(blank, case, Finding(Failure.NO_ERROR, case.clauses[0], reason, (f"Accepted: {shapes}",)))
    if reply.status == "raised":
        trace = (*(f"          {line}" for line in reply.trace.splitlines()), UNSUPPORTED_HINT)
        return _failed(
            blank, case, Finding(Failure.ERROR, case.clauses[0], reply.text, (f"Raised:   {reply.text}", *trace))
        )
    finding = malformed(reply, case, blank.dtype)
    if finding is not None:
        return _failed(blank, case, finding)
    return _values(reply, case, blank, Profile(blank.profile or Profile.WIDE))


def malformed(reply: Reply, case: AnyCase, dtype: str) -> Finding | None:
    """What is wrong with the shapes and dtypes of the results, or None."""
    expected = case.expected(dtype)
    for name in case.results():
        got, wanted = reply.results[name], getattr(expected, name)
        if got.shape != wanted.shape:
            reason = f"{name} has shape {got.shape}, expected {wanted.shape}"
            return Finding(Failure.SHAPE, case.blame.shape, reason, (f"Shape:    {reason}",))
        allowed = dtypes_of(name, dtype)
        if str(got.dtype) not in allowed:
            reason = f"{name} has dtype {got.dtype}, expected {' or '.join(allowed)}"
            broken = case.blame.of_result[name] if name == "lse" else case.blame.dtype
            return Finding(Failure.DTYPE, broken, reason, (f"Dtype:    {reason}",))
    return None


def dtypes_of(name: str, dtype: str) -> tuple[str, ...]:
    """The dtypes that a result may have in a case of a dtype; it has the range of the first (SDPA-19, SDPA-27)."""
    if name != "lse":
        return (dtype,)
    return ("float64",) if dtype == "float64" else ("float32", "float64")


def _values(reply: Reply, case: AnyCase, blank: Result, declared: Profile) -> Result:
    profiles = bounds.profiles(blank.dtype)
    by_profile = {p: comparisons(reply, case, blank.dtype, p) for p in {*profiles, declared}}
    meets = tuple(p.value for p in profiles if all(c.ok for c in by_profile[p]))
    compared = by_profile[declared]
    blank = replace(blank, meets=meets, share=max(c.share for c in compared))
    wrong = [c for c in compared if not c.ok]
    if wrong:
        return _failed(blank, case, _value_finding(wrong[0], reply, case, blank, meets))
    if reply.modified:
        names = ", ".join(reply.modified)
        reason = f"{names} modified"
        return _failed(blank, case, Finding(Failure.MODIFIED, case.blame.modified, reason, (f"Modified: {names}",)))
    if reply.unequal:
        names = ", ".join(reply.unequal)
        reason = f"{names} differed between {case.repeats} equal calls"
        return _failed(
            blank, case, Finding(Failure.UNREPEATABLE, case.blame.unrepeatable, reason, (f"Unequal:  {reason}",))
        )
    return blank


def comparisons(reply: Reply, case: AnyCase, dtype: str, profile: Profile) -> list[Comparison]:
    """Every result against its bound under a profile."""
    expected, bound = case.expected(dtype), case.bound(dtype, profile)
    return [
        compare(name, reply.results[name], getattr(expected, name), getattr(bound, name), dtypes_of(name, dtype)[0])
        for name in case.results()
    ]


def _value_finding(worst: Comparison, reply: Reply, case: AnyCase, blank: Result, meets: Sequence[str]) -> Finding:
    broken = case.blame.of_result.get(worst.name) or case.blame.wrong_value(case.clauses)
    details = comparison_lines(worst, case.axes(worst.name))
    reason = f"{worst.name} {share_text(worst.share)} the bound, {worst.wrong} of {worst.total} elements wrong"
    if meets:
        broken = case.blame.accuracy
        reason += f"; keeps the bound of profile {meets[0]}, declares {blank.profile}"
        details.append(f"Profile:  {blank.profile} is declared; the result keeps the bound of {meets[0]}")
    if case.operator == Case.operator and worst.name == "output":
        pattern = resembles(reply.results["output"], case.expected(blank.dtype), worst.outside)
    else:
        pattern = plain(reply.results[worst.name], worst.outside)
    reason = f"{pattern}: {reason}" if pattern else reason
    details += [f"Pattern:  the wrong elements are {pattern}"] if pattern else []
    return Finding(Failure.VALUE, broken, reason, tuple(details), pattern)


def _failed(blank: Result, case: AnyCase, finding: Finding) -> Result:
    """A failure, or an advice where the case's own clause only says SHOULD."""
    should = clauses()[case.clauses[0]].level is Level.SHOULD and finding.failure is Failure.VALUE
    result = replace(
        blank,
        outcome=Outcome.ADVISORY if should else Outcome.FAILED,
        failure=finding.failure,
        broken=finding.broken,
        reason=finding.reason,
        error_pattern=finding.error_pattern,
    )
    return replace(result, message=failure_message(result, case, finding.details))


def _against_ledger(result: Result, case: AnyCase, deviation: Deviation) -> Result:
    if result.outcome is Outcome.FAILED and result.failure is deviation.failure:
        return replace(
            result,
            outcome=Outcome.KNOWN_DEVIATION,
            broken=deviation.clause,
            reason=f"{deviation.instead} [{deviation.id}]",
        )
    if result.outcome is Outcome.FAILED:
        kind = result.failure.value if result.failure else ""
        note = f"Ledger:   record {deviation.name} expects it to fail by {deviation.failure.value}, not by {kind}"
        return replace(result, message=f"{result.message}\n{note}")
    reason = f"the deviation is gone ({result.outcome.value}): remove record {deviation.name}, or narrow what it covers"
    stale = replace(result, outcome=Outcome.FAILED, failure=Failure.STALE, broken=deviation.clause, reason=reason)
    details = (f"Ledger:   {reason}", f"          it says: {deviation.instead}")
    return replace(stale, message=failure_message(stale, case, details))
