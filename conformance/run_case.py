"""Run of a case on a target: in its process, judged, and compared with the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from attention_conformance.conformance.cases import AnyCase, stopwatch
from attention_conformance.conformance.cases.fit import sizes_of
from attention_conformance.conformance.judging.judge import failed, judge, no_answer
from attention_conformance.conformance.judging.outcomes import Outcome, Result
from attention_conformance.conformance.ledger.apply import apply
from attention_conformance.conformance.ledger.load import Ledger
from attention_conformance.conformance.targets import Target
from attention_conformance.impls.calls import Reply, Request, lost_gpu, results_of
from attention_conformance.impls.process.limits import KEPT, size_text
from attention_conformance.impls.process.pool import Crashed, Garbage, Pool, TimedOut

#: Beginning of the reason of a case with a keyword that the implementation's signature lacks.
LACKING = "no keyword "


@dataclass(frozen=True)
class Judged:
    """A result, and the reply that it was made from where there was one."""

    result: Result
    reply: Reply | None = None


def judge_case(
    target: Target,
    case: AnyCase,
    pool: Pool,
    keywords: frozenset[str],
    ledger: Ledger,
    versions: Mapping[str, str],
    timeout: float | None,
) -> Judged:
    """Judge a case on a target.  Never raises for what the implementation does.

    Parameters
    ----------
    keywords
        Keywords that the implementation accepts: a case that needs another one is unsupported, and not run.
    versions
        Versions of the packages that decide which records of the ledger are in force.
    timeout
        Seconds for the call, its preparation included; None for no limit.

    Returns
    -------
    Judged
        The result, after the ledger, and the reply.
    """
    blank = blank_of(target, case)
    lacking = sorted(case.keywords - keywords)
    reply = None
    if case.unfit and not lacking:
        result = replace(blank, outcome=Outcome.NOT_APPLICABLE, reason=case.unfit)
    elif lacking:
        result = replace(blank, outcome=Outcome.UNSUPPORTED, reason=f"{LACKING}{', '.join(lacking)}")
    else:
        try:
            reply = run_case(target, case, pool, timeout)
        except (Crashed, TimedOut) as error:
            result = failed(blank, case, no_answer(error, case))
        else:
            result = judge(reply, case, blank)
    return Judged(apply(ledger, result, case, versions), reply)


def blank_of(target: Target, case: AnyCase) -> Result:
    """Result of a case before it is run.

    Parameters
    ----------
    target
        An implementation on a device in a dtype.
    case
        The case.

    Returns
    -------
    Result
        Outcome not yet known.
    """
    return Result(
        implementation=target.implementation.name,
        device=target.device,
        dtype=target.dtype,
        case=case.name,
        clauses=case.clauses,
        outcome=Outcome.PASSED,
        profile=target.profile.value,
        sizes=sizes_of(case),
    )


def run_case(target: Target, case: AnyCase, pool: Pool, timeout: float | None) -> Reply:
    """The reply to a case, after the call that comes before it, if there is one.

    A library that has fallen back to another path in this process is called again in a fresh one, so that no case
    depends on earlier ones; if it falls back there too, the result says so.

    Parameters
    ----------
    target
        An implementation on a device in a dtype.
    case
        The case.
    pool
        Worker processes.
    timeout
        Seconds, and None for no limit.

    Returns
    -------
    Reply
        Results by name, or why there are none.

    Raises
    ------
    Crashed
        If the process ended, including OutOfMemory.
    TimedOut
        If there was no answer within ``timeout``.
    """
    reply = _run_case(target, case, pool, timeout)
    if not reply.fell_back:
        return reply
    said = f"fell back: {reply.fell_back}"
    if not pool.in_process:
        pool.end(target.implementation)
        reply = _run_case(target, case, pool, timeout)
        said += ", in a fresh process too" if reply.fell_back else "; judged in a fresh process"
    if reply.fell_back:
        pool.end(target.implementation)
    return replace(reply, side_effects=(*reply.side_effects, said))


def _run_case(target: Target, case: AnyCase, pool: Pool, timeout: float | None) -> Reply:
    earlier = case.earlier()
    if earlier is not None and not earlier.unfit:
        ask(target, request(earlier, target.dtype, target.device), pool, timeout)
    return ask(target, request(case, target.dtype, target.device), pool, timeout)


def request(case: AnyCase, dtype: str, device: str) -> Request:
    """The call of a case, for a process.

    Parameters
    ----------
    case
        The case.
    dtype
        Dtype of the inputs.
    device
        "cpu" or "cuda".

    Returns
    -------
    Request
        The call as it is sent to a worker.
    """
    inputs = case.inputs(dtype)
    return Request(device, inputs.arrays, dict(inputs.keywords), memory=case.memory, repeats=case.repeats)


def ask(target: Target, asked: Request, pool: Pool, timeout: float | None) -> Reply:
    """The reply of a target's process, which is ended if its state would spoil the next call, or its GPU is lost.

    Parameters
    ----------
    target
        An implementation on a device in a dtype.
    asked
        The call.
    pool
        Worker processes.
    timeout
        Seconds, and None for no limit.

    Returns
    -------
    Reply
        Results by name, or why there are none.

    Raises
    ------
    Crashed
        If the process ended, including OutOfMemory.
    TimedOut
        If there was no answer within ``timeout``.
    """
    with stopwatch.measured(stopwatch.CALLS):
        reply: Reply = pool.call(
            target.implementation,
            "attention_conformance.impls.calls:call",
            target.implementation,
            asked,
            timeout=timeout,
        )
    if reply.status == "returned" and set(reply.results) != set(results_of(target.implementation, asked)):
        pool.end(target.implementation)
        raise Garbage(f"sent garbage: results {', '.join(sorted(reply.results))[:100]}, which are not the call's", "")
    if reply.spoilt or (target.device != "cpu" and lost_gpu(f"{reply.text} {reply.trace}")):
        pool.end(target.implementation)
    if pool.memory is not None and reply.resident > KEPT * pool.memory:
        pool.end(target.implementation)
        kept = f"memory kept: {size_text(reply.resident)} after the call, so the next one gets a fresh process"
        return replace(reply, side_effects=(*reply.side_effects, kept))
    return reply
