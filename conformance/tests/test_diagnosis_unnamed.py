"""Failures that no known mistake gives but that are named: overflow under a mask, uninitialised outputs, no error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from attention_conformance.conformance.cases import every_case
from attention_conformance.conformance.diagnosis import match, unnamed
from attention_conformance.conformance.diagnosis.explain import explanation_text
from attention_conformance.conformance.diagnosis.explanation import Explanation, Passed, combined
from attention_conformance.conformance.diagnosis.forms import forms_of
from attention_conformance.conformance.diagnosis.match import diagnose
from attention_conformance.conformance.faults import FAULTS, Fault
from attention_conformance.conformance.faults.models.sdpa import Array, Attention, Inputs, Model
from attention_conformance.conformance.faults.sdpa.validation import ValueHeadsUnchecked
from attention_conformance.conformance.faults.trials import fails
from attention_conformance.conformance.spec.sdpa import Expected, broadcasts
from attention_conformance.conformance.tests.test_diagnosis_match import called, sorted_out
from attention_conformance.impls.contract import Profile

pytestmark = pytest.mark.slow(5)


def said(make: type[Model], names: Sequence[str], dtype: str = "float32") -> list[Explanation]:
    """The diagnosis of an implementation on some cases in one dtype."""
    cases = [every_case()[name] for name in names]
    failed, passed = sorted_out([(case, dtype, called(make(), case, dtype)) for case in cases])
    assert failed
    return diagnose(failed, passed, pairs=False)


def titles(found: Sequence[Explanation]) -> str:
    """The titles of all explanations."""
    return " | ".join(one.title for one in found)


class MaskAdded(Attention):
    """−inf is added to masked scores, which were summed in another order before they were scaled."""

    def filled(self, x: Inputs, s: Array, allowed: Array) -> Array:
        """Masked scores: NaN where the first half of a sum overflows."""
        with np.errstate(all="ignore"):
            terms = (x.q[..., None, :] * x.k[:, :, None]).astype(np.float32)
            summed = np.cumsum(terms, axis=-1, dtype=np.float32)
            lost = ~np.isfinite(summed).all(axis=-1) & (terms.sum(axis=-1) > 0)
        return np.where(allowed, s, np.where(lost, np.nan, -np.inf)).astype(s.dtype)


class SomeRowsLost(Attention):
    """Every second column of the first row is NaN wherever a mask is given."""

    def stored(self, x: Inputs, output: Array) -> Array:
        """The output as it is returned."""
        output = super().stored(x, output)
        if x.mask is not None:
            output[:, :, 0, ::2] = np.nan
        return output


MASKS = ("plain", "mask", "masked-largest-values")


def test_nan_where_a_masked_score_overflows_is_named() -> None:
    """NaN in exactly the rows where a masked score overflows is named, even in a single case."""
    (one,) = said(MaskAdded, MASKS)
    assert "a masked key whose score overflows" in one.title
    assert {failed.case.name for failed in one.fits} == {"masked-largest-values"}


def test_nan_in_parts_of_rows_is_no_overflow() -> None:
    """NaN in parts of rows is not blamed on an overflow, as a score spoils a whole row."""
    assert "overflows" not in titles(said(SomeRowsLost, MASKS))


def test_a_product_that_overflows_before_the_scale_is_no_score_that_does() -> None:
    """A product that overflows before the scale is another mistake, and does not count as an overflowing score."""
    for name, whether in (("masked-largest-values-half", True), ("range-product-overflows-width-20-causal", False)):
        assert unnamed._overflowing(Passed(every_case()[name], "float16", Profile.WIDE)).any() == whether


def test_nan_alone_does_not_outweigh_passed_cases() -> None:
    """Two mistakes that each give NaN are named, and not one that gives both but would fail passed cases."""
    both = combined([FAULTS["empty-row-nan"], FAULTS["fill-before-scale"]])
    assert both is not None
    masked = ("mask", "mask-one-query", "empty-all", "empty-row", "empty-row-last")
    found = titles(said(both, (*masked, "scale-negative-mask", "scale-zero-mask")))
    assert "NaN in fully masked rows" in found
    assert "the sign of the fill" not in found


def test_a_case_without_other_rows_counts_beside_one_that_has_them() -> None:
    """A case with only masked rows confirms NaN in masked rows next to one with other rows, but not alone."""
    fault = FAULTS["empty-row-nan-by-bias"]
    cases = [every_case()[name] for name in ("bias-minus-inf-row", "bias-minus-inf-all")]
    failed, _ = sorted_out([(case, "float32", called(fault.make(), case, "float32")) for case in cases])
    _, every_row = failed
    assert match._says_of_masked_rows(Explanation((fault,), frozenset(failed)), failed)
    assert not match._says_of_masked_rows(Explanation((fault,), frozenset([every_row])), [every_row])


class LastHeadZero(Attention):
    """The last head of the output is never computed, and its memory is cleared."""

    def stored(self, x: Inputs, output: Array) -> Array:
        """The output as it is returned."""
        output = super().stored(x, output)
        output[:, -1] = 0
        return output


def test_a_part_that_holds_zeros_is_said_to_hold_zeros() -> None:
    """A part of zeros is said to hold zeros, as uninitialised memory may hold anything."""
    cases = [every_case()[name] for name in ("plain", "mask", "scale-negative", "causal-more-keys")]
    failed, _ = sorted_out([(case, "float32", called(LastHeadZero(), case, "float32")) for case in cases])
    (one,) = unnamed.unwritten(failed, [])
    assert "the last head holds zeros" in one.title


class NeverWritten(Attention):
    """Without keys the output is uninitialised memory."""

    def stored(self, x: Inputs, output: Array) -> Array:
        """The output as it is returned."""
        if x.shape[3] == 0:
            return np.linspace(-3, 5, output.size, dtype=np.float32).reshape(output.shape) ** 3
        return super().stored(x, output)


class OnesWithoutKeys(Attention):
    """Without keys every number is 1, as some definitions have it."""

    def stored(self, x: Inputs, output: Array) -> Array:
        """The output as it is returned."""
        return np.ones_like(output) if x.shape[3] == 0 else super().stored(x, output)


EMPTY = ("plain", "empty-keys", "empty-keys-causal", "empty-keys-grouped", "empty-queries")


def test_an_output_that_is_never_written_is_named() -> None:
    """Outputs that are never written, of calls without keys, are named."""
    (one,) = said(NeverWritten, EMPTY)
    assert "outputs of calls without keys look uninitialised" in one.title
    assert len(one.fits) == 3


def test_an_output_of_one_number_was_written() -> None:
    """An output that is one number everywhere is not called uninitialised."""
    assert "look uninitialised" not in titles(said(OnesWithoutKeys, EMPTY))


class AnyMask(Attention):
    """Masks are not checked."""

    def check(self, x: Inputs) -> None:
        """Accept every mask."""

    def attend(self, x: Inputs) -> Expected:
        """Results without the mask where it does not fit, and of the first sample only."""
        fits = x.mask is None or broadcasts(x.mask.shape, x.shape)
        found = super().attend(x if fits else replace(x, mask=None))
        return found if fits else replace(found, output=found.output[:1])


def test_what_is_accepted_is_said_by_clause() -> None:
    """Accepted invalid inputs are one cause, named in the words of the cases."""
    found = said(AnyMask, ("plain", "mask", "invalid-mask-keys", "invalid-mask-queries"))
    words = titles(found)
    assert words.count("an invalid input is accepted") == 1
    for name in ("invalid-mask-keys", "invalid-mask-queries"):
        assert every_case()[name].why.rstrip(".") in words


def test_a_mistake_that_gives_the_result_is_said_instead() -> None:
    """A mistake that gives the result, such as heads of k and v repeated separately, is named instead."""
    found = said(ValueHeadsUnchecked, ("plain", "invalid-heads-values", "invalid-heads-keys"))
    assert "k and v with unequal numbers of heads accepted" in titles(found)


def test_a_result_of_another_dtype_is_named() -> None:
    """The first result with a wrong dtype is named, whether it is the output or a result next to a right one."""
    for name, fault, words in (
        ("lse", "lse-in-storage", "lse of a float16 call is float16"),
        ("weights", "weights-float32", "weights of a float16 call are float32"),
        ("plain", "output-float32", "results of a float16 call are float32"),
    ):
        case = every_case()[name]
        failed, _ = sorted_out([(case, "float16", called(FAULTS[fault].make(), case, "float16"))])
        (one,) = unnamed.raised(failed, [])
        assert one.title == f"“{words}”"


def test_a_cause_in_words_equals_nothing() -> None:
    """The text says "equals" for a mistake, and only quotes the words of an exception."""
    text = "an exception: ValueError: no"
    refusal = Fault("raised", "SDPA-1", text, (), unnamed.Words)
    case = every_case()["plain"]
    failed, _ = sorted_out([(case, "float16", called(FAULTS["output-float32"].make(), case, "float16"))])
    assert explanation_text(Explanation((refusal,), frozenset(failed)), 21) == f"1 of 21 failures: “{text}”"
    assert explanation_text(Explanation((refusal,), frozenset(failed)), 1) == f"this failure: “{text}”"
    known = Explanation((FAULTS["output-float32"],), frozenset(failed))
    assert explanation_text(known, 21).startswith("1 of 21 failures equals “half precision returned as float32”")


class CausalScaled(Attention):
    """−inf of a causal mask is scaled, and the whole output is NaN where that gives NaN or +inf."""

    def stored(self, x: Inputs, output: Array) -> Array:
        """The output as it is returned."""
        lost = x.is_causal and x.scale is not None and x.scale <= 0
        return np.full_like(super().stored(x, output), np.nan) if lost else super().stored(x, output)


SCALES = ("plain", "scale-negative", "scale-zero", "causal-square", "scale-negative-causal", "scale-zero-causal")


def test_nan_in_every_element_names_the_only_mistakes_that_give_it() -> None:
    """NaN in every element names the only mistakes that give it, unless a passed case would show them."""
    (one,) = said(CausalScaled, SCALES)
    assert "NaN in every element of output; this mistake gives the same: " in one.title
    assert "is_causal is written before the scale" in one.title


class RowLost(Attention):
    """Zeros in rows whose query has a NaN, found by its sum."""

    def stored(self, x: Inputs, output: Array) -> Array:
        """The output as it is returned."""
        lost = np.isnan(x.q).any(axis=3, keepdims=True)
        return np.where(lost, 0, super().stored(x, output)).astype(output.dtype)


NANS = ("plain", "nan-query", "nan-all", "nan-key", "nan-key-alone")


def test_zeros_in_rows_whose_every_score_is_nan_are_a_form() -> None:
    """The form gives zeros only in rows whose every score is NaN, not in every row with a NaN."""
    form = next(form for form in forms_of("sdpa") if form.name == "form-nan-row")
    failing = [name for name in NANS if fails(form.make, every_case()[name], "float32", Profile.WIDE)]
    assert failing == ["nan-query", "nan-all", "nan-key-alone"]


def test_zeros_for_a_query_of_nan_are_another_mistake() -> None:
    """Zeros for a NaN query are not taken for that form, as a call whose only key is NaN passes."""
    found = said(RowLost, NANS)
    assert not any("every score is NaN" in one.title and not one.only for one in found)


class KeysOfZero(Attention):
    """``more`` extra keys of score 0 and value 0 after the last key."""

    more = 5.0

    def sinks(self, x: Inputs) -> Array:
        """The score of one key with the weight of all extra keys."""
        return np.logaddexp(super().sinks(x), x.work(np.log(self.more)))


class OneKeyOfAScore(KeysOfZero):
    """An extra key whose score fits no whole number of keys of score 0."""

    more = 5.4


SHAPES = ("plain", "plain-tall", "one-query", "mask", "causal-square", "value-width-larger")


def test_several_keys_of_score_zero_are_counted() -> None:
    """Several extra keys of score 0, as unmasked padding, are counted; one key of another score is one key."""
    assert "the softmax denominator counts 5 extra keys of score 0 and value 0" in titles(said(KeysOfZero, SHAPES))
    assert "exp(1.68" in titles(said(OneKeyOfAScore, SHAPES))


class RowsOfKeys(Attention):
    """The output has a row for each key instead of each query."""

    def stored(self, x: Inputs, output: Array) -> Array:
        """The first row, repeated."""
        return np.repeat(super().stored(x, output)[:, :, :1], x.shape[3], axis=2)


class HalfTheColumns(Attention):
    """The output has half of the columns, which is the length of no input axis."""

    def stored(self, x: Inputs, output: Array) -> Array:
        """The first columns."""
        return super().stored(x, output)[..., : output.shape[3] // 2]


def test_an_output_of_another_shape_is_told_by_its_axes() -> None:
    """A wrong shape is named by axes whose lengths match an input's in all calls, and otherwise not."""
    assert "an output of shape (B, Hq, Sk, Dv) in place of (B, Hq, Sq, Dv)" in titles(said(RowsOfKeys, SHAPES))
    assert "in place of" not in titles(said(HalfTheColumns, SHAPES))


class CausalLostWithBias(Attention):
    """The causal mask is dropped where a bias is given."""

    def causal_allows(self, x: Inputs) -> Array:
        """Mask of the allowed keys."""
        return super().causal_allows(x) if x.bias is None else np.ones(x.shape, bool)


def test_scores_that_are_not_masked_are_no_tiny_addend() -> None:
    """Scores that are not masked are not explained by a tiny addend."""
    words = titles(said(CausalLostWithBias, ("plain", "causal-square", "bias", "combined-bias-causal")))
    assert "is added to masked scores" not in words
    assert words
