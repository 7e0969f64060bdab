"""The evidence for the error bounds as it is kept: what evidence.json holds, and the page that is made from it."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from conformance.__main__ import main
from conformance.bounds import profiles
from conformance.deviations import read as read_ledger
from conformance.evidence import page, record, sensitivity
from conformance.evidence.measure import EVERY, IMPLEMENTATIONS
from conformance.evidence.problems import SEED


@pytest.fixture(scope="module")
def evidence() -> dict[str, Any]:
    """The kept evidence."""
    return record.read()


def test_the_page_is_up_to_date(evidence: dict[str, Any]) -> None:
    """BOUNDS.md is what is made of page.md and evidence.json."""
    assert page.PAGE.read_text(encoding="utf-8") == page.render(evidence)


def test_a_changed_number_changes_the_page(evidence: dict[str, Any]) -> None:
    """The tables are made of the numbers of the file."""
    other = copy.deepcopy(evidence)
    other["rows"][0]["alarms"] = 4711
    assert "4711" in page.render(other)
    assert "4711" not in page.render(evidence)


def test_a_number_that_is_missing_is_named(evidence: dict[str, Any]) -> None:
    """Evidence that lacks what the words speak of makes no page."""
    with pytest.raises(KeyError, match="seed"):
        page.render({name: value for name, value in evidence.items() if name != "seed"})


def test_there_are_enough_problems_and_no_false_alarm(evidence: dict[str, Any]) -> None:
    """At least 20,000 problems, and no correct implementation leaves the bound of its profile on any."""
    assert evidence["problems"] >= 20_000
    assert evidence["alarms"] == [row for row in evidence["rows"] if row["alarms"]] == []


def test_the_plainest_implementation_executed_every_problem(evidence: dict[str, Any]) -> None:
    """numpy-eager has every option, so every problem is judged on it."""
    judged = [row["judged"] for row in evidence["rows"] if row["implementation"] == "numpy-eager"]
    assert sum(judged) == evidence["problems"]


def test_every_profile_of_every_dtype_was_used_up(evidence: dict[str, Any]) -> None:
    """For every dtype and profile an implementation that declares it used more than half of the bound somewhere."""
    for dtype in sensitivity.DTYPES:
        for profile in profiles(dtype):
            rows = [r for r in evidence["rows"] if (r["dtype"], r["profile"]) == (dtype, profile.value)]
            assert max(row["largest"] or 0.0 for row in rows) > (0.1 if dtype == "float64" else 0.5), (dtype, profile)


def test_the_evidence_is_of_what_is_measured_now(evidence: dict[str, Any]) -> None:
    """Seed, problems, implementations and their shares are those of the program as it is."""
    assert evidence["seed"] == SEED
    assert evidence["every"] == dict(EVERY)
    assert evidence["drawn"] == record.drawn(evidence["problems"])
    assert {row["implementation"] for row in evidence["rows"]} == {name.rpartition(":")[2] for name in IMPLEMENTATIONS}


def test_what_was_excluded_is_a_record(evidence: dict[str, Any]) -> None:
    """Every exclusion names records of the ledger, or the range of SDPA-26."""
    known = {each.id for each in read_ledger().deviations} | {"SDPA-26"}
    named = {name for row in evidence["rows"] for names in row["known"] for name in names.split(", ")}
    assert named <= known
    assert named - {"SDPA-26"} == set(evidence["deviations"])


def test_half_of_what_an_implementation_has_is_judged(evidence: dict[str, Any]) -> None:
    """Exclusions do not swallow the problems: of those that an implementation ran, most are judged."""
    for row in evidence["rows"]:
        if row["judged"] > 100:
            assert sum(row["known"].values()) < row["judged"], row["implementation"]


def test_another_format_is_refused(tmp_path: Path) -> None:
    """A file of another format is named."""
    path = tmp_path / "evidence.json"
    path.write_text('{"format": 0}')
    with pytest.raises(ValueError, match=r"evidence\.json has format 0, expected 1"):
        record.read(path)


def test_the_command_measures_and_writes_both_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``python -m conformance evidence`` writes the evidence and the page beside it."""
    monkeypatch.setattr(record, "IN_FLOAT32", 2)
    monkeypatch.setattr(sensitivity, "rows", lambda: record.read()["sensitivity"])
    monkeypatch.setattr(record, "IMPLEMENTATIONS", ("numpy-eager", "numpy-tiled"))
    target = tmp_path / "evidence.json"
    assert main(["evidence", "--problems", "6", "--parallel", "1", "-o", str(target)]) == 0
    assert json.loads(target.read_text())["problems"] == 6
    assert "6 random problems" in (tmp_path / "BOUNDS.md").read_text()
