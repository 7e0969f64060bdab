"""The gallery's pages: what is kept, what counts as a failure, what changed between versions, and the page itself."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from attention_conformance.conformance.judging.outcomes import Failure, Result
from attention_conformance.impls import compressed
from attention_conformance.impls.gallery import Entry, Finding, Says, Use
from attention_conformance.reports.gallery import html, markdown, stored, view
from attention_conformance.reports.gallery.stored import Record, Status
from attention_conformance.reports.tests.browsers import Opened, launched
from attention_conformance.reports.tests.files import conformance_file, failed, result

PROMOTED = Finding(what="Dtypes are promoted", says=Says.BY_DESIGN, clauses=("SDPA-35",))
MEAN = Finding(
    what="The mean of v <b>there</b>", says=Says.CONTRADICTS, clauses=("SDPA-15",), quote="zeros", is_grave=True
)


def entry(name: str, *findings: Finding) -> Entry:
    """An entry of NumPy."""
    return Entry(
        name=name,
        package="numpy",
        requires=("numpy==2.4.6",),
        adapter=f"{name}.py",
        function="attention",
        documentation={"*": "https://numpy.org"},
        uses=(Use.TRAINING,) if name == "trains" else (Use.SERVING,),
        findings=findings,
    )


def accepted(case: str, broken: str) -> Result:
    """A failure that is an input that was accepted."""
    return replace(failed("serves.py:attention", case, broken), failure=Failure.NO_ERROR)


def write(folder: Path, name: str, *results: Result, version: str = "2.4.6", status: Status = Status.JUDGED) -> None:
    """A record and a result file."""
    folder.mkdir(exist_ok=True)
    versions = {"Python": "3.11.7", "numpy": version}
    record = Record(name=name, status=status, requires=("numpy==2.4.6",), adapter="", versions=versions)
    (folder / f"{name}.json").write_bytes(msgspec.json.encode(record))
    conformance_file(folder / f"{name}.jsonl", *results)


def seen(folder: Path, *some: Entry) -> view.View:
    """The view of a folder."""
    known = {one.name: one for one in some}
    return view.view(known, *stored.model(known, folder), folder)


@pytest.fixture
def made(tmp_path: Path) -> view.View:
    """A library that fails and accepts by design, and one that is right."""
    wrong = failed(
        "serves.py:attention", "empty-row", "SDPA-15", error_pattern="the mean of v", message="wrong by value\nRerun: x"
    )
    write(tmp_path, "serves", result("serves.py:attention", "plain"), wrong, accepted("invalid-dtypes", "SDPA-35"))
    write(tmp_path, "trains", result("trains.py:attention", "plain"), result("trains.py:attention", "empty-row"))
    return seen(tmp_path, entry("serves", PROMOTED, MEAN), entry("trains"))


def test_what_is_accepted_by_design_is_no_failure(made: view.View) -> None:
    """It is counted apart."""
    row = made.rows[0]
    assert (row.failed, row.by_design, row.passed) == (1, 1, 1)
    assert row.cells["Refuses what is wrong"].worst == view.BY_DESIGN
    assert row.cells["Fully masked rows"].worst == view.FAILED


def test_a_wrong_result_is_never_by_design() -> None:
    """Nor an accepted input of a clause that no finding names."""
    one = entry("serves", PROMOTED)
    assert view.by_design(one, accepted("invalid-dtypes", "SDPA-35"))
    assert not view.by_design(one, accepted("invalid-lengths", "SDPA-31"))
    assert not view.by_design(one, failed("serves.py:attention", "invalid-dtypes", "SDPA-35"))
    documented = msgspec.structs.replace(PROMOTED, says=Says.DOCUMENTED)
    assert not view.by_design(entry("serves", documented), accepted("invalid-dtypes", "SDPA-35"))


def test_a_question_names_who_answers_what(made: view.View) -> None:
    """The spec's answer first, whether anybody gives it or not."""
    asked = next(one for one in made.asked if "no key at all, by a boolean" in one.text)
    assert dict(asked.answers) == {"zeros": ("trains",), "the mean of v": ("serves",)}


def test_what_changed_since_the_last_version_is_by_case(tmp_path: Path) -> None:
    """New cases and those of an entry without a version before are no change; keeping another version moves the old."""
    one, other = entry("serves"), entry("trains")
    kept, old, new = tmp_path / "kept", tmp_path / "old", tmp_path / "new"
    same = result("serves.py:attention", "plain")
    write(old, "serves", same, result("serves.py:attention", "empty-row"), version="2.4.5")
    stored.keep({"serves": one}, old, kept)
    assert not seen(kept, one).has_before
    wrong = failed("serves.py:attention", "empty-row", "SDPA-15", error_pattern="NaN")
    write(new, "serves", same, wrong, result("serves.py:attention", "causal-square"))
    write(new, "trains", result("trains.py:attention", "plain"))
    for _ in range(2):  # the same version again moves nothing
        stored.keep({"serves": one, "trains": other}, new, kept)
    found = seen(kept, one, other)
    assert found.changes == (view.Change("serves", "numpy 2.4.5 → 2.4.6", "empty-row", "passed", "failed: NaN"),)
    assert "| serves | numpy 2.4.5 → 2.4.6 | empty-row | passed | failed: NaN |" in markdown.page(found)


def test_what_is_cut_off_keeps_what_it_has(tmp_path: Path) -> None:
    """Its results are a row, which says so."""
    write(tmp_path / "work", "serves", result("serves.py:attention", "plain"), status=Status.CUT_OFF)
    stored.keep({"serves": entry("serves")}, tmp_path / "work", tmp_path / "kept")
    found = seen(tmp_path / "kept", entry("serves"))
    assert (found.rows[0].passed, found.without) == (1, ())


def test_messages_of_failures_are_kept_without_the_machine(tmp_path: Path) -> None:
    """No path, no command of the machine; of what passed no message."""
    said = "wrong by value\nin /home/me/lib/site-packages/numpy/core.py\nScript: /tmp/x.py\nRerun:  y"
    some = (failed("serves.py:attention", "a", message=said), result("serves.py:attention", "b", message="told"))
    write(tmp_path / "work", "serves", *some)
    stored.keep({"serves": entry("serves")}, tmp_path / "work", tmp_path / "kept")
    lines = compressed.read(tmp_path / "kept" / "serves.jsonl.zst", 1 << 20).decode().splitlines()
    (messages,) = [json.loads(line)["columns"]["message"] for line in lines if '"results"' in line]
    assert messages == ["wrong by value\nin core.py", ""]


def test_the_page_needs_no_other_file_and_runs_no_markup(made: view.View) -> None:
    """What a library calls itself is text."""
    text = html.page(made)
    assert "default-src 'none'" in text
    assert "<b>there</b>" not in text
    assert 'src="' not in text
    assert "contradicts its documentation" in text
    assert len(text) < 100_000


def test_the_gravest_are_what_a_person_called_grave(made: view.View) -> None:
    """The README has them in a sentence."""
    assert [each.what for _, each in made.gravest] == [MEAN.what]
    assert markdown.verdict(made) == (
        "2 ways to call attention, of 1 packages: 1 does what the spec says wherever they answer, 1 do not."
    )


@pytest.mark.browser
@pytest.mark.slow
def test_a_cell_opens_its_failures_and_rows_are_chosen(made: view.View, tmp_path: Path) -> None:
    """With message, finding and command; by use, word and order; and no width scrolls sideways."""
    path = tmp_path / "index.html"
    path.write_text(html.page(made), encoding="utf-8")
    with launched() as browser:
        one: Any = Opened(browser, path.as_uri())
        page = one.page
        page.locator("#row-serves td.failed a").click()
        details = page.locator("#details")
        details.locator("h2", has_text="serves: fully masked rows").wait_for()
        assert "wrong by value" in details.locator("pre").inner_text()
        assert "attention-conformance gallery run serves --case empty-row" in details.inner_text()
        assert "contradicts its documentation" in details.inner_text()
        page.keyboard.press("Escape")
        page.locator("[data-use=training]").click()
        assert page.locator(".heat tbody tr:visible").count() == 1
        page.locator("[data-use=all]").click()
        page.locator(".filters select").select_option("failed")
        assert page.locator(".heat tbody tr").first.get_attribute("data-name") == "trains"
        for width in (375, 900, 1600):
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate("() => document.documentElement.scrollWidth") <= width
        assert one.complaints == []
        one.context.close()
