"""Choice of the failures that the diagnosis searches: all kinds of calls, and again where a cause misfits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from attention_conformance.conformance.cases import AnyCase, asked_cases
from attention_conformance.conformance.diagnosis import match
from attention_conformance.conformance.diagnosis.explanation import Explanation, Passed
from attention_conformance.conformance.diagnosis.match import diagnose, examined
from attention_conformance.conformance.faults import FAULTS, Fault
from attention_conformance.conformance.faults.models.sdpa import Array, Attention, Inputs, Model
from attention_conformance.conformance.faults.trials import Failed, trial
from attention_conformance.conformance.spec.sdpa import Expected
from attention_conformance.impls.contract import Implementation

PROFILE = Implementation("plugged", "none:none").profile("float32")

#: Largest number of elements of the arguments of cases here: for narrow heads, and for those wider than 32.
NARROW, WIDE = 1000, 12_000


class ScaleOfWidth32(Attention):
    """A scale of 1/√32 at every width, and −1e9 written at masked keys."""

    def default_scale(self, x: Inputs) -> float:
        """The scale for the width that a kernel was written for."""
        return 32**-0.5

    def filled(self, x: Inputs, s: Array, allowed: Array) -> Array:
        """The scores with a finite fill."""
        return np.where(allowed, s, x.work(-1e9))


def asked() -> list[AnyCase]:
    """Small cases of attention without options or with a mask, run on a user's function of q, k, v and mask."""
    plain = (c for c in asked_cases().values() if c.operator == "sdpa" and not c.invalid and c.keywords <= {"mask"})
    small = (case for case in plain if case.size[0] <= (NARROW if case.shape.d <= 32 else WIDE))
    return sorted((case for case in small if "float32" in case.dtypes), key=lambda case: case.size)


def sorted_out(make: type[Model], cases: Sequence[AnyCase]) -> tuple[list[Failed], list[Passed]]:
    """Failures and passed cases of a model in float32."""
    failed, passed = [], []
    for case in cases:
        found = trial(make, case, "float32", PROFILE)
        if found.verdict.failure is None:
            passed.append(Passed(case, "float32", PROFILE))
        else:
            failed.append(Failed(case, "float32", PROFILE, found.verdict.failure, found.reply))
    return failed, passed


def names_both(found: Sequence[Explanation], failed: Sequence[Failed]) -> bool:
    """Whether scale and fill are named, the scale as one that ignores the width, and all failures are explained."""
    titles = " ".join(each.title for each in found)
    explained = frozenset[Failed]().union(*(each.fits for each in found))
    return (
        "a scale of 1/√32 for every D in the place of 1/√D" in titles
        and "the mean of v in fully masked rows" in titles
        and "padded" not in titles
        and "times the expected" not in titles
        and explained == set(failed)
    )


@pytest.mark.slow(3)
def test_a_scale_of_one_width_is_named_at_every_width() -> None:
    """The scale is named next to the fill; widths up to 32 alone would fit the width padded to a multiple of 32."""
    failed, passed = sorted_out(ScaleOfWidth32, asked())
    assert len({f.case.shape.d for f in failed if f.case.shape.d > 32}) > 3
    assert names_both(diagnose(failed, passed, pairs=False), failed)


@pytest.mark.slow(2)
def test_a_cause_that_misfits_the_rest_is_searched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cause that fits the first failures, which are narrow, is overturned by the others."""
    failed, passed = sorted_out(ScaleOfWidth32, asked())
    monkeypatch.setattr(match, "kinds_of", lambda _: frozenset())  # the smallest, as in an earlier version
    monkeypatch.setattr(match, "MOST", 12)
    assert names_both(diagnose(failed, passed, pairs=False), failed)
    monkeypatch.setattr(match, "AGAIN", 0)
    assert not names_both(diagnose(failed, passed, pairs=False), failed)


def test_the_failures_that_are_looked_at_are_of_every_kind() -> None:
    """The examined failures have every width, small ones first; the smallest alone would not have every width."""
    failed, _ = sorted_out(FAULTS["scale-twice"].make, asked())
    few = examined(failed, 20)
    widths = {f.case.shape.d for f in failed}
    assert {f.case.shape.d for f in few} == widths
    assert {f.case.shape.d for f in sorted(failed, key=lambda f: f.size)[:20]} < widths
    assert few == examined(failed)[:20]


def test_what_another_explanation_gives_is_not_said_twice() -> None:
    """An explanation is dropped if others explain all of its failures, and kept if it explains one alone."""
    failed, _ = sorted_out(FAULTS["scale-twice"].make, asked()[:16])
    scale, mask, fill = (FAULTS[name] for name in ("scale-twice", "mask-ignored", "empty-row-mean"))
    a, b, c = failed[:3]
    wide, one, other = (
        Explanation((scale,), frozenset((a, b))),
        Explanation((mask,), frozenset((b, c))),
        Explanation((fill,), frozenset((b,))),
    )
    assert match._without_superfluous([wide, one, other]) == [wide, one]
    assert match._without_superfluous([wide, one]) == [wide, one]


class Raising(Attention):
    """An exception wherever there are more keys than rows."""

    def attend(self, x: Inputs) -> Expected:
        """Attention, or the exception."""
        if x.k.shape[2] > x.q.shape[2]:
            raise RuntimeError(f"no kernel for {x.k.shape[2]} keys")
        return super().attend(x)


@pytest.mark.slow(1)
def test_exceptions_are_explained_by_their_words_and_by_no_pair_of_mistakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exceptions are explained by their words; pairs of mistakes are searched only for wrong numbers."""
    searched: list[Failed] = []

    def showing(failed: Failed) -> list[Fault]:
        searched.append(failed)
        return []

    monkeypatch.setattr(match, "_showing", showing)
    failed, passed = sorted_out(Raising, asked())
    (found,) = diagnose(failed, passed)
    assert found.title.startswith("“an exception: RuntimeError: no kernel for … keys”")
    assert found.fits == frozenset(failed)
    assert searched == []
    wrong, right = sorted_out(ScaleOfWidth32, asked())
    monkeypatch.setattr(match, "_explanations", lambda *_: iter(()))
    assert diagnose(wrong, right) == []
    assert searched
