"""Result files are untrusted: each kind of unfit file is refused by its name, and nothing in one is executed."""

from __future__ import annotations

import json
import os
import pickle
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

from attention_conformance.cli import UNUSABLE, main
from attention_conformance.conformance import results
from attention_conformance.conformance.judging.outcomes import Failure, Outcome, Result
from attention_conformance.conformance.ledger.divergence import answers, markdown
from attention_conformance.conformance.results import Writer, parse, read
from attention_conformance.conformance.results.parse import LINE_LIMIT, ResultFileError, WrongCounts
from attention_conformance.impls.strict import (
    DuplicateKey,
    NotANumber,
    NotJson,
    TooLarge,
    Unreadable,
    WrongFields,
    WrongFormat,
)

HEADER = {"kind": "header", "format": 2, "spec": "1"}
RESULT = {"kind": "result", **results.as_record(Result("x", "cpu", "float32", "plain", ("SDPA-1",), Outcome.PASSED))}
FOOTER = {"kind": "footer", "counts": {"passed": 1}}


class Trap:
    """A trap: unpickling it makes a folder."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.path,)


def with_lines(*records: Any) -> bytes:
    """The bytes of a file with these lines: records, or text unchanged."""
    texts = [record if isinstance(record, str) else json.dumps(record) for record in records]
    return "".join(f"{text}\n" for text in texts).encode()


def with_result(**fields: Any) -> bytes:
    """A file whose one result has changed fields."""
    return with_lines(HEADER, {**RESULT, **fields})


def without(name: str) -> bytes:
    """A file whose one result lacks a field."""
    return with_lines(HEADER, {key: value for key, value in RESULT.items() if key != name})


def with_text(old: str, new: str) -> bytes:
    """A file whose one result has a changed text."""
    text = json.dumps(RESULT)
    assert old in text
    return with_lines(HEADER, text.replace(old, new))


def by_columns(**columns: Any) -> dict[str, Any]:
    """The one result by column, with changed columns."""
    return {"kind": "results", "columns": {name: [value] for name, value in RESULT.items() if name != "kind"} | columns}


#: Files by their defect, and the expected error.
FILES: dict[str, tuple[bytes, type[ResultFileError], str]] = {
    "empty": (b"", WrongFields, "its first line is not a header"),
    "cut off within the header": (with_lines(HEADER)[:20], WrongFields, "its first line is not a header"),
    "results alone": (with_lines(RESULT), WrongFields, "its first line is not a header"),
    "no JSON": (b"attention\n", NotJson, "line 1 is not JSON"),
    "not UTF-8": (b'{"kind": "\xff"}\n', NotJson, "line 1 is not JSON"),
    "a pickle": (pickle.dumps({"kind": "header"}) + b"\n", NotJson, "line 1 is not JSON"),
    "an array of NumPy": (b"\x93NUMPY\x01\0\n", NotJson, "line 1 is not JSON"),
    "deep lists": (with_lines(HEADER, "[" * 100_000), NotJson, "line 2 is not JSON"),
    "deep objects": (with_lines(HEADER, '{"a":' * 100_000), NotJson, "line 2 is not JSON"),
    "a long number": (with_lines(HEADER, '{"a": ' + "9" * 5000 + "}"), NotJson, "line 2 is not JSON"),
    "two records in a line": (with_lines(HEADER, "{}{}"), NotJson, "line 2 is not JSON"),
    "a list": (with_lines([]), WrongFields, "expected a header, result or footer"),
    "an unknown record": (with_lines(HEADER, {"kind": "code"}), WrongFields, "expected a header, result or footer"),
    "a kind that is a list": (with_lines({"kind": ["header"]}), WrongFields, "expected a header, result or footer"),
    "a later format": (with_lines({**HEADER, "format": 3, "spec": {}}), WrongFormat, "format 3, expected 2$"),
    "an older format": (with_lines({**HEADER, "format": 1}), WrongFormat, "expected 2: an older version of the suite"),
    "a format that is text": (with_lines({**HEADER, "format": "2"}), WrongFormat, "format '2', expected 2"),
    "no spec": (with_lines({"kind": "header", "format": 2}), WrongFields, "lacks 'spec'"),
    "versions that are a list": (with_lines({**HEADER, "versions": []}), WrongFields, r"'versions' is \[\]"),
    "a version that is a number": (with_lines({**HEADER, "versions": {"numpy": 2}}), WrongFields, "'versions' is"),
    "an unknown profile in the header": (
        with_lines({**HEADER, "profiles": {"x/y": "best"}}),
        WrongFields,
        "'profiles'",
    ),
    "a ledger without records": (
        with_lines({**HEADER, "ledgers": [{"file": "x"}]}),
        WrongFields,
        r"ledgers\[0\] lacks",
    ),
    "columns of two lengths": (
        with_lines(HEADER, by_columns(case=["a", "b"])),
        WrongFields,
        "line 2: not results",
    ),
    "columns of what is no result": (with_lines(HEADER, by_columns(share=[-1.0])), WrongFields, "not results .*share"),
    "columns that lack one": (
        with_lines(HEADER, {"kind": "results", "columns": {"case": ["a"]}}),
        WrongFields,
        "lacks",
    ),
    "columns of another kind": (with_lines(HEADER, by_columns(kind=["footer"])), WrongFields, "line 2: not results"),
    "a column that is no list": (with_lines(HEADER, by_columns(case="a")), WrongFields, "line 2: not a results"),
    "two headers": (with_lines(HEADER, HEADER), WrongFields, "line 2: a header where none can be"),
    "a key twice in the header": (with_lines('{"kind": "header", "kind": "footer"}'), DuplicateKey, "key 'kind' twice"),
    "a key twice in a result": (
        with_text('"outcome": "passed"', '"outcome": "failed", "outcome": "passed"'),
        DuplicateKey,
        "line 2 has the key 'outcome' twice",
    ),
    "a key twice inside": (
        with_lines(HEADER, '{"kind": "footer", "counts": {"a": 1, "a": 2}}'),
        DuplicateKey,
        "'a' twice",
    ),
    "NaN as share": (with_text('"share": null', '"share": NaN'), NotANumber, "number NaN"),
    "Infinity as share": (with_text('"share": null', '"share": Infinity'), NotANumber, "number Infinity"),
    "a number beyond float64": (with_text('"share": null', '"share": 1e999'), NotANumber, "number 1e999"),
    "NaN as seconds": (with_text('"run_seconds": 0.0', '"run_seconds": -NaN'), NotJson, "line 2 is not JSON"),
    "a negative share": (with_result(share=-1), WrongFields, "'share' is -1"),
    "a share that is true": (with_result(share=True), WrongFields, "'share' is True"),
    "a share in words": (with_result(share="nan"), WrongFields, "'share' is 'nan'"),
    "negative seconds": (with_result(run_seconds=-0.1), WrongFields, "'run_seconds' is -0.1"),
    "an unknown outcome": (with_result(outcome="fine"), WrongFields, "'outcome' is 'fine'"),
    "an outcome that is a list": (with_result(outcome=["passed"]), WrongFields, "'outcome' is"),
    "an unknown failure": (with_result(failure="bad luck"), WrongFields, "'failure' is 'bad luck'"),
    "an unknown dtype": (with_result(dtype="float31"), WrongFields, "'dtype' is 'float31'"),
    "clauses that are text": (with_result(clauses="SDPA-1"), WrongFields, "'clauses' is 'SDPA-1'"),
    "a name that is a number": (with_result(implementation=7), WrongFields, "'implementation' is 7"),
    "no name": (with_result(implementation=""), WrongFields, "'implementation' is ''"),
    "a name that a terminal obeys": (
        with_result(implementation="\x1b[2J"),
        WrongFields,
        r"'implementation' is '\\x1b\[2J'",
    ),
    "a case of two lines": (with_result(case="plain\nplain"), WrongFields, r"'case' is 'plain\\nplain'"),
    "a message that is an object": (with_result(message={}), WrongFields, r"'message' is \{\}"),
    "a side effect that is a number": (with_result(side_effects=[1]), WrongFields, r"'side_effects\[0\]' is 1"),
    "an unknown field": (with_result(code="print()"), WrongFields, "unknown field 'code'"),
    "no outcome": (without("outcome"), WrongFields, "lacks 'outcome'"),
    "a long wrong value": (with_result(outcome="x" * 10**6), WrongFields, "a str that begins with 'xxx"),
    "a result after the footer": (
        with_lines(HEADER, {**FOOTER, "counts": {}}, RESULT),
        WrongFields,
        "line 3: a result",
    ),
    "a footer that counts more": (
        with_lines(HEADER, RESULT, {**FOOTER, "counts": {"passed": 2}}),
        WrongCounts,
        "has 1",
    ),
    "a footer of other outcomes": (
        with_lines(HEADER, RESULT, {**FOOTER, "counts": {"failed": 1}}),
        WrongCounts,
        "has 1",
    ),
    "counts that are a number": (with_lines(HEADER, RESULT, {**FOOTER, "counts": 1}), WrongFields, "'counts' is 1"),
    "counts of halves": (with_lines(HEADER, {**FOOTER, "counts": {"passed": 0.5}}), WrongFields, "'counts'"),
    "a diagnosis without cases": (
        with_lines(HEADER, RESULT, {**FOOTER, "diagnoses": [{"implementation": "x"}]}),
        WrongFields,
        r"diagnoses\[0\] lacks 'device'",
    ),
}


@pytest.mark.parametrize("what", FILES)
def test_a_result_file_that_is_unfit_is_refused(tmp_path: Path, what: str) -> None:
    """Each kind of damage has an error of its own, whose one short sentence names the file."""
    data, error, said = FILES[what]
    path = tmp_path / "results.jsonl"
    path.write_bytes(data)
    with pytest.raises(ResultFileError, match=said) as caught:
        read(path)
    assert type(caught.value) is error
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 600
    assert str(caught.value).isprintable()


def test_what_the_tables_are_made_from_is_read(tmp_path: Path) -> None:
    """The undamaged file is read."""
    path = tmp_path / "results.jsonl"
    path.write_bytes(with_lines({**HEADER, "later": ["anything"]}, RESULT, FOOTER))
    assert read(path).complete


def folder(path: Path) -> None:
    """A folder instead of the file."""
    path.mkdir()


def pipe(path: Path) -> None:
    """A pipe without a writer: reading from it waits forever."""
    os.mkfifo(path)


def endless(path: Path) -> None:
    """A link to an endless file."""
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [folder, pipe, endless])
def test_what_is_no_file_is_refused(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """Only regular files are opened."""
    make(tmp_path / "results.jsonl")
    with pytest.raises(Unreadable, match="not a regular file"):
        read(tmp_path / "results.jsonl")


def test_a_line_of_a_gigabyte_is_not_read(tmp_path: Path) -> None:
    """Only as much of an overlong line is read as shows that it is too long."""
    path = tmp_path / "results.jsonl"
    with path.open("wb") as file:
        file.write(with_lines(HEADER))
        file.truncate(parse.FILE_LIMIT)  # a hole, which takes no room on the disk
    tracemalloc.start()
    with pytest.raises(TooLarge, match=f"line 2 has more than {LINE_LIMIT} bytes"):
        read(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * LINE_LIMIT


def test_a_file_that_is_too_large_is_not_opened(tmp_path: Path) -> None:
    """A file beyond the size limit is refused without opening it."""
    path = tmp_path / "results.jsonl"
    with path.open("wb") as file:
        file.truncate(parse.FILE_LIMIT + 1)
    with pytest.raises(TooLarge, match=f"at most {parse.FILE_LIMIT} are read"):
        read(path)


@pytest.mark.slow(1)
def test_what_decompresses_beyond_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small file that decompresses to an overlong line, or to a file that is too large, is refused."""
    path = tmp_path / "results.jsonl.zst"
    path.write_bytes(zstandard.compress(with_lines(HEADER) + bytes(1 << 28)))
    assert path.stat().st_size < 1 << 16
    tracemalloc.start()
    with pytest.raises(TooLarge, match=f"line 2 has more than {LINE_LIMIT} bytes"):
        read(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * LINE_LIMIT
    monkeypatch.setattr(parse, "FILE_LIMIT", 10_000)
    path.write_bytes(zstandard.compress(with_lines(HEADER, *[RESULT] * 1000)))
    with pytest.raises(TooLarge, match="has more than 10000 bytes when it is decompressed"):
        read(path)


def test_what_cannot_be_decompressed_is_refused(tmp_path: Path) -> None:
    """A damaged file, and one with trailing data, is refused."""
    path = tmp_path / "results.jsonl.zst"
    packed = zstandard.compress(with_lines(HEADER, RESULT, FOOTER))
    for damaged in (packed[:4] + b"\xff" * 20, packed + b"more"):
        path.write_bytes(damaged)
        with pytest.raises(Unreadable, match="cannot be read: it cannot be decompressed"):
            read(path)


@pytest.mark.parametrize("command", [["merge", "out.jsonl"], ["ledger", "propose"], ["ledger", "stale"]])
@pytest.mark.parametrize("kind", ["pickle", "npy", "key twice"])
def test_commands_refuse_in_a_sentence(
    tmp_path: Path, command: list[str], kind: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every command that reads result files says why one is unfit, and unpickles nothing."""
    monkeypatch.chdir(tmp_path)
    path, trap = tmp_path / "results.jsonl", Trap(str(tmp_path / "sprung"))
    if kind == "npy":
        with path.open("wb") as file:
            np.save(file, np.array([trap], object), allow_pickle=True)
    else:
        path.write_bytes(pickle.dumps(trap) if kind == "pickle" else with_lines('{"kind": "header", "kind": ""}'))
    assert main([*command, str(path)]) == UNUSABLE
    said = capsys.readouterr()
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1
    assert not (tmp_path / "sprung").exists()
    assert not (tmp_path / "out.jsonl").exists()


def test_a_name_is_never_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Merging parts whose names contain paths writes only the requested file."""
    (tmp_path / "inside").mkdir()
    monkeypatch.chdir(tmp_path / "inside")
    named = Result("../../evil", "cpu", "float32", "../evil", ("SDPA-1",), Outcome.PASSED)
    with Writer(Path("part.jsonl"), {"shard": "1/1"}) as writer:
        writer.write(named)
    assert main(["merge", "out.jsonl", "part.jsonl"]) == 0
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["inside", "out.jsonl", "part.jsonl"]


def test_names_and_patterns_are_text_on_a_page() -> None:
    """Text from a result file makes no tag, link, image, row or column on a page."""
    evil = "<script>|\n[x](javascript:y) ![](http://z)"
    some = Result(
        "<b>|",
        "cpu",
        "float32",
        "one-key",
        ("SDPA-1",),
        Outcome.FAILED,
        Failure.VALUE,
        broken="SDPA-1",
        error_pattern=evil,
    )
    from attention_conformance.conformance.ledger.questions import QUESTIONS

    asked = [Result(**{**vars(some), "case": question.case}) for question in QUESTIONS]
    page = markdown(answers(asked), {})
    assert "<" not in page.replace("&lt;", "")
    assert "](" not in page.replace("\\[x](", "").replace("!\\[](", "")
    assert len({line.replace("\\|", "").count("|") for line in page.splitlines() if line.startswith("|")}) == 1
