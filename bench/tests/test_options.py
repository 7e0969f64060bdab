"""Options of the bench that were renamed: the old name refers to the new one, and nothing is measured."""

from __future__ import annotations

import argparse
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attention_conformance.bench import options
from attention_conformance.cli import main


def config(*words: str) -> Any:
    """The config that pytest passes to a plugin for a command line."""
    parser = argparse.ArgumentParser()
    options.add(parser.add_argument)
    given = vars(parser.parse_args(words))
    return SimpleNamespace(getoption=lambda name, default=None: given.get(name, default))


def test_visits_are_process_runs() -> None:
    """The old option is refused, and the new one is read."""
    with pytest.raises(pytest.UsageError, match=r"^--visits is now --process-runs$"):
        options.plan(config("--visits", "2"))
    assert options.plan(config("--process-runs", "2")).process_runs == 2


def test_process_runs_are_five() -> None:
    """The number is five for every preset, unless one is requested."""
    given = [("--preset", "quick"), ("--preset", "standard"), (), ("--preset", "quick", "--process-runs", "7")]
    assert [options.plan(config(*words)).process_runs for words in given] == [5, 5, 5, 7]


def test_threads_are_by_the_preset(monkeypatch: pytest.MonkeyPatch) -> None:
    """The quick preset has one thread, the others one for each usable core, unless a number is requested."""
    monkeypatch.setattr(options, "usable_cores", lambda: 4)
    given = [("--preset", "quick"), ("--preset", "standard"), (), ("--preset", "quick", "--threads", "4")]
    assert [options.plan(config(*words)).threads for words in given] == [1, 4, 4, 4]


def test_a_cell_is_skipped_by_the_length_of_a_call() -> None:
    """A call may take twice ``--bench-seconds``, however many process runs there are."""
    for words in (("--process-runs", "1"), ("--process-runs", "5"), ("--preset", "quick")):
        plan = options.plan(config(*words, "--bench-seconds", "0.5"))
        assert plan.limit / plan.least_calls == 1
        assert plan.least_calls == 3 * plan.process_runs


def test_every_run_has_a_seed_of_its_own() -> None:
    """A run cannot use what an earlier one left on the disk."""
    assert len({options.plan(config()).seed for _ in range(3)}) == 3


@pytest.mark.parametrize("words", [("--bench-seconds", "inf"), ("--bench-seconds", "nan"), ("--noise", "inf")])
def test_a_number_that_is_not_finite_is_refused(words: tuple[str, str]) -> None:
    """The run ends before anything is measured."""
    with pytest.raises(pytest.UsageError, match=f"^{words[0]} {words[1]}: expected"):
        options.plan(config(*words))


@pytest.mark.parametrize("given", ["Path", "file"])
def test_a_checkpoint_lies_beside_the_file(given: str, tmp_path: Path) -> None:
    """Pytest-benchmark may pass a path or an open file; the working folder is never used."""
    path = tmp_path / "out.json"
    with path.open("wb") as file:
        found = options.json_file(SimpleNamespace(getoption=lambda name, default: path if given == "Path" else file))  # type: ignore[arg-type]
    assert found == path


@pytest.mark.parametrize("words", [("--base", "main", "--turns", "3"), ("--turns=3",)])
def test_turns_of_a_paired_comparison_are_rounds(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """Other options do not matter; the exit status is that of an invalid option."""
    with pytest.raises(SystemExit) as ended:
        main(["compare-revisions", *words])
    assert ended.value.code == 2
    assert capsys.readouterr().err.rstrip().endswith("error: --turns is now --rounds")


def test_an_old_name_is_not_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    """The old name is shown only to those who use it."""
    with pytest.raises(SystemExit):
        main(["compare-revisions", "--help"])
    said = capsys.readouterr().out
    assert "--rounds" in said
    assert "--turns" not in said
