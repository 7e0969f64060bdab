"""The judge: makes a result of a reply to a case.  Pure: a reply and the expected results in, a result out.

It runs nothing, and knows neither targets nor the ledger.  Expected results and bounds come from the case, whose store
keeps them (cases/store.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attention_conformance.conformance.bounds import sdpa as bounds
from attention_conformance.conformance.cases import AnyCase, Case
from attention_conformance.conformance.judging.compare import Comparison, compare, shares
from attention_conformance.conformance.judging.error_pattern import error_pattern, plain
from attention_conformance.conformance.judging.message import comparison_lines, failure_message, share_text, with_lines
from attention_conformance.conformance.judging.outcomes import Failure, Outcome, Result
from attention_conformance.conformance.spec.clauses import Level, clauses
from attention_conformance.impls.calls import Reply
from attention_conformance.impls.contract import Profile
from attention_conformance.impls.operators import WIDE_RESULTS
from attention_conformance.impls.process.pool import Crashed, OutOfMemory, TimedOut

#: Hint on an exception on a valid input: it may have been meant as a refusal.
UNSUPPORTED_HINT = (
    "Hint:     raise NotImplementedError (a program: exit with 77) for what the implementation does not have"
)

#: Hint on an exception about arrays of another kind, and the words of such exceptions.
ARRAYS_HINT = "Hint:     if it takes the arrays of another framework, append @numpy, @torch or @jax to its name"
OTHER_ARRAYS = re.compile(
    r"'(numpy\.ndarray|Tensor|ArrayImpl)' object has no attribute|\b(not|got) (a )?((numpy\.)?ndarray|Tensor|ArrayImpl)"
)


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: its kind, the broken clause, one line, and details."""

    failure: Failure
    broken: str
    reason: str
    details: tuple[str, ...] = ()
    error_pattern: str = ""


def judge(reply: Reply, case: AnyCase, blank: Result, *, every_profile: bool = True) -> Result:
    """The result of a reply.

    Parameters
    ----------
    reply
        Reply of the implementation; its results are in the shapes of the spec.
    case
        The case that it replied to.
    blank
        Result without an outcome: the implementation, and the dtype and the precision profile that decide its bound.
    every_profile
        Whether to list the other profiles that the reply meets; neither the outcome nor the failure depends on it.

    Returns
    -------
    Result
        The result with outcome, failure and message; known deviations are applied later.
    """
    blank = replace(
        blank, run_seconds=reply.run_seconds, prepare_seconds=reply.prepare_seconds, side_effects=reply.side_effects
    )
    if reply.status == "unsupported":
        result = replace(blank, outcome=Outcome.UNSUPPORTED, reason=reply.text)
    elif reply.status == "raised" and case.invalid and not reply.accepted:
        result = replace(blank, reason=reply.text)
    elif case.invalid:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in reply.results.items())
        said = f"what it returned is not a result: {reply.text}" if reply.accepted else f"returned {shapes}"
        details = (f"Accepted: {reply.text or shapes}",)
        result = failed(blank, case, Finding(Failure.NO_ERROR, case.clauses[0], f"accepted, and {said}", details))
    elif reply.status == "raised":
        result = failed(blank, case, raised_exception(reply, case.clauses[0], _hint(reply, blank)))
    else:
        result, finding, _ = compare_results(reply, case, case.expected(blank.dtype), blank, every_profile)
        result = result if finding is None else failed(result, case, finding)
    state = changed_state(reply, case)
    if state is None:
        return result
    if result.outcome is Outcome.FAILED:  # by something worse
        return replace(result, message=with_lines(result.message, state.details))
    return failed(result, case, state) if result.outcome is Outcome.PASSED else result


def _hint(reply: Reply, blank: Result) -> str:
    """The hint for an exception on a valid input of a function, whose name may say whose arrays it takes."""
    may_say = ":" in blank.implementation and "@" not in blank.implementation
    return ARRAYS_HINT if may_say and OTHER_ARRAYS.search(reply.text) else UNSUPPORTED_HINT


def alike(some: Mapping[str, np.ndarray], plain: Mapping[str, np.ndarray], case: AnyCase, blank: Result) -> bool:
    """Whether results equal those of another call of the case within its bound: equal calls need not have equal bits.

    Parameters
    ----------
    some, plain
        Results of two calls, by name.
    case
        The case that both calls are of.
    blank
        Result whose dtype and profile decide the bound.

    Returns
    -------
    bool
        Also False for another shape; a result without a bound of its shape must be equal.
    """
    bounds = vars(case.bound(blank.dtype, Profile(blank.profile or Profile.WIDE)))
    for name, array in plain.items():
        if some[name].shape != array.shape:
            return False
        got, wanted = (each.astype(np.float64) for each in (some[name], array))
        bound = bounds[name] if np.shape(bounds[name]) == wanted.shape else np.zeros_like(wanted)
        if (shares(got, wanted, bound, blank.dtype) > 1).any():
            return False
    return True


def raised_exception(reply: Reply, broken: str, *hints: str) -> Finding:
    """Finding about an exception on a valid input.

    Parameters
    ----------
    reply
        Reply with the exception.
    broken
        The clause that requires a result.
    hints
        Lines that follow the trace.

    Returns
    -------
    Finding
        Failure ERROR.
    """
    trace = (f"          {line}" for line in reply.trace.splitlines())
    return Finding(Failure.ERROR, broken, reply.text, (f"Raised:   {reply.text}", *trace, *hints))


def no_answer(error: Crashed | TimedOut, case: AnyCase) -> Finding:
    """Finding about a process that gave no answer.

    Parameters
    ----------
    error
        Exception that says how the process ended.
    case
        The case.

    Returns
    -------
    Finding
        Failure MEMORY, CRASHED or TIMEOUT.
    """
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


def changed_state(reply: Reply, case: AnyCase) -> Finding | None:
    """(SDPA-29) Finding about process state that a call left changed, or None: later calls must not depend on it.

    Parameters
    ----------
    reply
        Reply to the call.
    case
        The case.

    Returns
    -------
    Finding | None
        Failure STATE.
    """
    if not reply.changed:
        return None
    labels = ("Changed:", *[""] * len(reply.changed))
    details = tuple(f"{label:<9} {each}" for label, each in zip(labels, reply.changed, strict=False))
    return Finding(Failure.STATE, case.blame.unrepeatable, "; ".join(reply.changed), details)


def wrong_form(reply: Reply, case: AnyCase, expected: Any, dtype: str) -> Finding | None:
    """Finding about the shapes and dtypes of the results, or None; ``expected`` has them as attributes.

    Parameters
    ----------
    reply
        Reply to the call.
    case
        The case.
    expected
        The reference's results as attributes, float64.
    dtype
        Dtype of the case.

    Returns
    -------
    Finding | None
        Failure SHAPE or DTYPE.
    """
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
    """The dtypes that a result may have in a case of a dtype; the first gives its range (SDPA-19, SDPA-27, GRAD-36).

    Parameters
    ----------
    name
        Name of the result.
    dtype
        Dtype of the case.

    Returns
    -------
    tuple[str, ...]
        Names of dtypes.
    """
    if name not in WIDE_RESULTS:
        return (dtype,)
    return ("float64",) if dtype == "float64" else ("float32", "float64")


def compare_results(
    reply: Reply, case: AnyCase, expected: Any, blank: Result, every_profile: bool
) -> tuple[Result, Finding | None, Sequence[Comparison]]:
    """Compare results with what is expected: form, values under every profile, modified inputs and unequal repeats.

    The result has the share of the bound and the profiles that are met; what is wrong, if anything, comes separately.

    Parameters
    ----------
    reply
        Reply to the call.
    case
        The case.
    expected
        The reference's results as attributes, float64.
    blank
        The result without an outcome.
    every_profile
        Whether to list the other profiles that the reply meets.

    Returns
    -------
    tuple[Result, Finding | None, Sequence[Comparison]]
        The result with its share; what is wrong, or None; and the comparison of each result with its bound under the
        declared profile, empty for a wrong form.
    """
    finding = wrong_form(reply, case, expected, blank.dtype)
    if finding is not None:
        return blank, finding, ()
    profiles, declared = bounds.profiles(blank.dtype) if every_profile else (), Profile(blank.profile or Profile.WIDE)
    by_profile = {p: comparisons(reply, case, blank.dtype, p) for p in {*profiles, declared}}
    meets = tuple(p.value for p in profiles if all(c.ok for c in by_profile[p]))
    blank = replace(blank, meets=meets, share=max(c.share for c in by_profile[declared]))
    wrong = next((c for c in by_profile[declared] if not c.ok), None)
    if wrong is not None:
        finding = _wrong_value(wrong, reply, case, expected, blank)
    elif reply.modified:
        finding = modified_inputs(reply, case)
    elif reply.unequal:
        reason = f"{', '.join(reply.unequal)} differed between {case.repeats} equal calls"
        finding = Finding(Failure.UNREPEATABLE, case.blame.unrepeatable, reason, (f"Unequal:  {reason}",))
    return blank, finding, by_profile[declared]


def modified_inputs(reply: Reply, case: AnyCase) -> Finding:
    """Finding about a call that modified its inputs.

    Parameters
    ----------
    reply
        Reply to the call.
    case
        The case.

    Returns
    -------
    Finding
        Failure MODIFIED.
    """
    names = ", ".join(reply.modified)
    return Finding(Failure.MODIFIED, case.blame.modified, f"{names} modified", (f"Modified: {names}",))


def comparisons(reply: Reply, case: AnyCase, dtype: str, profile: Profile) -> list[Comparison]:
    """Comparisons of every result with its bound under a profile.

    Parameters
    ----------
    reply
        Reply to the call.
    case
        The case.
    dtype
        Dtype of the case.
    profile
        The intermediates that may be rounded.

    Returns
    -------
    list[Comparison]
        A comparison of each result, in the order of the case.
    """
    expected, bound = case.expected(dtype), case.bound(dtype, profile)
    return [
        compare(name, reply.results[name], getattr(expected, name), getattr(bound, name), dtypes_of(name, dtype)[0])
        for name in case.results()
    ]


def _wrong_value(worst: Comparison, reply: Reply, case: AnyCase, expected: Any, blank: Result) -> Finding:
    broken = case.blame.of_result.get(worst.name) or case.blame.wrong_value(case.clauses)
    details = comparison_lines(case.located(worst), case.axes(worst.name))
    reason = f"{worst.name} {share_text(worst.share)} the bound, {worst.wrong} of {worst.total} elements wrong"
    if blank.meets:
        broken = case.blame.accuracy
        reason += f"; keeps the bound of profile {blank.meets[0]}, declares {blank.profile}"
        details.append(f"Profile:  {blank.profile} is declared; the result keeps the bound of {blank.meets[0]}")
    if case.operator == Case.operator and worst.name == "output":
        pattern = error_pattern(reply.results["output"], expected, worst.outside)
    else:
        pattern = plain(reply.results[worst.name], worst.outside)
    reason = f"{pattern}: {reason}" if pattern else reason
    details += [f"Pattern:  the wrong elements are {pattern}"] if pattern else []
    return Finding(Failure.VALUE, broken, reason, tuple(details), pattern)


def failed(blank: Result, case: AnyCase, finding: Finding) -> Result:
    """The result of a finding: a failure, or an advisory where the case's own clause only says SHOULD.

    Parameters
    ----------
    blank
        The result without an outcome.
    case
        The case.
    finding
        Finding that says what is wrong.

    Returns
    -------
    Result
        Outcome FAILED or ADVISORY, with its message.
    """
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
