"""Export: every case and dtype, the same bytes each time, and vectors that hold what the suite judges by."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors

from attention_conformance.cli import main
from attention_conformance.conformance.bounds import sdpa as bounds
from attention_conformance.conformance.cases import every_case
from attention_conformance.conformance.vectors import files
from attention_conformance.conformance.vectors.commands import export
from attention_conformance.conformance.vectors.files import parse
from attention_conformance.conformance.vectors.index import Chosen, read_index, read_vector
from attention_conformance.impls.calls import same_bits

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every vector."""
    folder = tmp_path_factory.mktemp("vectors") / "all"
    export(folder, Chosen())
    return folder


def digests(folder: Path) -> dict[str, str]:
    """A digest of every file by its name in the folder, as differing bytes would fill pages."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def test_every_case_is_there_in_every_dtype(folder: Path) -> None:
    """The index has each case of each operator in each of its dtypes once, and the folder has nothing else."""
    entries = read_index(folder).vectors
    assert [entry.key for entry in entries] == [
        (c.operator, c.name, d) for c in every_case().values() for d in c.dtypes
    ]
    assert set(digests(folder)) == {"index.json"} | {f.file for entry in entries for f in (entry.about, entry.tensors)}


def test_another_process_writes_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    """A second export, of one dtype, by a process with another hash seed and into another folder, is byte-identical."""
    command = [sys.executable, "-m", "attention_conformance", "export", str(tmp_path / "there"), "--dtype", "float16"]
    subprocess.run(command, check=True, env=os.environ | {"PYTHONHASHSEED": "7"}, capture_output=True)
    export(tmp_path / "here", Chosen(dtypes=("float16",)))
    there, everything = digests(tmp_path / "there"), digests(folder)
    assert there == digests(tmp_path / "here")
    assert len(there) > 100
    del there["index.json"]  # which lists the selection
    assert there.items() <= everything.items()


def test_a_vector_holds_what_the_suite_judges_by(folder: Path) -> None:
    """Inputs bit for bit, options, expected results and bounds of every vector are those of its case."""
    for entry in read_index(folder).vectors:
        case, dtype = every_case()[entry.case], entry.dtype
        vector = read_vector(folder, entry)
        inputs = case.inputs(dtype)
        given = inputs.arrays | {n: a for n, a in inputs.keywords.items() if isinstance(a, np.ndarray)}
        assert all(same_bits(vector.arrays[f"input.{name}"], array) for name, array in given.items())
        assert dict(vector.about.options) == {n: v for n, v in inputs.keywords.items() if n not in given}
        assert (vector.about.clauses, vector.about.why) == (case.clauses, case.why)
        assert (vector.about.memory, vector.about.repeats, vector.about.after) == (
            case.memory,
            case.repeats,
            case.after,
        )
        assert vector.about.refused == case.invalid
        assert tuple(vector.about.results) == (() if case.invalid else case.results())
        for name in vector.about.results:
            expected = getattr(case.expected(dtype), name)
            np.testing.assert_array_equal(vector.arrays[f"expected.{name}"], expected)
            for profile in bounds.profiles(dtype):
                bound = vector.arrays[f"bound.{profile.value}.{name}"]
                wanted = getattr(case.bound(dtype, profile), name)
                np.testing.assert_array_equal(bound[np.isfinite(expected)], wanted[np.isfinite(expected)])


def test_json_has_no_nan(folder: Path) -> None:
    """Every document is strict JSON in UTF-8."""
    for path in folder.rglob("*.json"):
        parse(path.read_bytes(), path.name)


def test_halves_keep_their_dtype(folder: Path) -> None:
    """Inputs in bfloat16 are BF16 in the file, and expected results F64."""
    found = dict(safetensors.deserialize((folder / "sdpa/bfloat16/plain.safetensors").read_bytes()))
    assert found["input.q"]["dtype"] == "BF16"
    assert found["expected.output"]["dtype"] == found["bound.storage.output"]["dtype"] == "F64"


def test_an_input_to_refuse_has_no_results(folder: Path) -> None:
    """An invalid input says that it must be refused, and expects no array."""
    (entry,) = [e for e in read_index(folder).vectors if e.key == ("sdpa", "invalid-lengths", "float32")]
    vector = read_vector(folder, entry)
    assert vector.about.refused
    assert set(vector.arrays) == {"input.q", "input.k", "input.v"}


def test_the_page_says_how_large_it_is(folder: Path) -> None:
    """VECTORS.md has the number of vectors and of megabytes, to a tenth."""
    page = (Path(__file__).parents[1] / "VECTORS.md").read_text(encoding="utf-8")
    sizes = [path.stat().st_size / 1e6 for path in folder.rglob("*") if path.is_file()]
    for text, number in (
        (r"has about (\d+) vectors", len(read_index(folder).vectors)),
        (r"takes about (\d+) MB", sum(sizes)),
        (r"largest file has\s+about (\d+) MB", max(sizes)),
    ):
        (said,) = re.findall(text, page)
        assert float(said) == pytest.approx(number, rel=0.1)


def test_options_choose_vectors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--operator, --case and --dtype together select what all of them name, and the command counts it."""
    options = ["--operator", "sdpa", "--case", "causal-*", "--dtype", "float16"]
    assert main(["export", str(tmp_path / "some"), *options]) == 0
    index = json.loads((tmp_path / "some" / "index.json").read_text())
    assert {v["dtype"] for v in index["vectors"]} == {"float16"}
    assert index["vectors"]
    assert all(v["case"].startswith("causal-") for v in index["vectors"])
    assert capsys.readouterr().out.startswith(f"{len(index['vectors'])} vectors, ")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--case", "plian"], "--case plian: there is none; did you mean plain"),
        (["--operator", "sdpaa"], "--operator sdpaa: there is none; did you mean sdpa"),
        (["--dtype", "float8"], "--dtype float8: there is none"),
        (["--operator", "mha", "--case", "plain"], "no vector matches --operator, --case and --dtype together"),
    ],
)
def test_options_that_name_nothing_are_refused(
    options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A misspelt option exits with 2 and writes nothing."""
    assert main(["export", str(tmp_path / "none"), *options]) == 2
    assert said in capsys.readouterr().err
    given = dict(zip(options[::2], options[1::2], strict=True))
    chosen = Chosen(*([given[name]] if name in given else [] for name in ("--operator", "--case", "--dtype")))
    with pytest.raises(files.NothingSelected):
        export(tmp_path / "none", chosen)
    assert not (tmp_path / "none").exists()


def test_a_folder_in_use_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Vectors are not written next to other files."""
    (tmp_path / "mine.txt").write_text("mine")
    assert main(["export", str(tmp_path), "--case", "plain"]) == 2
    assert "is not empty" in capsys.readouterr().err
    with pytest.raises(files.NotEmpty):
        export(tmp_path, Chosen(cases=["plain"]))


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file instead of the folder is reported in one sentence."""
    (tmp_path / "file").write_text("")
    assert main(["export", str(tmp_path / "file"), "--case", "plain"]) == 2
    assert "cannot be written" in capsys.readouterr().err
