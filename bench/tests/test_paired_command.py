"""Options of ``compare-revisions``: meaningless values are refused before a revision is checked out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from attention_conformance.bench.paired import command
from attention_conformance.bench.paired.measure import Plan
from attention_conformance.cli import main


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--limit", "inf"), "more than 0, and finite"),
        (("--limit", "0"), "more than 0, and finite"),
        (("--precision", "nan"), "more than 0, and finite"),
        (("--least", "1"), "more than 1, and finite"),
        (("--least", "0"), "more than 1, and finite"),
        (("--rounds", "2"), "at least 3"),
        (("--pairs", "0"), "at least 1"),
    ],
)
def test_a_number_that_makes_no_sense_is_refused(
    words: tuple[str, str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message names the option."""
    with pytest.raises(SystemExit) as ended:
        main(["compare-revisions", "--base", "HEAD", *words])
    assert ended.value.code == 2
    assert f"argument {words[0]}: {words[1]}: expected {expected}" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--json", "--markdown"])
def test_a_file_in_a_folder_that_there_is_not_is_refused(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The refusal comes before any measurement."""
    assert main(["compare-revisions", "--base", "nowhere", option, str(tmp_path / "none" / "out")]) == 2
    assert f"{option} {tmp_path / 'none' / 'out'}: there is no folder {tmp_path / 'none'}" in capsys.readouterr().err


class _Asked(Exception):
    """The plan and the seed of a comparison that is not run."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that returns the plan and the seed for options."""

    def comparison(base: Any, new: Any, *given: Any) -> None:
        raise _Asked(*given)

    monkeypatch.setattr(command, "PairedComparison", comparison)

    def ask(*words: str) -> tuple[Plan, int]:
        with pytest.raises(_Asked) as found:
            main(["compare-revisions", "--base", ".", *words])
        plan, seed = found.value.args
        return plan, seed

    return ask


@pytest.mark.parametrize(
    ("words", "pairs"),
    [
        ((), (6, 24)),
        (("--most-pairs", "3"), (3, 3)),
        (("--pairs", "30"), (30, 30)),
        (("--pairs", "4", "--most-pairs", "8"), (4, 8)),
    ],
)
def test_no_more_pairs_than_are_asked_for_are_made(asked: Any, words: tuple[str, ...], pairs: tuple[int, int]) -> None:
    """The default for the least number is never above the most."""
    plan, _ = asked(*words)
    assert (plan.pairs, plan.most_pairs) == pairs


def test_every_comparison_has_a_seed_of_its_own(asked: Any) -> None:
    """A comparison cannot use what an earlier one left on the disk."""
    assert asked()[1] != asked()[1]
