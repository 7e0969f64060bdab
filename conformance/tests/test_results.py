"""The result file: what is written is read again, and a broken file is refused by name."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import get_args

import jsonschema
import pytest
import zstandard

from attention_conformance.conformance.judging.outcomes import Failure, Outcome, Result
from attention_conformance.conformance.results import (
    ResultFileError,
    Writer,
    by_column,
    fingerprint,
    one_by_one,
    parse,
    read,
)
from attention_conformance.impls.contract import DTYPES, Profile

SCHEMA = json.loads(parse.SCHEMA.read_text(encoding="utf-8"))

PASSED = Result(
    "numpy-eager", "cpu", "float32", "plain", ("SDPA-1",), Outcome.PASSED, profile="wide", meets=("wide",), share=0.25
)
FAILED = Result(
    "x",
    "cpu",
    "float16",
    "lse",
    ("SDPA-19",),
    Outcome.FAILED,
    Failure.VALUE,
    broken="SDPA-19",
    reason="NaN",
    error_pattern="NaN",
    message="text",
    profile="storage",
    share=float("inf"),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A complete file with two results."""
    path = tmp_path / "folder" / "results.jsonl"
    with Writer(path, {**fingerprint(), "versions": {"numpy": "2"}, "not_installed": [], "profiles": {}}) as writer:
        writer.write(PASSED)
        writer.write(FAILED)
    return path


def test_what_is_written_is_read_again(path: Path) -> None:
    """Every field survives, an infinite share too."""
    run = read(path)
    assert run.results == (PASSED, FAILED)
    assert run.complete
    assert run.header.versions == {"numpy": "2"}


@pytest.mark.documents
def test_the_schema_is_that_of_the_types() -> None:
    """``attention-conformance pages schemas`` regenerates it."""
    assert parse.schema_text() == parse.SCHEMA.read_text(encoding="utf-8")


def test_a_line_has_the_fields_of_a_result() -> None:
    """A line has the fields of a result in their order, with the contract's words for dtypes and profiles."""
    assert parse.ResultLine.__struct_fields__ == tuple(field.name for field in fields(Result))
    assert get_args(parse.Dtype) == DTYPES
    assert get_args(parse.Profile) == tuple(profile.value for profile in Profile)


def test_every_line_follows_the_schema(path: Path) -> None:
    """The published schema describes each line."""
    for line in path.read_text().splitlines():
        jsonschema.validate(json.loads(line), SCHEMA)


def test_the_schema_refuses_what_is_not_a_result() -> None:
    """The schema can fail: an unknown outcome is refused."""
    line = {"kind": "result", "outcome": "fine"}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(line, SCHEMA)


def test_a_run_that_was_cut_off_is_seen(path: Path) -> None:
    """A file without its footer is incomplete, and its results still count."""
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    run = read(path)
    assert not run.complete
    assert run.results == (PASSED, FAILED)


def test_a_line_that_was_cut_off_does_not_count(path: Path) -> None:
    """The lines before one that was cut off in writing are kept."""
    path.write_text(path.read_text()[: path.read_text().index("lse")])
    run = read(path)
    assert not run.complete
    assert run.results == (PASSED,)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "first line is not a header"),
        ("not json", "line 1 is not JSON"),
        ("[]", "expected a header, result or footer"),
        ('{"kind": "result"}', "line 1: not a result"),
        ('{"kind": "footer", "counts": {}}', "first line is not a header"),
        ('{"kind": "header", "format": 99}', "has format 99, expected 2$"),
        (
            '{"kind": "header", "format": 1}',
            "format 1, expected 2: an older version of the suite wrote it, run it again",
        ),
        ('{"kind": "header", "format": 2, "spec": "1"}\n{"kind": "result", "outcome": "fine"}', "line 2: not a result"),
        (
            '{"kind": "header", "format": 2, "spec": "1"}\n{"kind": "footer", "counts": {"passed": 3}}',
            "has 0 results, its footer counts",
        ),
    ],
)
def test_a_broken_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    """The first error is named with its line."""
    path = tmp_path / "broken.jsonl"
    path.write_text(text and text + "\n")
    with pytest.raises(ResultFileError, match=message):
        read(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    """A missing file is named."""
    with pytest.raises(ResultFileError, match="cannot be read"):
        read(tmp_path / "absent.jsonl")


def test_a_result_is_on_disk_before_the_next_one(tmp_path: Path) -> None:
    """Lines are written as they come, so that a killed run loses nothing."""
    path = tmp_path / "results.jsonl"
    writer = Writer(path, {})
    writer.write(PASSED)
    assert len(path.read_text().splitlines()) == 2
    writer.close()


def test_a_run_that_is_given_up_has_no_footer(tmp_path: Path) -> None:
    """A run that ends with an exception leaves a file that is readable and known to be incomplete."""
    path = tmp_path / "results.jsonl"
    with pytest.raises(KeyboardInterrupt), Writer(path, {}) as writer:  # noqa: PT012
        writer.write(PASSED)
        raise KeyboardInterrupt
    assert read(path).results == (PASSED,)
    assert not read(path).complete


def test_a_compressed_file_is_read_as_it_is(path: Path) -> None:
    """A compressed file is recognised by its first bytes, whatever its name; cut off, its first results still count."""
    plain = read(path)
    text = b"".join(path.read_bytes().splitlines(keepends=True))
    compressed = path.with_name("results.jsonl.zst")
    compressed.write_bytes(zstandard.compress(text))
    assert read(compressed) == plain
    frames = [zstandard.compress(line) for line in text.splitlines(keepends=True)]
    compressed.write_bytes(b"".join(frames))
    assert read(compressed) == plain
    compressed.write_bytes(b"".join(frames[:2]))
    assert (read(compressed).results, read(compressed).complete) == ((PASSED,), False)


def test_results_by_column_are_read_as_single_ones(path: Path) -> None:
    """Results by column equal single ones, whatever fields a result lacks, and the other way round."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert sum(line["kind"] == "result" for line in lines) > 1
    columns = by_column(lines)
    assert [record["kind"] for record in columns] == ["header", "results", "footer"]
    other = path.with_name("columns.jsonl")
    other.write_text("".join(f"{json.dumps(record)}\n" for record in columns), encoding="utf-8")
    assert read(other) == read(path)
    assert by_column(one_by_one(columns)) == columns
