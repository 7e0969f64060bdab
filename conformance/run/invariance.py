"""(SDPA-40, VARLEN-14, PAGED-17 …) Invariance: whether a sequence, and a row, has the same bits in every call.

``--invariance`` makes one call and, for each question, another one with some of the same rows: alone, elsewhere in
the batch, next to other neighbours, with padding behind its keys, in chunks of queries.  A difference is reported with
the number of elements, its size, and how that compares with the bound.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from attention_conformance.conformance.cases.base import AnyCase
from attention_conformance.conformance.cases.data import Shape
from attention_conformance.conformance.cases.fit import fit
from attention_conformance.conformance.judging.compare import shares
from attention_conformance.conformance.judging.message import clause_lines, inputs_line, rerun, share_text
from attention_conformance.conformance.judging.outcomes import Failure, Outcome, Result
from attention_conformance.conformance.run.invariance_questions import CASES, QUESTIONS, Question, questions
from attention_conformance.conformance.run_case import ask
from attention_conformance.conformance.targets import Target
from attention_conformance.impls.calls import Request
from attention_conformance.impls.operators import SDPA
from attention_conformance.impls.process.pool import Crashed, Pool, TimedOut

#: Prefix of a result's name, before the question's name.
PREFIX = "invariance/"

#: The case of sdpa; those of packs and caches are in CASES.
CASE = CASES[SDPA.name]


def judge(target: Target, question: str, pool: Pool, keywords: frozenset[str], timeout: float | None = None) -> Result:
    """The result of one question; never raises for what the implementation does.

    Parameters
    ----------
    target
        The target.
    question
        A name in ``questions`` of the target's operator.
    pool
        Worker processes.
    keywords
        Keywords that the implementation accepts.
    timeout
        Seconds for each of the two calls.

    Returns
    -------
    Result
        Passed where the rows have the same bits in both calls, an advisory where they differ.
    """
    implementation = target.implementation
    operator = implementation.operator
    asked = (questions(operator) or QUESTIONS[SDPA.name])[question]
    blank = Result(
        implementation.name,
        target.device,
        target.dtype,
        f"{PREFIX}{question}",
        (asked.clause,),
        Outcome.PASSED,
        profile=target.profile.value,
    )
    if not questions(operator):
        of = ", ".join(QUESTIONS)
        return replace(blank, outcome=Outcome.UNSUPPORTED, reason=f"invariance is checked only for {of}")
    lacking = sorted(set(asked.needs) - keywords)
    if lacking:
        return replace(blank, outcome=Outcome.UNSUPPORTED, reason=f"no keyword {', '.join(lacking)}")
    chosen = CASE if operator == SDPA.name else CASES[operator]
    if operator != SDPA.name and "is_causal" in keywords:
        chosen = replace(chosen, options={**chosen.options, "is_causal": True})
    case = fit(chosen, implementation.envelope)
    if case.unfit:
        return replace(blank, outcome=Outcome.NOT_APPLICABLE, reason=case.unfit)
    first = case.inputs(target.dtype)
    if operator == SDPA.name and "kv_lengths" in asked.needs:
        first = replace(first, keywords={"kv_lengths": np.full(len(first.q), first.k.shape[2], np.int64)})
    part, second, same = asked.pair(first)
    if _sizes(second) not in implementation.envelope:
        return replace(blank, outcome=Outcome.NOT_APPLICABLE, reason=f"not applicable: {asked.text}")
    outputs = []
    for given in (first, second):
        try:
            answer = ask(target, Request(target.device, given.arrays, dict(given.keywords)), pool, timeout)
        except (Crashed, TimedOut) as error:
            failure = Failure.TIMEOUT if isinstance(error, TimedOut) else Failure.CRASHED
            return _failed(blank, failure, f"{asked.text}: {error}")
        if answer.status != "returned":
            reason = answer.text
            return replace(blank, outcome=Outcome.UNSUPPORTED, reason=reason)  # the cases judge what it raises
        output = answer.results["output"]
        wanted = (*given.q.shape[:-1], _sizes(given).dv)
        if output.shape != wanted:  # the cases judge that
            reason = f"the output has shape {output.shape}, and not {wanted}"
            return replace(blank, outcome=Outcome.UNSUPPORTED, reason=reason)
        outputs.append(output)
    return _judged(blank, case, target, asked, outputs[0][part], outputs[1][same], part)


def _sizes(x: Any) -> Shape:
    if hasattr(x, "cu_seqlens_q"):
        sq, sk = (int(x.keywords[f"max_seqlen_{name}"]) for name in "qk")
        k, v = (x.k_cache, x.v_cache) if hasattr(x, "k_cache") else (x.k, x.v)
        return Shape(len(x.cu_seqlens_q) - 1, x.q.shape[1], k.shape[-2], sq, sk, x.q.shape[2], v.shape[-1])
    b, hq, sq, d = x.q.shape
    return Shape(b, hq, x.k.shape[1], sq, x.k.shape[2], d, x.v.shape[3])


def _failed(blank: Result, failure: Failure, reason: str) -> Result:
    text = f"{blank.implementation} on {blank.device} in {blank.dtype}, {blank.case}: {reason}"
    broken = blank.clauses[0]
    return replace(blank, outcome=Outcome.FAILED, failure=failure, broken=broken, reason=reason, message=text)


def _judged(
    blank: Result,
    case: AnyCase,
    target: Target,
    asked: Question,
    first: np.ndarray,
    second: np.ndarray,
    part: tuple[Any, ...],
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
    bound = case.bound(target.dtype, target.profile).output[part]
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
