"""What a fault gives on a case, and whether a failed result equals that.

"Equals" is decided by error bounds alone: both results are within the bound of what the fault computes exactly, so they
differ by at most twice that bound.  The bound of a fault's result comes from its own scores and weights in float64.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, fields, replace

import numpy as np

from conformance import bounds
from conformance.cases import Case, all_cases
from conformance.compare import compare
from conformance.faults.anatomy import Attention, Inputs
from conformance.judge import comparisons, request, result_of
from conformance.outcomes import Failure, Outcome, Result
from impls.calls import Reply, call
from impls.contract import Implementation, Profile

#: What a trial is called as; its function is given with each call.
_TRIAL = Implementation("trial", "trial:none")

#: A result whose median element is farther off than this, against the largest bound and the largest element, is not
#: compared further.  Only saves time: a bound of the fault itself that is so much larger would say nothing.
COARSE_BOUNDS, COARSE_SIZE = 16.0, 2.0**-6

#: Trials that are kept, and the elements of q, k and v above which one is not: a few hundred MB at most.
TRIALS, KEPT = 30_000, 20_000


@dataclass(frozen=True, eq=False)
class Failed:
    """A failed case, as far as a diagnosis needs it."""

    case: Case
    dtype: str
    profile: Profile
    failure: Failure
    reply: Reply

    @property
    def size(self) -> tuple[int, str]:
        """Orders failures from small to large."""
        return self.case.size

    @functools.cached_property
    def telling(self) -> bool:
        """Whether there is a wrong number to compare: NaN for NaN many mistakes have in common."""
        if self.failure is not Failure.VALUE:
            return True
        compared = comparisons(self.reply, self.case, self.dtype, self.profile)
        return any((c.outside & np.isfinite(self.reply.results[c.name].astype(np.float64))).any() for c in compared)


def trial(make: type[Attention], case: Case, dtype: str, profile: Profile) -> tuple[Reply, Failure | None]:
    """What a new instance of a faulty attention replies to a case, and in which way that fails it, if it does.

    The case that comes before it, if there is one, is called first.
    """
    if case.size[0] > KEPT:
        return _trial(make, case, dtype, profile)
    return _kept_trial(make, case, dtype, profile)  # type: ignore[arg-type]  # a class is hashable


def _trial(make: type[Attention], case: Case, dtype: str, profile: Profile) -> tuple[Reply, Failure | None]:
    function = make()
    if case.after:
        call(_TRIAL, request(all_cases()[case.after], dtype, "cpu"), function)
    reply = call(_TRIAL, request(case, dtype, "cpu"), function)
    blank = Result("trial", "cpu", dtype, case.name, case.clauses, Outcome.PASSED, profile=profile)
    return reply, result_of(reply, case, blank).failure


_kept_trial = functools.lru_cache(maxsize=TRIALS)(_trial)


def fails(make: type[Attention], case: Case, dtype: str, profile: Profile) -> bool:
    """Whether the fault shows on a case."""
    return trial(make, case, dtype, profile)[1] is not None


def explains(make: type[Attention], failed: Failed) -> bool:
    """Whether a faulty attention fails the case in the same way, with equal results."""
    reply, failure = trial(make, failed.case, failed.dtype, failed.profile)
    if failure is not failed.failure or not _same_form(reply, failed.reply):
        return False
    return failure is not Failure.VALUE or (_near(reply, failed) and _equal_values(reply, failed, make))


def _same_form(reply: Reply, got: Reply) -> bool:
    """Whether both raised, or both returned results of one shape and dtype and treated their inputs alike."""
    if (reply.status, reply.modified, reply.unequal) != (got.status, got.modified, got.unequal):
        return False
    return all((a.shape, a.dtype) == (got.results[n].shape, got.results[n].dtype) for n, a in reply.results.items())


def _near(reply: Reply, failed: Failed) -> bool:
    """Whether a close comparison is worth its time."""
    own = failed.case.bound(failed.dtype, failed.profile)
    for name, array in reply.results.items():
        got, wrong = failed.reply.results[name].astype(np.float64), array.astype(np.float64)
        finite = np.isfinite(got)
        if not np.array_equal(finite, np.isfinite(wrong)):
            return False
        if finite.any():
            distance, size = np.abs(got[finite] - wrong[finite]), np.abs(wrong[finite]).max()
            limit = np.nan_to_num(getattr(own, name), posinf=np.inf).max(initial=0)
            if np.median(distance) > COARSE_BOUNDS * limit + COARSE_SIZE * size:
                return False
    return True


def _equal_values(reply: Reply, failed: Failed, make: type[Attention]) -> bool:
    own, of_fault = failed.case.bound(failed.dtype, failed.profile), _bound(make, failed)
    for name, array in reply.results.items():
        got, wrong = failed.reply.results[name].astype(np.float64), array.astype(np.float64)
        limit = 2 * np.fmax(getattr(of_fault, name), getattr(own, name))
        stored = failed.dtype if name != "lse" or failed.dtype == "float64" else "float32"
        if not compare(name, got, wrong, limit, stored).ok:
            return False
    return True


def _bound(make: type[Attention], failed: Failed) -> bounds.Bound:
    """The error bound of what the fault computes."""
    inputs = failed.case.inputs(failed.dtype)
    known = {f.name for f in fields(Inputs)}
    x = Inputs(inputs.q, inputs.k, inputs.v, **{n: v for n, v in inputs.keywords.items() if n in known})
    with np.errstate(all="ignore"):
        found = make().attend(x)
        # Where a fault gives a weight to a masked key, that weight counts, and its logarithm is the score.
        leaks = ~found.allowed & (found.weights > 0)
        scores = np.where(leaks, np.log(np.where(leaks, found.weights, 1.0)), found.scores)
        found = replace(found, allowed=found.allowed | leaks, scores=scores)
    options = {n: inputs.keywords[n] for n in ("scale", "softcap", "bias") if n in inputs.keywords}
    try:
        return bounds.bound(found, bounds.Options(**options), failed.dtype, failed.profile)
    except ValueError:  # results of another shape than the operator's have no bound of their own
        return failed.case.bound(failed.dtype, failed.profile)
