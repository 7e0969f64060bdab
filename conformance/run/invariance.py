"""(SDPA-40, SDPA-41) Invariance: whether a sequence, and a row, has the same bits in whatever call it comes.

``--invariance`` makes one call and, for each question, another one that has some of the same rows: alone, elsewhere in
the batch, beside other neighbours, with padding behind its keys, in chunks of queries.  What differs is told with how
many elements, by how much, and how that compares with the bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from attention_conformance.conformance.cases.base import Case
from attention_conformance.conformance.cases.base import case as sdpa_case
from attention_conformance.conformance.cases.data import Shape
from attention_conformance.conformance.cases.fit import fit
from attention_conformance.conformance.judging.compare import shares
from attention_conformance.conformance.judging.message import clause_lines, inputs_line, rerun, share_text
from attention_conformance.conformance.judging.outcomes import Failure, Outcome, Result
from attention_conformance.conformance.run.targets import Target
from attention_conformance.conformance.spec.inputs import Inputs
from attention_conformance.impls.calls import Reply, Request, call
from attention_conformance.impls.operators import SDPA
from attention_conformance.impls.process.pool import Crashed, Pool, TimedOut

BATCH, CHUNKS = "SDPA-40", "SDPA-41"

#: How results are called, before the name of the question.
PREFIX = "invariance/"

#: Large enough that libraries split it; every sequence of it is asked for.
CASE: Case = sdpa_case(
    "invariance",
    BATCH,
    "Large enough that libraries share it between threads, and split its keys.",
    Shape(b=3, hq=8, hkv=8, sq=128, sk=320, d=64, dv=64),
    needs="B > 1",
)

#: Part of the output of the first call, the second call, and the part of its output that has the same rows.
Pair = tuple[tuple[slice, ...], Inputs, tuple[slice, ...]]
WHOLE = (slice(None),)


def _of(x: Inputs, pick: Callable[[np.ndarray], np.ndarray]) -> Inputs:
    return Inputs(pick(x.q), pick(x.k), pick(x.v), x.keywords)


def _alone(x: Inputs) -> Pair:
    return (slice(1, 2),), _of(x, lambda a: a[1:2].copy()), WHOLE


def _place(x: Inputs) -> Pair:
    return (slice(None, None, -1),), _of(x, lambda a: a[::-1].copy()), WHOLE


def _neighbours(x: Inputs) -> Pair:
    def others(a: np.ndarray) -> np.ndarray:
        rolled = np.roll(a, 1, axis=2) * a.dtype.type(2)
        return np.concatenate([a[:1], rolled[1:]])

    return (slice(0, 1),), _of(x, others), (slice(0, 1),)


def _larger(x: Inputs) -> Pair:
    return WHOLE, _of(x, lambda a: np.concatenate([a] * 4)), (slice(0, len(x.q)),)


def _padding(x: Inputs) -> Pair:
    def longer(a: np.ndarray) -> np.ndarray:
        return np.concatenate([a, np.ones_like(a)], axis=2)

    lengths = np.full(len(x.q), x.k.shape[2], np.int64)
    return WHOLE, Inputs(x.q, longer(x.k), longer(x.v), {"kv_lengths": lengths}), WHOLE


def _chunk(x: Inputs) -> Pair:
    rows = slice(x.q.shape[2] // 2, None)
    return (slice(None), slice(None), rows), Inputs(x.q[:, :, rows].copy(), x.k, x.v), WHOLE


def _row(x: Inputs) -> Pair:
    return (slice(None), slice(None), slice(-1, None)), Inputs(x.q[:, :, -1:].copy(), x.k, x.v), WHOLE


@dataclass(frozen=True)
class Question:
    """One way in which the same rows come in another call."""

    clause: str
    #: In words, as a message says it.
    text: str
    pair: Callable[[Inputs], Pair]
    #: Keywords that both calls give.
    needs: tuple[str, ...] = ()


QUESTIONS = {
    "alone": Question(BATCH, "the second sequence alone", _alone),
    "place": Question(BATCH, "the sequences in reverse order", _place),
    "neighbours": Question(BATCH, "the first sequence beside others", _neighbours),
    "larger-batch": Question(BATCH, "the batch four times over", _larger),
    "padding": Question(BATCH, "as many keys of padding behind every sequence", _padding, ("kv_lengths",)),
    "chunk": Question(CHUNKS, "the second half of the queries", _chunk),
    "row": Question(CHUNKS, "the last query alone", _row),
}


def judge(target: Target, question: str, pool: Pool, keywords: frozenset[str], timeout: float | None = None) -> Result:
    """The result of one question; never raises for what the implementation does.

    Parameters
    ----------
    question
        A name in QUESTIONS.
    keywords
        Those that the implementation accepts.
    timeout
        Seconds for each of the two calls.
    """
    asked, implementation = QUESTIONS[question], target.implementation
    blank = Result(
        implementation.name,
        target.device,
        target.dtype,
        f"{PREFIX}{question}",
        (asked.clause,),
        Outcome.PASSED,
        profile=implementation.profile(target.dtype).value,
    )
    if implementation.operator != SDPA.name:
        return replace(blank, outcome=Outcome.UNSUPPORTED, reason="invariance is asked of sdpa")
    lacking = sorted(set(asked.needs) - keywords)
    if lacking:
        return replace(blank, outcome=Outcome.UNSUPPORTED, reason=f"no keyword {', '.join(lacking)}")
    case = fit(CASE, implementation.envelope)
    if case.unfit:
        return replace(blank, outcome=Outcome.NOT_APPLICABLE, reason=case.unfit)
    first = case.inputs(target.dtype)
    if "kv_lengths" in asked.needs:
        first = replace(first, keywords={"kv_lengths": np.full(len(first.q), first.k.shape[2], np.int64)})
    part, second, same = asked.pair(first)
    if _sizes(second) not in implementation.envelope:
        return replace(blank, outcome=Outcome.NOT_APPLICABLE, reason=f"not applicable: {asked.text}")
    outputs = []
    for given in (first, second):
        answer = _called(target, given, pool, timeout)
        if isinstance(answer, (Crashed, TimedOut)):
            failure = Failure.TIMEOUT if isinstance(answer, TimedOut) else Failure.CRASHED
            return _failed(blank, failure, f"{asked.text}: {answer}")
        if answer.status != "returned":
            reason = answer.text
            return replace(blank, outcome=Outcome.UNSUPPORTED, reason=reason)  # the cases judge what it raises
        outputs.append(answer.results["output"])
    return _judged(blank, case, target, asked, outputs[0][part], outputs[1][same], part)


def _sizes(x: Inputs) -> Shape:
    b, hq, sq, d = x.q.shape
    return Shape(b, hq, x.k.shape[1], sq, x.k.shape[2], d, x.v.shape[3])


def _called(target: Target, given: Inputs, pool: Pool, timeout: float | None) -> Reply | Crashed | TimedOut:
    request = Request(target.device, given.arrays, dict(given.keywords))
    try:
        job = f"{call.__module__}:{call.__name__}"
        answer: Reply = pool.call(target.implementation, job, target.implementation, request, timeout=timeout)
    except (Crashed, TimedOut) as error:
        return error
    return answer


def _failed(blank: Result, failure: Failure, reason: str) -> Result:
    text = f"{blank.implementation} on {blank.device} in {blank.dtype}, {blank.case}: {reason}"
    broken = blank.clauses[0]
    return replace(blank, outcome=Outcome.FAILED, failure=failure, broken=broken, reason=reason, message=text)


def _judged(
    blank: Result,
    case: Case,
    target: Target,
    asked: Question,
    first: np.ndarray,
    second: np.ndarray,
    part: tuple[slice, ...],
) -> Result:
    if first.shape != second.shape:
        return _failed(blank, Failure.SHAPE, f"{asked.text}: {second.shape} for {first.shape}")
    if first.dtype != second.dtype:
        return _failed(blank, Failure.DTYPE, f"{asked.text}: {second.dtype} for {first.dtype}")
    wide = first.astype(np.float64), second.astype(np.float64)
    bits = [np.ascontiguousarray(each).view(f"u{each.itemsize}") for each in (first, second)]
    unequal = bits[0] != bits[1]
    if not unequal.any():
        return replace(blank, reason=f"{asked.text}: bit for bit")
    bound = case.bound(target.dtype, target.implementation.profile(target.dtype)).output[part]
    distance = np.abs(wide[0] - wide[1])[unequal]
    farthest = float(distance.max()) if np.isfinite(distance).all() else float("nan")
    share = float(shares(wide[1], wide[0], bound, target.dtype).max())
    reason = (
        f"{asked.text}: {int(unequal.sum())} of {unequal.size} elements differ, by up to {farthest:.2g},"
        f" {share_text(share)} the bound"
    )
    result = replace(blank, outcome=Outcome.ADVISORY, failure=Failure.VALUE, broken=asked.clause, reason=reason)
    name = blank.case.removeprefix(PREFIX)
    lines = [f"{blank.implementation} on {blank.device} in {blank.dtype}, {blank.case}: wrong by value"]
    lines += clause_lines(asked.clause)
    lines += [f"Inputs:   {inputs_line(case, blank.dtype)}", f"Seen:     {reason}"]
    again = f'--invariance -k "test_invariance and -{name}]"'
    lines.append(f"Rerun:    {rerun(result, again)}")
    return replace(result, message="\n".join(lines))
