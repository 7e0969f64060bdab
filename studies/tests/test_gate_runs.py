"""Runs of the gate: what is counted, and what bench/GATE.md promises by them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from attention_conformance.bench.gate.verdict import Reason
from attention_conformance.bench.tests.candidates import CHEATS, HONEST, Candidate
from studies import gate_runs, gate_transcripts
from studies.common import Unfit


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of runs, with a gate that rejects everything for one reason."""

    class Rejection:
        verdict, seed = "rejected", 7
        reasons = [Reason("value", "zeros: all of it")]  # noqa: RUF012  (a stand-in)

    monkeypatch.setattr(Candidate, "decided", lambda self, folder, **_: Rejection())
    return tmp_path / "runs.jsonl"


def run(work: Path, **changes: Any) -> dict[str, Any]:
    """The study, without neighbours."""
    given: dict[str, Any] = {"runs": 2, "work": work, "neighbours": 0, "only": "zeros"}
    return gate_runs.measure(**given | changes)


def test_runs_are_counted_by_candidate(work: Path) -> None:
    """The counts have the kinds of reasons, and how often a reason had the words of the record."""
    found = run(work)["candidates"]
    assert found["zeros"]["verdicts"] == {"rejected": 2}
    assert found["zeros"]["kinds"] == {"value": 2}
    assert found["zeros"]["named"] == 2
    assert set(found) == {"zeros", "torch-zeros"}


def test_what_a_file_has_is_not_run_again(work: Path) -> None:
    """More runs are added to it."""
    run(work)
    before = work.read_text(encoding="utf-8")
    run(work)
    assert work.read_text(encoding="utf-8") == before
    run(work, runs=3)
    assert len(work.read_text(encoding="utf-8").splitlines()) == len(before.splitlines()) // 2 * 3


def test_runs_of_other_code_do_not_count(work: Path) -> None:
    """A candidate that changed is another one."""
    run(work)
    lines = [json.loads(line) | {"key": "another"} for line in work.read_text(encoding="utf-8").splitlines()]
    work.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    assert run(work, runs=0)["candidates"] == {}


def test_runs_are_added_to_those_that_are_kept_and_none_counts_twice(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has the version of its gate; older ones have none."""
    kept = run(work, runs=1) | {"neighbours": 2}
    for one in kept["candidates"].values():
        del one["gates"]
    monkeypatch.setattr(type(gate_runs.STUDY), "kept", lambda self: kept)
    assert run(work, runs=0, add=True)["candidates"]["zeros"]["verdicts"] == {"rejected": 1}
    another = work.with_name("others.jsonl")
    another.write_text(work.read_text(encoding="utf-8").replace('"seed": 7', '"seed": 8'), encoding="utf-8")
    found = run(another, runs=0, add=True)
    assert found["neighbours"] == 2
    assert found["candidates"]["zeros"]["verdicts"] == {"rejected": 2}
    assert found["candidates"]["zeros"]["gates"] == {gate_runs.EARLIER: 1, gate_runs.gate_version(): 1}


@pytest.mark.parametrize(
    ("new", "same"),
    [
        ("def f(x: int) -> int:\n    # twice\n    return 2 * x\n", True),
        ('def f(x):\n    """Twice."""\n    return 2 * x\n', True),
        ("def f(x):\n    return 3 * x\n", False),
    ],
)
def test_a_version_of_the_gate_is_of_what_its_sources_do(new: str, same: bool, tmp_path: Path) -> None:
    """It does not depend on comments, docstrings and annotations."""
    folders = []
    for name, text in (("a", "def f(x):\n    return 2 * x\n"), ("b", new)):
        folders.append(tmp_path / name)
        folders[-1].mkdir()
        (folders[-1] / "walls.py").write_text(text, encoding="utf-8")
    assert (gate_runs.gate_version(folders[0]) == gate_runs.gate_version(folders[1])) == same


def test_a_name_that_nobody_has_is_refused(work: Path) -> None:
    """Nothing is run."""
    with pytest.raises(Unfit, match="nothing-like-it"):
        run(work, only="nothing-like-it")


def test_every_candidate_was_run_and_none_was_decided_wrongly() -> None:
    """No cheat was accepted, each was rejected by what its record says, and no honest kernel was rejected."""
    kept = gate_runs.STUDY.kept()["candidates"]
    assert {one.name for one in (*CHEATS, *HONEST)} == set(kept)
    assert {one.name: one.key for one in (*CHEATS, *HONEST)} == {name: one["key"] for name, one in kept.items()}
    for one in CHEATS:
        count = kept[one.name]["verdicts"].get("rejected", 0)
        assert (kept[one.name]["verdicts"], kept[one.name]["named"]) == ({"rejected": count}, count)
    for one in HONEST:
        assert "rejected" not in kept[one.name]["verdicts"]


@pytest.mark.documents
@pytest.mark.slow(15)
@pytest.mark.parametrize("part", gate_transcripts.SHOWN)
def test_the_page_has_what_the_gate_prints(part: str) -> None:
    """The output is repeated with the seed in it, except for times and the number of problems that they took."""
    if gate_transcripts.candidate(gate_transcripts.SHOWN[part]).framework == "torch":
        pytest.importorskip("torch")
    kept = gate_transcripts.STUDY.kept()["transcripts"][part]
    again = gate_transcripts.printed(kept["candidate"], kept["seed"])
    # Calls are timed again, on new problems, while the clocks disagree, as they may on a busy machine.
    times = re.compile(r"[\d.]+ ms a call, \d+%|(?<=  )(\d+) of \1(?= problems)")
    assert times.sub("", again) == times.sub("", kept["text"])
