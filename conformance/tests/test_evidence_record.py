"""The kept evidence for the error bounds: the contents of evidence.json.zst, and the page made from it."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attention_conformance.cli import main
from attention_conformance.conformance.bounds.sdpa import profiles
from attention_conformance.conformance.evidence import page, record, sensitivity
from attention_conformance.conformance.evidence.record import count_drawn
from attention_conformance.conformance.evidence.series import SDPA, SERIES
from attention_conformance.conformance.evidence.stamp import stale, stamp
from attention_conformance.conformance.ledger.load import read as read_ledger
from attention_conformance.conformance.properties.drawn import SEED

pytestmark = pytest.mark.slow(20)

#: Everything but attention itself, whose bound the other bounds are built from.
OTHERS = [name for name in SERIES if name != "sdpa"]


@pytest.fixture(scope="module")
def evidence() -> dict[str, Any]:
    """The kept evidence."""
    return record.read()


@pytest.mark.documents
def test_the_page_is_up_to_date(evidence: dict[str, Any]) -> None:
    """BOUNDS.md equals what page.md and evidence.json.zst give."""
    assert page.PAGE.read_text(encoding="utf-8") == page.render(evidence)


def test_a_changed_number_changes_the_page(evidence: dict[str, Any]) -> None:
    """The tables are made from the numbers of the file."""
    other = copy.deepcopy(evidence)
    other["series"]["mha"]["rows"][0]["alarms"] = 4711
    assert "4711" in page.render(other)
    assert "4711" not in page.render(evidence)


def test_a_number_that_is_missing_is_named(evidence: dict[str, Any]) -> None:
    """Evidence that lacks a number that the text mentions makes no page."""
    with pytest.raises(KeyError, match="seed"):
        page.render({name: value for name, value in evidence.items() if name != "seed"})


def test_every_series_is_kept(evidence: dict[str, Any]) -> None:
    """The evidence has attention, decoding, the layers and gradients."""
    assert list(evidence["series"]) == list(SERIES)


@pytest.mark.parametrize("name", SERIES)
def test_there_are_enough_problems_and_no_false_alarm(evidence: dict[str, Any], name: str) -> None:
    """At least 20,000 problems of attention and 3,000 of the others; no correct implementation leaves its bound."""
    part = evidence["series"][name]
    assert part["problems"] >= (20_000 if name == "sdpa" else 3_000)
    assert part["alarms"] == [row for row in part["rows"] if row["alarms"]] == []


@pytest.mark.parametrize("name", SERIES)
def test_the_plainest_implementation_executed_every_problem(evidence: dict[str, Any], name: str) -> None:
    """The NumPy implementation has every option, so every problem is judged on it."""
    part = evidence["series"][name]
    judged = [row["judged"] for row in part["rows"] if row["implementation"] == SERIES[name].implementations[0]]
    assert sum(judged) + _excused(part, SERIES[name].implementations[0]) == part["problems"]
    assert sum(judged) > 0.98 * part["problems"]


def _excused(part: dict[str, Any], implementation: str) -> int:
    rows = (row for row in part["rows"] if row["implementation"] == implementation)
    return sum(sum(row["known"].values()) for row in rows)


def test_every_profile_of_every_dtype_was_used_up(evidence: dict[str, Any]) -> None:
    """An implementation of every dtype and profile used over half of the bound somewhere (a tenth in float64)."""
    for dtype in sensitivity.DTYPES:
        for profile in profiles(dtype):
            every = evidence["series"]["sdpa"]["rows"]
            rows = [r for r in every if (r["dtype"], r["profile"]) == (dtype, profile.value)]
            assert max(row["largest"] or 0.0 for row in rows) > (0.1 if dtype == "float64" else 0.5), (dtype, profile)


@pytest.mark.parametrize("name", OTHERS)
def test_every_profile_was_judged(evidence: dict[str, Any], name: str) -> None:
    """An implementation of every dtype and profile was judged, and used some of the bound."""
    for dtype in sensitivity.DTYPES:
        for profile in profiles(dtype):
            every = evidence["series"][name]["rows"]
            rows = [r for r in every if (r["dtype"], r["profile"]) == (dtype, profile.value)]
            if name == "mha_grad" and profile.value in ("fused", "tf32"):
                assert not rows
                continue
            assert max(row["largest"] or 0.0 for row in rows) > (0.02 if dtype == "float64" else 0.05), profile


@pytest.mark.parametrize("name", SERIES)
def test_the_evidence_is_of_what_is_measured_now(evidence: dict[str, Any], name: str) -> None:
    """Seed, problems, implementations and their shares are those of the current program."""
    part, series = evidence["series"][name], SERIES[name]
    assert evidence["seed"] == SEED
    assert part["every"] == dict(series.every)
    assert part["drawn"] == count_drawn(series, part["problems"])
    names = {each.rpartition(":")[2] for each in series.implementations}
    assert {row["implementation"] for row in part["rows"]} == names


@pytest.mark.parametrize("name", SERIES)
def test_the_evidence_is_of_these_cases_and_bounds(evidence: dict[str, Any], name: str) -> None:
    """No case was added and no bound changed since: else run ``attention-conformance evidence --only`` with the series.

    If only cases have changed, run ``attention-conformance evidence --cases``.
    """
    assert stale(evidence["series"][name]["stamp"], stamp(SERIES[name])) == []


@pytest.mark.parametrize("name", SERIES)
def test_what_was_excluded_is_a_record(evidence: dict[str, Any], name: str) -> None:
    """Every exclusion names records of the ledger, or the range of SDPA-26."""
    part = evidence["series"][name]
    known = {each.id for each in read_ledger().deviations} | {"SDPA-26"}
    named = {record for row in part["rows"] for names in row["known"] for record in names.split(", ")}
    assert named <= known
    assert named - {"SDPA-26"} == set(part["deviations"])


@pytest.mark.parametrize("name", SERIES)
def test_half_of_what_an_implementation_has_is_judged(evidence: dict[str, Any], name: str) -> None:
    """Of the problems that an implementation ran, most are judged and not excluded."""
    for row in evidence["series"][name]["rows"]:
        if row["judged"] > 100:
            assert sum(row["known"].values()) < row["judged"], row["implementation"]


@pytest.mark.parametrize("name", SERIES)
def test_one_part_in_ten_thousand_is_caught_in_float32(evidence: dict[str, Any], name: str) -> None:
    """A relative error of 1e-4 in every quantity is caught by at least one of the suite's cases."""
    rows = [r for r in evidence["series"][name]["sensitivity"] if (r["dtype"], r["profile"]) == ("float32", "wide")]
    assert {row["quantity"] for row in rows} == set(sensitivity.QUANTITIES[SERIES[name].operator])
    assert all(row["smallest"] <= sensitivity.PROMISED and row["caught_at_promised"] for row in rows)


def test_another_format_is_refused(tmp_path: Path) -> None:
    """A file of another format is refused by name."""
    path = tmp_path / "evidence.json"
    path.write_text('{"format": 0}')
    with pytest.raises(ValueError, match=r"evidence\.json has format 0, expected 3"):
        record.read(path)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two implementations, and no search for small errors."""
    monkeypatch.setattr(record, "IN_FLOAT32", 2)
    monkeypatch.setattr(sensitivity, "rows", lambda series: record.read()["series"][series.name]["sensitivity"])
    monkeypatch.setitem(SERIES, "sdpa", replace(SDPA, implementations=("numpy-eager", "numpy-tiled"), every={}))


@pytest.mark.usefixtures("few")
def test_the_command_measures_and_writes_both_files(tmp_path: Path) -> None:
    """``attention-conformance evidence --only sdpa`` writes the evidence and the page next to it, keeping the rest."""
    target = tmp_path / "evidence.json.zst"
    command = ["evidence", "--problems", "6", "--parallel", "1", "--only", "sdpa", "-o", str(target)]
    assert main(command) == 0
    written, kept = record.read(target), record.read()
    assert written["series"]["sdpa"]["problems"] == 6
    assert written["series"]["mha"] == kept["series"]["mha"]
    assert "| `sdpa` | attention | 6 |" in (tmp_path / "BOUNDS.md").read_text()


@pytest.mark.usefixtures("few")
def test_the_command_measures_remeasure_cases(tmp_path: Path) -> None:
    """``--cases`` judges no random problem, and leaves the stamp of the bounds unchanged."""
    target = tmp_path / "evidence.json.zst"
    assert main(["evidence", "--cases", "-o", str(target)]) == 0
    written, kept = record.read(target), record.read()
    for name, part in written["series"].items():
        assert part["rows"] == kept["series"][name]["rows"]
        assert part["stamp"]["bounds"] == kept["series"][name]["stamp"]["bounds"]
