"""Cases fitted to envelopes: sizes inside, cases that cannot be run, and data that still exposes mistakes."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attention_conformance.conformance.cases import (
    Case,
    all_cases,
    asked_kernel_cases,
    every_case,
    kernel_cases,
    kernels,
    one_shape_cases,
)
from attention_conformance.conformance.cases.base import HALVES
from attention_conformance.conformance.cases.data import Shape, normal
from attention_conformance.conformance.cases.envelopes import ENVELOPES
from attention_conformance.conformance.cases.fit import (
    at,
    dtypes_for,
    fit,
    fit_kernels,
    in_float16,
    in_range,
    is_ordinary,
    meets_need,
    needs,
    sizes_of,
)
from attention_conformance.impls.contract import Profile
from attention_conformance.impls.envelope import Envelope, Sizes

#: Larger cases take seconds each.
LARGEST = 2**21


def fitted(name: str) -> Iterator[Case]:
    """The cases of sdpa that can be run inside an envelope."""
    envelope, dtypes = ENVELOPES[name].envelope, ENVELOPES[name].dtypes
    for case in all_cases().values():
        found = fit(case, envelope)
        if not found.unfit and dtypes_for(case, dtypes):
            yield found


@pytest.mark.slow(9)
@pytest.mark.parametrize("name", ENVELOPES)
def test_a_fitted_case_is_inside_and_keeps_what_it_needs(name: str) -> None:
    """A fitted case has sizes inside the envelope that meet every need of the case."""
    for case in fitted(name):
        assert case.shape in ENVELOPES[name].envelope, case.name
        sizes = vars(case.shape)
        if not case.invalid and case.shape.elements < LARGEST:
            s, inputs = case.shape, case.inputs(dtypes_for(every_case()[case.name], ENVELOPES[name].dtypes)[0])
            past = case.past or 0
            assert inputs.q.shape == (s.b, s.hq, s.sq, s.d), case.name
            assert inputs.k.shape == (s.b, s.hkv, s.sk - past, s.d), case.name
            assert inputs.v.shape == (s.b, s.hkv, s.sk - past, s.dv), case.name
        assert [n for n in needs(every_case()[case.name]) if not meets_need(n, sizes)] == [], case.name


def test_a_case_whose_own_sizes_are_taken_stays_itself() -> None:
    """A case whose own sizes are taken is unchanged, so implementations that take every call see no change."""
    for case in all_cases().values():
        assert fit(case, Envelope()) is case
    assert fit(all_cases()["width-128"], Envelope(head_widths=Sizes((128,)))) is all_cases()["width-128"]


@pytest.mark.parametrize(
    ("name", "envelope", "why"),
    [
        ("causal-more-keys", "Sq = Sk", "needs Sq < Sk"),
        ("width-80", "width 128", "needs D = 80"),
        ("heads-4-over-2", "static", "needs group = 2, group > 1"),
        ("lengths-zero", "static", "needs B > 1"),
        ("empty-row", "one query", "needs Sq > 1"),
        ("value-width-larger", "half-precision flash", "needs Dv > D"),
        ("keys-15-peak-last", "tiles of 128", "needs Sk = 15"),
    ],
)
def test_what_cannot_be_asked_says_what_it_needs(name: str, envelope: str, why: str) -> None:
    """A case that cannot be run says which of its needs the envelope does not meet, and nothing more."""
    assert fit(all_cases()[name], ENVELOPES[envelope].envelope).unfit == f"not applicable: {why}"


def test_options_that_are_not_taken_together_are_not_asked_together() -> None:
    """Options that are not taken together occur in no case together, but each occurs without the other."""
    envelope = Envelope(not_together=(frozenset({"mask", "is_causal"}),))
    assert fit(all_cases()["combined-mask-causal"], envelope).unfit == "not applicable: is_causal and mask together"
    assert not fit(all_cases()["mask"], envelope).unfit


def test_every_clause_of_the_options_can_be_asked_of_a_flash_kernel() -> None:
    """Every clause can be tested on a kernel that takes only half precision at its own widths."""
    tested = {case.clauses[0] for case in fitted("half-precision flash")}
    assert {case.clauses[0] for case in all_cases().values()} - tested == set()


@pytest.mark.parametrize(("name", "least"), [("half-precision flash", 400), ("static", 250), ("tiles of 128", 300)])
def test_most_cases_can_be_asked_of_kernels(name: str, least: int) -> None:
    """Hundreds of cases fit, where 12 or none could run at their own sizes."""
    assert sum(1 for _ in fitted(name)) >= least


def test_the_same_envelope_gives_the_same_case() -> None:
    """Equal envelopes give the same case with equal inputs, so that a rerun repeats it."""
    case, envelope = all_cases()["mask"], ENVELOPES["static"].envelope
    again = Envelope(**vars(envelope))
    assert fit(case, again) is fit(case, envelope)
    assert at(case, sizes_of(fit(case, envelope))).shape == fit(case, envelope).shape


def test_float32_cases_are_asked_in_half_precision_where_there_is_nothing_else() -> None:
    """Cases run in their own dtypes if taken, else in float16, or in bfloat16 where numbers exceed float16."""
    assert dtypes_for(all_cases()["mask-square"], HALVES) == ("float16",)
    assert dtypes_for(all_cases()["softmax-shift-plus-1e5"], HALVES) == ("bfloat16",)
    assert dtypes_for(all_cases()["softmax-shift-plus-1e5"], ("float16",)) == ()
    assert dtypes_for(all_cases()["mask-square"], ("float32", "float16")) == ("float32",)
    assert dtypes_for(all_cases()["plain"], HALVES) == HALVES
    assert not in_float16(all_cases()["masked-largest-values"])


def test_an_ordinary_case_is_within_float16_by_its_numbers() -> None:
    """Cases taken as ordinary, without making their inputs, are within float16; cases of large numbers are not."""
    ordinary = [case for case in all_cases().values() if is_ordinary(case)]
    fitted_ones = [case for case in fitted("static") if is_ordinary(case)]
    assert len(ordinary) > 100
    assert [case.name for case in (*ordinary, *fitted_ones[::5]) if not in_range(case)] == []
    assert not any(map(is_ordinary, (all_cases()[n] for n in ("masked-largest-values", "softmax-shift-plus-1e5"))))


def test_lengths_stay_within_the_keys_and_differ() -> None:
    """Lengths of all keys remain all, lengths of none remain none, and others stay between."""
    for name in ("static decoding", "tiles of 128"):
        for case in fitted(name):
            given = case.options.get("kv_lengths")
            if given is None or case.invalid:
                continue
            valid = np.asarray(case.inputs(ENVELOPES[name].dtypes[0]).keywords["kv_lengths"])
            assert valid.shape == (case.shape.b,), case.name
            assert (valid >= 0).all(), case.name
            assert (valid <= case.shape.sk).all(), case.name


@functools.cache
def _rows(case: Case, dtype: str) -> tuple[bool, bool]:
    """Whether there are fully masked rows, and rows that see a part of the keys."""
    seen = case.expected(dtype).allowed.sum(3)
    return bool((seen == 0).any()), bool(((seen > 0) & (seen < case.shape.sk)).any())


@pytest.mark.slow(11)
@pytest.mark.parametrize("name", ENVELOPES)
def test_a_fitted_case_still_masks_what_it_is_about(name: str) -> None:
    """Where the case has fully masked rows, or rows that see only some of the keys, the fitted case has them too."""
    for case in fitted(name):
        own = every_case()[case.name]
        if not case.fitted or case.invalid or case.shape.elements > LARGEST:
            continue
        dtype = dtypes_for(own, ENVELOPES[name].dtypes)[0]
        before, after = _rows(own, own.dtypes[0]), _rows(case, dtype)
        assert "SDPA-15" not in case.clauses or after[0] >= before[0], f"{case.name}: no masked row at {case.shape}"
        assert case.shape.sq == 1 or after[1] >= before[1], f"{case.name}: no masked key at {case.shape}"


def test_every_last_key_decides_an_element_in_half_precision() -> None:
    """At 128 keys of width 128 in bfloat16 leaving out the last key leaves the bound in some row."""
    for name in ("plain", "scale-given", "bias", "values-tell-their-key"):
        case = at(all_cases()[name], (1, 2, 2, 128, 128, 128, 128))
        inputs = case.inputs("bfloat16")
        without = {n: (v[..., :-1] if isinstance(v, np.ndarray) else v) for n, v in inputs.keywords.items()}
        other = type(inputs)(inputs.q, inputs.k[:, :, :-1], inputs.v[:, :, :-1], without)
        wrong = np.abs(case.make_expected(other).output - case.expected("bfloat16").output)
        assert (wrong > case.bound("bfloat16", Profile.STORAGE).output).any(), name


def test_a_need_that_is_none_is_refused() -> None:
    """A misspelt need in a table of cases is refused."""
    with pytest.raises(ValueError, match="is no need"):
        needs(Case("it", ("SDPA-1",), "", Shape(), needs="more keys"))


def test_needs_of_heads_and_lengths_are_looked_at_together() -> None:
    """A case that needs fewer heads than rows gets such sizes, or says that it cannot."""
    case = every_case()["merge-invalid-layout"]
    assert fit(case, Envelope(head_widths=Sizes((64,)), source="declared")).shape.d == 64
    assert fit(case, Envelope(head_counts=Sizes((8,)), source="declared")).unfit == "not applicable: needs Hq < Sq"


@pytest.mark.parametrize(
    "envelope",
    [
        Envelope(head_widths=Sizes((64,)), source="declared"),
        Envelope(head_counts=Sizes((8,)), query_lengths=Sizes((1,)), source="declared"),
        Envelope(key_lengths=Sizes((128,)), batch_sizes=Sizes((1,)), source="declared"),
    ],
)
def test_every_case_of_every_operator_fits_or_says_why_not(envelope: Envelope) -> None:
    """No case of any operator stops a run, and none runs outside the envelope."""
    for case in every_case().values():
        fitted = fit(case, envelope)
        inside = not isinstance(case.shape, Shape) or fitted.shape in envelope
        assert fitted.unfit.startswith("not applicable: ") if fitted.unfit else inside, case.name


def test_of_kernel_cases_that_are_made_alike_two_are_asked() -> None:
    """Two of several equal kernel cases are run; a mask, NaN, a past or other numbers make a case different."""
    one = kernels.kernel_case("kernel-edges-plain-1x2x2-q1-k256-d64-float32")
    alike = [replace(one, name=f"kernel-{name}") for name in ("a-b-c-d-e", "f-g-h-i-j", "plain", "x-y-z")]
    other = [
        replace(one, name="kernel-data", data=normal(1.0)),
        replace(one, name="kernel-past", past=255),
        replace(one, name="kernel-edit", edit=lambda x: x),
        replace(one, name="kernel-option", options={"softcap": 6.0}),
        replace(one, name="kernel-value", options={"softcap": 7.0}),
    ]
    found = fit_kernels([*alike, *other], ENVELOPES["one query"].envelope, ("float32",))
    assert sorted(case.name for case in found) == sorted(case.name for case in (*alike[:2], *other))


#: Cases by the kind of data that exposes mistakes, one for every option that moves or hides that data.
TOLD = {
    "numbered": ("values-tell-their-key", "heads-4-over-2", "kernel-token-window-one"),
    "peak": ("keys-64-peak-last", "offset-long", "lengths-long", "decode-last-tile", "data-peak-key-63"),
    "shifted": (
        "softmax-shift-minus-625",
        "softmax-shift-plus-625",
        "softmax-shift-tiles",
        "kernel-token-mask-low-scores",
    ),
}


def mistaken(case: Case, inputs: Any, what: str) -> list[Any]:
    """Wrong outputs that the data of a case must distinguish from the right one."""
    right = case.make_expected(inputs)
    zeros = np.zeros_like(right.output)
    if what == "shifted":
        return [zeros]
    if what == "numbered":  # every weight at the next key
        return [zeros, case.make_expected(replace(inputs, v=np.roll(inputs.v, 1, axis=2))).output]
    largest = np.abs(inputs.k[..., 0].astype(float)).argmax(2)
    k = inputs.k.copy()
    np.put_along_axis(k, largest[..., None, None], 0, axis=2)
    options = {name: value for name, value in inputs.keywords.items() if name not in ("kv_lengths", "is_causal")}
    without = case.make_expected(replace(inputs, k=k)).output
    masked_too = case.make_expected(replace(inputs, keywords=options)).output
    return [without if (without != right.output).any() else masked_too]


def told_cases(name: str) -> Iterator[tuple[str, Case]]:
    """The cases of TOLD that an envelope has, at its sizes."""
    known = all_cases() | asked_kernel_cases() | kernel_cases() | one_shape_cases()
    for what, names in TOLD.items():
        for each in names:
            found = fit(known[each], ENVELOPES[name].envelope)
            s = found.shape
            small = s.b * s.hq * s.sq * s.sk * (s.d + s.dv) <= 1 << 25  # larger ones take seconds each
            if small and not found.unfit and not found.keywords & ENVELOPES[name].lacking:
                yield what, found


@pytest.mark.slow(3)
@pytest.mark.parametrize("name", ENVELOPES)
def test_data_tells_at_every_size_in_every_dtype(name: str) -> None:
    """Numbered values, a peaking key, scores moved by 625: a mistake leaves the loosest bound at some element."""
    found = set()
    for what, case in told_cases(name):
        own_half = what == "shifted" and not case.fitted and case.name.startswith("softmax")
        for dtype in dtypes_for(case, ENVELOPES[name].dtypes):
            if own_half and dtype in HALVES:
                continue  # at its own sizes it tests overflow in half precision, and zeros only elsewhere
            inputs, profile = case.inputs(dtype), Profile.STORAGE if dtype in HALVES else Profile.WIDE
            right, bound = case.expected(dtype).output, case.bound(dtype, profile).output
            for wrong in mistaken(case, inputs, what):
                assert (np.abs(wrong - right) > bound).any(), (case.name, dtype, case.shape)
            found.add((what, dtype))
    assert {what for what, _ in found} == set(TOLD)


def test_data_that_tells_nothing_is_seen() -> None:
    """Scores near −625 with values around 0 in half precision expose nothing: zeros pass."""
    case = replace(all_cases()["softmax-shift-minus-625"], name="it")
    bound = case.bound("float16", Profile.STORAGE).output
    assert (np.abs(case.expected("float16").output) <= bound).all()


def test_a_paged_case_is_at_pages_that_are_taken() -> None:
    """Sequences keep their whole pages and the keys after them; a case about a page size says what it needs."""
    envelope = Envelope(page_sizes=Sizes(multiple=16, least=16), source="declared")
    case = every_case()["paged-whole-pages"]
    found = fit(case, envelope)
    assert (case.shape.page, case.shape.k_lengths) == (4, (8, 4, 12))
    assert (found.shape.page, found.shape.k_lengths) == (16, (32, 16, 48))
    assert found.options["max_seqlen_k"] == 48
    assert found.expected("float32").output.shape == (3, 2, 8)
    assert fit(every_case()["paged-page-17"], envelope).unfit == "not applicable: needs pages of 17"
    assert fit(every_case()["paged-page-64"], envelope) is every_case()["paged-page-64"]


@pytest.mark.parametrize("page", [1, 2, 3])
def test_new_keys_have_room_in_smaller_pages(page: int) -> None:
    """Every sequence has at least as many keys as new keys."""
    found = fit(every_case()["paged-new"], Envelope(page_sizes=Sizes((page,)), source="declared"))
    assert found.shape.page == page
    assert all(keys >= new for keys, new in zip(found.shape.k_lengths, found.shape.q_lengths, strict=True))
    assert found.expected("float32").output.shape[0] == sum(found.shape.q_lengths)


def test_smaller_pages_leave_no_sequence_fewer_keys() -> None:
    """A window over 18 keys in pages of 4 still hides most of them in pages of 1; full pages stay full."""
    case = every_case()["paged-window-decode"]
    assert case.shape.k_lengths == (9, 18, 5)
    in_ones, in_threes = (fit(case, Envelope(page_sizes=Sizes((n,)), source="declared")).shape for n in (1, 3))
    assert in_ones.k_lengths == (9, 18, 5)
    assert in_threes.k_lengths == (2 * 6 + 1, 4 * 6 + 2, 6 + 1)
