"""Verdicts on random problems: inside the bound, unsupported, excused by the ledger or the dtype's range, or an alarm.

A record excuses a failure of its own kind in the rows that it spoils (conformance.ledger.triggers), and nothing else.
A row of a layer is spoiled if any of its heads is.  A gradient sums over rows, so that one spoiled row spoils all
gradients; gradients by differentiation have the deviations of the function that is differentiated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np

from attention_conformance.conformance.bounds import sdpa as bounds
from attention_conformance.conformance.cases.base import AnyCase
from attention_conformance.conformance.evidence.series import SDPA, Series
from attention_conformance.conformance.judging.compare import Comparison
from attention_conformance.conformance.judging.judge import comparisons
from attention_conformance.conformance.judging.outcomes import Failure, Outcome
from attention_conformance.conformance.ledger import triggers
from attention_conformance.conformance.ledger.load import Ledger
from attention_conformance.conformance.properties.drawn import once
from attention_conformance.conformance.run_case import Judged, judge_case
from attention_conformance.conformance.spec.gradients import GradExpected
from attention_conformance.conformance.spec.mha import Form, LayerExpected, Projection, SublayerExpected
from attention_conformance.conformance.spec.mha_gradients import LayerGradExpected
from attention_conformance.conformance.spec.sdpa import Expected
from attention_conformance.conformance.targets import Selection, Target
from attention_conformance.impls.contract import Profile
from attention_conformance.impls.process.pool import Pool

#: Not a record of the ledger: nothing is promised where a score overflows the dtype and the program stores scores, nor
#: where an array overflows that every program may store between two operators of a layer.
RANGE = "SDPA-26"

#: Ending of the names of implementations that differentiate another one.
DIFFERENTIATED = "-gradients"


#: Seconds for one problem on one implementation, compilation included.
TIMEOUT = 120.0


def excuse(target: Target, case: AnyCase, judged: Judged, ledger: Ledger, versions: dict[str, str]) -> str:
    """The records that excuse a failure, joined, or "" if they do not excuse all of it."""
    dtype, failure = target.dtype, judged.result.failure
    expected = case.expected(dtype)
    heads = heads_of(expected)
    names = {target.implementation.name, target.implementation.name.removesuffix(DIFFERENTIATED)}
    found = [each for name in sorted(names) for each in triggers.records(name, target.device, dtype, ledger, versions)]
    met = triggers.triggered(dict.fromkeys(found), case.inputs(dtype), heads)
    spoiled = {each.deviation.id: _rows(expected, each.rows) for each in met if each.deviation.shown_by(judged.result)}
    if failure is Failure.VALUE and judged.reply is not None:
        profile = target.profile
        beyond = _overflows(expected, heads, dtype, profile)
        if beyond.any():
            spoiled[RANGE] = _rows(expected, beyond)
        wrong = _wrong(expected, comparisons(judged.reply, case, dtype, profile))
        if (wrong & ~np.logical_or.reduce([np.zeros_like(wrong), *spoiled.values()])).any():
            return ""
        spoiled = {record: rows for record, rows in spoiled.items() if (rows & wrong).any()}
    return ", ".join(spoiled)


def heads_of(expected: Any) -> Expected:
    """The heads: the results of the sdpa reference within those of any operator's reference."""
    if isinstance(expected, SublayerExpected):
        return expected.layer.heads
    if isinstance(expected, GradExpected):
        return expected.forward
    if isinstance(expected, LayerGradExpected):
        return expected.heads.forward
    return expected.heads if isinstance(expected, LayerExpected) else expected


def _rows(expected: Any, rows: np.ndarray) -> np.ndarray:
    """Rows of heads (B, Hq, Sq) as the results distinguish them: themselves, (B, Sq) for a layer, or one for all."""
    if isinstance(expected, GradExpected | LayerGradExpected):
        return np.array([rows.any()])
    return np.asarray(rows.any(axis=1) if isinstance(expected, LayerExpected | SublayerExpected) else rows)


def _wrong(expected: Any, compared: list[Comparison]) -> np.ndarray:
    """The rows with an element outside the bound, in the shape of ``_rows``; all of them if a present is wrong."""
    wrong: np.ndarray = np.zeros_like(_rows(expected, np.zeros(heads_of(expected).lse.shape, bool)))
    form = _form(expected)
    for each in compared:
        outside = each.outside
        if wrong.ndim == 1 or each.name.startswith("present"):
            wrong = wrong | outside.any()
        elif form is None:
            wrong |= outside.reshape(*wrong.shape, -1).any(axis=3)
        elif each.name == "weights":
            whole = outside[None] if form.unbatched else outside
            wrong |= np.any(whole if form.averaged else np.any(whole, axis=1), axis=2)
        else:
            whole = outside[None] if form.unbatched else np.swapaxes(outside, 0, 1) if form.sequence_first else outside
            wrong |= whole.any(axis=2)
    return wrong


def _form(expected: Any) -> Form | None:
    """The form of a layer's results, None for attention."""
    if isinstance(expected, SublayerExpected):
        return expected.layer.form
    return expected.form if isinstance(expected, LayerExpected) else None


def _overflows(expected: Any, heads: Expected, dtype: str, profile: Profile) -> np.ndarray:
    """(SDPA-26) Rows (B, Hq, Sq) with a number beyond the dtype's largest; all rows for a number between operators.

    In ``storage`` the number is an allowed score, a gradient of one, or the square of a deviation; in a layer it is
    handed from one operator to the next.
    """
    beyond = np.zeros(heads.lse.shape, bool)
    largest = bounds.LARGEST[dtype]
    if profile is Profile.STORAGE:
        size = np.maximum(np.abs(heads.raw), np.abs(np.where(heads.allowed, heads.scores, 0.0)))
        beyond |= ((size > largest) & heads.allowed).any(axis=3)
        beyond |= any(bool((np.abs(array) > largest).any()) for array in _stored_intermediates(expected))
    return beyond | any(bool((np.abs(array) > largest).any()) for array in _operator_outputs(expected))


def _stored_intermediates(expected: Any) -> Iterator[np.ndarray]:
    """Intermediates of a normalisation and of a backward pass that ``storage`` stores, squares among them."""
    if isinstance(expected, SublayerExpected):
        yield (expected.norm.z - expected.norm.mean) ** 2
        yield expected.norm.normalised * expected.norm.gamma
    x = expected.heads if isinstance(expected, LayerGradExpected) else expected
    if isinstance(x, GradExpected):
        yield from (x.d_weights, x.delta, x.d_scores, x.d_raw, x.d_raw * x.scale)
        yield from (x.grad_q, x.grad_k, x.grad_v)
        if x.scale:
            yield from (x.grad_q / x.scale, x.grad_k / x.scale)


def _operator_outputs(expected: Any) -> Iterator[np.ndarray]:
    """Arrays that one operator of a layer hands to the next."""
    if isinstance(expected, SublayerExpected):
        yield from _operator_outputs(expected.layer)
        yield from (expected.residual, expected.norm.result)
    elif isinstance(expected, LayerExpected):
        projections: tuple[Projection | None, ...] = (expected.q, expected.k, expected.v, expected.out)
        yield from (each.result for each in projections if each is not None)
        yield expected.combined
    elif isinstance(expected, LayerGradExpected):
        yield from _operator_outputs(expected.layer)
        yield from (expected.d_q, expected.d_k, expected.d_v)
        if expected.d_combined is not None:
            yield expected.d_combined.result
        for d, p in (
            (expected.d_q, expected.layer.q),
            (expected.d_k, expected.layer.k),
            (expected.d_v, expected.layer.v),
        ):
            yield d @ p.w.T


class Kind(StrEnum):
    """Verdict on a problem of an implementation."""

    KEPT = "kept"
    UNSUPPORTED = "unsupported"
    #: Failed as the ledger says, in the rows that it says.
    KNOWN = "known"
    #: Left the bound of the declared profile, or failed in another way.
    ALARM = "alarm"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One problem on one implementation; ``share`` and ``meets`` as in a Result, ``why`` a record's id or a reason."""

    index: int
    implementation: str
    dtype: str
    profile: str
    kind: Kind
    share: float | None = None
    meets: tuple[str, ...] = ()
    why: str = ""


@dataclass(frozen=True)
class Jury:
    """The implementations of a run, their processes, and the ledger of their deviations."""

    pool: Pool
    selection: Selection
    ledger: Ledger
    series: Series = SDPA

    def verdicts(self, index: int) -> Iterator[Verdict]:
        """Verdicts on one problem, of every implementation that has its dtype."""
        case = once(self.series.problem(index), self.series.dtype(index))
        for target in self.selection.targets:
            if target.dtype in case.dtypes and index % self.series.every.get(target.implementation.name, 1) == 0:
                yield self.verdict(target, case, index)

    def verdict(self, target: Target, case: Any, index: int = 0) -> Verdict:
        """Verdict on one problem, of one implementation, in the problem's dtype."""
        name, versions = target.implementation.name, self.selection.versions
        judged = judge_case(target, case, self.pool, self.selection.keywords[name], Ledger(), versions, TIMEOUT)
        result = judged.result
        verdict = Verdict(index, name, target.dtype, str(result.profile), Kind.KEPT, result.share, result.meets)
        if result.outcome is Outcome.UNSUPPORTED:
            return replace(verdict, kind=Kind.UNSUPPORTED, why=result.reason)
        if result.outcome is Outcome.PASSED:
            return verdict
        record = excuse(target, case, judged, self.ledger, versions)
        return replace(verdict, kind=Kind.KNOWN if record else Kind.ALARM, why=record or result.reason)
