"""The questions at the top of the HTML page: what is answered, and what must not be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from attention_conformance.bench.analysis.fits import Growth
from attention_conformance.conformance.judging.outcomes import Failure, Outcome
from attention_conformance.conformance.spec.clauses import clauses
from attention_conformance.reports.compare.compare import compare
from attention_conformance.reports.html import changes, speed
from attention_conformance.reports.html.conformance import BEGINS, MASKED_ROWS, conforms, masked_rows
from attention_conformance.reports.html.overview import picture
from attention_conformance.reports.html.speed import fastest_answer, memory_bound, nearest_timing, quadratic
from attention_conformance.reports.html.views import Answer
from attention_conformance.reports.input.read import read
from attention_conformance.reports.model.model import Model
from attention_conformance.reports.tests import pages
from attention_conformance.reports.tests.files import (
    bench_file,
    bench_run,
    cell,
    conformance_file,
    peak,
    result,
    steady,
    timed,
)


def named(answer: Answer | None) -> dict[str, list[str]]:
    """The names by the label of their group, without the group's count."""
    assert answer is not None
    return {group.label.partition(" (")[0]: [item.text for item in group.items] for group in answer.groups}


def of(folder: Path, *found: Any) -> Model:
    """A model of results."""
    return Model(read([conformance_file(folder / "a.jsonl", *found)]), clauses())


def timings(folder: Path, *found: dict[str, Any], **ours: Any) -> pd.DataFrame:
    """The frame of cells."""
    return speed.frame(Model(read([bench_run(folder / "b.json", *found, **ours)]), clauses()))


def test_right_about_masked_rows_is_who_breaks_no_such_clause(tmp_path: Path) -> None:
    """An implementation that failed one such case is wrong, and one that refused them all is neither."""
    model = pages.model(tmp_path)
    found = named(masked_rows(model.results, model.records.results))
    assert found == {
        "Attention: right": ["quick"],
        "Attention: wrong": ["square"],
        "Attention: unsupported": [pages.HOSTILE],
    }


def test_an_implementation_on_two_devices_is_named_with_each(tmp_path: Path) -> None:
    """It is right on one and wrong on the other: the answer says where."""
    rows: dict[str, Any] = {"clauses": ("SDPA-15",)}
    wrong = pages.wrong("x", "empty-row", "SDPA-15", device="cuda", **rows)
    model = of(tmp_path, result("x", "empty-row", **rows), wrong)
    found = named(masked_rows(model.results, model.records.results))
    assert found == {"Attention: right": ["x cpu"], "Attention: wrong": ["x cuda"]}


def test_an_error_for_a_masked_row_is_wrong_under_whatever_clause(tmp_path: Path) -> None:
    """A break of the clause on key lengths where no key is left is wrong about such rows."""
    fields = {"failure": Failure.ERROR, "broken": "SDPA-12", "clauses": ("SDPA-12", "SDPA-15")}
    model = of(tmp_path, result("x", "empty-row"), result("x", "lengths-zero", Outcome.FAILED, **fields))
    found = masked_rows(model.results, model.records.results)
    assert named(found) == {"Attention: wrong": ["x"]}
    assert found is not None
    assert found.groups[0].items[0].tip == "error (kv_lengths of 0)"


def test_a_shortcoming_elsewhere_is_not_held_against_masked_rows(tmp_path: Path) -> None:
    """A failure of another clause in another case changes nothing."""
    other = pages.wrong("x", "plain", "SDPA-2", clauses=("SDPA-2",))
    model = of(tmp_path, result("x", "empty-row", clauses=("SDPA-15",)), other)
    assert named(masked_rows(model.results, model.records.results)) == {"Attention: right": ["x"]}


def test_a_failure_without_columns_is_none_of_masked_rows(tmp_path: Path) -> None:
    """D = 0 under a causal mask of one key too many: picture and answer agree about such rows."""
    broken = pages.wrong("x", "empty-width-causal", "SDPA-20", clauses=("SDPA-20", "SDPA-9"))
    model = of(tmp_path, result("x", "empty-row", clauses=("SDPA-15",)), broken)
    assert named(masked_rows(model.results, model.records.results)) == {"Attention: right": ["x"]}
    drawn = {row["name"]: row["cells"][0][1] for row in picture(model.results).cells["rows"]}
    assert drawn["Fully masked rows"] == "all 1 cases passed"
    assert drawn["Empty axes"] == "1 of 1 cases failed"


def test_the_clauses_on_masked_rows_are_those_of_the_spec() -> None:
    """The titles of the clauses say so, and so do the questions."""
    titles = {clauses()[clause].title for clause in MASKED_ROWS.values()}
    assert all(title.startswith("Fully masked rows") for title in titles)
    assert BEGINS == "fully masked row, "


def test_conforming_is_neither_failing_nor_deviating(tmp_path: Path) -> None:
    """One failure among many passes is a failure; a lack of support is none."""
    model = pages.model(tmp_path)
    found = conforms(model.implementations)
    assert named(found) == {"Fails": ["square"], "No failure, no deviation": ["quick", pages.HOSTILE]}
    assert found.lead == "2 of 3 implementations conform; 1 fails."


def test_nothing_executed_is_no_conformance(tmp_path: Path) -> None:
    """Unsupported everywhere is a group of its own."""
    model = of(tmp_path, result("x", "plain", Outcome.UNSUPPORTED))
    assert named(conforms(model.implementations)) == {"Nothing executed": ["x"]}


def test_the_fastest_is_that_of_the_workload_asked_for(tmp_path: Path) -> None:
    """Faster cells of another length, family or dtype do not count."""
    others = [
        timed("other", 2048, steady(0.001), family=pages.CAUSAL, workload="prefill-b1h8d64s2048-causal"),
        timed("other", 4096, steady(0.001)),
        timed("other", 4096, steady(0.001), family=pages.CAUSAL, workload="w", dtype="float16"),
    ]
    found = timings(tmp_path, *pages.cells(), *others)
    answer = fastest_answer(found, nearest_timing(found))
    assert answer.lead.startswith("quick, 49.9 ms on cpu")
    assert [item.text.split()[0] for item in answer.groups[0].items] == ["quick", "square", pages.HOSTILE.split()[0]]


def test_overlapping_intervals_have_no_single_winner(tmp_path: Path) -> None:
    """A lead within the noise is reported as no lead."""
    where = {"family": pages.CAUSAL, "workload": pages.CAUSAL.replace("*", "4096")}
    noisy = [timed(name, 4096, steady(0.1, seed, 0.2), **where) for seed, name in enumerate(("a", "b"))]
    found = timings(tmp_path, *noisy, timed("c", 4096, steady(1.0), **where))
    lead = fastest_answer(found, nearest_timing(found)).lead
    assert "tied with" in lead
    assert "c" not in lead.partition("tied with")[2].split()


def test_a_workload_that_was_not_timed_is_not_answered_by_another(tmp_path: Path) -> None:
    """The nearest one is shown under its own name."""
    found = timings(tmp_path, timed("x", 4096, steady(0.1)))
    assert fastest_answer(found, nearest_timing(found)).lead.startswith(
        "Not timed in these files. For 8 heads of 64, prefill 4,096 in float32"
    )
    nothing = timings(tmp_path, cell("x", 4096, "skipped"))
    assert fastest_answer(nothing, nearest_timing(nothing)).lead == "Nothing was timed in these files."


def test_who_holds_an_array_of_scores_is_named(tmp_path: Path) -> None:
    """Implementations that do not are named as well."""
    found = pages.model(tmp_path)
    answer = quadratic(found.memories, nearest_timing(speed.frame(found)))
    assert named(answer) == {
        "Quadratic": ["square 537 MB"],
        "Less than quadratic": ["<script>alert(1)</script> 8.39 MB", "quick 8.39 MB"],
    }


def test_memory_is_judged_by_what_was_measured(tmp_path: Path) -> None:
    """Without the peak of a call it is the growth of the process; a cell without a time has no memory."""
    lengths = (1024, 2048, 4096)
    old = [cell("x", s, median_ms=1.0, peak_rss_bytes=32 * s**2) for s in lengths]
    found = Model(read([bench_file(tmp_path / "b.json", *old, cell("y", 4096, "skipped"))]), clauses())
    assert [(one.implementation, one.growth) for one in found.memories] == [("x", Growth.QUADRATIC)]


def test_limits_that_were_not_measured_are_not_used(tmp_path: Path) -> None:
    """A null does not affect the others."""
    peaks = [peak(), {**peak(dtype="float16"), "flops_per_second": None}]
    path = bench_run(tmp_path / "b.json", *pages.cells(), peaks=peaks)
    assert speed.peaks(read([path])) == {("cpu", "float32"): peak()["flops_per_second"]}


def test_what_is_memory_bound_is_known_from_measured_limits_alone(tmp_path: Path) -> None:
    """Files without them give no answer."""
    old = Model(read([bench_file(tmp_path / "old.json", cell("x", 128, median_ms=1.0))]), clauses())
    assert memory_bound(speed.frame(old)).lead.startswith("Unknown: ")
    small = timed("x", 128, steady(0.1), bound_by="bandwidth", intensity=2.0)
    answer = memory_bound(timings(tmp_path, *pages.cells(), small))
    assert answer.lead.startswith("1 of 5 workloads")


def test_what_got_worse_is_named_with_its_ratio(tmp_path: Path) -> None:
    """Unchanged cells are not named."""
    answer = changes.worse(pages.model(tmp_path, base=True).since)
    assert answer.lead == "Worse: square float32 is 50 % slower (all 4 cells)."
    assert "12 cells compared (8 same, 4 slower); a change of " in answer.note
    assert {item.text.split()[0] for item in answer.groups[0].items} == {"square"}
    assert all(item.text.endswith("1.50×") for item in answer.groups[0].items)


def test_no_base_is_not_taken_for_nothing_worse(tmp_path: Path) -> None:
    """The same holds for a base that cannot be compared with."""
    assert changes.worse(None).lead.startswith("Unknown: ")
    new = read([bench_run(tmp_path / "new.json", *pages.cells())])
    base = read([bench_run(tmp_path / "base.json", *pages.cells(), fingerprint={"cpu": "another", "id": "x"})])
    assert changes.worse(compare(base, new)).lead.startswith("Cannot tell: ")
    assert changes.worse(compare(new, new)).lead.startswith("Nothing: ")


def test_cells_of_one_run_alone_are_counted_apart(tmp_path: Path) -> None:
    """A base may be smaller; a cell that only the base has is worse."""
    every = read([bench_run(tmp_path / "every.json", *pages.cells())])
    some = read([bench_run(tmp_path / "some.json", *pages.cells()[2:])])
    lead = changes.worse(compare(some, every)).lead
    assert lead.startswith("Nothing: 10 cells compared (10 same); 2 timed only in the new run; a change of ")
    answer = changes.worse(compare(every, some))
    assert answer.lead == "Worse: missing cell (2)."
    assert answer.note.startswith("10 cells compared (10 same); 2 timed only in the base; a change of ")


def test_a_base_of_times_alone_leaves_conformance_open(tmp_path: Path) -> None:
    """The times are compared all the same, and the note says what was not."""
    base = read([bench_run(tmp_path / "base.json", *pages.cells())])
    answer = changes.worse(compare(base, pages.model(tmp_path).records))
    assert answer.lead.startswith("Nothing for certain: 12 cells compared (12 same); a change of ")
    assert answer.note == "The new run has conformance results, the base has none."
