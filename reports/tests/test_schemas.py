"""Schemas: the published files are the ones that the types give, and a file of the bench keeps its own."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from attention_conformance.cli import main
from attention_conformance.reports import schemas
from attention_conformance.reports.tests.files import bench_run, cell, plan, steady, timed


@pytest.mark.documents
@pytest.mark.parametrize("name", schemas.DOCUMENTS)
def test_the_published_schema_is_what_the_types_give(name: str) -> None:
    """``attention-conformance schema --write`` regenerates them."""
    assert (schemas.FOLDER / f"{name}.schema.json").read_text(encoding="utf-8") == schemas.schema(name)


def test_no_schema_is_of_a_document_that_there_is_not() -> None:
    """Every file of the folder belongs to a type."""
    assert {path.name for path in schemas.FOLDER.iterdir()} == {f"{name}.schema.json" for name in schemas.DOCUMENTS}


def test_a_bench_file_keeps_its_schema(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file of another format, or with a negative time, does not."""
    assert main(["schema", "bench"]) == 0
    schema = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator.check_schema(schema)
    path = bench_run(tmp_path / "b.json", timed("x", 128, steady(1e-3)), cell("y", 128, "skipped"), plan=plan())
    found = json.loads(path.read_text())
    jsonschema.validate(found, schema)
    found["benchmarks"][0]["stats"]["median"] = -1.0
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(found, schema)
    found["benchmarks"] = []
    found["attention_conformance"]["format"] = 3
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(found, schema)
