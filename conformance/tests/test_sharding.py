"""Runs in parts: each test is in one part, and the merged parts equal a run on one machine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attention_conformance.cli import main
from attention_conformance.conformance.results import read
from attention_conformance.conformance.run import sharding
from attention_conformance.conformance.run.sharding import (
    MergeError,
    NotAPart,
    PartMissing,
    PartsDiffer,
    PartTwice,
    ResultTwice,
    Shard,
    Unfinished,
    merge,
    parse,
    share_out,
)
from attention_conformance.conformance.tests.test_plugin import plug_in, run
from attention_conformance.conformance.tests.test_xdist import UNSCALED, records

pytestmark = pytest.mark.slow

OPTIONS = ("--impl", "mykernels.py:attention", "--impl", "numpy-eager", "--impl", "numpy-layer", "--dtype", "float32")
CASES = ("--case", "causal*", "--case", "mha-mask*")


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a whole run and its two parts."""
    folder = plug_in(tmp_path_factory.mktemp("parts"), UNSCALED)
    run(folder, *OPTIONS, *CASES, "--conformance-json", "whole.jsonl")
    for index in (1, 2):
        done = run(folder, *OPTIONS, *CASES, "--conformance-json", f"{index}.jsonl", "--shard", f"{index}/2")
        assert "deselected" in done.stdout
    return folder


def changed(parts: Path, tmp_path: Path, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> Path:
    """The second part with its lines changed."""
    lines = [json.loads(line) for line in (parts / "2.jsonl").read_text(encoding="utf-8").splitlines()]
    path = tmp_path / "changed.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in change(lines)), encoding="utf-8")
    return path


def with_header(**entries: Any) -> Callable[[list[dict[str, Any]]], list[dict[str, Any]]]:
    """A change of the header."""
    return lambda lines: [{**lines[0], **entries}, *lines[1:]]


def test_merged_parts_are_the_whole_run(parts: Path, tmp_path: Path) -> None:
    """Header, results, their order, counts and diagnoses are equal; only times differ."""
    merge([parts / "2.jsonl", parts / "1.jsonl"], tmp_path / "merged.jsonl")
    assert records(tmp_path / "merged.jsonl") == records(parts / "whole.jsonl")
    assert read(tmp_path / "merged.jsonl").diagnoses


def test_a_part_has_whole_implementations(parts: Path) -> None:
    """No implementation is in both parts, and neither part is empty."""
    one, two = ({r.implementation for r in read(parts / f"{index}.jsonl").results} for index in (1, 2))
    assert one
    assert two
    assert not one & two


def test_the_command_merges(parts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command prints the number of results, or prints one sentence and exits with 2."""
    files = [str(parts / "1.jsonl"), str(parts / "2.jsonl")]
    assert main(["merge", str(tmp_path / "m.jsonl"), *files]) == 0
    assert capsys.readouterr().out == f"{len(read(parts / 'whole.jsonl').results)} results: {tmp_path / 'm.jsonl'}\n"
    assert main(["merge", str(tmp_path / "m.jsonl"), files[0]]) == 2
    assert capsys.readouterr().err == "error: part 2/2 is missing\n"


def test_scopes_are_shared_out_evenly() -> None:
    """The largest scope goes first, each to the smallest part, whatever the order of the tests."""
    scopes = ["a"] * 5 + ["b"] * 4 + ["c"] * 3 + ["d"] * 2
    assert share_out(scopes, 2) == share_out(reversed(scopes), 2) == {"a": 1, "b": 2, "c": 2, "d": 1}
    assert set(share_out(scopes, 1).values()) == {1}


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "1/0", "a/b", "1/2/3", "-1/2"])
def test_a_part_that_is_none_is_refused(text: str, tmp_path: Path) -> None:
    """A malformed part is refused in one sentence."""
    with pytest.raises(ValueError, match="expected I/N"):
        parse(text)
    done = run(plug_in(tmp_path), *OPTIONS[:2], f"--shard={text}")
    assert done.returncode == 4


def test_a_part_is_named_as_it_is_given() -> None:
    """2/3 is part 2 of 3."""
    assert parse("2/3") == Shard(2, 3)
    assert str(Shard(2, 3)) == "2/3"


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda lines: lines[:-1], Unfinished, "no footer"),
        (with_header(shard="2/3"), PartsDiffer, "part 2/3"),
        (with_header(shard="1/2"), PartTwice, "both part 1/2"),
        (with_header(versions={"numpy": "1.0"}), PartsDiffer, "differ in versions: "),
        (with_header(spec="0"), PartsDiffer, "differ in spec: 0 and"),
        (with_header(python="2.7"), PartsDiffer, "differ in python"),
    ],
)
def test_parts_that_do_not_belong_together_are_refused(
    parts: Path, tmp_path: Path, change: Any, error: type[MergeError], words: str
) -> None:
    """Each kind of mismatch has its own error, which names the files and the difference."""
    with pytest.raises(error, match=words):
        merge([parts / "1.jsonl", changed(parts, tmp_path, change)], tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl").exists()


def test_a_whole_run_is_no_part(parts: Path, tmp_path: Path) -> None:
    """A file of a whole run is not a part."""
    with pytest.raises(NotAPart, match="whole run"):
        merge([parts / "1.jsonl", parts / "whole.jsonl"], tmp_path / "out.jsonl")


def test_a_missing_part_is_named(parts: Path, tmp_path: Path) -> None:
    """A missing part is named, and so is an empty list."""
    with pytest.raises(PartMissing, match="2/2"):
        merge([parts / "1.jsonl"], tmp_path / "out.jsonl")
    with pytest.raises(PartMissing, match="no parts"):
        merge([], tmp_path / "out.jsonl")


def test_a_result_in_two_parts_is_refused(parts: Path, tmp_path: Path) -> None:
    """Two results for one case are refused."""
    first = json.loads((parts / "1.jsonl").read_text(encoding="utf-8").splitlines()[1])

    def doubled(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
        counts = {**lines[-1]["counts"]}
        counts[first["outcome"]] = counts.get(first["outcome"], 0) + 1
        return [*lines[:-1], first, {**lines[-1], "counts": counts}]

    with pytest.raises(ResultTwice, match="both have"):
        merge([parts / "1.jsonl", changed(parts, tmp_path, doubled)], tmp_path / "out.jsonl")


def test_every_error_is_one_of_merging() -> None:
    """Every error is a MergeError, so that a caller can catch them together."""
    named = [each for each in vars(sharding).values() if isinstance(each, type) and issubclass(each, MergeError)]
    assert len(named) == 7
