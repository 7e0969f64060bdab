"""(SDPA-45) Streams: whether a call takes its place in the CUDA stream that it is made in.

Every implementation with torch's arrays on CUDA is tested with one case of its operator: a call in a held stream, whose
inputs come only behind what holds it (impls.streams).  A kernel that is launched in another stream reads them too early
or finishes too late, which a program shows only now and then.  The call is compared with a plain call of the same
kernel, so that an inaccurate kernel is tested too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

import numpy as np

from attention_conformance.conformance.cases import AnyCase
from attention_conformance.conformance.judging.judge import alike
from attention_conformance.conformance.judging.message import clause_lines, inputs_line, rerun
from attention_conformance.conformance.judging.outcomes import STREAM_ORDER, Failure, Outcome, Result
from attention_conformance.conformance.run_case import blank_of, request
from attention_conformance.conformance.targets import Target
from attention_conformance.impls.calls import lost_gpu
from attention_conformance.impls.process.pool import Crashed, Pool, TimedOut
from attention_conformance.impls.streams import HELD_BY, InStream

CLAUSE = "SDPA-45"

#: Name of a result, instead of a case's name.
NAME = STREAM_ORDER

#: Most cases that are tried, each with other keywords, until a call returns: a kernel may be causal-only.
TRIED = 12

#: Hint on how a kernel gets the stream that it is called in.
HINT = (
    "Hint:     launch it in the current stream: at::cuda::getCurrentCUDAStream() in C++,"
    " torch.cuda.current_stream().cuda_stream in Python"
)


def asked(target: Target) -> bool:
    """Whether a target's calls are made in streams that the caller chooses."""
    return target.device == "cuda" and target.implementation.framework in HELD_BY


def chosen(cases: Iterable[AnyCase], target: Target, keywords: Collection[str]) -> tuple[AnyCase, ...]:
    """Cases to try: for each set of keywords the first plain one whose results are not those of zero inputs."""
    found: dict[frozenset[str], AnyCase] = {}
    for case in cases:
        if case.unfit or case.invalid or case.repeats > 1 or case.memory != "contiguous" or case.earlier() is not None:
            continue
        if case.keywords in found or not case.keywords <= set(keywords) or not _not_of_zeros(case, target):
            continue
        found[case.keywords] = case
        if len(found) == TRIED:
            break
    return tuple(found.values())


def _not_of_zeros(case: AnyCase, target: Target) -> bool:
    expected = vars(case.expected(target.dtype))
    return any(isinstance(each, np.ndarray) and np.isfinite(each).all() and each.any() for each in expected.values())


def judge(target: Target, cases: Iterable[AnyCase], pool: Pool, timeout: float | None = None) -> Result:
    """The result of one target, from the first case whose call returns.  Never raises for what the implementation does.

    Parameters
    ----------
    target
        A target for which ``asked`` is True.
    cases
        Cases that ``chosen`` gave, at least one.
    pool
        Worker processes.
    timeout
        Seconds for all calls of a case.

    Returns
    -------
    Result
        Failed if the results of a call in its stream differ from those of a plain call.
    """
    for case in cases:
        result = _judge_case(target, case, pool, timeout)
        if result.outcome is not Outcome.UNSUPPORTED:
            break
    return result


def _judge_case(target: Target, case: AnyCase, pool: Pool, timeout: float | None) -> Result:
    blank = replace(blank_of(target, case), case=NAME, clauses=(CLAUSE,))
    try:
        job = "attention_conformance.impls.streams:in_stream"
        asked_for = request(case, target.dtype, target.device)
        found: InStream = pool.call(target.implementation, job, target.implementation, asked_for, timeout=timeout)
    except (Crashed, TimedOut) as error:
        failure = Failure.TIMEOUT if isinstance(error, TimedOut) else Failure.CRASHED
        return _failed(blank, case, failure, f"in a stream that is held: {error}")
    if lost_gpu(found.text):
        pool.end(target.implementation)
    return judged(found, case, blank)


def judged(found: InStream, case: AnyCase, blank: Result) -> Result:
    """The result of these calls.

    Parameters
    ----------
    found
        Results of the plain call and of the one in the stream.
    case
        The case that was run.
    blank
        Result without an outcome.

    Returns
    -------
    Result
        The result, with the message of a failure.
    """
    if found.status != "returned":  # the cases judge what it raises
        return replace(blank, outcome=Outcome.UNSUPPORTED, reason=found.text)
    if not any(np.isfinite(each).all() and each.any() for each in found.plain.values()):
        reason = f"{case.name} gives nothing but zeros and NaN"  # as zero inputs would; the cases judge that
        return replace(blank, outcome=Outcome.UNSUPPORTED, reason=reason)
    if not alike(found.in_order, found.plain, case, blank):
        if alike(found.later, found.plain, case, blank):
            seen = "its results were not ready for the next work in its stream, only later"
        else:
            seen = "it computed before its stream had written its inputs"
        return _failed(blank, case, Failure.VALUE, seen)
    how = "submitted while the stream was held" if found.held else "it waits for the stream itself"
    return replace(blank, reason=f"in its place: {how}")


def _failed(blank: Result, case: AnyCase, failure: Failure, seen: str) -> Result:
    result = replace(blank, outcome=Outcome.FAILED, failure=failure, broken=CLAUSE, reason=seen)
    lines = [f"{blank.implementation} on {blank.device} in {blank.dtype}, {NAME}: wrong by {failure.value}"]
    lines += clause_lines(CLAUSE)
    lines += [f"Inputs:   {case.name}, {inputs_line(case, blank.dtype)}", f"Seen:     {seen}", HINT]
    lines.append(f"Rerun:    {rerun(result, '-k test_streams')}")
    return replace(result, message="\n".join(lines))
