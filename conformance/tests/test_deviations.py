"""The deviation ledger: what a record covers, and what a ledger may not hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.cases import every_case
from conformance.clauses import clauses
from conformance.deviations import Deviation, LedgerError, read
from conformance.outcomes import Failure
from impls.select import builtin

RECORD = """
[[deviation]]
id = "a"
implementations = ["torch-*"]
package = "torch"
versions = ">=2.13,<2.14"
clause = "SDPA-15"
cases = ["empty-row*"]
failure = "value"
instead = "the mean of v"
upstream = "unreported"
"""


def ledger(tmp_path: Path, text: str):  # type: ignore[no-untyped-def]
    """A ledger file with this text, read."""
    path = tmp_path / "ledger.toml"
    path.write_text(text)
    return read([path])


def test_a_record_covers_by_globs(tmp_path: Path) -> None:
    """Implementations and cases are globs; without dtypes and devices all are covered."""
    found = ledger(tmp_path, RECORD)
    versions = {"torch": "2.13.0+cpu"}
    assert found.find("torch-sdpa", "cpu", "float16", "empty-row-lse", versions).id == "a"
    assert found.find("jax-nn", "cpu", "float16", "empty-row-lse", versions) is None
    assert found.find("torch-sdpa", "cpu", "float16", "plain", versions) is None


def test_dtypes_and_devices_restrict(tmp_path: Path) -> None:
    """A record may be restricted to dtypes and devices."""
    found = ledger(tmp_path, RECORD + 'dtypes = ["float16"]\ndevices = ["cuda"]\n')
    versions = {"torch": "2.13.0"}
    assert found.find("torch-sdpa", "cuda", "float16", "empty-row", versions) is not None
    assert found.find("torch-sdpa", "cpu", "float16", "empty-row", versions) is None
    assert found.find("torch-sdpa", "cuda", "float32", "empty-row", versions) is None


@pytest.mark.parametrize(
    ("version", "in_force"), [("2.13.0+cpu", True), ("2.13.1", True), ("2.14.0", False), ("2.12.1", False)]
)
def test_a_record_names_versions(tmp_path: Path, version: str, in_force: bool) -> None:
    """A record is in force for the versions it names; a local part such as +cpu does not count."""
    assert ledger(tmp_path, RECORD).deviations[0].in_force({"torch": version}) is in_force


def test_a_record_of_a_missing_package_is_not_in_force(tmp_path: Path) -> None:
    """Without the package there is nothing to deviate."""
    assert not ledger(tmp_path, RECORD).deviations[0].in_force({})


def test_two_records_for_one_case_are_refused(tmp_path: Path) -> None:
    """A case has one record, so that it is clear which one to remove."""
    found = ledger(tmp_path, RECORD + RECORD.replace('"a"', '"b"'))
    with pytest.raises(LedgerError, match="records a and b both speak of"):
        found.find("torch-sdpa", "cpu", "float32", "empty-row", {"torch": "2.13.0"})


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('clause = "SDPA-15"\n', "", "lacks 'clause'"),
        ("instead", "insted", "lacks 'instead'"),
        ('id = "a"', 'id = "a"\nnote = "x"', "unknown key 'note'"),
        ('failure = "value"', 'failure = "wrong"', "failure 'wrong' is none of"),
        (">=2.13,<2.14", "about 2.13", "is not a version range"),
        ("[[deviation]]", "[[deviations]]", "unknown table 'deviations'"),
        ('id = "a"', "id = ", "cannot be read"),
    ],
)
def test_a_malformed_ledger_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    """A ledger that says something unknown is refused with the record and the key."""
    with pytest.raises(LedgerError, match=message):
        ledger(tmp_path, RECORD.replace(old, new))


def test_equal_ids_are_refused(tmp_path: Path) -> None:
    """An id names one record."""
    with pytest.raises(LedgerError, match="two records have the id a"):
        ledger(tmp_path, RECORD + RECORD)


@pytest.mark.parametrize("record", read().deviations, ids=lambda d: d.id)
def test_every_record_speaks_of_things_that_exist(record: Deviation) -> None:
    """A record of the ledger names known implementations, cases and a clause, and a link or "unreported"."""
    from fnmatch import filter as matching

    assert all(matching(builtin(), pattern) for pattern in record.implementations)
    assert all(matching(every_case(), pattern) for pattern in record.cases)
    assert record.clause in clauses()
    assert record.upstream == "unreported" or record.upstream.startswith("https://")
    assert record.failure is not Failure.STALE
