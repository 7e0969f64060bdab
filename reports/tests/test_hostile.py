"""Broken and hostile files: each is a named error, or is counted as refused, or is shown as text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attention_conformance.cli import main
from attention_conformance.impls import compressed
from attention_conformance.reports.input.bench import (
    NO_BATCHES,
    NO_CELL,
    NO_INTERVAL,
    NO_NUMBER,
    NO_TIME,
    TWICE,
    UNLISTED,
    UNTIMED,
)
from attention_conformance.reports.input.read import read
from attention_conformance.reports.input.records import LARGEST, ReportError
from attention_conformance.reports.tests.files import bench_run, cell, conformance_file, failed, result, steady, timed

Document = dict[str, Any]


def changed(folder: Path, change: Callable[[Document], object]) -> Path:
    """A file of the bench with two timed cells, after a change of its document."""
    path = bench_run(folder / "b.json", timed("x", 128, steady(1e-3)), timed("y", 128, steady(1e-3)))
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    return path


def info(**fields: Any) -> Callable[[Document], object]:
    """Changes the metadata of the first record."""
    return lambda document: document["benchmarks"][0]["extra_info"].update(fields)


def stats(**fields: Any) -> Callable[[Document], object]:
    """Changes the statistics of the first record."""
    return lambda document: document["benchmarks"][0]["stats"].update(fields)


def entry(**fields: Any) -> Callable[[Document], object]:
    """Changes the first entry of the list of cells."""
    return lambda document: document["attention_conformance"]["cells"][0].update(fields)


def without(*way: Any) -> Callable[[Document], object]:
    """Takes something away."""

    def change(document: Document) -> None:
        at: Any = document
        for step in way[:-1]:
            at = at[step]
        del at[way[-1]]

    return change


def again(part: str) -> Callable[[Document], object]:
    """Writes the first record of a list a second time."""

    def change(document: Document) -> None:
        at = document if part == "benchmarks" else document["attention_conformance"]
        at[part].append(at[part][0])

    return change


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (stats(median=float("nan")), {NO_TIME: 1}),
        (stats(median=0.0), {NO_TIME: 1}),
        (stats(min=-1e-3), {NO_TIME: 1}),
        (stats(max=float("inf")), {NO_TIME: 1}),
        (stats(median="1"), {NO_TIME: 1}),
        (stats(median=True), {NO_TIME: 1}),
        (stats(data=[1e-3, float("nan")]), {NO_TIME: 1}),
        (stats(data=[1e-3, -1e-3]), {NO_TIME: 1}),
        (stats(data="slow"), {NO_TIME: 1}),
        (info(gflops="many"), {NO_NUMBER: 1}),
        (info(flops=-1), {NO_NUMBER: 1}),
        (info(prepare_seconds=float("nan")), {NO_NUMBER: 1}),
        (info(memory_bytes=[]), {NO_NUMBER: 1}),
        (info(bound_by=3), {NO_NUMBER: 1}),
        (info(clock=["wall"]), {NO_NUMBER: 1}),
        (info(process_runs=[[1, 2]]), {NO_BATCHES: 1}),
        (info(process_runs=[[]]), {NO_BATCHES: 1}),
        (info(process_runs="3"), {NO_BATCHES: 1}),
        (info(process_runs=[[-4, 58]]), {NO_BATCHES: 1}),
        (info(interval=[2.0, 3.0]), {NO_INTERVAL: 1}),
        (info(interval=[1e-9]), {NO_INTERVAL: 1}),
        (info(interval=[float("nan"), 1.0]), {NO_INTERVAL: 1}),
        (info(implementation=5), {NO_CELL: 1, UNTIMED: 1}),
        (info(implementation="other"), {UNLISTED: 1, UNTIMED: 1}),
        (without("benchmarks", 0, "stats"), {NO_CELL: 1, UNTIMED: 1}),
        (without("benchmarks", 0, "extra_info", "flops"), {NO_CELL: 1}),
        (without("benchmarks", 0), {UNTIMED: 1}),
        (again("benchmarks"), {TWICE: 1}),
        (again("cells"), {TWICE: 1}),
        (entry(S="128"), {NO_CELL: 1, UNLISTED: 1}),
        (entry(outcome="fine"), {NO_CELL: 1, UNLISTED: 1}),
        (entry(reason=None), {NO_CELL: 1, UNLISTED: 1}),
        (lambda document: document["benchmarks"].append("text"), {NO_CELL: 1}),
        (lambda document: document["attention_conformance"]["cells"].append(7), {NO_CELL: 1}),
    ],
)
def test_a_record_that_cannot_be_used_is_counted(
    tmp_path: Path, change: Callable[[Document], object], why: dict[str, int]
) -> None:
    """It is refused for a reason with a number; the good ones next to it are used, and nothing is dropped silently."""
    records = read([changed(tmp_path, change)])
    (source,) = records.sources
    assert source.refused == why
    assert source.read == source.used + sum(why.values())
    assert "y" in {one["implementation"] for one in records.cells}


def in_ours(**fields: Any) -> Callable[[Document], object]:
    """Changes the suite's part of the file."""
    return lambda document: document["attention_conformance"].update(fields)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (in_ours(format=3), "has bench format 3, expected 4"),
        (in_ours(format=5), "has bench format 5, expected 4"),
        (in_ours(format="4"), "has bench format 4, expected"),
        (in_ours(format=True), "has bench format True, expected"),
        (in_ours(cells={}), "is damaged: .*got `object` - at .*cells"),
        (in_ours(spec=1), "is damaged"),
        (in_ours(peaks=[1]), r"is damaged: .*got `int` - at .*peaks\[0\]"),
        (in_ours(peaks=[{"device": "cpu"}]), r"is damaged: .*missing required field `dtype` - at .*peaks\[0\]"),
        (in_ours(load_average=float("nan")), "is damaged: .*load_average"),
        (in_ours(plan={"cache": 1}), "is damaged: .*plan"),
        (in_ours(fits=[1]), "is damaged: .*fits"),
        (in_ours(fingerprint=[]), "is damaged: .*got `array` - at .*fingerprint"),
        (lambda document: document.update(benchmarks={}), "nor the JSON of pytest-benchmark"),
        (lambda document: document.update(machine_info=[]), "is damaged: .*machine_info is no object"),
        (lambda document: document.update(attention_conformance=[]), "has bench format"),
        (without("attention_conformance"), "for another project"),
    ],
)
def test_a_document_that_is_no_run_is_refused(tmp_path: Path, change: Callable[[Document], object], said: str) -> None:
    """One sentence names the file and what is wrong."""
    refused(changed(tmp_path, change), said)


def refused(path: Path, said: str) -> None:
    """Check that the report and the command refuse a file with a sentence."""
    with pytest.raises(ReportError, match=rf"{path.name}.*{said}") as error:
        read([path])
    assert "\n" not in str(error.value)
    assert main(["report", str(path), "-o", str(path.parent / "out")]) == 2
    assert not (path.parent / "out").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("  \n", "is empty"),
        ("{", "neither a conformance result file nor JSON"),
        ("[" * 200_000, "nested too deeply"),
        ('{"a":' * 200_000, "nested too deeply"),
        ('{"benchmarks": [], "benchmarks": []}', "the key 'benchmarks' appears twice in one object"),
        ("[" + "9" * 5000 + "]", "neither a conformance result file nor JSON"),
        ('"text"', "nor the JSON of pytest-benchmark"),
        ("null", "nor the JSON of pytest-benchmark"),
        ('{"kind": "header", "format": 9}\n', "has format 9, expected 2"),
        ('{"kind": "header", "format": 2}\n', "it lacks 'spec'"),
        ('{"kind": "header", "format": 2, "spec": "1", "spec": "2"}\n', "neither a conformance result file nor JSON"),
        ('{"format": "attention-conformance faults 1", "faults": 3, "cases": 1}', "says that it is a kill matrix"),
    ],
)
def test_a_text_that_is_no_result_file_is_refused(tmp_path: Path, text: str, said: str) -> None:
    """It may be empty, cut off, too deep, ambiguous, or something else entirely."""
    path = tmp_path / "a.json"
    path.write_text(text)
    refused(path, said)


@pytest.mark.parametrize("kept", [0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file_of_the_bench_is_refused(tmp_path: Path, kept: float) -> None:
    """It does not matter where it was cut off."""
    path = changed(tmp_path, lambda document: None)
    text = path.read_text()
    path.write_text(text[: int(kept * len(text))])
    refused(path, "neither a conformance result file nor JSON")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"implementation": "x"', '"implementation": 5', "'implementation' is 5"),
        ('"implementation": "x"', '"implementation": "x", "case": "c"', "the key 'case' twice in one object"),
        ('"outcome": "passed"', '"outcome": "fine"', "not a result"),
        ('"share": 0.5', '"share": NaN', "the number NaN, which is not finite"),
        ('"share": 0.5', '"share": -1', "'share' is -1"),
        ('"share": 0.5', '"share": "low"', "not a result"),
        ('"run_seconds": 0.0', '"run_seconds": NaN', "the number NaN, which is not finite"),
        ('"run_seconds": 0.0', '"run_seconds": null', "not a result"),
        ('"clauses": ["SDPA-1", "SDPA-9"]', '"clauses": [1]', r"'clauses\[0\]' is 1"),
        ('"error_pattern": ""', '"error_pattern": ' + "[" * 100_000, "not JSON"),
    ],
)
def test_a_damaged_result_is_refused_with_its_line(tmp_path: Path, old: str, new: str, said: str) -> None:
    """A result file with a broken record is not used in part: more may be wrong with it."""
    path = conformance_file(tmp_path / "a.jsonl", result("x", "c", share=0.5), result("x", "d", share=0.5))
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    refused(path, f"line 2.*{said}")


def test_a_huge_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    """The size is enough to know; the file here is sparse."""
    path = tmp_path / "huge.json"
    with path.open("wb") as file:
        file.truncate(LARGEST + 1)
    refused(path, f"has {LARGEST + 1} bytes, at most {LARGEST} are read")


def test_a_compressed_file_that_unpacks_to_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is unpacked only up to the limit for any file, here a million bytes."""
    monkeypatch.setattr("attention_conformance.reports.input.records.LARGEST", 1_000_000)
    compressed.write(tmp_path / "bomb.json.zst", b" " * 50_000_000)
    refused(tmp_path / "bomb.json.zst", "more than 1000000 bytes")


@pytest.mark.parametrize("kept", [0.1, 0.5, 0.9])
def test_a_truncated_compressed_file_is_refused(tmp_path: Path, kept: float) -> None:
    """It does not matter where it was cut off; a file that is not compressed at all is refused too."""
    path = tmp_path / "b.json.zst"
    compressed.write(path, changed(tmp_path, lambda document: None).read_bytes())
    whole = path.read_bytes()
    assert read([path]).cells
    path.write_bytes(whole[: int(kept * len(whole))])
    refused(path, "is empty|neither a conformance result file nor JSON")
    path.write_bytes(b"{}")
    refused(path, "cannot be read: it cannot be decompressed: no zstd")


def test_a_compressed_file_is_counted_as_it_is(tmp_path: Path) -> None:
    """A record that cannot be used is refused as in an uncompressed file."""
    path = tmp_path / "b.json.zst"
    compressed.write(path, changed(tmp_path, stats(median=0.0)).read_bytes())
    assert read([path]).sources[0].refused == {NO_TIME: 1}


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    """It may be Parquet, a picture or a core dump."""
    path = tmp_path / "a.json"
    path.write_bytes(b"\xff\xfe\x00PAR1")
    refused(path, "cannot be read")


HOSTILE = "<script>alert(1)</script>|`x`"


def test_html_in_names_is_shown_as_text(tmp_path: Path) -> None:
    """Names, workloads, reasons and libraries may contain tags; no page of the report does."""
    cells = [timed(HOSTILE, 128, steady(1e-3)), cell(HOSTILE, 256, "invalid", clause="<b>", reason=HOSTILE)]
    cells.append(timed("z", 64, steady(1e-3), family=f"{HOSTILE}*", workload=HOSTILE))
    bench = bench_run(tmp_path / "b.json", *cells, flops={"sdpa": HOSTILE}, command=HOSTILE)
    results = [failed(HOSTILE, HOSTILE, reason=HOSTILE), result("fine", "empty-keys-bool")]
    lines = conformance_file(tmp_path / "<img>.jsonl", *results, machine=HOSTILE, not_installed=[HOSTILE])
    assert main(["report", str(bench), str(lines), "-o", str(tmp_path / "out")]) == 0
    for page in ("report.md", "summary.md"):
        text = (tmp_path / "out" / page).read_text()
        inside_code = [part for at, part in enumerate(text.split("`")) if at % 2]
        outside = "".join(part for at, part in enumerate(text.split("`")) if at % 2 == 0)
        assert inside_code
        assert "<script" not in outside
        assert "<b>" not in outside
    for svg in (tmp_path / "out" / "badges").iterdir():
        assert "<script" not in svg.read_text()


def test_no_picture_and_no_link_comes_of_a_file(tmp_path: Path) -> None:
    """Clauses, names and reasons of a result are text in Markdown; a backslash before a bar opens no column."""
    wild = r"![p](https://x/p.png) \| #12 www.x.y"
    given = [failed("x", wild, broken=f"{wild}-{wild}", reason=wild), result("y", "c", clauses=(f"{wild}-1",))]
    path = conformance_file(tmp_path / "a.jsonl", *given, machine=wild, not_installed=[wild])
    assert main(["report", str(path), "-o", str(tmp_path / "out"), "--format", "markdown"]) == 0
    for page in ("report.md", "summary.md"):
        text = (tmp_path / "out" / page).read_text()
        assert not any(bad in text for bad in ("![", "[p]", "://", "#12", "www."))
        tables = [part.splitlines() for part in text.split("\n\n") if part.startswith("|")]
        assert tables
        for rows in tables:
            assert len({len(re.findall(r"(?<!\\)(?:\\\\)*\|", row)) for row in rows}) == 1


def test_the_counts_stand_in_every_report(tmp_path: Path) -> None:
    """Page, summary and model have the counts read, used and refused, with the reason."""
    path = changed(tmp_path, stats(median=-1.0))
    formats = ["--format", "markdown", "--format", "json"]
    assert main(["report", str(path), "-o", str(tmp_path / "out"), *formats]) == 0
    for page in ("report.md", "summary.md"):
        text = (tmp_path / "out" / page).read_text()
        (row,) = (line for line in text.splitlines() if line.startswith("| b.json"))
        assert [one.strip() for one in row.split("|")[2:8]] == ["benchmark", "yes", "2", "1", "1", f"1 {NO_TIME}"]
    (file,) = json.loads((tmp_path / "out" / "model.json").read_text())["files"]
    assert (file["read"], file["used"], file["refused"]) == (2, 1, {NO_TIME: 1})
