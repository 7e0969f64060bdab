"""The stamp of the evidence: other cases and other bounds are noticed, and nothing else is."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attention_conformance.conformance import cases
from attention_conformance.conformance.bounds import gradients as errors
from attention_conformance.conformance.bounds import mha as of_layers
from attention_conformance.conformance.bounds import sdpa as bounds
from attention_conformance.conformance.cases import every_case
from attention_conformance.conformance.cases.base import bound_of, reference_of
from attention_conformance.conformance.evidence import stamp as module
from attention_conformance.conformance.evidence.masked_variants import MASKS, allowed
from attention_conformance.conformance.evidence.series import SERIES
from attention_conformance.conformance.evidence.serving_variants import SERVING
from attention_conformance.conformance.evidence.stamp import cases_of, stale, stamp
from attention_conformance.conformance.properties import serving
from attention_conformance.conformance.properties.drawn import dtype_of
from attention_conformance.conformance.properties.serving import FORMS
from attention_conformance.impls.contract import Profile
from attention_conformance.impls.operators import OPERATORS

pytestmark = pytest.mark.slow(20)


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROBLEMS", 12)


@pytest.fixture(scope="module")
def kept() -> dict[str, dict[str, Any]]:
    """The stamps of all series."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PROBLEMS", 12)
        return {name: stamp(series) for name, series in SERIES.items()}


@pytest.mark.parametrize("name", SERIES)
def test_a_stamp_is_always_the_same(name: str, kept: dict[str, dict[str, Any]]) -> None:
    """The stamp of a series is the same twice."""
    assert stale(kept[name], stamp(SERIES[name])) == []


#: Operators without a series, and why: ``python -m studies serving_alarms`` judges random problems of each with correct
#: variants, which need no library and no ledger.
WITHOUT_SERIES = {
    "varlen": "a sequence has the bound of sdpa, of which there is a series; variants pack and pad",
    "varlen_grad": "a sequence has the bound of sdpa_grad, of which there is a series",
    "paged": "the bound of sdpa again; caches with scales are a form of their own there",
    "merge": "a bound of few terms: variants weigh parts in six ways, and store in one step and in several",
    "merge_grad": "that of merge and a few terms more: variants go back at once and in steps, and store in both",
    "latent": "the larger of two bounds of sdpa: variants have both forms, and store every product",
}

#: Keywords of sdpa that no series draws, and why.  A block mask and a tree have no term of their own in the bound: it
#: equals the bound of the equivalent mask to the last bit (the test below), and both series draw masks.
NOT_DRAWN = {
    "block_mask": "a mask",
    "block_size": "a mask",
    "tree_parents": "a mask",
    "alibi_slopes": "terms that are held against a derivation of their own (first_order.py)",
    "head_scale": "the same",
    **dict.fromkeys(("rotary_cos", "rotary_sin", "rotary_interleaved"), "the same"),
}


def test_every_case_belongs_to_one_series() -> None:
    """Cases with a past belong to decoding, the others to their operator."""
    found = [case.name for series in SERIES.values() for case in cases_of(series)]
    assert sorted(found) == sorted(n for n, case in every_case().items() if case.operator not in WITHOUT_SERIES)
    assert not WITHOUT_SERIES.keys() & {series.operator for series in SERIES.values()}


def test_an_operator_without_a_series_has_random_problems_and_variants() -> None:
    """Each form has at least five variants, and those of latent attention use both profiles."""
    for operator in WITHOUT_SERIES:
        forms = [form for form, each in FORMS.items() if each == operator]
        assert forms
        assert all(len(SERVING[form]) >= 5 for form in forms)
    profiles_met = {profile for each in SERVING["latent"].values() for profile in each.profiles.values()}
    assert profiles_met == {Profile.WIDE, Profile.STORAGE}


def test_what_no_series_draws_has_a_reason() -> None:
    """NOT_DRAWN lists exactly the keywords of sdpa that no problem of sdpa or decoding has."""
    drawn: set[str] = set()
    for name in ("sdpa", "decode"):
        drawn |= {given for index in range(300) for given in SERIES[name].problem(index).case().keywords}
    assert set(OPERATORS["sdpa"].keywords) - drawn == set(NOT_DRAWN)


@pytest.mark.parametrize("form", ["blocks", "trees"])
def test_a_block_mask_and_a_tree_have_the_bound_of_their_mask(form: str) -> None:
    """Bounds are equal to the last bit, in every profile, on random problems; the opposite mask has another bound."""
    others = 0
    for seed in range(12):
        case = serving.drawn(serving.of_rng(np.random.default_rng(seed)), form).case()
        x = case.make_inputs("bfloat16")
        mask = allowed(x.q, x.k, **x.keywords)
        rest = {name: value for name, value in x.keywords.items() if name not in MASKS}
        dense, other = (replace(x, keywords={**rest, "mask": each}) for each in (mask, ~mask))
        for profile in bounds.profiles("bfloat16"):
            one, two, three = (bound_of(each, reference_of(each), "bfloat16", profile) for each in (x, dense, other))
            np.testing.assert_array_equal(one.output, two.output)
            np.testing.assert_array_equal(one.lse, two.lse)
            others += not np.array_equal(one.output, three.output)
    assert others > 12


def test_a_case_more_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An added case is noticed in its own series and in no other."""
    monkeypatch.setattr(module, "PROBLEMS", 0)
    kept = {name: stamp(series) for name, series in SERIES.items()}
    one = every_case()["mha-plain"]
    monkeypatch.setattr(module, "every_case", lambda: {**cases.every_case(), "new": replace(one, name="mha-new")})
    now = {name: stamp(series) for name, series in SERIES.items()}
    assert {name: stale(kept[name], now[name]) for name in SERIES if stale(kept[name], now[name])} == {
        "mha": [f"case mha-new {' '.join(one.dtypes)}"]
    }


#: The fields of a case, the changes to them, and whether the changes are noticed.
CHANGES: dict[str, tuple[dict[str, object], dict[str, object], bool]] = {
    "nothing": ({}, {}, False),
    "one-element": ({}, {"edit": lambda x: replace(x, k=_with_one_other(x.k))}, True),
    "k-for-v": ({}, {"edit": lambda x: replace(x, k=x.v, v=x.k)}, True),
    "an-element-that-is-nan": ({}, {"edit": lambda x: replace(x, k=_with_one_other(x.k, np.nan))}, True),
    "a-mask-element": (
        {"options": {"mask": lambda *_: _all_but(3)}},
        {"options": {"mask": lambda *_: _all_but(4)}},
        True,
    ),
    "a-number": ({"options": {"scale": 0.3}}, {"options": {"scale": 0.301}}, True),
    "a-side": ({"options": {"window": (None, 2)}}, {"options": {"window": (2, None)}}, True),
    "a-flag": ({"options": {"is_causal": True}}, {"options": {"is_causal": False}}, True),
    "a-sentence": ({}, {"why": "Another one."}, False),
    "a-dtype": ({}, {"dtypes": ("float32",)}, True),
}


def _all_but(key: int) -> np.ndarray:
    return np.arange(7) + np.zeros((5, 1)) != key


def _with_one_other(k: np.ndarray, change: float = 2**-4) -> np.ndarray:
    k = k.copy()
    k.flat[-1] += change
    return k


@pytest.mark.parametrize(("before", "after", "noticed"), CHANGES.values(), ids=CHANGES)
def test_other_inputs_of_a_case_are_noticed(
    before: dict[str, object], after: dict[str, object], noticed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A changed element, number, flag, dtype or exchanged arguments are noticed, but not a changed sentence."""
    monkeypatch.setattr(module, "PROBLEMS", 0)
    one = replace(every_case()["plain"], **before)  # type: ignore[arg-type]
    stamps = []
    for case in (one, replace(one, **after)):  # type: ignore[arg-type]
        monkeypatch.setattr(module, "every_case", lambda case=case: {**cases.every_case(), case.name: case})
        stamps.append(stamp(SERIES["sdpa"]))
    found = stale(*stamps)
    assert all(each.startswith(f"case {one.name} ") for each in found)
    assert bool(found) == noticed


def test_only_more_than_rounding_of_inputs_is_noticed(kept: dict[str, dict[str, Any]]) -> None:
    """Other last digits, as from another machine, are not a changed case."""
    one = kept["mha"]
    name = next(iter(one["cases"]))
    for change, found in ((1e-8, []), (1e-4, [f"case {name}"])):
        assert stale(one, {**one, "cases": {**one["cases"], name: one["cases"][name] + change}}) == found


#: Cached, as no case changes with a constant of the bounds.
inputs = functools.cache(module.inputs)


@pytest.mark.parametrize(
    ("place", "constant", "noticed"),
    [
        (bounds, "EXP_ERROR", set(SERIES)),
        (of_layers, "ROOT_ROUNDINGS", {"sublayer"}),
        (errors, "SOFTMAX_ROUNDINGS", {"sdpa_grad", "mha_grad"}),
    ],
)
def test_a_changed_constant_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
    kept: dict[str, dict[str, Any]],
    place: object,
    constant: str,
    noticed: set[str],
) -> None:
    """A changed constant is noticed by the series whose bounds use it."""
    monkeypatch.setattr(module, "inputs", inputs)
    monkeypatch.setattr(place, constant, getattr(place, constant) * 1.1)
    assert {name for name, series in SERIES.items() if stale(kept[name], stamp(series))} == noticed


@pytest.mark.parametrize(
    ("dtype", "change", "noticed"),
    [("float32", 1e-9, False), ("float32", 1e-5, True), ("float64", 1e-4, False), ("float64", 0.05, True)],
)
def test_only_more_than_rounding_changes_is_noticed(
    kept: dict[str, dict[str, Any]], dtype: str, change: float, noticed: bool
) -> None:
    """Other last digits, as from another machine's exp and sums, are no changed bound; float64 allows a little more."""
    one = kept["sdpa"]
    index = next(n for n in one["bounds"] if dtype_of(int(n)) == dtype)
    moved = {name: value * (1 + change) for name, value in one["bounds"][index].items()}
    other = {**one, "bounds": {**one["bounds"], index: moved}}
    assert stale(one, other) == ([f"bounds of problem {index}"] if noticed else [])
