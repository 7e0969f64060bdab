"""The result model: it has a schema, can be read again, and gives every format its numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pandas as pd
import pytest

from attention_conformance.cli import main
from attention_conformance.conformance.judging.outcomes import Outcome
from attention_conformance.reports import schemas
from attention_conformance.reports.html.files import environments
from attention_conformance.reports.input.read import ReportError, incomplete, read
from attention_conformance.reports.input.records import by_file, labels
from attention_conformance.reports.markdown.page import origins
from attention_conformance.reports.tests.files import bench_run, cell, conformance_file, failed, result, steady, timed
from attention_conformance.reports.tests.test_faults import fault, kill_file


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """A file of each kind, with a failure, an infinite share, an invalid cell and samples."""
    shares = [result("x", "c1", share=0.25, meets=("wide",)), failed("y", "c1", share=float("inf"))]
    wrong = cell("y", 128, "invalid", clause="SDPA-25", reason="wrong")
    return [
        conformance_file(tmp_path / "c.jsonl", *shares, result("z", "c1", Outcome.UNSUPPORTED)),
        bench_run(tmp_path / "b.json", timed("x", 128, steady(1e-3)), wrong),
        kill_file(tmp_path / "f.json", fault("one", "a", "b")),
    ]


def document(files: list[Path], folder: Path) -> dict[str, Any]:
    """The model as it is written."""
    assert main(["report", *map(str, files), "-o", str(folder), "--format", "json"]) == 0
    return json.loads((folder / "model.json").read_text())


def test_the_model_keeps_its_schema(files: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The schema that is printed is valid, and the model of every kind of file keeps it."""
    assert main(["schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(document(files, tmp_path / "out"), schema)


@pytest.mark.parametrize(
    ("part", "fields"),
    [
        ("cells", {"median": -1.0}),
        ("cells", {"outcome": "fine"}),
        ("results", {"outcome": "odd"}),
        ("files", {"read": "2"}),
    ],
)
def test_the_schema_refuses_what_is_no_model(
    files: list[Path], tmp_path: Path, part: str, fields: dict[str, Any]
) -> None:
    """A negative time, an unknown outcome and a count that is text break the schema."""
    found = document(files, tmp_path / "out")
    found[part][0].update(fields)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(found, json.loads(schemas.schema("report")))


def test_a_model_gives_the_report_that_it_was_written_with(files: list[Path], tmp_path: Path) -> None:
    """Page, summary and tables made from the model are those made from the files, to the byte."""
    assert main(["report", *map(str, files), "-o", str(tmp_path / "a")]) == 0
    document(files, tmp_path / "m")
    assert main(["report", str(tmp_path / "m" / "model.json"), "-o", str(tmp_path / "b")]) == 0
    written = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*") if path.is_file())
    assert len(written) == 11
    assert all((tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes() for name in written)


def test_a_model_has_the_diagnoses_of_its_files(tmp_path: Path) -> None:
    """A fault explains the failures of a run; read again, the diagnoses are the same."""
    said = [
        {
            "implementation": "y",
            "device": "cpu",
            "failures": 1,
            "explanations": [{"faults": ["no-scale"], "title": "no scale", "cases": ["c1"], "contradicted": 0}],
            "common_features": ["causal"],
        }
    ]
    path = conformance_file(tmp_path / "c.jsonl", failed("y", "c1"), diagnoses=said)
    found = document([path], tmp_path / "m")
    assert found["files"][0]["diagnoses"] == said
    jsonschema.validate(found, json.loads(schemas.schema("report")))
    (before,), (after,) = read([path]).sources, read([tmp_path / "m" / "model.json"]).sources
    assert before.diagnoses == after.diagnoses
    assert before.diagnoses


def test_files_of_one_name_are_told_apart(tmp_path: Path) -> None:
    """They have their paths in the table of files, on both pages and in the model; another file only has its name."""
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    names = [str(tmp_path / "a" / "c.jsonl"), str(tmp_path / "b" / "c.jsonl"), "d.jsonl"]
    files = [Path(names[0]), Path(names[1]), tmp_path / "d.jsonl"]
    for path in files:
        conformance_file(path, result("x", "c1"))
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    assert labels(read(files).sources) == names == incomplete(read(files).sources)
    assert [one["name"] for one in document(files, tmp_path / "m")["files"]] == names
    again = read([tmp_path / "m" / "model.json"])
    assert labels(again.sources) == names
    assert [name for name, _ in environments(again.sources)] == names == list(by_file(again.sources)["file"])
    assert all(f"* `{name}`: " in "\n".join(origins(again.sources)) for name in names)


def test_samples_survive(files: list[Path], tmp_path: Path) -> None:
    """A comparison can be made from models: they have the samples by process run and batch."""
    document(files, tmp_path / "m")
    (found,) = read([tmp_path / "m" / "model.json"]).samples.values()
    assert found.process_runs == steady(1e-3)


def test_every_format_has_the_same_number(files: list[Path], tmp_path: Path) -> None:
    """The median of a cell is the same in JSON, CSV, Parquet and, to its digits, on the page."""
    pytest.importorskip("pyarrow")
    formats = [word for name in ("json", "csv", "parquet", "markdown") for word in ("--format", name)]
    assert main(["report", *map(str, files), "-o", str(tmp_path / "o"), *formats]) == 0
    median = json.loads((tmp_path / "o" / "model.json").read_text())["cells"][0]["median"]
    assert pd.read_csv(tmp_path / "o" / "bench.csv")["median"][0] == median
    assert pd.read_parquet(tmp_path / "o" / "bench.parquet")["median"][0] == median
    assert f"{median * 1e3:.2f}" in (tmp_path / "o" / "report.md").read_text()


def test_parquet_without_its_library_is_a_sentence(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says what to install, and the exit status is 2."""

    def missing(*_: object, **__: object) -> None:
        raise ImportError("Unable to find a usable engine")

    monkeypatch.setattr(pd.DataFrame, "to_parquet", missing)
    assert main(["report", *map(str, files), "-o", str(tmp_path / "o"), "--format", "parquet"]) == 2
    assert "pip install 'attention-conformance[parquet]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"version": 1}, "is a report of version 1, expected 2"),
        ({"cells": [{}]}, "is damaged"),
        ({"results": [{"implementation": 5}]}, "is damaged"),
        ({"files": [{}]}, "is damaged"),
    ],
)
def test_a_model_that_cannot_be_read_is_refused(
    files: list[Path], tmp_path: Path, change: dict[str, Any], text: str
) -> None:
    """A model of another version, or with broken records, is named with what is wrong."""
    path = tmp_path / "model.json"
    path.write_text(json.dumps(document(files, tmp_path / "m") | change))
    with pytest.raises(ReportError, match=rf"model\.json .*{text}"):
        read([path])


def test_a_model_is_read_alone(files: list[Path], tmp_path: Path) -> None:
    """A model's records were counted already, so it is not mixed with files."""
    document(files, tmp_path / "m")
    with pytest.raises(ReportError, match="name it alone"):
        read([*files, tmp_path / "m" / "model.json"])
