"""Reading result files: what is recognised, what is counted, and what is refused, with its sentence."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from attention_conformance.reports.input.read import ReportError, read
from attention_conformance.reports.tests.files import (
    bench_file,
    bench_run,
    cell,
    conformance_file,
    fit,
    peak,
    plan,
    result,
    steady,
    timed,
)


def test_files_are_recognised_by_content(tmp_path: Path) -> None:
    """Names and endings say nothing; both kinds may be mixed."""
    one = conformance_file(tmp_path / "a.json", result("x", "c1"))
    other = bench_file(tmp_path / "b.jsonl", cell("x", 128, median_ms=1.0))
    records = read([other, one])
    assert [source.kind for source in records.sources] == ["benchmark", "conformance"]
    assert len(records.results) == len(records.cells) == 1


def test_a_repeated_result_is_counted_as_refused(tmp_path: Path) -> None:
    """The first of two files with the same case is used."""
    one = conformance_file(tmp_path / "a.jsonl", result("x", "c1"))
    two = conformance_file(tmp_path / "b.jsonl", result("x", "c1"), result("x", "c2"))
    source = read([one, two]).sources[1]
    assert (source.read, source.used) == (2, 1)
    assert source.refused == {"of a case or cell that an earlier file has": 1}


def test_a_timed_cell_without_statistics_is_refused(tmp_path: Path) -> None:
    """A cell that claims to be timed needs its samples."""
    source = read([bench_file(tmp_path / "b.json", cell("x", 128), cell("y", 128, median_ms=1.0))]).sources[0]
    assert (source.read, source.used) == (2, 1)
    assert source.refused == {"timed, but without statistics": 1}


def test_a_file_has_intervals_samples_peaks_and_a_fingerprint(tmp_path: Path) -> None:
    """The samples come back by process run and batch, the interval as two columns, with the metadata of the run."""
    process_runs = steady(1e-3)
    path = bench_run(
        tmp_path / "b.json", timed("x", 128, process_runs, memory_bytes=7, bound_by="compute"), fits=[fit("x")]
    )
    records = read([path])
    (one,), (run,), (samples,) = records.cells, records.runs, records.samples.values()
    assert samples.process_runs == process_runs
    assert one["interval_low"] < one["median"] < one["interval_high"]
    assert (one["process_runs"], one["memory_bytes"], one["bound_by"]) == (3, 7, "compute")
    assert (run.format, run.fingerprint["id"]) == (4, "0a1b")
    assert msgspec.to_builtins(run.peaks) == [peak() | {"samples": ()}]
    assert msgspec.to_builtins(run.fits) == [fit("x")]


def test_how_a_cell_was_timed_is_kept(tmp_path: Path) -> None:
    """The clock and the caches, with what both mean in numbers; the file's settings name the caches."""
    how = {"clock": "device events", "host_seconds": 2e-3, "evicted_bytes": 2**27}
    records = read([bench_run(tmp_path / "b.json", timed("x", 128, steady(1e-3), **how), plan=plan("cold"))])
    assert how.items() <= records.cells[0].items()
    assert records.sources[0].environment["caches"] == "cold"


def test_what_a_file_does_not_say_is_empty(tmp_path: Path) -> None:
    """A file without samples, intervals and peaks is read."""
    records = read([bench_file(tmp_path / "b.json", cell("x", 128, median_ms=1.0))])
    assert "interval_low" not in records.cells[0]
    assert records.samples == {}
    assert records.runs[0].peaks == []


def test_a_file_without_a_footer_is_incomplete(tmp_path: Path) -> None:
    """A run that was killed is used as far as it got."""
    path = conformance_file(tmp_path / "a.jsonl", result("x", "c1"), result("x", "c2"))
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    records = read([path])
    assert not records.sources[0].complete
    assert len(records.results) == 2


def test_a_file_cut_within_a_line_is_incomplete(tmp_path: Path) -> None:
    """Half a line at the end is dropped, the lines before it are used."""
    path = conformance_file(tmp_path / "a.jsonl", result("x", "c1"), result("x", "c2"))
    text = path.read_text()
    path.write_text(text[: text.index('"c2"')])
    records = read([path])
    assert not records.sources[0].complete
    assert [one.case for one in records.results] == ["c1"]


def refusal(path: Path) -> str:
    """The sentence that a file is refused with."""
    with pytest.raises(ReportError) as error:
        read([path])
    text = str(error.value)
    assert path.name in text
    assert "\n" not in text
    return text


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    """The sentence names the file."""
    assert refusal(tmp_path / "no.jsonl").endswith("does not exist")


def test_a_folder_is_refused(tmp_path: Path) -> None:
    """A folder is not a result file."""
    assert "cannot be read" in refusal(tmp_path)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    """An empty file is not a run without results."""
    path = tmp_path / "a.json"
    path.write_text("\n")
    assert refusal(path).endswith("is empty")


def test_a_file_that_is_not_json_is_refused(tmp_path: Path) -> None:
    """The sentence says that a log file is no result file."""
    path = tmp_path / "log.txt"
    path.write_text("1 passed\n")
    assert "neither a conformance result file nor JSON" in refusal(path)


def test_other_json_is_refused(tmp_path: Path) -> None:
    """JSON of another kind is no benchmark."""
    path = tmp_path / "a.json"
    path.write_text("[1]")
    assert "nor the JSON of pytest-benchmark" in refusal(path)


def test_the_benchmarks_of_another_project_are_refused(tmp_path: Path) -> None:
    """Plain JSON of pytest-benchmark is not enough."""
    path = tmp_path / "theirs.json"
    path.write_text(json.dumps({"benchmarks": [], "machine_info": {}, "version": "5.3.1"}))
    assert "for another project" in refusal(path)


def test_another_bench_format_is_refused(tmp_path: Path) -> None:
    """A file of a later version is not half understood."""
    assert "has bench format 3, expected 4" in refusal(bench_file(tmp_path / "b.json", format=3))


def test_a_damaged_line_within_a_result_file_is_refused(tmp_path: Path) -> None:
    """Only the end of a file may be cut off."""
    path = conformance_file(tmp_path / "a.jsonl", result("x", "c1"), result("x", "c2"))
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(lines[0] + lines[1][:40] + "\n" + "".join(lines[2:]))
    assert "line 2 is not JSON" in refusal(path)


def test_different_spec_versions_are_refused(tmp_path: Path) -> None:
    """Results by different clauses are not put in one table."""
    one = conformance_file(tmp_path / "a.jsonl", result("x", "c1"))
    other = bench_file(tmp_path / "b.json", cell("x", 128, median_ms=1.0), spec="2")
    with pytest.raises(ReportError, match=r"b\.json is of spec version 2 and .*a\.jsonl of 1"):
        read([one, other])
