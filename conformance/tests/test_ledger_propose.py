"""``ledger propose``: exactly the records that a result file shows, and nothing is written."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from attention_conformance.cli import main
from attention_conformance.conformance.judging.outcomes import Failure, Outcome, Result
from attention_conformance.conformance.ledger.commands import Proposal, propose, toml
from attention_conformance.conformance.ledger.load import LEDGER, Deviation, Ledger, read
from attention_conformance.conformance.results import FORMAT, Header, Run, Writer

VERSIONS = {"torch": "2.13.0+cpu", "numpy": "2.4.6"}
PASSED = Result("torch-sdpa", "cpu", "float32", "scale-negative", ("SDPA-4",), Outcome.PASSED)
FAILED = replace(
    PASSED, outcome=Outcome.FAILED, failure=Failure.VALUE, broken="SDPA-4", reason="NaN: …", error_pattern="NaN"
)
RECORD = Deviation(
    "known", ("torch-sdpa",), "torch", ">=2.13,<2.14", "SDPA-4", ("scale-negative",), Failure.VALUE, "NaN", "unreported"
)
ALL = ("float64", "float32", "float16", "bfloat16")


def proposed(*results: Result, ledger: Ledger | None = None, versions: dict[str, str] = VERSIONS) -> Proposal:
    """The proposal for these results."""
    return propose(Run(Header(format=FORMAT, spec="1", versions=versions), results, True), ledger or Ledger())


def written(path: Path, *results: Result) -> Path:
    """A result file."""
    with Writer(path, {"versions": VERSIONS}) as writer:
        for each in results:
            writer.write(each)
    return path


def read_again(proposal: Proposal, folder: Path) -> Ledger:
    """A proposal read back from a ledger file of its own."""
    path = folder / "ledger.toml"
    path.write_text(proposal.text(), encoding="utf-8")
    return read([path])


def test_a_failure_becomes_a_record() -> None:
    """Package and version series come from the file, and the behaviour from the error pattern."""
    (record,) = proposed(FAILED).records
    assert record == replace(
        RECORD, id="torch-sdpa-sdpa-4-value", cases=("scale-negative",), dtypes=("float32",), devices=("cpu",)
    )


def test_what_passes_is_not_proposed() -> None:
    """Results other than failures give no proposal."""
    others = [replace(PASSED, outcome=outcome) for outcome in Outcome if outcome is not Outcome.FAILED]
    assert proposed(*others) == Proposal((), ())


def test_failures_are_grouped() -> None:
    """Failures are grouped by implementation, clause, failure and behaviour; the cases of a group are sorted."""
    other = replace(FAILED, case="scale-negative-bias")
    zeros = replace(FAILED, case="scale-negative-mask", error_pattern="zeros")
    clause = replace(FAILED, case="scale-zero", broken="SDPA-9")
    elsewhere = replace(FAILED, implementation="torch-sdpa-math")
    records = proposed(other, FAILED, zeros, clause, elsewhere).records
    assert [(r.implementations, r.clause, r.instead, r.cases) for r in records] == [
        (("torch-sdpa",), "SDPA-4", "NaN", ("scale-negative", "scale-negative-bias")),
        (("torch-sdpa",), "SDPA-4", "zeros", ("scale-negative-mask",)),
        (("torch-sdpa",), "SDPA-9", "NaN", ("scale-zero",)),
        (("torch-sdpa-math",), "SDPA-4", "NaN", ("scale-negative",)),
    ]
    assert len({r.id for r in records}) == len(records)


def test_reasons_that_differ_in_numbers_are_one_group() -> None:
    """Exception texts that differ only in sizes are one group, with the first text."""
    first = replace(FAILED, failure=Failure.ERROR, error_pattern="", reason="ValueError: 5 and 7\ndiffer")
    second = replace(first, case="scale-zero", reason="ValueError: 4 and 17 differ")
    (record,) = proposed(first, second).records
    assert record.instead == "ValueError: 5 and 7 differ"


def test_dtypes_are_named_unless_all_failed() -> None:
    """Dtypes are listed unless every dtype was run and failed."""
    every = [replace(FAILED, dtype=dtype) for dtype in ALL]
    (record,) = proposed(*every).records
    assert record.dtypes == ()
    (record,) = proposed(*every[:2], replace(PASSED, dtype="float16")).records
    assert record.dtypes == ("float32", "float64")


def test_what_the_ledger_covers_is_not_proposed_again() -> None:
    """A recorded failure is not proposed; one that fails in another way than its record says is reported."""
    assert proposed(FAILED, ledger=Ledger((RECORD,))) == Proposal((), ())
    found = proposed(replace(FAILED, failure=Failure.ERROR), ledger=Ledger((RECORD,)))
    assert not found.records
    assert "fails by error, and record known covers it" in found.left[0]
    other = proposed(FAILED, ledger=Ledger((RECORD,)), versions={"torch": "2.14.0"})
    assert other.records[0].versions == ">=2.14,<2.15"


def test_another_exception_than_the_recorded_one_is_left() -> None:
    """A record that quotes its exception does not cover another exception."""
    record = replace(RECORD, failure=Failure.ERROR, says="no kernel")
    failed = replace(FAILED, failure=Failure.ERROR, reason="RuntimeError: no kernel for it")
    assert proposed(failed, ledger=Ledger((record,))) == Proposal((), ())
    found = proposed(replace(failed, reason="RuntimeError: out of memory"), ledger=Ledger((record,)))
    assert not found.records
    assert "fails by error, and record known covers it if it says 'no kernel'" in found.left[0]


def test_what_cannot_be_a_record_is_told() -> None:
    """A stale record, a property of random inputs and an unknown version are reported, and give no record."""
    stale = replace(FAILED, failure=Failure.STALE, reason="the deviation is gone")
    fuzz = replace(FAILED, case="fuzz/permutation")
    found = proposed(stale, fuzz)
    assert not found.records
    assert ["the deviation is gone" in found.left[0], "fixed cases" in found.left[1]] == [True, True]
    assert "does not say which version of torch" in proposed(FAILED, versions={}).left[0]


def test_ids_are_new(tmp_path: Path) -> None:
    """A new id is not in the ledger, so that the printed records can be added to it."""
    taken = replace(RECORD, id="torch-sdpa-sdpa-4-value", cases=("plain",))
    (record,) = proposed(FAILED, ledger=Ledger((taken,))).records
    assert record.id == "torch-sdpa-sdpa-4-value-2"


def test_what_is_printed_is_read_again(tmp_path: Path) -> None:
    """Quotes, line ends, control characters and long lists survive."""
    texts = 'a "quoted" \\ back\x1b[0m\x7f\tslash 🙂'
    cases = tuple(
        f"empty-{name}" for name in ("all", "batch", "keys", "one-query", "queries", "row", "row-bias", "values")
    )
    record = replace(RECORD, instead=texts, cases=cases, dtypes=("float16",), devices=("cpu",))
    (found,) = tomllib.loads(toml(record))["deviation"]
    assert (found["instead"], found["cases"], found["dtypes"]) == (texts, list(cases), ["float16"])
    (read_back,) = read_again(Proposal((record,), ("text",)), tmp_path).deviations
    assert replace(read_back, file=record.file) == record


@pytest.mark.slow(1)
def test_proposals_for_the_published_failures_cover_them_and_nothing_else(tmp_path: Path) -> None:
    """Proposals cover exactly the published deviations, taken as failures, and no passed result."""
    from attention_conformance.conformance import results

    run = results.read(Path(__file__).parents[2] / "reports" / "published" / "conformance.jsonl.zst")
    failing = [replace(r, outcome=Outcome.FAILED) if r.outcome is Outcome.KNOWN_DEVIATION else r for r in run.results]
    proposal = propose(Run(run.header, tuple(failing), True), Ledger())
    ledger = read_again(proposal, tmp_path)
    assert not proposal.left
    for r in failing:
        found = ledger.find(r.implementation, r.device, r.dtype, r.case, run.header.versions)
        assert (found and found.failure) == (r.failure if r.outcome is Outcome.FAILED else None)
    ours, said = read(), []
    for r in failing:  # a known deviation has the words of its record instead of the exception's
        known = ours.find(r.implementation, r.device, r.dtype, r.case, run.header.versions)
        said.append(replace(r, reason=known.says) if known and known.says else r)
    assert propose(Run(run.header, tuple(said), True), ours) == Proposal((), ())


def test_the_command_prints_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The exit code is 1 with records and 0 without; the ledger is unchanged."""
    before = LEDGER.read_bytes()
    assert main(["ledger", "propose", str(written(tmp_path / "a.jsonl", FAILED))]) == 1
    (found,) = tomllib.loads(capsys.readouterr().out)["deviation"]
    assert found["upstream"] == "unreported"
    assert main(["ledger", "propose", str(written(tmp_path / "b.jsonl", PASSED))]) == 0
    assert capsys.readouterr().out == "# every failure is in the ledger\n"
    assert LEDGER.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl", "b.jsonl"]


def test_a_users_ledger_covers_too(tmp_path: Path) -> None:
    """A failure covered by a ledger of ``--deviations`` is not proposed."""
    (tmp_path / "mine.toml").write_text(toml(RECORD))
    path = str(written(tmp_path / "a.jsonl", FAILED))
    assert main(["ledger", "propose", path, "--deviations", str(tmp_path / "mine.toml")]) == 0


def test_a_file_that_cannot_be_used_ends_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A missing result file or a broken ledger is reported in one sentence."""
    assert main(["ledger", "propose", str(tmp_path / "none.jsonl")]) == 2
    assert "none.jsonl cannot be read" in capsys.readouterr().err
    (tmp_path / "mine.toml").write_text(toml(RECORD).replace("SDPA-4", "SDPA-444"))
    path = str(written(tmp_path / "a.jsonl", FAILED))
    assert main(["ledger", "propose", path, "--deviations", str(tmp_path / "mine.toml")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "unknown clause 'SDPA-444'; did you mean SDPA-4" in line
