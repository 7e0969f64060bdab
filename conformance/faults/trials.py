"""Trials of faults on cases: the reply, the verdict on it, and whether a failed result equals it.

"Equals" is decided only by error bounds: both results are within the bound of what the fault computes exactly, so they
differ by at most twice that bound.  The bound of a fault's result comes from its own intermediate results in float64,
for a layer from those of every operator inside it; where these have no bound, it comes from the case.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from attention_conformance.conformance.bounds import sdpa as bounds
from attention_conformance.conformance.bounds.mha import bound as bound_of_layer
from attention_conformance.conformance.cases import AnyCase
from attention_conformance.conformance.faults.models.mha import Layer, LayerCall
from attention_conformance.conformance.faults.models.sdpa import Array, Attention, Inputs, Model
from attention_conformance.conformance.faults.models.steps import correct, unchanged
from attention_conformance.conformance.judging.compare import shares
from attention_conformance.conformance.judging.judge import comparisons, judge
from attention_conformance.conformance.judging.outcomes import Failure, Outcome, Result
from attention_conformance.conformance.run_case import request
from attention_conformance.conformance.spec.mha import SublayerExpected
from attention_conformance.conformance.spec.sdpa import Expected
from attention_conformance.impls.calls import Reply, call
from attention_conformance.impls.contract import Implementation, Profile
from attention_conformance.impls.operators import OPERATORS, WIDE_RESULTS

#: The implementation that stands for a trial of each operator; its function is passed with each call.
_TRIAL = {name: Implementation("trial", "trial:none", operator=name) for name in OPERATORS}

#: A result is not compared further if most of its elements are off by more than these multiples of the largest bound
#: and of the largest element, added up.  This only saves time: a bound of the fault that much larger would say nothing.
COARSE_BOUNDS, COARSE_SIZE = 16.0, 2.0**-6

#: Number of trials that are kept, and elements of q, k and v above which none is kept: a few hundred MB at most.
TRIALS, KEPT = 30_000, 20_000

#: Number of bounds of faults that are kept.
BOUNDS = 1000


class Verdict(NamedTuple):
    """The outcome of a result, without its text."""

    outcome: Outcome
    failure: Failure | None


#: Verdicts by case, dtype, profile and a digest of the reply: most faults return the same bits on most cases.
_GIVEN: dict[tuple[AnyCase, str, str | None, bytes], Verdict] = {}


class Numbers(NamedTuple):
    """Numbers of a failed result: which are finite, the finite ones in float64, and the largest bound of the case."""

    finite: np.ndarray
    values: np.ndarray
    limit: float


#: Results without a bound, for an invalid input or of another shape, are the same if they differ by at most the first,
#: or by at most the second in units in the last place: their numbers are around 1, mostly in float32.
ALIKE, ALIKE_UNITS = 1e-3, 2


@dataclass(frozen=True, eq=False)
class Failed:
    """A failed case, as far as a diagnosis needs it."""

    case: AnyCase
    dtype: str
    profile: Profile
    failure: Failure
    reply: Reply

    @property
    def size(self) -> tuple[int, str]:
        """Orders failures from small to large."""
        return self.case.size

    @functools.cached_property
    def numbers(self) -> dict[str, Numbers]:
        """The results, by name."""
        own, found = self.case.bound(self.dtype, self.profile), {}
        for name, array in self.reply.results.items():
            values = array.astype(np.float64)
            limit = np.nan_to_num(getattr(own, name), posinf=np.inf).max(initial=0)
            found[name] = Numbers(finite := np.isfinite(values), values[finite], float(limit))
        return found

    @functools.cached_property
    def telling(self) -> bool:
        """Whether there is a wrong finite number to compare: many mistakes have the same NaN in common."""
        if self.failure is not Failure.VALUE:
            return True
        compared = comparisons(self.reply, self.case, self.dtype, self.profile)
        return any((c.outside & np.isfinite(self.reply.results[c.name].astype(np.float64))).any() for c in compared)

    @functools.cached_property
    def partly_nan(self) -> bool:
        """Whether some numbers of a result are finite and others are not: their places tell mistakes apart."""
        finite = [np.isfinite(array.astype(np.float64)) for array in self.reply.results.values()]
        return any(each.any() and not each.all() for each in finite)


def verdict(reply: Reply, case: AnyCase, blank: Result) -> Verdict:
    """The judge's verdict on a reply to a case; it depends only on what is in the key."""
    key = (case, blank.dtype, blank.profile, _digest(reply))
    if key not in _GIVEN:
        result = judge(reply, case, blank, every_profile=False)
        _GIVEN[key] = Verdict(result.outcome, result.failure)
    return _GIVEN[key]


def _digest(reply: Reply) -> bytes:
    """Digest of everything in a reply that a verdict may depend on."""
    digest = hashlib.blake2b(digest_size=16)
    words = (reply.status, reply.modified, reply.unequal, reply.changed)
    arrays = {name: (str(array.dtype), array.shape) for name, array in reply.results.items()}
    digest.update(repr((words, arrays)).encode())
    for array in reply.results.values():
        digest.update(array.tobytes())
    return digest.digest()


@dataclass(frozen=True, eq=False)
class Trial:
    """A reply of a fault to a case, and the verdict on it, which is computed when it is first needed."""

    reply: Reply
    case: AnyCase
    dtype: str
    profile: Profile
    #: The correct model that gave the reply, where the fault does not show in any step; else None.
    correct: type[Model] | None = None

    @functools.cached_property
    def verdict(self) -> Verdict:
        """The judge's verdict."""
        if self.correct is not None:
            return _verdict_on_correct(self.correct, self.case, self.dtype, self.profile)  # type: ignore[arg-type]
        return verdict(self.reply, self.case, _blank(self.case, self.dtype, self.profile))


def _blank(case: AnyCase, dtype: str, profile: Profile) -> Result:
    return Result("trial", "cpu", dtype, case.name, case.clauses, Outcome.PASSED, profile=profile)


@functools.cache
def _verdict_on_correct(make: type[Model], case: AnyCase, dtype: str, profile: Profile) -> Verdict:
    reply = unchanged(make, case, dtype)
    assert reply is not None  # a correct model differs from itself in no step
    return verdict(reply, case, _blank(case, dtype, profile))


def trial(make: type[Model], case: AnyCase, dtype: str, profile: Profile) -> Trial:
    """Reply of a new instance of a fault to a case of its operator.

    If the case has one that comes before it, that one is called first.
    """
    if case.size[0] > KEPT:
        return _trial(make, case, dtype, profile)
    return _kept_trial(make, case, dtype, profile)  # type: ignore[arg-type]  # a class is hashable


def _trial(make: type[Model], case: AnyCase, dtype: str, profile: Profile) -> Trial:
    reply = unchanged(make, case, dtype)
    if reply is not None:
        return Trial(_of_case(reply, case), case, dtype, profile, correct(make))
    return _called(make, case, dtype, profile)


def _called(make: type[Model], case: AnyCase, dtype: str, profile: Profile) -> Trial:
    function = make()
    earlier = case.earlier()
    if earlier is not None and not earlier.unfit:
        call(_TRIAL[case.operator], request(earlier, dtype, "cpu"), function)
    reply = call(_TRIAL[case.operator], request(case, dtype, "cpu"), function)
    return Trial(_of_case(reply, case), case, dtype, profile)


def _of_case(reply: Reply, case: AnyCase) -> Reply:
    """The reply with only the results that the case has: a user's own call may give some of those of its operator."""
    if len(reply.results) <= len(case.results()):
        return reply
    return replace(reply, results={n: a for n, a in reply.results.items() if n in case.results()})


_kept_trial = functools.lru_cache(maxsize=TRIALS)(_trial)


def fails(make: type[Model], case: AnyCase, dtype: str, profile: Profile) -> bool:
    """Whether the fault shows on a case; one of another operator never does."""
    return make.operator == case.operator and trial(make, case, dtype, profile).verdict.failure is not None


def explains(make: type[Model], failed: Failed, *, once: bool = False) -> bool:
    """Whether a fault, of the case's operator, fails the case in the same way, with equal results.

    With ``once`` the fault is called directly, and its reply is not kept: for one of thousands that all show on a case.
    """
    if make.operator != failed.case.operator:
        return False
    found = (_called if once else trial)(make, failed.case, failed.dtype, failed.profile)
    if found.correct is not None and found.verdict.failure is not failed.failure:
        return False
    if not _same_form(found.reply, failed.reply):
        return False
    if failed.failure is Failure.VALUE and not _near(found.reply, failed):  # before the verdict, which takes longer
        return False
    if found.verdict.failure is not failed.failure:
        return False
    if failed.failure in (Failure.NO_ERROR, Failure.SHAPE):
        return _alike(found.reply, failed.reply)
    return failed.failure is not Failure.VALUE or _equal_values(found.reply, failed, make)


def _alike(reply: Reply, got: Reply) -> bool:
    """Whether results without a bound hold the same numbers, made of the input in the same order."""
    return all(_close(array, got.results[name]) for name, array in reply.results.items())


def _close(a: Array, b: Array) -> bool:
    most = max(ALIKE, ALIKE_UNITS * float(ml_dtypes.finfo(a.dtype).eps))
    return np.allclose(a.astype(float), b.astype(float), rtol=most, atol=most, equal_nan=True)


def _same_form(reply: Reply, got: Reply) -> bool:
    """Whether both raised, or both returned results of one shape and dtype and treated their inputs alike."""
    if (reply.status, reply.modified, reply.unequal) != (got.status, got.modified, got.unequal):
        return False
    return all((a.shape, a.dtype) == (got.results[n].shape, got.results[n].dtype) for n, a in reply.results.items())


def _near(reply: Reply, failed: Failed) -> bool:
    """Whether a close comparison is worth its time."""
    for name, array in reply.results.items():
        got, wrong = failed.numbers[name], array.astype(np.float64)
        if not np.array_equal(got.finite, np.isfinite(wrong)):
            return False
        if got.values.size:
            wrong = wrong[got.finite]
            far = np.abs(got.values - wrong) > COARSE_BOUNDS * got.limit + COARSE_SIZE * np.abs(wrong).max()
            if 2 * np.count_nonzero(far) > far.size:
                return False
    return True


def _equal_values(reply: Reply, failed: Failed, make: type[Model]) -> bool:
    own = failed.case.bound(failed.dtype, failed.profile)
    return _within(reply, failed, own, None) or _within(reply, failed, own, _bound(make, failed))


def _within(reply: Reply, failed: Failed, own: Any, of_fault: Any) -> bool:
    """Whether results differ by at most twice the larger bound; ``of_fault`` is None at first, as it takes time.

    A bound of the fault that is larger than its results, or infinite, says nothing: there the case's bound counts.
    """
    for name, array in reply.results.items():
        got, wrong = failed.reply.results[name].astype(np.float64), array.astype(np.float64)
        limit, wider = getattr(own, name), getattr(of_fault, name, None)
        if wider is not None and wider.shape == limit.shape:
            largest = np.abs(wrong[np.isfinite(wrong)]).max(initial=0)
            limit = np.where(wider <= largest, np.fmax(limit, wider), limit)
        limit = 2 * limit
        stored = failed.dtype if name not in WIDE_RESULTS or failed.dtype == "float64" else "float32"
        if (shares(got, wrong, limit, stored) > 1).any():
            return False
    return True


def _bound(make: type[Model], failed: Failed) -> Any:
    """The error bound of what the fault computes, results as attributes."""
    found = _own_bound(make, failed.case, failed.dtype, failed.profile)  # type: ignore[arg-type]  # a class is hashable
    return failed.case.bound(failed.dtype, failed.profile) if found is None else found


@functools.lru_cache(maxsize=BOUNDS)
def _own_bound(make: type[Model], case: AnyCase, dtype: str, profile: Profile) -> Any:
    if case.operator not in _OWN:
        return None
    inputs = case.inputs(dtype)
    options = {n: inputs.keywords[n] for n in ("scale", "softcap", "bias") if n in inputs.keywords}
    try:
        with np.errstate(all="ignore"):
            return _OWN[case.operator](make(), inputs, bounds.Options(**options), dtype, profile)
    except (TypeError, ValueError):  # results of another shape, or inputs that two faults at once refuse: no bound
        return None


def _of_attention(fault: Attention, inputs: Any, options: bounds.Options, dtype: str, profile: Profile) -> bounds.Bound:
    known = {f.name for f in fields(Inputs)}
    x = Inputs(**inputs.arrays, **{n: v for n, v in inputs.keywords.items() if n in known})
    found = fault.attend(fault.joined(x))
    return bounds.bound(_with_leaks(found), options, dtype, profile)


def _of_layer(fault: Layer, inputs: Any, options: bounds.Options, dtype: str, profile: Profile) -> Any:
    found = fault.attend(LayerCall(**inputs.arrays, **inputs.keywords))
    if isinstance(found, SublayerExpected):
        found = replace(found, layer=replace(found.layer, heads=_with_leaks(found.layer.heads)))
    else:
        found = replace(found, heads=_with_leaks(found.heads))
    return bound_of_layer(found, options, dtype, profile)


def _with_leaks(found: Expected) -> Expected:
    """Scores with leaks: a weight that a fault gives to a masked key counts, and its logarithm is the score."""
    leaks = ~found.allowed & (found.weights > 0)
    scores = np.where(leaks, np.log(np.where(leaks, found.weights, 1.0)), found.scores)
    return replace(found, allowed=found.allowed | leaks, scores=scores)


#: The bound of what a fault of each operator computes; gradients have none of their own, so the case's is used.
_OWN: dict[str, Callable[..., Any]] = {"sdpa": _of_attention, "mha": _of_layer, "sublayer": _of_layer}
