"""The gallery's pages: the kept results, what counts as a failure, changes between versions, and the page itself."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from attention_conformance.conformance.judging.outcomes import Failure, Result
from attention_conformance.impls import compressed
from attention_conformance.impls.gallery import Aside, Cause, Entry, Finding, Says, Use
from attention_conformance.reports.gallery import html, markdown, named, stored, view
from attention_conformance.reports.gallery.stored import Record, Status
from attention_conformance.reports.tests.browsers import Opened, launched
from attention_conformance.reports.tests.files import conformance_file, failed, result

PROMOTED = Finding(what="Dtypes are promoted", says=Says.BY_DESIGN, clauses=("SDPA-35",))
MEAN = Finding(
    what="The mean of v <b>there</b>", says=Says.CONTRADICTS, clauses=("SDPA-15",), quote="zeros", is_grave=True
)


LENGTH = "“the last key is skipped”"


def entry(name: str, *findings: Finding, asides: tuple[Aside, ...] = ()) -> Entry:
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
        asides=asides,
    )


def accepted(case: str, broken: str) -> Result:
    """A failure that is an input that was accepted."""
    return replace(failed("serves.py:attention", case, broken), failure=Failure.NO_ERROR)


def write(
    folder: Path,
    name: str,
    *results: Result,
    version: str = "2.4.6",
    status: Status = Status.JUDGED,
    explanations: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """A record and a result file, with a diagnosis where explanations are given: cases by title."""
    folder.mkdir(exist_ok=True)
    versions = {"Python": "3.11.7", "numpy": version}
    record = Record(name=name, status=status, requires=("numpy==2.4.6",), adapter="", versions=versions)
    (folder / f"{name}.json").write_bytes(msgspec.json.encode(record))
    conformance_file(
        folder / f"{name}.jsonl",
        *results,
        diagnoses=()
        if explanations is None
        else [
            {
                "implementation": f"{name}.py:attention",
                "device": "cpu",
                "failures": len(results),
                "explanations": [
                    {"faults": ["x"], "title": title, "cases": list(cases), "contradicted": 2 * (title == LENGTH)}
                    for title, cases in explanations.items()
                ],
            }
        ],
    )


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
    """It is counted separately."""
    row = made.rows[0]
    assert (row.failed, row.by_design, row.passed) == (1, 1, 1)
    assert row.cells["Input validation"].worst == view.BY_DESIGN
    assert row.cells["Fully masked rows"].worst == view.FAILED


def test_a_wrong_result_is_never_by_design() -> None:
    """The same holds for an accepted input of a clause that no finding names."""
    one = entry("serves", PROMOTED)
    assert view.by_design(one, accepted("invalid-dtypes", "SDPA-35"))
    assert not view.by_design(one, accepted("invalid-lengths", "SDPA-31"))
    assert not view.by_design(one, failed("serves.py:attention", "invalid-dtypes", "SDPA-35"))
    documented = msgspec.structs.replace(PROMOTED, says=Says.DOCUMENTED)
    assert not view.by_design(entry("serves", documented), accepted("invalid-dtypes", "SDPA-35"))


def test_a_question_names_who_answers_what(made: view.View) -> None:
    """The spec's answer comes first."""
    asked = next(one for one in made.asked if "A row fully masked by a boolean" in one.text)
    assert dict(asked.answers) == {"zeros": ("trains",), "the mean of v": ("serves",)}


def test_what_changed_since_the_last_version_is_by_case(tmp_path: Path) -> None:
    """New cases, and cases of an entry without a previous version, are no change; a new version moves the old one."""
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
    """The results that it has are a row."""
    write(tmp_path / "work", "serves", result("serves.py:attention", "plain"), status=Status.CUT_OFF)
    stored.keep({"serves": entry("serves")}, tmp_path / "work", tmp_path / "kept")
    found = seen(tmp_path / "kept", entry("serves"))
    assert (found.rows[0].passed, found.without) == (1, ())


def test_messages_of_failures_are_kept_without_the_machine(tmp_path: Path) -> None:
    """No path and no command of the machine is kept, and no message of a passed case."""
    said = "wrong by value\nin /home/me/lib/site-packages/numpy/core.py (src/a/b.cpp)\nScript: /tmp/x.py\nRerun:  y"
    some = (failed("serves.py:attention", "a", message=said), result("serves.py:attention", "b", message="told"))
    write(tmp_path / "work", "serves", *some)
    stored.keep({"serves": entry("serves")}, tmp_path / "work", tmp_path / "kept")
    lines = compressed.read(tmp_path / "kept" / "serves.jsonl.zst", 1 << 20).decode().splitlines()
    (messages,) = [json.loads(line)["columns"]["message"] for line in lines if '"results"' in line]
    assert messages == ["wrong by value\nin core.py (src/a/b.cpp)", ""]


def test_diagnoses_are_kept_without_the_machine(tmp_path: Path) -> None:
    """An exception keeps its own words without the path, whose digits may be left out."""
    said = "“an exception: OSError: no /home/me/h…/lib/python…/site-packages/numpy/core.py”"
    wrong = failed("serves.py:attention", "a")
    write(tmp_path / "work", "serves", wrong, explanations={said: ["a"], LENGTH: ["b"]})
    stored.keep({"serves": entry("serves")}, tmp_path / "work", tmp_path / "kept")
    (row,) = seen(tmp_path / "kept", entry("serves")).rows
    assert row.diagnosis
    assert [each.title for each in row.diagnosis.explanations] == [
        "“an exception: OSError: no core.py”",
        LENGTH,
    ]
    assert [each.contradicted for each in row.diagnosis.explanations] == [0, 2]


def test_causes_are_in_the_words_of_a_run(tmp_path: Path) -> None:
    """Both pages say how many failures each cause explains, without those by design, and how the others fail."""
    some = [failed("serves.py:attention", case, "SDPA-15") for case in ("a", "b", "c")]
    raised = replace(failed("serves.py:attention", "d", reason="ValueError: no"), failure=Failure.ERROR)
    given = {LENGTH: ["a", "b"], "“the mask inverted”": ["b", "c", "invalid-dtypes"]}
    write(tmp_path, "serves", *some, raised, accepted("invalid-dtypes", "SDPA-35"), explanations=given)
    found = seen(tmp_path, entry("serves", PROMOTED, MEAN))
    (row,) = found.rows
    assert row.named == [
        "2 of 4 failures equal “the last key is skipped”; 2 passed cases do not show it",
        "2 of 4 failures equal “the mask inverted”",
    ]
    assert row.left == ["1 failure: an exception on a valid input: ValueError: no"]
    assert (row.explained, row.failed) == (3, 4)
    assert "Diagnosis: 2 of 4 failures equal “the last" in row.failures[0].message
    page = markdown.page(found)
    assert "- **serves**: 3 of 4 failures explained\n  - 2 of 4 failures equal “the last key is skipped”" in page
    assert "2 of 4 failures equal “the mask inverted”" in html.page(found)


def test_results_that_were_kept_without_a_diagnosis_are_said_so(made: view.View) -> None:
    """The causes are unknown, which does not mean that nothing explains the failures."""
    assert made.rows[0].diagnosis is None
    assert "Judged before causes were recorded: serves." in markdown.page(made)
    assert "Judged before causes were recorded: serves." in html.page(made)
    assert named.measured(made).without == ("serves",)


def judged(folder: Path, *findings: Finding, asides: tuple[Aside, ...] = ()) -> view.View:
    """The view of a library with two causes; the diagnosis names one, and also says something else."""
    some = [failed("serves.py:attention", case, clause) for case, clause in (("a", "SDPA-15"), ("b", "SDPA-9"))]
    given = {LENGTH: ["a"], "“the mask inverted”": ["b"]}
    write(folder, "serves", *some, accepted("invalid-dtypes", "SDPA-35"), explanations=given)
    return seen(folder, entry("serves", *findings, asides=asides))


SKIPPED = Finding(what="The last key is skipped", says=Says.UNDOCUMENTED, clauses=("SDPA-15",), named="last key")
ALIGNED = Finding(what="Causal at the bottom right", says=Says.DOCUMENTED, clauses=("SDPA-9",), misnamed="inverted")
NOT_SHOWN = Finding(what="In training it raises", says=Says.UNDOCUMENTED, clauses=("SDPA-1",))


def test_causes_are_counted_by_what_the_diagnosis_says(tmp_path: Path) -> None:
    """Causes that are a choice, and causes that no case shows, are not counted."""
    found = judged(tmp_path, SKIPPED, ALIGNED, PROMOTED, NOT_SHOWN)
    assert named.problems(found) == []
    of = named.measured(found)
    assert [each.verdict for each in of.causes] == [named.Verdict.RIGHT, named.Verdict.WRONG]
    assert (of.naming, of.true, of.false, of.entries) == (1, 0, 1, 1)
    text = named.table(of)
    assert "| causes that the diagnosis names | 1 | 2 | 50% |" in text
    assert "| serves | Causal at the bottom right | “inverted” | wrong |" in text


def test_parts_of_a_finding_are_causes_of_their_own(tmp_path: Path) -> None:
    """Each has its own clauses and words."""
    parts = (Cause(what="one", clauses=("SDPA-15",), named="last key"), Cause(what="two", clauses=("SDPA-9",)))
    both = msgspec.structs.replace(SKIPPED, clauses=("SDPA-15", "SDPA-9"), named="", parts=parts)
    aside = Aside(says="mask inverted", why="it is", is_true=True)
    found = judged(tmp_path, both, asides=(aside,))
    assert named.problems(found) == []
    of = named.measured(found)
    assert [each.verdict for each in of.causes] == [named.Verdict.RIGHT, named.Verdict.NONE]
    assert (of.naming, of.true, of.false) == (1, 1, 0)


@pytest.mark.parametrize(
    ("findings", "said"),
    [
        ((msgspec.structs.replace(SKIPPED, named="first key"), ALIGNED), "no diagnosis of its failures says “first"),
        ((msgspec.structs.replace(SKIPPED, named="inverted"), ALIGNED), "no diagnosis of its failures says “inverted"),
        ((SKIPPED,), "nobody has judged the diagnosis “the mask inverted”"),
        ((SKIPPED, ALIGNED, msgspec.structs.replace(NOT_SHOWN, named="last key")), "it fails no case"),
    ],
)
def test_a_judgement_that_is_made_up_is_found(tmp_path: Path, findings: tuple[Finding, ...], said: str) -> None:
    """Words that no diagnosis of these failures has are found, and a diagnosis that was not judged."""
    assert any(said in text for text in named.problems(judged(tmp_path, *findings)))


def test_an_aside_that_no_diagnosis_says_is_found(tmp_path: Path) -> None:
    """It may be from a previous version."""
    aside = Aside(says="the softcap", why="none")
    assert any("“the softcap”" in text for text in named.problems(judged(tmp_path, SKIPPED, ALIGNED, asides=(aside,))))


def test_words_of_a_whole_and_of_its_parts_are_refused() -> None:
    """The same holds for a cause that is both named and misnamed."""
    with pytest.raises(ValueError, match="its parts"):
        Finding(what="x", says=Says.DOCUMENTED, named="a", parts=(Cause(what="y"),))
    with pytest.raises(ValueError, match="or else misnamed"):
        Finding(what="x", says=Says.DOCUMENTED, named="a", misnamed="b")


def test_the_page_needs_no_other_file_and_runs_no_markup(made: view.View) -> None:
    """Markup in a finding is shown as text."""
    text = html.page(made)
    assert "default-src 'none'" in text
    assert "<b>there</b>" not in text
    assert 'src="' not in text
    assert "contradicts its documentation" in text
    assert len(text) < 100_000


def test_the_gravest_are_what_a_person_called_grave(made: view.View) -> None:
    """The README names them in a sentence."""
    assert [each.what for _, each in made.gravest] == [MEAN.what]
    assert html.verdict(made) == (
        "2 ways to call attention, from 1 package: 1 conforms to the spec in every supported call, 1 does not."
    )


@pytest.mark.browser
@pytest.mark.slow
def test_a_long_path_in_a_cause_is_broken(tmp_path: Path) -> None:
    """It does not widen a narrow page."""
    title = f"“an exception: no {'folder_of_sources/' * 12}file.cpp”"
    write(tmp_path, "serves", failed("serves.py:attention", "a"), explanations={title: ["a"]})
    path = tmp_path / "index.html"
    path.write_text(html.page(seen(tmp_path, entry("serves"))), encoding="utf-8")
    with launched() as browser:
        one: Any = Opened(browser, path.as_uri())
        one.page.set_viewport_size({"width": 375, "height": 800})
        assert one.page.evaluate("() => document.documentElement.scrollWidth") <= 375
        one.context.close()


@pytest.mark.browser
@pytest.mark.slow
def test_a_cell_opens_its_failures_and_rows_are_chosen(made: view.View, tmp_path: Path) -> None:
    """Failures have message, finding and command; rows are chosen by use and order; no width scrolls sideways."""
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
