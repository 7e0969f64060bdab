"""Untrusted indexes, names and links of folders: each kind of unfit folder is refused by name."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attention_conformance.cli import main
from attention_conformance.conformance.tests.vectors import change_json, refused
from attention_conformance.conformance.vectors import files
from attention_conformance.conformance.vectors.files import VectorError
from attention_conformance.impls import strict

pytestmark = pytest.mark.slow

#: The files of the vector that tests damage.
ABOUT, TENSORS = "sdpa/float32/plain.json", "sdpa/float32/plain.safetensors"
#: The other vector's arrays, which include lse.
LSE = "sdpa/float32/lse.safetensors"

Edit = Callable[[Any], Any]


def first(**fields: Any) -> Edit:
    """An edit of the first entry of an index."""
    return lambda index: index["vectors"][0].update(fields)


def named(name: Any) -> Edit:
    """An edit of the file name of the first entry's arrays."""
    return lambda index: index["vectors"][0]["tensors"].update(file=name)


#: Edits of the index.
INDEXES: dict[str, tuple[Edit, type[VectorError], str]] = {
    "a later format": (lambda index: index.update(format=2), strict.WrongFormat, "is of format 2, this suite reads 1"),
    "no format": (lambda index: index.pop("format"), strict.WrongFields, "lacks 'format'"),
    "another spec": (lambda index: index.update(spec="7"), files.WrongSpec, "is of spec '7', this suite reads '1'"),
    "no generator": (lambda index: index.update(generator={}), strict.WrongFields, "generator lacks 'name'"),
    "vectors as an object": (lambda index: index.update(vectors={}), strict.WrongFields, "expected a list"),
    "an unknown field": (first(run="me"), strict.WrongFields, r"vectors\[0\] has the unknown field 'run'"),
    "a number for a text": (first(case=1), strict.WrongFields, r"'vectors\[0\].case' is 1, expected a text"),
    "a short hash": (
        lambda index: index["vectors"][0]["tensors"].update(sha256="abc"),
        strict.WrongFields,
        r"sha256' is 'abc', expected a text matching regex",
    ),
    "another hash": (
        lambda index: index["vectors"][0]["tensors"].update(sha256="0" * 64),
        files.WrongHash,
        "plain.safetensors does not have the sha256",
    ),
    "a case twice": (
        lambda index: index["vectors"].append(index["vectors"][0]),
        files.Repeated,
        "plain float32 twice",
    ),
    "a file twice": (
        lambda index: index["vectors"][0].update(tensors=index["vectors"][1]["tensors"]),
        files.Repeated,
        "lse.safetensors twice",
    ),
    "files of another case": (
        lambda index: index["vectors"].pop() and index["vectors"][0].update(case="lse"),
        strict.WrongFields,
        "plain.json is not of sdpa lse float32",
    ),
    "a file that is not there": (named("sdpa/float32/other.safetensors"), strict.Unreadable, "No such file"),
    "a folder for a file": (named("sdpa/float32"), strict.Unreadable, "not a regular file"),
    **{
        f"the name {name!r}": (named(name), files.OutsideFolder, "is not a name of a file in the folder")
        for name in (
            "../results/sdpa/float32/plain.safetensors",
            "sdpa/../../secret.safetensors",
            "/etc/passwd",
            "..",
            ".",
            "",
            "sdpa//plain",
            "C:\\secret",
            "sdpa\\..\\secret",
            "sdpa/pl\0ain",
            "sdpa/plain.safetensors\n",
            "~/secret",
            "-rf",
        )
    },
}


@pytest.mark.parametrize("what", INDEXES)
def test_an_index_is_refused(vectors: Path, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each error in an index is refused by its name."""
    edit, error, said = INDEXES[what]
    change_json(vectors / "index.json", edit)
    refused(vectors, error, said, capsys)


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("", strict.NotJson, "index.json is not JSON"),
        ("[]", strict.WrongFields, r"it is \[\], expected an object"),
        ('{"format": 1, "format": 1}', strict.DuplicateKey, "has the key 'format' twice"),
        ('{"format": NaN}', strict.NotANumber, "the number NaN"),
        ('{"format": -Infinity}', strict.NotANumber, "the number -Infinity"),
        ('{"format": 1e999}', strict.NotANumber, "the number 1e999"),
    ],
)
def test_an_index_that_is_no_json_is_refused(
    vectors: Path, text: str, error: type[VectorError], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An index that is not strict JSON is refused."""
    (vectors / "index.json").write_text(text, encoding="utf-8")
    refused(vectors, error, said, capsys)


@pytest.mark.parametrize("name", [ABOUT, TENSORS])
def test_a_changed_file_is_refused(vectors: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A file with a changed byte is refused."""
    data = (vectors / name).read_bytes()
    (vectors / name).write_bytes(data[:-2] + b" " + data[-1:])
    refused(vectors, files.WrongHash, f"{name} does not have the sha256", capsys)


@pytest.mark.parametrize("name", ["index.json", ABOUT, TENSORS, "sdpa", "results"])
def test_a_link_out_of_the_folder_is_refused(vectors: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A link instead of a file or folder, of vectors or of results, that leads out of the folder is refused."""
    inside = vectors.with_name("results") / TENSORS if name == "results" else vectors / name
    outside = vectors.with_name("outside")
    shutil.move(inside, outside)
    inside.symlink_to(outside)
    refused(vectors, files.LinkOutside, "is a link that leads out of the folder", capsys)


def test_a_link_within_the_folder_is_followed(vectors: Path) -> None:
    """A link that stays in the folder is read like any other file."""
    (vectors / TENSORS).rename(vectors / "kept")
    (vectors / TENSORS).symlink_to(vectors / "kept")
    assert files.read(vectors, TENSORS) == (vectors / "kept").read_bytes()


def test_links_in_a_circle_are_refused(vectors: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two links to each other are refused."""
    (vectors / TENSORS).unlink()
    (vectors / TENSORS).symlink_to(vectors / LSE)
    (vectors / LSE).unlink()
    (vectors / LSE).symlink_to(vectors / TENSORS)
    refused(vectors, strict.Unreadable, "cannot be read", capsys)


def test_a_pipe_is_refused(vectors: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A pipe, which would block, is refused."""
    pipe = vectors.with_name("results") / TENSORS
    pipe.unlink()
    os.mkfifo(pipe)
    refused(vectors, strict.Unreadable, "not a regular file", capsys)


def test_a_file_too_large_is_refused(
    vectors: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file beyond the limit is not read into memory."""
    monkeypatch.setattr(files, "FILE_LIMIT", 50_000)
    with (vectors.with_name("results") / TENSORS).open("ab") as file:
        file.truncate(50_001)
    refused(vectors, strict.TooLarge, "has 50001 bytes, at most 50000 are read", capsys)


@pytest.mark.parametrize("folder", ["vectors", "results"])
def test_a_missing_folder_is_refused(vectors: Path, folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A missing folder is named."""
    shutil.rmtree(vectors.with_name(folder))
    refused(vectors, strict.Unreadable, "cannot be read|is not a folder", capsys)


@pytest.mark.parametrize(
    ("words", "error", "said"),
    [
        ({"outcome": "passed", "reason": ""}, strict.WrongFields, "'outcome' is 'passed'"),
        ({"outcome": "error"}, strict.WrongFields, "lacks 'reason'"),
        ({"outcome": "error", "reason": 1}, strict.WrongFields, "expected a text"),
        ([], strict.WrongFields, r"it is \[\]"),
    ],
)
def test_words_that_are_none_are_refused(
    vectors: Path, words: Any, error: type[VectorError], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A JSON result other than "error" or "unsupported", such as one that would pass, is refused."""
    (vectors.with_name("results") / TENSORS).unlink()
    (vectors.with_name("results") / ABOUT).write_text(json.dumps(words), encoding="utf-8")
    refused(vectors, error, said, capsys)


def test_a_reason_is_printed_in_one_plain_line(vectors: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Control characters in an external reason are escaped."""
    results = vectors.with_name("results")
    (results / TENSORS).unlink()
    words = {"outcome": "error", "reason": "\x1b[2J\n\ud800" + "x" * 1000}
    (results / ABOUT).write_text(json.dumps(words), encoding="utf-8")
    assert main(["check-vectors", str(vectors), str(results)]) == 1
    printed = capsys.readouterr().out
    assert "Raised:   \\x1b[2J \\ud800xxx" in printed
    assert "x" * 500 not in printed


def test_two_results_of_one_vector_are_refused(vectors: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Arrays and words for one vector are refused, whatever each of them says."""
    words = {"outcome": "unsupported", "reason": "no"}
    (vectors.with_name("results") / ABOUT).write_text(json.dumps(words), encoding="utf-8")
    refused(vectors, files.Repeated, "are both there", capsys)


def test_a_result_file_that_cannot_be_written_is_said(vectors: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder instead of the JSON file gives one sentence, not a traceback."""
    command = ["check-vectors", str(vectors), str(vectors.with_name("results")), "--conformance-json", str(vectors)]
    assert main(command) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_every_error_is_seen() -> None:
    """Each class of error is raised in one of these tests."""
    folder = Path(__file__).parent
    text = "".join(path.read_text(encoding="utf-8") for path in sorted(folder.glob("test_vectors_*.py")))
    classes = {name for name, each in vars(files).items() if isinstance(each, type) and issubclass(each, VectorError)}
    of_json = {each.__name__ for each in strict.StrictError.__subclasses__()}
    known = (classes | of_json) - {"VectorError", "WrongType"}
    assert {"NotJson", "WrongFields", "Pickled"} < known
    assert {name for name in known if f"files.{name}" not in text and f"strict.{name}" not in text} == set()
