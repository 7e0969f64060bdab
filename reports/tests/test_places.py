"""Folders, globs and datasets of result files: one word names thousands, and one Parquet file has the same records."""

from __future__ import annotations

from pathlib import Path

import pytest

from attention_conformance.cli import main
from attention_conformance.conformance import results as result_file
from attention_conformance.conformance.judging.outcomes import Outcome
from attention_conformance.reports.history.series import history
from attention_conformance.reports.input import columns, places
from attention_conformance.reports.input.read import read
from attention_conformance.reports.input.records import ReportError
from attention_conformance.reports.tests.files import bench_run, conformance_file, failed, result, steady, timed


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    """Three machines, one of them in a folder of its own, and a file of the bench."""
    for number, machine in enumerate(("a", "b", "deep/c")):
        conformance_file(
            tmp_path / "fleet" / f"{machine}.jsonl",
            result("one", "plain", share=0.25, sizes=(1, 2, 2, 4, 4, 8, 8) if number else ()),
            result("one", "causal", Outcome.UNSUPPORTED, reason="no é"),
            failed("two", "plain", share=float("inf")),
            started=f"2026-0{number + 1}-01T00:00:00+00:00",
            machine=f"m{number}",
        )
    bench_run(tmp_path / "fleet" / "bench.json", timed("one", 512, steady(1e-3)))
    return tmp_path / "fleet"


def test_a_folder_and_a_glob_name_their_files_once(fleet: Path) -> None:
    """Files of subfolders are included; a file that is named is taken, even a missing one."""
    assert [path.name for path in places.files_of([fleet])] == ["a.jsonl", "b.jsonl", "bench.json", "c.jsonl"]
    assert [path.name for path in places.files_of([fleet / "*.jsonl", fleet / "a.jsonl"])] == ["a.jsonl", "b.jsonl"]
    assert [path.name for path in places.files_of([fleet / "**" / "c.*"])] == ["c.jsonl"]
    assert places.files_of([fleet / "missing.json"]) == [fleet / "missing.json"]


def test_a_place_without_a_result_file_is_an_error(fleet: Path) -> None:
    """An empty folder is one, and a glob that matches nothing."""
    (fleet / "empty").mkdir()
    for place in (fleet / "empty", fleet / "*.xml"):
        with pytest.raises(ReportError, match="has no result file"):
            places.files_of([place])


def test_a_dataset_has_every_result_of_its_files(fleet: Path) -> None:
    """It has headers, infinite shares and sizes too; a file of the bench is left out."""
    pytest.importorskip("pyarrow")
    paths = places.files_of([fleet])
    assert columns.write(paths, fleet.parent / "all.parquet") == (9, [])
    runs = dict(columns.runs(fleet.parent / "all.parquet"))
    assert runs == {str(path): result_file.read(path) for path in paths if path.suffix == ".jsonl"}


def test_a_history_and_a_report_of_a_dataset_are_those_of_its_files(fleet: Path) -> None:
    """The same tallies in the same order, and the same records."""
    pytest.importorskip("pyarrow")
    files = fleet / "**" / "*.jsonl"
    dataset = fleet.parent / "all.parquet"
    assert main(["history", str(files), "-o", str(fleet.parent / "h"), "--dataset", str(dataset)]) == 0
    counted = [(one.when, one.implementation, one.counts) for one in history(files).tallies]
    assert [(one.when, one.implementation, one.counts) for one in history(dataset).tallies] == counted
    assert read([dataset]).results == read(places.files_of([files])).results
    assert main(["report", str(dataset), "-o", str(fleet.parent / "r"), "--format", "json"]) == 0


def test_a_file_that_cannot_be_read_is_named_and_not_in_the_dataset(fleet: Path) -> None:
    """The error is the same as in a history."""
    pytest.importorskip("pyarrow")
    (fleet / "a.jsonl").write_text("{}\n", encoding="utf-8")
    count, (why,) = columns.write(places.files_of([fleet]), fleet.parent / "all.parquet")
    assert count == 6
    assert "a.jsonl, line 1: expected a header" in why


def test_new_files_are_added_to_a_dataset(fleet: Path) -> None:
    """A history with the archive and today's file among its places keeps both in the archive, each run once."""
    pytest.importorskip("pyarrow")
    archive, today = fleet.parent / "all.parquet", fleet.parent / "today.jsonl"
    columns.write(places.files_of([fleet]), archive)
    before = dict(columns.runs(archive))
    conformance_file(today, result("one", "plain"), started="2026-04-01T00:00:00+00:00")
    for _ in range(2):
        given = ["history", str(archive), str(today), "-o", str(fleet.parent / "h"), "--dataset", str(archive)]
        assert main(given) == 0
        assert dict(columns.runs(archive)) == {**before, str(today): result_file.read(today)}


def test_another_run_of_the_same_name_is_kept_beside_the_first(tmp_path: Path) -> None:
    """A file that is rewritten every day replaces nothing in the archive."""
    pytest.importorskip("pyarrow")
    archive, today = tmp_path / "all.parquet", tmp_path / "today.jsonl"
    for day in (1, 2):
        conformance_file(today, result("one", "plain"), started=f"2026-04-0{day}T00:00:00+00:00")
        columns.write([archive, today] if archive.exists() else [today], archive)
    names = [str(today), f"{today} (2)"]
    assert [(name, run.header.started) for name, run in columns.runs(archive)] == [
        (name, f"2026-04-0{day}T00:00:00+00:00") for day, name in enumerate(names, 1)
    ]


def test_a_damaged_dataset_is_named_and_not_replaced(fleet: Path) -> None:
    """Like a file of JSON lines it is left out of another dataset; it is not overwritten."""
    pytest.importorskip("pyarrow")
    damaged = fleet / "old.parquet"
    damaged.write_bytes(b"PAR1 and no more")
    count, (why,) = columns.write(places.files_of([fleet]), fleet.parent / "all.parquet")
    assert count == 9
    assert "old.parquet is no dataset of results" in why
    with pytest.raises(ReportError, match="it is not replaced"):
        columns.write(places.files_of([fleet]), damaged)
    assert damaged.read_bytes() == b"PAR1 and no more"


def test_what_is_no_dataset_is_refused_by_name(tmp_path: Path) -> None:
    """Other bytes, another table, and a column with wrong values are refused."""
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1 and no more")
    with pytest.raises(ReportError, match=r"a\.parquet is no dataset of results"):
        read([path])
    parquet.write_table(arrow.table({"x": [1]}), path)
    with pytest.raises(ReportError, match=r"a\.parquet is no dataset of results"):
        read([path])
    good = conformance_file(tmp_path / "one.jsonl", result("one", "plain"))
    columns.write([good], path)
    table = parquet.read_table(path)
    wrong = table.set_column(table.schema.get_field_index("outcome"), "outcome", arrow.array(["splendid"]))
    parquet.write_table(wrong, path)
    with pytest.raises(ReportError, match="is damaged"):
        read([path])
