"""Diagnosis: the true mistake is named first, two mistakes are told apart, and nothing is said where nothing fits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from conformance.cases import all_cases
from conformance.diagnosis import Explanation, Passed, diagnose
from conformance.faults import FAULTS, anatomy
from conformance.faults.anatomy import Attention
from conformance.faults.trials import Failed, explains
from conformance.judge import request, result_of
from conformance.outcomes import Outcome, Result
from impls.calls import call
from impls.contract import Implementation, Profile

PUBLISHED = Path(__file__).parents[2] / "reports" / "published" / "faults.json"

#: Failures and passed cases per fault that the measurement looks at, the smallest ones.
FAILURES, PASSES = 5, 20

PLUGGED = Implementation("plugged", "none:none")


def profile_of(dtype: str) -> Profile:
    """The profile of a user's function that declares none."""
    return PLUGGED.profile(dtype)


def replies(make: type[Attention], names: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    """Replies of one instance to cases, in float64 where that changes no dtype: other roundings than a trial's."""
    instance, found = make(), []
    for name in names:
        case = all_cases()[name]
        for dtype in case.dtypes:
            before = [request(all_cases()[case.after], dtype, "cpu")] if case.after else []
            asked = [*before, request(case, dtype, "cpu")]
            natural = [call(PLUGGED, each, make()) for each in asked][-1]
            with monkeypatch.context() as patch:
                patch.setattr(anatomy, "working_dtype", lambda _: np.float64)
                wide = [call(PLUGGED, each, instance) for each in asked][-1]
            same = {n: a.dtype for n, a in wide.results.items()} == {n: a.dtype for n, a in natural.results.items()}
            found.append((case, dtype, wide if same else natural))
    return found


def sorted_out(found: Sequence[tuple]) -> tuple[list[Failed], list[Passed]]:
    """Failures and passes."""
    failed, passed = [], []
    for case, dtype, reply in found:
        blank = Result("plugged", "cpu", dtype, case.name, case.clauses, Outcome.PASSED, profile=profile_of(dtype))
        result = result_of(reply, case, blank)
        if result.outcome is Outcome.FAILED and result.failure is not None:
            failed.append(Failed(case, dtype, profile_of(dtype), result.failure, reply))
        elif result.outcome is Outcome.PASSED:
            passed.append(Passed(case, dtype, profile_of(dtype)))
    return failed, passed


@pytest.fixture(scope="module")
def caught() -> dict[str, dict[str, str]]:
    """Which cases catch each fault, smallest first, in which dtypes: the published kill table."""
    return {fault["name"]: fault["caught"] for fault in json.loads(PUBLISHED.read_text(encoding="utf-8"))["faults"]}


def first(name: str, caught: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> tuple[bool, Explanation | None]:
    """Whether the true fault, or one that gives the same on these inputs, is ranked first; and what is."""
    make = FAULTS[name].make
    failed, _ = sorted_out(replies(make, list(caught)[:FAILURES], monkeypatch))
    passed = [
        Passed(case, dtype, profile_of(dtype))
        for case in sorted(all_cases().values(), key=lambda c: c.size)
        for dtype in case.dtypes
        if dtype not in caught.get(case.name, "") and not case.invalid
    ]
    explanations = diagnose(failed, passed[:PASSES])
    if not explanations:
        return False, None
    best = explanations[0]
    equivalent = best.fits == frozenset(f for f in failed if explains(make, f)) and len(best.faults) == 1
    return best.names == (name,) or bool(best.fits and equivalent), best


def test_the_true_fault_is_ranked_first_in_95_percent(
    caught: dict[str, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over all faults, the explanation printed first is the mistake that was made, or its equal on those inputs."""
    missed = [name for name in FAULTS if not first(name, caught[name], monkeypatch)[0]]
    assert len(missed) <= 0.05 * len(FAULTS), missed
