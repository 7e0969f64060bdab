"""Options of the bench that had another name: the old one says the new one, and nothing is measured."""

from __future__ import annotations

import argparse
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
    with pytest.raises(pytest.UsageError, match=r"^--visits is called --process-runs now$"):
        options.plan(config("--visits", "2"))
    assert options.plan(config("--process-runs", "2")).process_runs == 2


@pytest.mark.parametrize("words", [("--base", "main", "--turns", "3"), ("--turns=3",)])
def test_turns_of_a_paired_comparison_are_rounds(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever else is given; the exit status is that of an option that cannot be used."""
    with pytest.raises(SystemExit) as ended:
        main(["compare-revisions", *words])
    assert ended.value.code == 2
    assert capsys.readouterr().err.rstrip().endswith("error: --turns is called --rounds now")


def test_an_old_name_is_not_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    """Only who uses it hears of it."""
    with pytest.raises(SystemExit):
        main(["compare-revisions", "--help"])
    said = capsys.readouterr().out
    assert "--rounds" in said
    assert "--turns" not in said
