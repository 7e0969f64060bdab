"""Indexes, descriptions, names and links of folders that are not trusted: each way to be unfit is refused by name."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conformance.__main__ import main
from conformance.outcomes import Outcome
from conformance.tests.vectors import change, change_json, hash_again, refused, two
from conformance.vectors import documents, errors
from conformance.vectors.check import Origin, check
from conformance.vectors.errors import VectorError
from conformance.vectors.index import Chosen

#: The files of the vector that is harmed.
ABOUT, TENSORS = "sdpa/float32/plain.json", "sdpa/float32/plain.safetensors"
#: The other one, which has lse.
LSE = "sdpa/float32/lse.safetensors"

Edit = Callable[[Any], Any]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Vectors of two cases, and right results of them."""
    return two(tmp_path_factory.mktemp("made"))


@pytest.fixture
def vectors(made: Path, tmp_path: Path) -> Path:
    """The vectors, to be harmed; the results lie beside them."""
    shutil.copytree(made, tmp_path / "copy")
    return tmp_path / "copy" / "vectors"


def first(**fields: Any) -> Edit:
    """Other fields of the first entry of an index."""
    return lambda index: index["vectors"][0].update(fields)


def named(name: Any) -> Edit:
    """Another name of the arrays of the first entry."""
    return lambda index: index["vectors"][0]["tensors"].update(file=name)


#: Changes of the index.
INDEXES: dict[str, tuple[Edit, type[VectorError], str]] = {
    "a later format": (lambda index: index.update(format=2), errors.WrongFormat, "is of format 2, this suite reads 1"),
    "no format": (lambda index: index.pop("format"), errors.WrongFields, "lacks 'format'"),
    "another spec": (lambda index: index.update(spec="7"), errors.WrongSpec, "is of spec '7', this suite reads '1'"),
    "no generator": (lambda index: index.update(generator={}), errors.WrongFields, "generator lacks 'name'"),
    "vectors as an object": (lambda index: index.update(vectors={}), errors.WrongFields, "expected a list"),
    "an unknown field": (first(run="me"), errors.WrongFields, "vector 0 has the unknown field 'run'"),
    "a number for a text": (first(case=1), errors.WrongFields, "for 'case' a int"),
    "a short hash": (
        lambda index: index["vectors"][0]["tensors"].update(sha256="abc"),
        errors.WrongFields,
        "not 64 hexadecimal digits",
    ),
    "another hash": (
        lambda index: index["vectors"][0]["tensors"].update(sha256="0" * 64),
        errors.WrongHash,
        "plain.safetensors has not the sha256",
    ),
    "a case twice": (
        lambda index: index["vectors"].append(index["vectors"][0]),
        errors.Repeated,
        "plain float32 twice",
    ),
    "a file twice": (
        lambda index: index["vectors"][0].update(tensors=index["vectors"][1]["tensors"]),
        errors.Repeated,
        "lse.safetensors twice",
    ),
    "files of another case": (
        lambda index: index["vectors"].pop() and index["vectors"][0].update(case="lse"),
        errors.WrongFields,
        "plain.json is not of sdpa lse float32",
    ),
    "a file that is not there": (named("sdpa/float32/other.safetensors"), errors.Unreadable, "No such file"),
    "a folder for a file": (named("sdpa/float32"), errors.Unreadable, "not a regular file"),
    **{
        f"the name {name!r}": (named(name), errors.OutsideFolder, "is not a name of a file in the folder")
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
    """Each thing wrong with an index is refused by its name."""
    edit, error, said = INDEXES[what]
    change_json(vectors / "index.json", edit)
    refused(vectors, error, said, capsys)


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("", errors.NotJson, "index.json is not JSON"),
        ("[]", errors.WrongFields, "is a list, expected an object"),
        ('{"format": 1, "format": 1}', errors.DuplicateKey, "has the key 'format' twice"),
        ('{"format": NaN}', errors.NotANumber, "the number NaN"),
        ('{"format": -Infinity}', errors.NotANumber, "the number -Infinity"),
        ('{"format": 1e999}', errors.NotANumber, "the number 1e999"),
    ],
)
def test_an_index_that_is_no_json_is_refused(
    vectors: Path, text: str, error: type[VectorError], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is not strict JSON is refused."""
    (vectors / "index.json").write_text(text, encoding="utf-8")
    refused(vectors, error, said, capsys)


#: Changes of a description.
ABOUTS: dict[str, tuple[Edit, type[VectorError], str]] = {
    "a later format": (lambda about: about.update(format=2), errors.WrongFormat, "has format 2, expected 1"),
    "a field less": (lambda about: about.pop("refused"), errors.WrongFields, "lacks 'refused'"),
    "a field more": (lambda about: about.update(run="me"), errors.WrongFields, "unknown field 'run'"),
    "a text for true": (lambda about: about.update(refused="no"), errors.WrongFields, "expected a bool"),
    "true for a number": (lambda about: about.update(repeats=True), errors.WrongFields, "expected a int"),
    "an unknown operator": (lambda about: about.update(operator="conv"), errors.WrongFields, "have an operator"),
    "an unknown dtype": (lambda about: about.update(dtype="float8"), errors.WrongFields, "an operator and a dtype"),
    "an escape in a text": (lambda about: about.update(why="\x1b[2J"), errors.WrongFields, "texts that can be printed"),
    "half a character": (lambda about: about.update(why="\ud800"), errors.WrongFields, "texts that can be printed"),
    "an escape in an axis": (
        lambda about: about["results"]["output"].update(axes=["\x1b[2J"]),
        errors.WrongFields,
        "axes that can be printed",
    ),
    "no clause": (lambda about: about.update(clauses=[]), errors.WrongFields, "clauses of the spec"),
    "an unknown clause": (lambda about: about.update(clauses=["SDPA-999"]), errors.WrongFields, "clauses of the spec"),
    "a milder level": (lambda about: about.update(level="SHOULD"), errors.WrongFields, "level of its first clause"),
    "other arguments": (lambda about: about.update(arguments=["q", "k"]), errors.WrongFields, "arguments of sdpa"),
    "an unknown keyword": (lambda about: about.update(keywords=["gamma"]), errors.WrongFields, "keywords of sdpa"),
    "an unknown option": (lambda about: about["options"].update(heads=2), errors.WrongFields, "options of sdpa"),
    "an option too deep": (lambda about: about["options"].update(scale=[[1]]), errors.WrongFields, "a plain value"),
    "a huge integer": (lambda about: about["options"].update(scale=10**400), errors.WrongFields, "a plain value"),
    "no results": (lambda about: about.update(results={}), errors.WrongFields, "the results output"),
    "a result more": (
        lambda about: about["results"].update(lse=about["results"]["output"]),
        errors.WrongFields,
        "the results output",
    ),
    "a wider dtype": (
        lambda about: about["results"]["output"].update(dtypes=["float32", "float16"]),
        errors.WrongFields,
        "the dtypes float32",
    ),
    "a smaller range": (
        lambda about: about["results"]["output"].update(largest=1.0),
        errors.WrongFields,
        "as the largest number",
    ),
    "fewer axes": (
        lambda about: about["results"]["output"].update(axes=["row"]),
        errors.WrongArrays,
        "not float64 with the axes row",
    ),
    "fewer profiles": (lambda about: about.update(profiles=["tf32"]), errors.WrongFields, "the profiles of float32"),
    "a looser default": (lambda about: about.update(profile="tf32"), errors.WrongFields, "the profile of float32"),
    "an unknown layout": (lambda about: about.update(memory="paged"), errors.WrongFields, "a layout and a number"),
    "endless calls": (lambda about: about.update(repeats=10**9), errors.WrongFields, "a layout and a number"),
    "refused with results": (lambda about: about.update(refused=True), errors.WrongFields, "the results of no call"),
}


@pytest.mark.parametrize("what", ABOUTS)
def test_a_description_is_refused(vectors: Path, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each thing wrong with a description is refused by its name, though its hash fits."""
    edit, error, said = ABOUTS[what]
    change_json(vectors / ABOUT, edit)
    hash_again(vectors)
    refused(vectors, error, f"{ABOUT.removesuffix('.json')}.*{said}", capsys)


def put(name: str, value: Any) -> Edit:
    """Another number in the first element of an array."""
    return lambda arrays: arrays[name].__setitem__((0,) * arrays[name].ndim, value)


#: Changes of the arrays of a vector.
ARRAYS: dict[str, tuple[Edit, type[VectorError], str]] = {
    "no expected result": (lambda a: a.pop("expected.output"), errors.WrongArrays, "lacks expected.output"),
    "no input": (lambda a: a.pop("input.q"), errors.WrongArrays, "lacks input.q"),
    "an array more": (lambda a: a.update(x=a["input.q"]), errors.WrongArrays, "has the unknown array x"),
    "a bound of another shape": (
        lambda a: a.update({"bound.wide.output": a["bound.wide.output"][:1]}),
        errors.WrongArrays,
        "not float64 in the shape of expected.output",
    ),
    "expected in float32": (
        lambda a: a.update({"expected.output": a["expected.output"].astype(np.float32)}),
        errors.WrongArrays,
        "expected.output is not float64",
    ),
    "NaN in a bound": (put("bound.wide.output", np.nan), errors.BadBound, "NaN, infinite or negative"),
    "an infinite bound": (put("bound.tf32.output", np.inf), errors.BadBound, "bound.tf32.output"),
    "a negative bound": (put("bound.wide.output", -1.0), errors.BadBound, "bound.wide.output"),
}


@pytest.mark.parametrize("what", ARRAYS)
def test_arrays_that_do_not_fit_are_refused(vectors: Path, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each thing wrong with the arrays of a vector is refused by its name, though their hash fits."""
    edit, error, said = ARRAYS[what]
    change(vectors / TENSORS, edit)
    hash_again(vectors)
    refused(vectors, error, f"{TENSORS}.*{said}", capsys)


@pytest.mark.parametrize("shape", [(2, 3, 7, 8), (2, 0, 7, 8), (2, 2, 7, 9), (1, 2, 7, 8), (8,)])
def test_values_that_fit_nothing_end_in_a_judgement(vectors: Path, shape: tuple[int, ...]) -> None:
    """A vector whose v does not fit its output is judged: v only serves to say what a wrong output looks like."""
    change(vectors / TENSORS, lambda a: a.update({"input.v": np.ones(shape, np.float32)}))
    hash_again(vectors)
    change(vectors.with_name("results") / TENSORS, lambda a: a["output"].__iadd__(1))
    (result,) = check(vectors, vectors.with_name("results"), Chosen(cases=["plain"]), Origin("mine"), None).results
    assert (result.outcome, result.looks) == (Outcome.FAILED, "")


@pytest.mark.parametrize("name", [ABOUT, TENSORS])
def test_a_changed_file_is_refused(vectors: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A file with another byte than the index was written with is refused."""
    data = (vectors / name).read_bytes()
    (vectors / name).write_bytes(data[:-2] + b" " + data[-1:])
    refused(vectors, errors.WrongHash, f"{name} has not the sha256", capsys)


@pytest.mark.parametrize("name", ["index.json", ABOUT, TENSORS, "sdpa", "results"])
def test_a_link_out_of_the_folder_is_refused(vectors: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A link in the place of a file or folder, of vectors or of results, is not followed out of it."""
    inside = vectors.with_name("results") / TENSORS if name == "results" else vectors / name
    outside = vectors.with_name("outside")
    shutil.move(inside, outside)
    inside.symlink_to(outside)
    refused(vectors, errors.LinkOutside, "is a link that leads out of the folder", capsys)


def test_a_link_within_the_folder_is_followed(vectors: Path) -> None:
    """A link that stays in the folder is a file like any other."""
    (vectors / TENSORS).rename(vectors / "kept")
    (vectors / TENSORS).symlink_to(vectors / "kept")
    assert documents.read(vectors, TENSORS) == (vectors / "kept").read_bytes()


def test_links_in_a_circle_are_refused(vectors: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two links to each other are no file."""
    (vectors / TENSORS).unlink()
    (vectors / TENSORS).symlink_to(vectors / LSE)
    (vectors / LSE).unlink()
    (vectors / LSE).symlink_to(vectors / TENSORS)
    refused(vectors, errors.Unreadable, "cannot be read", capsys)


def test_a_pipe_is_refused(vectors: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What would be waited for is no file."""
    pipe = vectors.with_name("results") / TENSORS
    pipe.unlink()
    os.mkfifo(pipe)
    refused(vectors, errors.Unreadable, "not a regular file", capsys)


def test_a_file_too_large_is_refused(
    vectors: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file beyond the limit is not read into memory."""
    monkeypatch.setattr(documents, "FILE_LIMIT", 50_000)
    with (vectors.with_name("results") / TENSORS).open("ab") as file:
        file.truncate(50_001)
    refused(vectors, errors.TooLarge, "has 50001 bytes, at most 50000 are read", capsys)


@pytest.mark.parametrize("folder", ["vectors", "results"])
def test_a_missing_folder_is_refused(vectors: Path, folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder that is not there is named."""
    shutil.rmtree(vectors.with_name(folder))
    refused(vectors, errors.Unreadable, "cannot be read|is not a folder", capsys)


@pytest.mark.parametrize(
    ("words", "error", "said"),
    [
        ({"outcome": "passed", "reason": ""}, errors.WrongFields, "has the outcome 'passed'"),
        ({"outcome": "error"}, errors.WrongFields, "lacks 'reason'"),
        ({"outcome": "error", "reason": 1}, errors.WrongFields, "expected a str"),
        ([], errors.WrongFields, "is a list"),
    ],
)
def test_words_that_are_none_are_refused(
    vectors: Path, words: Any, error: type[VectorError], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A JSON result says one of two words, and nothing that would pass."""
    (vectors.with_name("results") / TENSORS).unlink()
    (vectors.with_name("results") / ABOUT).write_text(json.dumps(words), encoding="utf-8")
    refused(vectors, error, said, capsys)


def test_a_reason_is_printed_in_one_plain_line(vectors: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a terminal would obey in a reason from elsewhere is written out."""
    results = vectors.with_name("results")
    (results / TENSORS).unlink()
    words = {"outcome": "error", "reason": "\x1b[2J\n\ud800" + "x" * 1000}
    (results / ABOUT).write_text(json.dumps(words), encoding="utf-8")
    assert main(["check", str(vectors), str(results)]) == 1
    printed = capsys.readouterr().out
    assert "Raised:   \\x1b[2J \\ud800xxx" in printed
    assert "x" * 500 not in printed


def test_two_results_of_one_vector_are_refused(vectors: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Arrays and words for one vector are refused, whatever each of them says."""
    words = {"outcome": "unsupported", "reason": "no"}
    (vectors.with_name("results") / ABOUT).write_text(json.dumps(words), encoding="utf-8")
    refused(vectors, errors.Repeated, "are both there", capsys)


def test_a_result_file_that_cannot_be_written_is_said(vectors: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder in the place of the JSON file is one sentence, not a traceback."""
    command = ["check", str(vectors), str(vectors.with_name("results")), "--conformance-json", str(vectors)]
    assert main(command) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_every_error_is_seen() -> None:
    """Each class of errors.py is raised in one of these tests."""
    folder = Path(__file__).parent
    text = "".join(path.read_text(encoding="utf-8") for path in sorted(folder.glob("test_vectors_*.py")))
    known = {name for name, value in vars(errors).items() if isinstance(value, type) and value is not VectorError}
    assert {name for name in known if f"errors.{name}" not in text} == set()
