"""Failures whose only wrong numbers are NaN: explanations that may be given, and those that must not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from attention_conformance.conformance.cases import every_case
from attention_conformance.conformance.diagnosis import match, unnamed
from attention_conformance.conformance.diagnosis.explanation import Explanation, Passed
from attention_conformance.conformance.diagnosis.fitted import fitted
from attention_conformance.conformance.diagnosis.forms import forms_of
from attention_conformance.conformance.diagnosis.match import MANY, diagnose
from attention_conformance.conformance.diagnosis.unnamed import EITHER, lowered, possible
from attention_conformance.conformance.faults import FAULTS
from attention_conformance.conformance.faults.models.sdpa import Array, Attention, Inputs
from attention_conformance.conformance.faults.trials import Failed, trial
from attention_conformance.conformance.judging.outcomes import Failure, Outcome
from attention_conformance.conformance.spec.sdpa import Expected
from attention_conformance.impls.contract import Implementation, Profile

PLUGGED = Implementation("plugged", "none:none")

DTYPES = ("float32", "float16", "float64")

#: Calls of which only the last has products of queries and keys beyond float16.
OVERFLOWS = ("plain", "one-query", "causal-square", "mask", "scale-given", "range-product-overflows-width-20")


def judged(make: type[Attention], names: Sequence[str]) -> tuple[list[Failed], list[Passed]]:
    """Failures and passed cases of a model."""
    failed, passed = [], []
    for name in names:
        case = every_case()[name]
        for dtype in (d for d in DTYPES if d in case.dtypes):
            profile = PLUGGED.profile(dtype)
            found = trial(make, case, dtype, profile)
            if found.verdict.failure is not None:
                failed.append(Failed(case, dtype, profile, found.verdict.failure, found.reply))
            elif found.verdict.outcome is Outcome.PASSED:
                passed.append(Passed(case, dtype, profile))
    assert failed
    return failed, passed


def explained(make: type[Attention], names: Sequence[str]) -> list[Explanation]:
    """The diagnosis of a model."""
    return diagnose(*judged(make, names), pairs=False)


def test_an_overflow_that_is_nan_alone_is_said_as_a_possibility() -> None:
    """Float16 products are named from the calls alone; passed cases exclude a softmax without a maximum."""
    names = (*OVERFLOWS, "bias-smallest-all", "bias-minus-1e4")
    (found,) = explained(FAULTS["product-overflows"].make, names)  # type: ignore[arg-type]
    assert found.names == ("possible",)
    assert found.title == (
        "“only NaN or inf is wrong, exactly where this mistake puts it:"
        " q · k kept in the storage dtype before the scale”"
    )
    assert "maximum" not in found.title
    assert not any(failed.telling for failed in found.fits)


@pytest.mark.parametrize("operator", ["sdpa", "mha"])
def test_a_form_of_a_possible_mistake_is_no_alternative(operator: str) -> None:
    """A mistake lifted from attention is judged as the mistake within it."""
    forms = [fault for fault in unnamed._nan_of(operator) if "q · k kept in the storage dtype" in fault.title]
    assert len(forms) == 3
    (kept,) = unnamed._without_forms(forms)
    assert kept.name == "product-overflows"
    others = [fault for fault in unnamed._nan_of(operator) if fault.name in ("product-overflows", "no-maximum")]
    assert unnamed._without_forms(others) == others


class LostInHalf(Attention):
    """NaN in every float16 call."""

    def attend(self, x: Inputs) -> Expected:
        """The results."""
        found = super().attend(x)
        return replace(found, output=found.output * np.nan) if x.dtype == np.float16 else found


def test_nan_in_more_calls_than_a_mistake_would_give_is_no_possibility() -> None:
    """Only the call that overflows is explained, and no other NaN."""
    failed, passed = judged(LostInHalf, OVERFLOWS)
    for found in possible(failed, [], passed):
        assert {f.case.name for f in found.fits} <= {"range-product-overflows-width-20"}
    failed, passed = judged(LostInHalf, ("plain", "one-query", "causal-square"))
    assert possible(failed, [], passed) == []


def test_a_passed_case_rejects_a_possibility() -> None:
    """A passed case in which products kept in float16 would show rejects that possibility."""
    failed, passed = judged(FAULTS["product-overflows"].make, OVERFLOWS)  # type: ignore[arg-type]
    assert possible(failed, [], passed)
    wide = every_case()["range-product-overflows-width-20-causal"]
    titles = [
        each.title for each in possible(failed, [], [*passed, Passed(wide, "float16", PLUGGED.profile("float16"))])
    ]
    assert not any("q · k" in title for title in titles)


def test_of_many_possibilities_none_is_said() -> None:
    """A NaN row without passed cases fits more than EITHER mistakes, so that none is reported."""
    failed, _ = judged(FAULTS["empty-row-nan"].make, ("empty-row",))  # type: ignore[arg-type]
    assert all(each.title.count(" or ") <= EITHER for each in possible(failed, [], []))


#: One call with a fully masked row, and others without.
ONE_EMPTY = ("plain", "one-query", "causal-square", "bias", "scale-given", "bias-minus-inf-row")


class LostAndWrong(Attention):
    """NaN in fully masked rows, and wrong scores elsewhere."""

    def scores(self, x: Inputs, q: Array, k: Array) -> Array:
        """Scores that no mistake gives."""
        s = super().scores(x, q, k)
        return s + x.work(0.3) * np.sin(3 * s)

    def normalized(self, x: Inputs, powers: Array, total: Array, allowed: Array) -> Array:
        """Weights with NaN for 0 / 0."""
        return powers / total


class LostRowZero(Attention):
    """NaN in the first row of calls with a bias of −inf."""

    def attend(self, x: Inputs) -> Expected:
        """The results."""
        found = super().attend(x)
        if x.bias is not None and np.isneginf(x.bias).any():
            found.output[:, :, 0] = np.nan
        return found


def test_nan_in_the_masked_rows_of_one_case_is_said() -> None:
    """NaN in exactly the fully masked rows of one case, in every dtype, is named so."""
    found = explained(FAULTS["empty-row-nan"].make, ONE_EMPTY)  # type: ignore[arg-type]
    assert any("NaN in" in each.title for each in found)
    assert {failed.case.name for each in found for failed in each.fits} == {"bias-minus-inf-row"}


@pytest.mark.parametrize("make", [LostAndWrong, LostRowZero])
def test_nan_elsewhere_is_not_said_to_be_in_masked_rows(make: type[Attention]) -> None:
    """NaN is not blamed on masked rows if other rows are NaN or wrong."""
    assert not any("fully masked rows”" in each.title for each in explained(make, ONE_EMPTY))


class Reciprocal(Attention):
    """The given scale divides the scores."""

    def scale(self, x: Inputs) -> float:
        """1/scale."""
        return 1 / x.scale if x.scale else super().scale(x)


SCALES = ("plain", "scale-given", "scale-negative", "scale-one", "one-query")


def test_a_law_of_the_scale_that_is_given_comes_before_constants() -> None:
    """The law 1/scale is named instead of factors of 1/scale², which differ from scale to scale."""
    (found,) = explained(Reciprocal, SCALES)
    assert "divided by the scale that is given" in found.title


class ThirdOfOne(Attention):
    """A third of the scores where the scale is that of one call."""

    def scores(self, x: Inputs, q: Array, k: Array) -> Array:
        """The scaled scores."""
        return super().scores(x, q, k) * x.work(1 / 3.1 if x.scale is not None and x.scale > 0.2 else 1)


def test_a_constant_of_one_given_scale_is_said_with_it() -> None:
    """A factor found at one given scale is always reported with that scale."""
    failed, _ = judged(ThirdOfOne, ("scale-given",))
    factors = [fault.title for fault in fitted(failed, tables=False) if fault.name == "fitted-scale"]
    assert factors
    assert all("where a scale of" in title or "scale that is given" in title for title in factors)


def test_one_case_in_float64_that_passes_in_float32_is_lowered() -> None:
    """A lower precision is named for a float64 case only if the case passed in float32."""
    failed, passed = judged(FAULTS["float64-in-float32"].make, ("scale-given",))  # type: ignore[arg-type]
    alone = [failed_one for failed_one in failed if failed_one.dtype == "float64"]
    assert [each.names for each in lowered(alone, passed)] == [("lowered",)]
    assert list(lowered(alone, [each for each in passed if each.dtype != "float32"])) == []


class InfiniteAddend(Attention):
    """Products are stored, and masks are added as −inf."""

    def scores(self, x: Inputs, q: Array, k: Array) -> Array:
        """The scaled scores; masked ones overflow."""
        return (q @ k.swapaxes(2, 3)).astype(x.dtype).astype(x.work) * x.work(self.scale(x))

    def filled(self, x: Inputs, s: Array, allowed: Array) -> Array:
        """Scores plus −inf where masked: +inf − inf is NaN."""
        return s + np.where(allowed, x.work(0), x.work(-np.inf))


def test_a_mask_that_is_added_to_scores_that_overflow_is_a_form() -> None:
    """A form gives the NaN of a mask added to overflowing scores, and none gives the NaN of a mask that is written."""
    names = {"written": FAULTS["empty-row-nan"].make, "added": InfiniteAddend}
    replies = {
        words: trial(make, every_case()["masked-largest-values"], "float32", Profile.WIDE).reply.results
        for words, make in names.items()
    }
    makes = [form.make for form in forms_of("sdpa") if form.name == "form-addend" and form.title.startswith("−inf")]
    given = [
        trial(make, every_case()["masked-largest-values"], "float32", Profile.WIDE).reply.results for make in makes
    ]
    lost = [np.isnan(each["output"]) for each in given]
    assert any(np.array_equal(each, np.isnan(replies["added"]["output"])) for each in lost)
    assert not any(np.array_equal(each, np.isnan(replies["written"]["output"])) for each in lost)


class BiasFactor(Attention):
    """The scores times the bias."""

    def added(self, x: Inputs, s: Array) -> Array:
        """Scores with a factor instead of an addend."""
        return s if x.bias is None else s * np.broadcast_to(x.bias, x.shape).astype(x.work)


def test_a_bias_that_multiplies_is_named_and_one_that_counts_twice_is_not_that() -> None:
    """A bias that multiplies is named as such, and one that counts twice is not, though both fail only with a bias."""
    names = ("plain", "one-query", "bias", "bias-broadcast-k")
    (found,) = explained(BiasFactor, names)
    assert "multiplied by the bias" in found.title
    twice = type("Twice", (Attention,), {"added": lambda self, x, s: s if x.bias is None else s + 2 * x.bias})
    assert not any("multiplied by the bias" in each.title for each in explained(twice, names))


class OneMoreFromBottomRight(Attention):
    """An extra key of score 0 in every softmax, and causal from the bottom right, with NaN in fully masked rows."""

    def sinks(self, x: Inputs) -> Array:
        """A sink of score 0 for the extra key."""
        return np.zeros(x.q.shape[1], x.work)

    def default_offset(self, x: Inputs) -> int:
        """Sk − Sq."""
        return x.shape[3] - x.shape[2]

    def normalized(self, x: Inputs, powers: Array, total: Array, allowed: Array) -> Array:
        """NaN in fully masked rows."""
        weights = super().normalized(x, powers, total, allowed)
        return np.where(allowed.any(axis=3, keepdims=True), weights, x.work(np.nan))


MIXED = ("plain", "one-query", "scale-given", "bias", "causal-square", "causal-more-keys", "causal-more-queries")


def test_a_form_is_found_beside_a_mistake_that_is_in_every_call() -> None:
    """Both mistakes are named together; with the extra key alone the alignment is not."""
    titles = " ".join(each.title for each in explained(OneMoreFromBottomRight, MIXED))
    assert "exp(0) is added to every softmax denominator" in titles
    assert "bottom-right, and NaN" in titles
    alone = type("Alone", (Attention,), {"sinks": OneMoreFromBottomRight.sinks})
    assert not any("bottom-right" in each.title for each in explained(alone, MIXED))


def test_windows_that_move_are_named_where_calls_show_it() -> None:
    """Windows from the bottom right are mentioned only where a failed call has a window."""
    make = FAULTS["causal-bottom-right"].make
    without = explained(make, MIXED)  # type: ignore[arg-type]
    assert not any("windows" in each.title for each in without)
    moved = type("Moved", (Attention,), {"default_offset": OneMoreFromBottomRight.default_offset})
    failed, _ = judged(moved, ("window-more-queries", "window-one-query", "causal-more-keys"))
    windows = frozenset(each for each in failed if each.case.name.startswith("window"))
    assert windows
    form = next(form for form in forms_of("sdpa") if form.name == "form-bottom-right")
    assert ", windows from the bottom right too" in Explanation((form,), frozenset(failed)).title
    assert "windows" not in Explanation((form,), frozenset(failed) - windows).title


class RefusedOrZero(Attention):
    """Several keys are refused, and one key gives zeros."""

    def attend(self, x: Inputs) -> Expected:
        """Zeros, or an exception for several keys."""
        if x.shape[3] > 1:
            raise RuntimeError("no kernel")
        found = super().attend(x)
        return replace(found, output=0 * found.output)


def test_zeros_of_one_key_say_nothing_where_most_calls_are_refused() -> None:
    """Zeros for one key are not reported where most calls are refused; only the refusal is."""
    found = explained(RefusedOrZero, ("plain", "one-query", "mask", "scale-given", "causal-square", "one-key"))
    assert {name for each in found for name in each.names} == {"raised"}


def test_refusals_are_not_counted_among_many() -> None:
    """Wrong numbers in MANY cases count as many failures, and any number of exceptions does not."""
    small = sorted((c for c in every_case().values() if c.operator == "sdpa" and not c.invalid), key=lambda c: c.size)
    refused, passed = judged(RefusedOrZero, [case.name for case in small if case.shape.sk > 1][: MANY + 5])
    assert not passed
    assert not match._many(refused)
    wrong = [replace(failed, failure=Failure.VALUE) for failed in refused]
    assert match._many(wrong)


class SumWhereEmpty(Attention):
    """Fully masked rows are the sum of v, as weights of exp(s − lse) give where both are the fill."""

    def normalized(self, x: Inputs, powers: Array, total: Array, allowed: Array) -> Array:
        """Weights of 1 in fully masked rows."""
        return np.where(allowed.any(axis=3, keepdims=True), super().normalized(x, powers, total, allowed), x.work(1))


class NoiseWhereEmpty(Attention):
    """Every fully masked row holds other numbers."""

    def attend(self, x: Inputs) -> Expected:
        """The results."""
        found = super().attend(x)
        noise = np.random.default_rng(0).normal(size=found.output.shape)
        return replace(found, output=np.where(found.allowed.any(axis=3, keepdims=True), found.output, noise))


def test_masked_rows_that_hold_the_same_numbers_were_written() -> None:
    """Fully masked rows with the same numbers were written; rows with different numbers may be uninitialised."""
    for make, repeats in ((SumWhereEmpty, True), (NoiseWhereEmpty, False)):
        failed, _ = judged(make, ("empty-all",))
        assert all(unnamed._repeats(each) is repeats for each in failed)
