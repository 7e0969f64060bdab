"""The deviation ledger: what a record covers, and what a ledger may not hold."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest

from attention_conformance.conformance.judging.outcomes import Failure
from attention_conformance.conformance.ledger.load import (
    LEDGER,
    PLUGGED,
    Deviation,
    Ledger,
    LedgerError,
    cases_meeting,
    check_records,
    read,
)
from attention_conformance.conformance.ledger.versions import PROCESSOR, PROCESSORS
from attention_conformance.conformance.spec.clauses import clauses
from attention_conformance.impls.select import builtin, plug_in

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
    """The ledger read from a file with this text."""
    path = tmp_path / "ledger.toml"
    path.write_text(text)
    return read([path])


def test_a_record_covers_by_globs(tmp_path: Path) -> None:
    """Implementations and cases are globs; without dtypes and devices a record covers all."""
    found = ledger(tmp_path, RECORD)
    versions = {"torch": "2.13.0+cpu"}
    assert found.find("torch-sdpa", "cpu", "float16", "empty-row-lse", versions).id == "a"
    assert found.find("jax-nn", "cpu", "float16", "empty-row-lse", versions) is None
    assert found.find("torch-sdpa", "cpu", "float16", "plain", versions) is None


def test_dtypes_and_devices_restrict(tmp_path: Path) -> None:
    """A record may be limited to dtypes and devices."""
    found = ledger(tmp_path, RECORD + 'dtypes = ["float16"]\ndevices = ["cuda"]\n')
    versions = {"torch": "2.13.0"}
    assert found.find("torch-sdpa", "cuda", "float16", "empty-row", versions) is not None
    assert found.find("torch-sdpa", "cpu", "float16", "empty-row", versions) is None
    assert found.find("torch-sdpa", "cuda", "float32", "empty-row", versions) is None


@pytest.mark.parametrize(
    ("version", "in_force"),
    [
        ("2.13.0+cpu", True),
        ("2.13.1", True),
        ("2.13.0rc1", True),
        ("2.14.0", False),
        ("2.14.0.dev20261101+cu130", False),
        ("2.12.1", False),
        ("built by hand", False),
    ],
)
def test_a_record_names_versions(tmp_path: Path, version: str, in_force: bool) -> None:
    """A record is in force for its versions; a local part such as +cpu or a pre-release does not count."""
    assert ledger(tmp_path, RECORD).deviations[0].in_force({"torch": version}) is in_force


def test_a_record_of_a_missing_package_is_not_in_force(tmp_path: Path) -> None:
    """A record of a package that is not installed is not in force."""
    assert not ledger(tmp_path, RECORD).deviations[0].in_force({})


@pytest.mark.parametrize(("processor", "in_force"), [("avx2", True), ("avx512", False), ("other", False)])
def test_a_record_names_processors(tmp_path: Path, processor: str, in_force: bool) -> None:
    """A record of AVX2 code is in force only on AVX2; a run that names no processor matches every record."""
    (record,) = ledger(tmp_path, RECORD + 'processors = ["avx2"]\n').deviations
    assert record.in_force({"torch": "2.13.0", PROCESSOR: processor}) is in_force
    assert record.in_force({"torch": "2.13.0"})


def test_the_processor_is_among_the_versions_where_a_record_names_one(tmp_path: Path) -> None:
    """The processor is among the versions if a record names one, and is one that a record may name."""
    assert PROCESSOR not in ledger(tmp_path, RECORD).installed(["torch-sdpa"])
    found = ledger(tmp_path, RECORD + 'processors = ["avx2"]\n').installed(["torch-sdpa"])
    assert found[PROCESSOR] in PROCESSORS


def test_records_of_two_processors_are_apart(tmp_path: Path) -> None:
    """One case may have a record for each of two processors."""
    second = RECORD.replace('"a"', '"b"') + 'processors = ["avx512"]\n'
    assert len(ledger(tmp_path, RECORD + 'processors = ["avx2"]\n' + second).deviations) == 2
    with pytest.raises(LedgerError, match="both cover"):
        ledger(tmp_path, RECORD + second)


def test_two_records_for_one_case_are_refused(tmp_path: Path) -> None:
    """A case has one record, so that it is clear which one to remove."""
    with pytest.raises(LedgerError, match=r"records a \(.*\) and b \(.*\) both cover torch-.*, case empty-row"):
        ledger(tmp_path, RECORD + RECORD.replace('"a"', '"b"'))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (">=2.13,<2.14", ">=2.14"),
        ('package = "torch"', 'dtypes = ["float16"]\npackage = "torch"'),
        ('package = "torch"', 'devices = ["cuda"]\npackage = "torch"'),
        ("empty-row*", "empty-keys"),
        ("torch-*", "jax-*"),
    ],
)
def test_records_that_are_apart_are_accepted(tmp_path: Path, old: str, new: str) -> None:
    """Records may differ in versions, dtypes, devices, cases or implementations; one such difference is enough."""
    first = RECORD.replace('package = "torch"', 'dtypes = ["float32"]\ndevices = ["cpu"]\npackage = "torch"')
    if "package" in old:
        new += "\n" + ('devices = ["cpu"]' if "dtypes" in new else 'dtypes = ["float32"]')
    second = (RECORD if "package" in old else first).replace(old, new).replace('"a"', '"b"')
    assert len(ledger(tmp_path, first + second).deviations) == 2
    with pytest.raises(LedgerError, match="both cover"):
        ledger(tmp_path, first + first.replace('"a"', '"b"'))


def test_records_that_globs_of_plug_ins_bring_together_are_refused(tmp_path: Path) -> None:
    """A glob over a file's functions overlaps a record of one of them, even if only a run knows the names."""
    text = RECORD.replace("torch-*", "my.py:*") + RECORD.replace("torch-*", "my.py:f").replace('"a"', '"b"')
    with pytest.raises(LedgerError, match=r"both cover my\.py:f, float32, case empty-row"):
        ledger(tmp_path, text)
    apart = ledger(tmp_path, text.replace('"my.py:f"', '"m*:f"'))
    with pytest.raises(LedgerError, match=r"both cover my\.py:f"):
        check_records(apart.deviations, ["my.py:f"])


def test_two_records_found_for_one_case_are_an_error() -> None:
    """An unchecked ledger with two matching records raises instead of choosing."""
    record = Deviation("a", ("x",), "numpy", "", "SDPA-15", ("plain",), Failure.VALUE, "", "")
    with pytest.raises(LedgerError, match="records a and b both cover x, float32, case plain"):
        Ledger((record, replace(record, id="b"))).find("x", "cpu", "float32", "plain", {"numpy": "2"})


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('clause = "SDPA-15"\n', "", "record a: it lacks 'clause'"),
        ('id = "a"\n', "", "record 1: it lacks 'id'"),
        ("instead", "insted", "record a: unknown key 'insted'; did you mean instead"),
        ('id = "a"', 'id = "a"\nnote = "x"', "unknown key 'note'"),
        ('"empty-row*"', '"empty-rwo"', "unknown case 'empty-rwo'; did you mean empty-row"),
        ('"torch-*"', '"torch-spda"', "unknown implementation 'torch-spda'; did you mean torch-sdpa"),
        ("SDPA-15", "SPDA-15", "unknown clause 'SPDA-15'; did you mean SDPA-15"),
        ('failure = "value"', 'failure = "values"', "unknown failure 'values'; did you mean value"),
        ('failure = "value"', 'failure = "stale deviation"', "unknown failure 'stale deviation'"),
        ('id = "a"', 'id = "a"\ndtypes = ["float33"]', "unknown dtype 'float33'; did you mean float32"),
        ('id = "a"', 'id = "a"\ndevices = ["cuad"]', "unknown device 'cuad'; did you mean cuda"),
        ('["torch-*"]', '"torch-*"', "'implementations' is 'torch-.*', expected a list"),
        ('["empty-row*"]', "[]", r"'cases' is \[\], expected a list of length >= 1"),
        ('"a"', "3", "record 3: 'id' is 3, expected a text"),
        (">=2.13,<2.14", "about 2.13", "versions 'about 2.13' is not a version range"),
        (">=2.13,<2.14", "2.13", "versions '2.13' is not a version range"),
        ('"unreported"', '"later"', "upstream 'later' is neither a https:// link nor"),
        (
            'id = "a"',
            'id = "a"\nsays = "no kernel"',
            'says is only for the failure "error", and this record fails by value',
        ),
        ('id = "a"', 'id = "a"\nseen = "often"', "seen 'often' is not a number of results and a larger one"),
        ('id = "a"', 'id = "a"\nseen = "0 of 9"', "seen '0 of 9' is not a number of results and a larger one"),
        ('id = "a"', 'id = "a"\nseen = "9 of 9"', "seen '9 of 9' is not a number of results and a larger one"),
        ("[[deviation]]", "[[deviations]]", "unknown table 'deviations'"),
        ("[[deviation]]", "[deviation]", "expected \\[\\[deviation\\]\\] in double brackets"),
        ('id = "a"', "id = ", "cannot be read"),
    ],
)
def test_a_malformed_ledger_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    """Anything unknown in a ledger is refused in one sentence that names the record and the nearest name."""
    with pytest.raises(LedgerError, match=message) as caught:
        ledger(tmp_path, RECORD.replace(old, new))
    assert str(tmp_path / "ledger.toml") in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"torch-*"', '"torch-mha-fast"'),  # a layer, while the cases are of attention
        ('id = "a"', 'id = "a"\ndtypes = ["float64"]'),
    ],
)
def test_a_record_that_no_result_can_meet_is_refused(tmp_path: Path, old: str, new: str) -> None:
    """A record of another operator than its cases, or of a dtype that they are not judged in, is refused."""
    text = RECORD.replace("empty-row*", "empty-row-last").replace(old, new)
    with pytest.raises(LedgerError, match=r"record a \(.*\): none of its implementations is judged on its cases"):
        ledger(tmp_path, text)


def test_a_record_of_a_plug_in_may_be_of_any_dtype(tmp_path: Path) -> None:
    """A plug-in's dtypes are unknown before it is plugged in, so a record may name any."""
    text = RECORD.replace("torch-*", "my.py:f").replace("empty-row*", "empty-row-last")
    assert ledger(tmp_path, text.replace('id = "a"', 'id = "a"\ndtypes = ["float64"]')).deviations


def test_a_missing_ledger_is_refused(tmp_path: Path) -> None:
    """A missing file is named."""
    with pytest.raises(LedgerError, match=r"ledger .*none\.toml cannot be read: .*No such file"):
        read([tmp_path / "none.toml"])


def test_equal_ids_are_refused(tmp_path: Path) -> None:
    """Records with equal ids are refused, and the files that hold them are named."""
    with pytest.raises(LedgerError, match="two records have the id a: it is twice in "):
        ledger(tmp_path, RECORD + RECORD)
    for name in ("one.toml", "two.toml"):
        (tmp_path / name).write_text(RECORD)
    with pytest.raises(LedgerError, match=r"the id a: it is in .*one\.toml and in .*two\.toml"):
        read([tmp_path / "one.toml", tmp_path / "two.toml"])


def test_a_users_record_that_overlaps_ours_names_both(tmp_path: Path) -> None:
    """Both records are named, and the user's file, as the user decides which to remove."""
    ours = read().deviations[0]
    text = RECORD.replace("torch-*", ours.implementations[0]).replace("empty-row*", ours.cases[0])
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(LedgerError, match=rf"records {ours.id} and a \(.*mine\.toml\) both cover"):
        read([LEDGER, tmp_path / "mine.toml"])


def plugged(pattern: str) -> bool:
    """Whether the suite has the function that is plugged in by this name, without importing its framework."""
    module, _, name = plug_in(pattern).target.partition(":")
    found = importlib.util.find_spec(module) if PLUGGED in pattern else None
    return bool(found and found.origin and f"\ndef {name}(" in Path(found.origin).read_text(encoding="utf-8"))


def test_a_record_of_a_function_that_is_not_there_is_seen() -> None:
    """A record of a function that does not exist, by its module or its name, is noticed."""
    assert plugged("attention_conformance.impls.jax.rings:ring@jax")
    assert plugged("attention_conformance.impls.kernels.sglang:merge_state@triton")
    assert not plugged("attention_conformance.impls.jax.rings:rang@jax")
    assert not plugged("attention_conformance.impls.jax.rungs:ring@jax")


@pytest.mark.parametrize("record", read().deviations, ids=lambda d: d.id)
def test_every_record_speaks_of_things_that_exist(record: Deviation) -> None:
    """A record of the ledger names known implementations or kernel adapters, known cases, a clause and a link."""
    from fnmatch import filter as matching

    assert all(matching(builtin(), pattern) or plugged(pattern) for pattern in record.implementations)
    assert all(cases_meeting(pattern) for pattern in record.cases)
    assert record.clause in clauses()
    assert record.upstream == "unreported" or record.upstream.startswith("https://")
    assert record.failure is not Failure.STALE
