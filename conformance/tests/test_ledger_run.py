"""``pytest conformance --deviations FILE``: a user's ledger is as strict as ours, and the result file names it."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from attention_conformance.conformance.judging.outcomes import Failure, Outcome
from attention_conformance.conformance.results import read
from attention_conformance.conformance.tests.test_plugin import RIGHT, plug_in, run

pytestmark = pytest.mark.slow

SCHEMA = json.loads((Path(__file__).parents[1] / "results.schema.json").read_text())
WRONG = RIGHT.replace("PEEK = 0", "PEEK = 1")
RECORD = """
[[deviation]]
id = "peeks"
implementations = ["mykernels.py:*"]
package = "numpy"
versions = ">=2"
clause = "SDPA-9"
cases = ["causal-square"]
failure = "value"
instead = "every row sees one key ahead"
upstream = "unreported"
"""
#: A record about a case for which our ledger has one.
OVERLAPPING = (
    RECORD.replace("mykernels.py:*", "torch-sdpa").replace("numpy", "torch").replace("causal-square", "nan-all")
)
OPTIONS = ("--impl", "mykernels.py:attention", "--case", "causal-square", "--conformance-json", "out.jsonl")


def judged(folder: Path, text: str, *ledgers: str) -> tuple[int, str]:
    """Exit code and output of a run with these ledgers."""
    names = [f"ledger-{number}.toml" for number, _ in enumerate(ledgers)]
    for name, ledger in zip(names, ledgers, strict=True):
        (folder / name).write_text(ledger)
    plug_in(folder, text)
    done = run(folder, *OPTIONS, *(option for name in names for option in ("--deviations", name)))
    return done.returncode, done.stdout + done.stderr


def test_a_recorded_failure_of_a_plug_in_deviates(tmp_path: Path) -> None:
    """A recorded failure fails nothing, and the result has the recorded behaviour and the record's id."""
    code, printed = judged(tmp_path, WRONG, RECORD)
    assert code == 0, printed
    (result,) = read(tmp_path / "out.jsonl").results
    assert (result.outcome, result.reason) == (Outcome.KNOWN_DEVIATION, "every row sees one key ahead [peeks]")


def test_a_users_record_is_strict(tmp_path: Path) -> None:
    """When the function is mended the run fails, and names the record and its file."""
    code, printed = judged(tmp_path, RIGHT, RECORD)
    assert code == 1
    assert "remove record peeks (ledger-0.toml), or narrow what it covers" in printed
    assert "Diagnosis:" not in printed  # the result is right: nothing needs an explanation
    (result,) = read(tmp_path / "out.jsonl").results
    assert result.failure is Failure.STALE


def test_a_record_of_another_failure_excuses_nothing(tmp_path: Path) -> None:
    """A record of an exception does not excuse a failure by value."""
    code, printed = judged(tmp_path, WRONG, RECORD.replace('"value"', '"error"'))
    assert code == 1
    assert "record peeks (ledger-0.toml) expects it to fail by error, not by value" in printed


def test_the_header_names_the_ledgers_in_force(tmp_path: Path) -> None:
    """The header has our ledger and the user's, each with its number of records and a checksum, and fits the schema."""
    judged(tmp_path, WRONG, RECORD, RECORD.replace("peeks", "other").replace("causal-square", "plain"))
    line, *_ = (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()
    jsonschema.validate(json.loads(line), SCHEMA)
    header = read(tmp_path / "out.jsonl").header
    assert header.ledgers is not None
    assert [ledger.file for ledger in header.ledgers] == [
        "conformance/deviations.toml",
        "ledger-0.toml",
        "ledger-1.toml",
    ]
    assert [ledger.records for ledger in header.ledgers[1:]] == [1, 1]
    assert len({ledger.crc32 for ledger in header.ledgers}) == 3


def test_headers_without_ledgers_follow_the_schema_too() -> None:
    """Headers written before ledgers could be chosen are valid, and a malformed entry is not."""
    header = {"kind": "header", "format": 2, "spec": "1"}
    jsonschema.validate(header, SCHEMA)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**header, "ledgers": [{"file": "mine.toml"}]}, SCHEMA)


def test_the_version_of_a_package_that_a_record_names_is_found(tmp_path: Path) -> None:
    """The header has the version of a package that only a user's record names."""
    text = RECORD.replace('package = "numpy"\nversions = ">=2"', 'package = "tabulate"\nversions = ">=0.9"')
    code, printed = judged(tmp_path, WRONG, text)
    assert code == 0, printed
    assert "tabulate" in read(tmp_path / "out.jsonl").header.versions


@pytest.mark.parametrize(
    ("ledgers", "said"),
    [
        ([RECORD.replace("SDPA-9", "SDPA-99")], "ledger-0.toml, record peeks: unknown clause 'SDPA-99'; did you mean"),
        ([RECORD, RECORD], "two records have the id peeks: it is in ledger-0.toml and in ledger-1.toml"),
        (
            [RECORD, RECORD.replace("peeks", "other").replace("mykernels.py:*", "*:attention")],
            "records peeks (ledger-0.toml) and other (ledger-1.toml) both cover mykernels.py:attention",
        ),
        (
            [OVERLAPPING],
            "records torch-flash-nan-query and peeks (ledger-0.toml) both cover torch-sdpa, float32, case nan-all",
        ),
    ],
)
def test_a_broken_ledger_ends_the_run_in_one_sentence(tmp_path: Path, ledgers: list[str], said: str) -> None:
    """Unknown names, repeated ids and overlapping records, with ours too, end the run before any case."""
    code, printed = judged(tmp_path, RIGHT, *ledgers)
    assert code == 4
    assert f"ERROR: {said}" in printed
    assert not (tmp_path / "out.jsonl").exists()


def test_a_missing_ledger_ends_the_run(tmp_path: Path) -> None:
    """A missing file is named."""
    done = run(plug_in(tmp_path), *OPTIONS, "--deviations", "none.toml")
    assert done.returncode == 4
    assert "ERROR: deviation ledger none.toml cannot be read" in done.stdout + done.stderr
