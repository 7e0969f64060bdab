"""Verdicts on faults: they are the judge's, and a verdict is reused only for the same reply."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from attention_conformance.conformance import faults
from attention_conformance.conformance.cases import AnyCase, every_case
from attention_conformance.conformance.faults import trials
from attention_conformance.conformance.faults.models.sdpa import Attention
from attention_conformance.conformance.faults.registry import cited
from attention_conformance.conformance.judging.judge import judge
from attention_conformance.conformance.judging.outcomes import Failure, Outcome, Result
from attention_conformance.conformance.run_case import request
from attention_conformance.impls.calls import Reply, call
from attention_conformance.impls.contract import Implementation, Profile

CASE, DTYPE = every_case()["plain"], "float32"
BLANK = Result("fault", "cpu", DTYPE, CASE.name, CASE.clauses, Outcome.PASSED, profile=Profile.WIDE)


def right() -> Reply:
    """The reply of a correct attention."""
    return call(Implementation("fault", "none:none"), request(CASE, DTYPE, "cpu"), Attention())


def output(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Reply], Reply]:
    """A change of only the output."""
    return lambda reply: replace(reply, results={"output": change(reply.results["output"])})


def last_wrong(array: np.ndarray) -> np.ndarray:
    """An array with only its last element wrong."""
    found = array.copy()
    found.flat[-1] += 1
    return found


WRONG: dict[Failure, Callable[[Reply], Reply]] = {
    Failure.VALUE: output(last_wrong),
    Failure.SHAPE: output(lambda array: array[..., None]),
    Failure.DTYPE: output(lambda array: array.view(np.int32)),
    Failure.ERROR: lambda _: Reply("raised", text="ValueError: no"),
    Failure.MODIFIED: lambda reply: replace(reply, modified=("q",)),
    Failure.UNREPEATABLE: lambda reply: replace(reply, unequal=("output",)),
    Failure.STATE: lambda reply: replace(reply, changed=("default dtype: float32 → float64",)),
}


@pytest.mark.parametrize("failure", WRONG, ids=lambda failure: failure.name)
def test_a_wrong_reply_is_no_right_one(failure: Failure) -> None:
    """A reply that differs in one respect from one that passed fails by that, though the case is the same."""
    reply = right()
    assert trials.verdict(reply, CASE, BLANK) == (Outcome.PASSED, None)
    assert trials.verdict(WRONG[failure](reply), CASE, BLANK) == (Outcome.FAILED, failure)


def test_a_verdict_is_given_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bits are judged once for a case, and again under another profile."""
    judged: list[str | None] = []

    def counted(reply: Reply, case: AnyCase, blank: Result, **options: bool) -> Result:
        judged.append(blank.profile)
        return judge(reply, case, blank, **options)

    monkeypatch.setattr(trials, "_GIVEN", {})
    monkeypatch.setattr(trials, "judge", counted)
    for profile in (Profile.WIDE, Profile.WIDE, Profile.TF32):
        trials.verdict(right(), CASE, replace(BLANK, profile=profile))
    assert judged == [Profile.WIDE, Profile.TF32]


def test_a_fault_forgets_what_it_kept() -> None:
    """A fault forgets what earlier calls left, so that a row of the kill matrix does not depend on them."""
    kept = vars(faults.mask_stays)
    kept["kept"] = "a mask"
    faults.forget("mask_stays")
    assert kept == {"kept": None}


@pytest.mark.parametrize(("change", "same"), [(lambda array: array, True), (lambda array: array[:, :, ::-1], False)])
def test_a_result_of_another_shape_is_explained_by_its_numbers(
    change: Callable[[np.ndarray], np.ndarray], same: bool
) -> None:
    """A shape that a fault gives is not explained by the fault if the numbers differ."""
    fault = faults.FAULTS["output-sequence-first"].make
    reply = call(Implementation("fault", "none:none"), request(CASE, DTYPE, "cpu"), fault())
    failed = trials.Failed(CASE, DTYPE, Profile.WIDE, Failure.SHAPE, output(change)(reply))
    assert trials.explains(fault, failed) is same


@pytest.mark.parametrize(
    ("sources", "text"),
    [
        (("octo 75", "octo PR 76"), "octo-models/octo#75, #76"),
        (
            ("cf. mlx 2835", "source 002", "vit-pytorch 65"),
            "ml-explore/mlx#2835, article 002, lucidrains/vit-pytorch#65",
        ),
        (("path fa2-width-64",), "path fa2-width-64"),
        ((), ""),
    ],
)
def test_sources_are_cited_as_github_writes_them(sources: tuple[str, ...], text: str) -> None:
    """A repository is named once for consecutive threads, an article by its number."""
    assert cited(sources) == text
