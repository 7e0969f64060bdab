"""The claims about features at the end of a run, and --require."""

from __future__ import annotations

from dataclasses import replace

import pytest

from attention_conformance.conformance.judging.claims import COLUMNS, claim_lines, required, shortcomings
from attention_conformance.conformance.judging.outcomes import Outcome, Result
from attention_conformance.conformance.tests.test_features import results
from attention_conformance.impls.contract import ImplementationError

RIGHT = results(lambda case: Outcome.PASSED)
WITHOUT_WINDOWS = results(lambda case: Outcome.UNSUPPORTED if "window" in case.keywords else Outcome.PASSED)
WRONG_WINDOWS = results(lambda case: Outcome.FAILED if case.name == "window-both" else Outcome.PASSED)


def said(made: list[Result]) -> str:
    """The claim lines as one text."""
    return " ".join(line.strip() for line in claim_lines(made))


def named(made: list[Result], count: int) -> list[Result]:
    """The same results under the names of several implementations, as long as those of the built-in ones."""
    return [replace(r, implementation=f"an-implementation-number-{i:03}") for i in range(count) for r in made]


def test_the_sentence_counts_what_is_kept() -> None:
    """The sentence lists features in order, and the sum of their cases."""
    assert said(RIGHT).startswith("mine on cpu in float32: conformant to core, validation, memory-layouts, scale, ")
    assert said(RIGHT).endswith(f" combinations ({len(RIGHT)} of {len(RIGHT)})")


def test_the_sentence_says_what_is_not_kept() -> None:
    """A failed feature is listed with the number of cases that pass, out of all."""
    assert said(WRONG_WINDOWS).endswith("; not to windows (15 of 16)")


def test_the_sentence_says_what_is_unsupported() -> None:
    """An unsupported feature is listed with the number of its cases."""
    text = said(WITHOUT_WINDOWS)
    assert "; in part combinations (" in text
    assert text.endswith("; unsupported: windows (16)")


def test_a_run_of_some_cases_claims_nothing() -> None:
    """No line is printed where no feature was judged in full and none failed."""
    assert claim_lines([r for r in RIGHT if r.case.startswith("plain")]) == []


def test_a_failure_in_a_run_of_some_cases_is_said() -> None:
    """One failed case is enough to report that a feature is not kept."""
    some = [r for r in WRONG_WINDOWS if r.case.startswith(("plain", "window"))]
    assert "not to windows (1 failed of " in said(some)
    assert said(some).endswith("features not judged in full")


@pytest.mark.parametrize("count", [1, 40])
def test_lines_keep_within_the_columns_of_a_terminal(count: int) -> None:
    """With one plug-in or forty built-ins, no line is longer than 100 characters."""
    for made in (RIGHT, WITHOUT_WINDOWS, WRONG_WINDOWS):
        assert max(map(len, claim_lines(named(made, count)))) <= COLUMNS == 100


def test_many_implementations_are_a_table() -> None:
    """Each implementation has one row: how many features it conforms to, and which it does not."""
    lines = claim_lines(named(WRONG_WINDOWS, 40))
    assert len(lines) == 42
    assert lines[2].split() == [
        "an-implementation-number-000",
        "cpu",
        "22",
        "of",
        "23",
        "not",
        "to",
        "windows",
        "15/16",
    ]


def test_features_are_required_by_name() -> None:
    """Several features can be required in one option, or by repeating the option."""
    assert required(["core,masks", "core"]) == ("core", "masks")


@pytest.mark.parametrize("text", ["maskz", "core,", ""])
def test_an_unknown_feature_is_refused(text: str) -> None:
    """A name that is not a feature is a usage error."""
    with pytest.raises(ImplementationError, match="no such feature"):
        required([text])


def test_an_unknown_feature_is_refused_with_the_nearest() -> None:
    """A misspelt feature is refused with the nearest name."""
    with pytest.raises(ImplementationError, match=r"--require window: no such feature; did you mean windows"):
        required(["core,window"])


def test_a_requirement_that_is_met_says_nothing() -> None:
    """A requirement that is met prints nothing, nor does a feature that fails and is not required."""
    assert shortcomings(("core", "masks"), WRONG_WINDOWS, ()) == []
    assert shortcomings(("all",), RIGHT, ()) == []
    assert shortcomings((), WRONG_WINDOWS, ("jax-jit",)) == []


@pytest.mark.parametrize(
    ("made", "line"),
    [
        (WRONG_WINDOWS, "mine on cpu: windows is required, but is not kept (15 of 16)"),
        (WITHOUT_WINDOWS, "mine on cpu: windows is required, but is unsupported (16 of 16)"),
        (
            [r for r in RIGHT if r.case != "window-both"],
            "mine on cpu: windows is required, but is not judged in full (15 of 16)",
        ),
    ],
)
def test_a_requirement_that_is_not_met_is_named(made: list[Result], line: str) -> None:
    """The line names the required feature and whether it failed, is unsupported or was left out."""
    assert shortcomings(("core", "windows"), made, ()) == [line]
    assert line in shortcomings(("all",), made, ())


def test_a_requirement_of_another_operator_is_not_met() -> None:
    """A required feature that no implementation in the run could have is reported as missing."""
    assert shortcomings(("mha",), RIGHT, ()) == ["mha is required, but no judged implementation could have it"]


def test_a_requirement_is_not_met_where_nothing_was_judged() -> None:
    """A requirement is not met if nothing is installed or nothing was run."""
    assert len(shortcomings(("core",), [], ("jax-jit",))) == 2
    assert shortcomings(("all",), [], ()) == ["all features are required, but nothing was judged"]
