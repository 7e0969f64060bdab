"""Outcomes: the result of a case, one per implementation, device, dtype and case, as an immutable record."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """Outcome of one case on one implementation."""

    PASSED = "passed"
    FAILED = "failed"
    #: Failed, in exactly the way that a record of the deviation ledger says.
    KNOWN_DEVIATION = "known-deviation"
    #: Did not do what a SHOULD clause asks; fails nothing.
    ADVISORY = "advisory"
    #: The implementation has no such feature, or refused with NotImplementedError.
    UNSUPPORTED = "unsupported"
    #: Cannot be run inside the implementation's envelope: no size in it shows what the case is for.
    NOT_APPLICABLE = "not-applicable"


#: Name, instead of a case's, of the result of calls in a stream (run.streams); records of the ledger may name it.
STREAM_ORDER = "stream/order"

#: Outcomes for which the implementation really ran.
EXECUTED = (Outcome.PASSED, Outcome.FAILED, Outcome.KNOWN_DEVIATION, Outcome.ADVISORY)


class Failure(StrEnum):
    """Kind of a failure."""

    VALUE = "value"
    SHAPE = "shape"
    DTYPE = "dtype"
    ERROR = "error"
    NO_ERROR = "no error"
    MODIFIED = "modified"
    UNREPEATABLE = "unrepeatable"
    STATE = "changed state"
    CRASHED = "crashed"
    TIMEOUT = "timeout"
    MEMORY = "memory"
    #: A record of the deviation ledger says that this fails, and it does not.
    STALE = "stale deviation"


#: The kinds in words; an exception may also be a result that is no array.
IN_WORDS = {
    Failure.VALUE: "wrong values",
    Failure.SHAPE: "a result of another shape",
    Failure.DTYPE: "a result of another dtype",
    Failure.ERROR: "an exception on a valid input",
    Failure.NO_ERROR: "an invalid input is accepted",
    Failure.MODIFIED: "an input is modified",
    Failure.UNREPEATABLE: "equal calls give unequal results",
    Failure.STATE: "something is left changed in the process",
    Failure.CRASHED: "the process dies",
    Failure.TIMEOUT: "the call does not return",
    Failure.MEMORY: "the call takes too much memory",
}


def is_case(name: str) -> bool:
    """Whether the name of a result is that of a case, not of another check of a run: "stream/order", "fuzz/…".

    Parameters
    ----------
    name
        Name of a result.

    Returns
    -------
    bool
        True for a case.
    """
    return "/" not in name


@dataclass(frozen=True)
class Result:
    """Result of one case: a line of the result file.

    ``share`` is error/bound of the worst element under the declared profile, None where nothing was
    compared, and may exceed 1 (inf for a NaN).  ``meets`` lists the profiles whose bound the results keep.
    ``run_seconds`` is the time of the first call in the worker, ``prepare_seconds`` that of the preparation before it.
    """

    implementation: str
    device: str
    dtype: str
    case: str
    clauses: tuple[str, ...]
    outcome: Outcome
    failure: Failure | None = None
    #: The clause that was broken, where one can be named.
    broken: str | None = None
    #: One line: why unsupported, what is wrong, or what the deviation does instead.
    reason: str = ""
    #: What a wrong output looks like: "NaN", "zeros", "the mean of v", or "" for nothing known.
    error_pattern: str = ""
    #: The whole failure message.
    message: str = ""
    profile: str | None = None
    meets: tuple[str, ...] = ()
    share: float | None = None
    run_seconds: float = 0.0
    prepare_seconds: float = 0.0
    #: Side effects of the call, which fail nothing, each as "kind: what".
    side_effects: tuple[str, ...] = ()
    #: B, Hq, Hkv, Sq, Sk, D, Dv of a case that was fitted to an envelope; () for one at its own sizes.
    sizes: tuple[int, ...] = ()

    @property
    def of_case(self) -> bool:
        """Whether it is the result of a case."""
        return is_case(self.case)
