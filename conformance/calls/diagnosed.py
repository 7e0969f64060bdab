"""Diagnosis of results that are not close: the known mistake that gives them, where trying mistakes is affordable."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from attention_conformance.conformance.cases.base import NUMPY_DTYPES
from attention_conformance.conformance.cases.given import (
    GivenHeads,
    GivenLatent,
    GivenMerge,
    GivenRows,
    GivenSdpa,
    GivenVarlen,
    given,
)
from attention_conformance.conformance.judging import judge
from attention_conformance.conformance.judging.judge import Finding
from attention_conformance.conformance.judging.outcomes import Failure, Result
from attention_conformance.impls.calls import Reply
from attention_conformance.impls.contract import Profile

#: Most scores of an input on which known mistakes are tried, about a minute.
DIAGNOSED = 2**18


def _scores(case: Any) -> float:
    """Number of scores of a call, or of elements of a merge's outputs."""
    if isinstance(case, GivenVarlen):
        return float(case.shape.hq * np.dot(case.shape.q_lengths, case.shape.k_lengths))
    return float(np.prod(case.held.outputs.shape if isinstance(case, GivenMerge) else case.shape.scores, dtype=float))


def diagnosed(case: Any, reply: Reply, blank: Result, finding: Finding) -> tuple[str, list[str]]:
    """The broken clause, and the known mistake that gives exactly these results, where trying them is affordable."""
    import attention_conformance.conformance.faults  # noqa: F401  # registers them
    from attention_conformance.conformance.diagnosis.explain import explanation_text
    from attention_conformance.conformance.diagnosis.match import diagnose
    from attention_conformance.conformance.faults.trials import Failed

    if finding.failure is not Failure.VALUE or finding.broken == case.blame.accuracy:
        return finding.broken, []
    tried = _affordable(case, reply, blank.dtype)
    if tried is None:
        return finding.broken, ["Diagnosis: not tried on an input of this size; try a shorter one that fails"]
    small, results = tried
    profile = Profile(str(blank.profile))
    compared = judge.comparisons(Reply("returned", results), small, blank.dtype, profile)
    if all(each.ok for each in compared):  # the mistake is in another part
        return finding.broken, []
    failed = Failed(small, blank.dtype, profile, Failure.VALUE, Reply("returned", results))
    found = diagnose([failed], [], pairs=False)
    if not found:
        return finding.broken, []
    return found[0].faults[0].clause, [f"Diagnosis: {explanation_text(found[0], 1)}"]


def _affordable(case: Any, reply: Reply, dtype: str) -> tuple[Any, dict[str, np.ndarray]] | None:
    """A case on which faults can be tried, with its results: the whole call if all rows were checked, else None."""
    if isinstance(case, GivenHeads) or _scores(case) > DIAGNOSED:
        return None
    if isinstance(case, GivenVarlen):
        if case.rows != tuple(range(case.whole["output"][0])):
            return None
        held = replace(case.held, keywords=case.held.keywords | case.shape.options)
        return given(type(case), held, case.clauses[0], case.shape, dtype, names=case.names), dict(reply.results)
    if isinstance(case, GivenLatent) and len(case.rows) < case.shape.sq:
        return None
    if not isinstance(case, GivenRows):
        return case, dict(reply.results)
    if len(case.rows) < case.shape.sq:
        return None
    held = case.held
    bias = held.keywords.get("bias")
    if bias is not None and bias.dtype != held.q.dtype:
        held = replace(held, keywords={**held.keywords, "bias": bias.astype(NUMPY_DTYPES[dtype])})
    small = given(GivenSdpa, held, case.clauses[0], case.shape, dtype, names=case.names)
    return small, dict(reply.results)
