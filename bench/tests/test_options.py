"""Options of the bench that had another name: the old one says the new one, and nothing is measured."""

from __future__ import annotations

import argparse
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attention_conformance.bench import options
from attention_conformance.cli import main


def config(*words: str) -> Any:
    """What pytest gives a plugin of the options in a command line."""
    parser = argparse.ArgumentParser()
    options.add(parser.add_argument)
    given = vars(parser.parse_args(words))
    return SimpleNamespace(getoption=lambda name, default=None: given.get(name, default))


def test_visits_are_process_runs() -> None:
    """The old option is refused, the new one is read."""
    with pytest.raises(pytest.UsageError, match=r"^--visits is now --process-runs$"):
        options.plan(config("--visits", "2"))
    assert options.plan(config("--process-runs", "2")).process_runs == 2


def test_process_runs_are_five() -> None:
    """Of every preset, or what is requested."""
    given = [("--preset", "quick"), ("--preset", "standard"), (), ("--preset", "quick", "--process-runs", "7")]
    assert [options.plan(config(*words)).process_runs for words in given] == [5, 5, 5, 7]


def test_threads_are_by_the_preset(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the quick one, else as many as there are usable cores, and what is requested."""
    monkeypatch.setattr(options, "usable_cores", lambda: 4)
    given = [("--preset", "quick"), ("--preset", "standard"), (), ("--preset", "quick", "--threads", "4")]
    assert [options.plan(config(*words)).threads for words in given] == [1, 4, 4, 4]


def test_a_cell_is_skipped_by_the_length_of_a_call() -> None:
    """However many process runs there are: by twice the seconds that all calls may take."""
    for words in (("--process-runs", "1"), ("--process-runs", "5"), ("--preset", "quick")):
        plan = options.plan(config(*words, "--bench-seconds", "0.5"))
        assert plan.limit / plan.least_calls == 1
        assert plan.least_calls == 3 * plan.process_runs


def test_every_run_has_a_seed_of_its_own() -> None:
    """What one run left on the disk is of no use to the next."""
    assert len({options.plan(config()).seed for _ in range(3)}) == 3


@pytest.mark.parametrize("words", [("--bench-seconds", "inf"), ("--bench-seconds", "nan"), ("--noise", "inf")])
def test_a_number_that_is_not_finite_is_refused(words: tuple[str, str]) -> None:
    """Before anything is measured."""
    with pytest.raises(pytest.UsageError, match=f"^{words[0]} {words[1]}: expected"):
        options.plan(config(*words))


@pytest.mark.parametrize("given", ["Path", "file"])
def test_a_checkpoint_lies_beside_the_file(given: str, tmp_path: Path) -> None:
    """Whether pytest-benchmark gives a path or an open file: never in the folder that is worked in."""
    path = tmp_path / "out.json"
    with path.open("wb") as file:
        found = options.json_file(SimpleNamespace(getoption=lambda name, default: path if given == "Path" else file))  # type: ignore[arg-type]
    assert found == path


@pytest.mark.parametrize("words", [("--base", "main", "--turns", "3"), ("--turns=3",)])
def test_turns_of_a_paired_comparison_are_rounds(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever else is given; the exit status is that of an option that cannot be used."""
    with pytest.raises(SystemExit) as ended:
        main(["compare-revisions", *words])
    assert ended.value.code == 2
    assert capsys.readouterr().err.rstrip().endswith("error: --turns is now --rounds")


def test_an_old_name_is_not_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    """Only who uses it hears of it."""
    with pytest.raises(SystemExit):
        main(["compare-revisions", "--help"])
    said = capsys.readouterr().out
    assert "--rounds" in said
    assert "--turns" not in said
