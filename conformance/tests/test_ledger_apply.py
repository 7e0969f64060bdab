"""``ledger apply``: a result file as if today's records had been in the ledger when it was made."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from attention_conformance.cli import main
from attention_conformance.conformance.judging.outcomes import Failure, Outcome, Result
from attention_conformance.conformance.ledger.commands import toml
from attention_conformance.conformance.ledger.load import Deviation
from attention_conformance.conformance.results import Writer, read

PASSED = Result("torch-sdpa", "cuda", "float32", "scale-negative", ("SDPA-4",), Outcome.PASSED)
FAILED = replace(
    PASSED, outcome=Outcome.FAILED, failure=Failure.VALUE, broken="SDPA-4", reason="NaN: …", error_pattern="NaN"
)
RECORD = Deviation(
    "mine", ("torch-sdpa",), "torch", ">=9.1,<9.2", "SDPA-4", ("scale-negative",), Failure.VALUE, "NaN", "unreported"
)
DIAGNOSIS = {"implementation": "torch-sdpa", "device": "cuda", "failures": 1, "explanations": []}


def applied(tmp_path: Path, *results: Result, record: Deviation = RECORD) -> tuple[int, Path]:
    """Exit status of the command on these results, and the file that it wrote."""
    given, ledger, out = tmp_path / "given.jsonl", tmp_path / "mine.toml", tmp_path / "out.jsonl"
    with Writer(given, {"versions": {"torch": "9.1.0"}}) as writer:
        for each in results:
            writer.write(each)
        writer.close(diagnoses=[DIAGNOSIS])
    ledger.write_text(toml(record), encoding="utf-8")
    return main(["ledger", "apply", str(given), str(out), "--deviations", str(ledger)]), out


def test_a_failure_of_a_record_becomes_a_known_deviation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Counts change, the header names the ledger, and the diagnosis of the failure is dropped."""
    status, out = applied(tmp_path, FAILED, replace(PASSED, case="plain"))
    run = read(out)
    assert status == 0
    assert "2 results, 1 known deviations, 0 failed" in capsys.readouterr().out
    assert [each.outcome for each in run.results] == [Outcome.KNOWN_DEVIATION, Outcome.PASSED]
    assert run.results[0].reason == "NaN [mine]"
    assert [Path(source.file).name for source in run.header.ledgers or ()] == ["deviations.toml", "mine.toml"]
    assert run.complete
    assert run.diagnoses == ()


def test_a_failure_without_a_record_stays_one(tmp_path: Path) -> None:
    """A failure without a record keeps its diagnosis, and the exit status is 1."""
    status, out = applied(tmp_path, replace(FAILED, case="scale-zero"))
    run = read(out)
    assert status == 1
    assert [each.outcome for each in run.results] == [Outcome.FAILED]
    assert len(run.diagnoses) == 1


@pytest.mark.parametrize(
    "record",
    [replace(RECORD, versions=">=9.2"), replace(RECORD, devices=("cpu",)), replace(RECORD, failure=Failure.ERROR)],
)
def test_a_record_of_something_else_covers_nothing(record: Deviation, tmp_path: Path) -> None:
    """A record of another version, device or failure covers nothing."""
    status, out = applied(tmp_path, FAILED, record=record)
    assert status == 1
    assert read(out).results[0].outcome is Outcome.FAILED


def test_a_record_whose_case_passes_fails(tmp_path: Path) -> None:
    """A record whose case passes is out of date and fails, as in a run."""
    status, out = applied(tmp_path, PASSED)
    assert status == 1
    assert read(out).results[0].failure is Failure.STALE


def test_what_a_record_has_changed_already_stays(tmp_path: Path) -> None:
    """Results that a record already covers are unchanged, so that the command can be repeated."""
    _, out = applied(tmp_path, FAILED)
    again = out.with_name("again.jsonl")
    assert main(["ledger", "apply", str(out), str(again)]) == 0
    assert read(again).results == read(out).results
