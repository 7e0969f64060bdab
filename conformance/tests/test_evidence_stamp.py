"""The stamp of the evidence: other cases and other numbers of a bound are noticed, and nothing else is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from conformance import bounds, cases
from conformance.cases import every_case
from conformance.evidence import stamp as module
from conformance.evidence.series import SERIES
from conformance.evidence.stamp import cases_of, stale, stamp
from conformance.gradients import errors
from conformance.layers import bounds as of_layers


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROBLEMS", 12)


@pytest.mark.parametrize("name", SERIES)
def test_a_stamp_is_always_the_same(name: str) -> None:
    """Twice the same series, twice the same numbers."""
    assert stale(stamp(SERIES[name]), stamp(SERIES[name])) == []


def test_every_case_belongs_to_one_series() -> None:
    """Cases with a past belong to decoding, the others to their operator."""
    found = [case.name for series in SERIES.values() for case in cases_of(series)]
    assert sorted(found) == sorted(every_case())


def test_a_case_more_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of its own series, and of no other."""
    kept = {name: stamp(series) for name, series in SERIES.items()}
    one = every_case()["mha-plain"]
    monkeypatch.setattr(module, "every_case", lambda: {**cases.every_case(), "new": replace(one, name="mha-new")})
    now = {name: stamp(series) for name, series in SERIES.items()}
    assert {name: stale(kept[name], now[name]) for name in SERIES if stale(kept[name], now[name])} == {"mha": ["cases"]}


@pytest.mark.parametrize(
    ("place", "constant", "noticed"),
    [
        (bounds, "EXP_ERROR", set(SERIES)),
        (of_layers, "ROOT_ROUNDINGS", {"sublayer"}),
        (errors, "SOFTMAX_ROUNDINGS", {"sdpa_grad", "mha_grad"}),
    ],
)
def test_a_changed_constant_is_noticed(
    monkeypatch: pytest.MonkeyPatch, place: object, constant: str, noticed: set[str]
) -> None:
    """By the series whose bounds it is a part of."""
    kept = {name: stamp(series) for name, series in SERIES.items()}
    monkeypatch.setattr(place, constant, getattr(place, constant) * 1.1)
    assert {name for name, series in SERIES.items() if stale(kept[name], stamp(series))} == noticed


def test_a_last_digit_is_not_noticed() -> None:
    """Another machine's exp is not another bound."""
    one = stamp(SERIES["sdpa"])
    other = {**one, "bounds": {n: {k: v * (1 + 1e-9) for k, v in each.items()} for n, each in one["bounds"].items()}}
    assert stale(one, other) == []
