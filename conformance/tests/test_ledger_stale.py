"""``ledger stale``: which records are gone, partly gone, or not exercised, and why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attention_conformance.cli import main
from attention_conformance.conformance.cases import every_case
from attention_conformance.conformance.judging.outcomes import Failure, Outcome, Result
from attention_conformance.conformance.ledger.apply import apply
from attention_conformance.conformance.ledger.commands import toml
from attention_conformance.conformance.ledger.load import Deviation, Ledger
from attention_conformance.conformance.ledger.stale import Standing, Verdict, stale
from attention_conformance.conformance.results import FORMAT, Header, Run, Writer

BOTH = ("torch-sdpa", "torch-flex")
RECORD = Deviation("known", BOTH, "torch", ">=2.13,<2.14", "SDPA-4", ("scale-*",), Failure.VALUE, "NaN", "unreported")
HOLDS = Result(
    "torch-sdpa",
    "cpu",
    "float32",
    "scale-negative",
    ("SDPA-4",),
    Outcome.KNOWN_DEVIATION,
    Failure.VALUE,
    reason="NaN [known]",
)
PASSED = replace(HOLDS, outcome=Outcome.PASSED, failure=None)
STALE = replace(HOLDS, outcome=Outcome.FAILED, failure=Failure.STALE, reason="the deviation is gone (unsupported): …")


def run(*results: Result, **header: Any) -> Run:
    """A run with torch 2.13.0 unless the header says otherwise."""
    return Run(Header(format=FORMAT, spec="1", **{"versions": {"torch": "2.13.0+cpu"}, **header}), results, True)


def verdict(*runs: Run, record: Deviation = RECORD) -> Verdict:
    """The verdict on one record."""
    (found,) = stale(runs, Ledger((record,)))
    return found


def test_a_record_that_fails_as_it_says_holds() -> None:
    """A known deviation, or the same failure without a ledger, shows that the record holds."""
    assert verdict(run(HOLDS)).standing is Standing.HOLDS
    assert verdict(run(replace(HOLDS, outcome=Outcome.FAILED))).standing is Standing.HOLDS


@pytest.mark.parametrize(
    ("result", "became"),
    [
        (PASSED, "passed"),
        (replace(PASSED, outcome=Outcome.UNSUPPORTED), "unsupported"),
        (STALE, "unsupported"),
        (replace(HOLDS, outcome=Outcome.FAILED, failure=Failure.ERROR), "fails by error"),
        (replace(HOLDS, outcome=Outcome.ADVISORY), "advisory"),
    ],
)
def test_a_record_that_nothing_shows_is_gone(result: Result, became: str) -> None:
    """A pass, a missing feature or another failure makes a record stale, and the note says which."""
    found = verdict(run(result))
    assert found.standing is Standing.GONE
    assert found.notes == (f"remove it: {became}",)


def test_another_exception_than_the_recorded_one_does_not_hold() -> None:
    """A failure must contain the words that a record quotes; for a known deviation they were already found."""
    record = replace(RECORD, failure=Failure.ERROR, says="no kernel")
    known = replace(HOLDS, failure=Failure.ERROR)
    failed = replace(known, outcome=Outcome.FAILED, reason="RuntimeError: no kernel for it")
    assert verdict(run(known), record=record).standing is Standing.HOLDS
    assert verdict(run(failed), record=record).standing is Standing.HOLDS
    other = verdict(run(replace(failed, reason="RuntimeError: out of memory")), record=record)
    assert other.standing is Standing.GONE
    assert other.notes == ("remove it: fails by error that does not say 'no kernel'",)


def test_cases_that_are_gone_are_named() -> None:
    """Cases of a record that pass are named for removal."""
    found = verdict(run(HOLDS, replace(PASSED, case="scale-zero")))
    assert found.standing is Standing.PARTLY_GONE
    assert found.notes == ("remove case scale-zero: passed",)


def test_implementations_that_are_gone_are_named() -> None:
    """An implementation that shows none of the cases is named for removal, without listing each case."""
    flex = replace(PASSED, implementation="torch-flex")
    found = verdict(run(HOLDS, flex, replace(flex, case="scale-zero")))
    assert found.notes == ("remove implementation torch-flex: passed",)


def test_what_is_left_is_to_be_narrowed() -> None:
    """A case that passes in one of two dtypes, or of two versions, is reported with both."""
    found = verdict(run(HOLDS, replace(PASSED, dtype="float16")))
    assert found.notes == (
        "narrow it: case scale-negative of torch-sdpa on cpu in float16, version 2.13.0+cpu: passed",
    )
    found = verdict(run(HOLDS), run(PASSED, versions={"torch": "2.13.1"}))
    assert found.standing is Standing.PARTLY_GONE
    assert "version 2.13.1: passed" in found.notes[0]


@pytest.mark.parametrize(
    ("file", "record", "why"),
    [
        (run(PASSED, versions={"torch": "2.14.0"}), RECORD, "version not in force: torch 2.14.0 is not one of >=2.13"),
        (run(PASSED, versions={"torch": "mine"}), RECORD, "version not in force: torch mine is no version (PEP 440)"),
        (run(PASSED, versions={}), RECORD, "the file does not say which version of torch was run"),
        (run(replace(PASSED, implementation="jax-nn")), RECORD, "none of its implementations was run"),
        (run(not_installed=["torch-flex"]), RECORD, "not installed: torch-flex"),
        (run(PASSED), replace(RECORD, dtypes=("float16",)), "dtype not run: float16"),
        (run(PASSED), replace(RECORD, devices=("cuda",)), "device not run: cuda"),
        (run(replace(PASSED, case="plain")), RECORD, "none of its cases was run"),
    ],
)
def test_what_is_not_exercised_says_why(file: Run, record: Deviation, why: str) -> None:
    """A record that no result is about is not exercised, for a version, implementation, dtype, device or case."""
    found = verdict(file, record=record)
    assert found.standing is Standing.NOT_EXERCISED
    assert found.notes[0].startswith(why)


def test_one_file_of_several_is_enough() -> None:
    """A record that one file exercises is exercised."""
    assert verdict(run(), run(HOLDS)).standing is Standing.HOLDS


def command(folder: Path, *results: Result) -> int:
    """The exit code of ``ledger stale`` for one file of these results, with the record in a user's ledger."""
    (folder / "mine.toml").write_text(toml(replace(RECORD, implementations=("my.py:f",))))
    with Writer(folder / "a.jsonl", {"versions": {"torch": "2.13.0"}}) as writer:
        for each in results:
            writer.write(replace(each, implementation="my.py:f"))
    return main(["ledger", "stale", str(folder / "a.jsonl"), "--deviations", str(folder / "mine.toml")])


def test_the_command_fails_for_a_record_that_is_gone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The exit code is 1, with the record and its file; with only records that are not exercised it is 0."""
    assert command(tmp_path, PASSED) == 1
    assert f"gone: known ({tmp_path / 'mine.toml'})\n  remove it: passed\n" in capsys.readouterr().out
    assert command(tmp_path, HOLDS, replace(PASSED, case="scale-zero")) == 1
    assert "  remove case scale-zero: passed\n" in capsys.readouterr().out
    assert command(tmp_path, HOLDS) == 0
    printed = capsys.readouterr().out
    assert "not exercised: torch-masked-overflow\n  none of its implementations was run\n" in printed
    assert "holds 1, gone 0, partly gone 0, not exercised" in printed
    assert command(tmp_path) == 0


def test_a_file_that_was_cut_off_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The output says that the file has no footer, as an incomplete file may have lost results."""
    command(tmp_path, HOLDS)
    path = tmp_path / "a.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    assert main(["ledger", "stale", str(path)]) == 0
    assert capsys.readouterr().out.endswith("a.jsonl was cut off: it has no footer\n")


def test_the_list_has_every_record(capsys: pytest.CaptureFixture[str]) -> None:
    """The list has one row for each record, with its link."""
    from attention_conformance.conformance.ledger.load import read

    assert main(["ledger", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()[2:]
    assert [line.split()[0] for line in lines] == [record.id for record in read().deviations]
    assert all(record.upstream in line for record, line in zip(read().deviations, lines, strict=True))


AT_TIMES = replace(RECORD, seen="2 of 4")


def test_what_comes_and_goes_holds_where_one_result_shows_it() -> None:
    """For a record with a rate, one result that shows it is enough; passed cases are not for removal."""
    found = verdict(run(HOLDS, replace(PASSED, case="scale-zero")), record=AT_TIMES)
    assert (found.standing, found.notes) == (Standing.HOLDS, ())


def test_what_comes_and_goes_is_gone_once_it_did_not_show_often_enough() -> None:
    """For a record seen in half of the results, six passes may be chance, seven are not."""
    six = verdict(*[run(PASSED)] * 6, record=AT_TIMES)
    assert six.standing is Standing.NOT_EXERCISED
    assert six.notes == ("6 passed; seen in 2 of 4, so it takes 7 passes to show that it is gone",)
    assert verdict(*[run(PASSED)] * 7, record=AT_TIMES).standing is Standing.GONE


@pytest.mark.parametrize("became", [{"failure": Failure.ERROR}, {"outcome": Outcome.UNSUPPORTED, "failure": None}])
def test_what_comes_and_goes_does_not_become_something_else(became: dict[str, Any]) -> None:
    """Another failure, or no support, makes a record with a rate stale."""
    assert verdict(run(replace(STALE, **became)), record=AT_TIMES).standing is Standing.GONE


def test_a_result_that_passes_is_as_the_record_says() -> None:
    """A pass is accepted for a record with a rate, and stale for one without; neither excuses another failure."""
    case, versions = every_case()[PASSED.case], {"torch": "2.13.0"}
    here = apply(Ledger((AT_TIMES,)), PASSED, case, versions)
    assert (here.outcome, here.reason) == (
        Outcome.PASSED,
        "a deviation that was seen in 2 of 4 did not show [known]",
    )
    assert apply(Ledger((RECORD,)), PASSED, case, versions).failure is Failure.STALE
    failed = replace(PASSED, outcome=Outcome.FAILED, failure=Failure.VALUE)
    assert apply(Ledger((AT_TIMES,)), failed, case, versions).outcome is Outcome.KNOWN_DEVIATION
    other = apply(Ledger((AT_TIMES,)), replace(failed, failure=Failure.ERROR), case, versions)
    assert (other.outcome, other.failure) == (Outcome.FAILED, Failure.ERROR)


def test_a_record_of_what_comes_and_goes_is_written_as_it_is_read() -> None:
    """A record with a rate is written with it, and others are not."""
    assert 'seen = "2 of 4"' in toml(AT_TIMES)
    assert "seen" not in toml(RECORD)


@pytest.mark.parametrize(("reason", "known"), [("RuntimeError: no kernel for it", True), ("ValueError: other", False)])
def test_a_record_that_quotes_an_exception_excuses_no_other(reason: str, known: bool) -> None:
    """With ``says`` a record covers an exception only if the exception has its words."""
    record = replace(RECORD, failure=Failure.ERROR, says="no kernel")
    failed = replace(HOLDS, outcome=Outcome.FAILED, failure=Failure.ERROR, reason=reason)
    here = apply(Ledger((record,)), failed, every_case()["scale-negative"], {"torch": "2.13.0"})
    assert (here.outcome is Outcome.KNOWN_DEVIATION) is known
    assert ("and to say 'no kernel'" in here.message) is not known
