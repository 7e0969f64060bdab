"""The checkpoint: what it keeps of a run, and which runs it refuses to resume."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from attention_conformance.bench.timing import checkpoint
from attention_conformance.bench.timing.checkpoint import Checkpoint, CheckpointError
from attention_conformance.bench.validity.outcomes import INVALID, SKIPPED, Outcome, ProcessRun
from attention_conformance.impls.contract import Implementation

HEADER = {
    "spec": "1",
    "fingerprint": "abc",
    "plan": {"process_runs": 2},
    "versions": {"numpy": "2"},
    "cells": ["a", "b", "c"],
}

FIRST = Outcome().with_run(
    ProcessRun(((0.1, 0.2), (0.3,)), 0.5, prepare_seconds=1.5, threads=2, stopped="noise target", clock="device events")
)
SECOND = FIRST.with_run(ProcessRun(((0.1 + 0.2,),), 0.25))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A checkpoint with two process runs of one cell, and two cells with other outcomes."""
    path = checkpoint.checkpoint_of(tmp_path / "out.json")
    kept = Checkpoint(path, HEADER)
    kept.add("a", FIRST, 0)
    kept.add("b", Outcome(INVALID, "SDPA-25", "3 of 4 are wrong"), 0)
    kept.add("c", Outcome(SKIPPED, reason="out of memory"), 0)
    kept.add("a", SECOND, 1)
    return path


def test_what_was_kept_is_read_back_exactly(file: Path) -> None:
    """Samples are kept to the last bit, and every outcome."""
    assert checkpoint.read(file, HEADER) == {
        "a": SECOND,
        "b": Outcome(INVALID, "SDPA-25", "3 of 4 are wrong"),
        "c": Outcome(SKIPPED, reason="out of memory"),
    }


def test_lines_are_on_the_disk_as_they_are_added(file: Path) -> None:
    """The file has a header and a line for each process run while the checkpoint is open."""
    assert [json.loads(line)["kind"] for line in file.read_text().splitlines()] == ["header", *["process run"] * 4]


@pytest.mark.parametrize("rest", ['{"kind": "process run", "cell": "b", "pro', "\x00\xff", "{}"])
def test_a_last_line_that_was_cut_off_is_dropped(file: Path, rest: str) -> None:
    """The run was killed while writing it; the next entry starts its own line."""
    whole = file.read_text()
    with file.open("a", encoding="latin-1") as end:
        end.write(rest)
    known = checkpoint.read(file, HEADER)
    assert known["a"] == SECOND
    Checkpoint(file, HEADER, known).add("b", FIRST, 0)
    assert file.read_text().startswith(whole + '{"kind": "process run", "cell": "b"')


def test_a_checkpoint_of_another_run_is_refused_by_what_differs(file: Path) -> None:
    """Plan, machine and versions must be equal; the message names those that differ."""
    other = {**HEADER, "fingerprint": "def", "plan": {"process_runs": 3}}
    with pytest.raises(CheckpointError, match="is of another run: fingerprint, plan differ;"):
        checkpoint.read(file, other)


def test_a_new_run_does_not_overwrite_what_another_measured(file: Path) -> None:
    """The user must resume or delete it."""
    with pytest.raises(FileExistsError):
        Checkpoint(file, HEADER)


def test_nothing_is_resumed_without_a_checkpoint(tmp_path: Path) -> None:
    """The message names the missing file."""
    with pytest.raises(CheckpointError, match=r"nothing to resume: there is no .*checkpoint\.jsonl"):
        checkpoint.read(tmp_path / "out.json.checkpoint.jsonl", HEADER)


def test_it_goes_when_the_run_is_complete(file: Path) -> None:
    """Nothing is left behind."""
    Checkpoint(file, HEADER, checkpoint.read(file, HEADER)).remove()
    assert not file.exists()


def _replace(old: str, new: str) -> Callable[[str], str]:
    return lambda text: text.replace(old, new)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: "\n" + text, "line 1 is damaged"),
        (lambda text: text.partition("\n")[2], "is of another run"),
        (_replace('"process_run": 0', '"process_run": 1'), "line 2 is no process run"),
        (_replace('"cell": "a"', '"cell": "z"'), "line 2 is no process run"),
        (_replace('"cell": "b"', '"cell": ["b"]'), "line 3 is no process run"),
        (_replace("0.3", "-0.3"), "line 2 is no process run .*> 0.0"),
        (_replace("0.3", "NaN"), "line 2 is damaged .*NaN is no number"),
        (_replace("0.3", "1e999"), "line 2 is damaged .*1e999 is no number"),
        (_replace("[0.3]", '["0.3"]'), "line 2 is no process run .*got `str` - at `.*batches"),
        (_replace("[0.1, 0.2]", "0.1"), "line 2 is no process run"),
        (_replace('"share": 0.5', '"shard": 0.5'), "line 2 is no process run"),
        (_replace('"share": 0.5', '"share": "<b>"'), "line 2 is no process run .*share"),
        (_replace('"threads": 2', '"threads": [2]'), "line 2 is no process run .*threads"),
        (_replace('"invalid"', '"gone"'), "line 3 is no process run .*outcome"),
        (_replace('"kind": "process run"', '"kind": "process walk"'), "line 2 is no process run"),
        (
            _replace('{"kind": "process run"', '{"kind": "process run", "kind": "process run"'),
            "line 2 is damaged .*the key 'kind' appears twice",
        ),
        (_replace('{"kind": "process run", "cell": "a"', '[{"kind": "process run", "cell": "a"'), "line 2 is damaged"),
        (lambda text: text.replace("0.3", "[" * 100_000, 1), "line 2 is damaged"),
        (lambda text: text + text.splitlines()[2] + "\n", "line 6 is no process run .*had ended|follow"),
    ],
)
def test_a_damaged_checkpoint_is_refused(file: Path, damage: Callable[[str], str], message: str) -> None:
    """The message names the line; only a last line without its end counts as cut off."""
    file.write_text(damage(file.read_text()))
    with pytest.raises(CheckpointError, match=message):
        checkpoint.read(file, HEADER)


def test_a_checkpoint_without_a_complete_line_is_refused(file: Path) -> None:
    """There is nothing to resume."""
    file.write_text('{"kind": "header"')
    with pytest.raises(CheckpointError, match="holds no complete line"):
        checkpoint.read(file, HEADER)


def test_the_seed_of_a_run_is_in_its_checkpoint(tmp_path: Path) -> None:
    """A resumed run has the same inputs; a file that is no checkpoint has no seed, and is refused for what it is."""
    path = checkpoint.checkpoint_of(tmp_path / "out.json")
    Checkpoint(path, HEADER | {"plan": {"seed": 2**31}})
    assert checkpoint.seed_of(path) == 2**31
    assert checkpoint.seed_of(tmp_path / "none") == 0
    for text in ("", "[]\n", '{"plan": 1}\n', '{"plan": {"seed": "x"}}\n'):
        path.write_text(text)
        assert checkpoint.seed_of(path) == 0


def test_another_version_of_a_kernel_is_another_run(tmp_path: Path) -> None:
    """A file's hash identifies it; for an installed kernel the versions of packages do."""
    mine = tmp_path / "mine.py"
    some = [Implementation("mine", f"{mine}:attention"), Implementation("theirs", "numpy:dot")]
    mine.write_text("one")
    before = checkpoint.code(some)
    mine.write_text("other")
    assert list(before) == ["mine"]
    path = checkpoint.checkpoint_of(tmp_path / "out.json")
    Checkpoint(path, HEADER | {"code": before})
    with pytest.raises(CheckpointError, match="is of another run: code differs;"):
        checkpoint.read(path, HEADER | {"code": checkpoint.code(some)})
