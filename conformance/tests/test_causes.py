"""One cause, one message: which failures are printed in full, which get a line, and in which order."""

from __future__ import annotations

from dataclasses import replace

from attention_conformance.conformance.judging.outcomes import Failure, Outcome, Result
from attention_conformance.conformance.run.causes import (
    FIRST,
    LISTED,
    MESSAGES,
    TOLD,
    UNEXPLAINED,
    Cause,
    Kind,
    Told,
    causes,
    ending,
    in_full,
    wrapped,
)

PEEKS = "Diagnosis: 3 of 4 failures equal “causal lets every row see one key ahead” (as in octo 75)"

WRONG = Result(
    "mine",
    "cpu",
    "float32",
    "plain",
    ("SDPA-1",),
    Outcome.FAILED,
    failure=Failure.VALUE,
    broken="SDPA-1",
    reason="output 3 times the bound, 1 of 2 elements wrong",
    message="mine on cpu in float32, case plain: wrong by value\nWorst:    here\nRerun:    again",
    profile="wide",
    share=3.0,
)


def told(case: str, size: int, *lines: str, **changed: object) -> Told:
    """A failure of a case with a size."""
    return Told(replace(WRONG, case=case, **changed), lines, (size, case))  # type: ignore[arg-type]


def test_failures_with_one_diagnosis_are_one_cause() -> None:
    """The smallest failure of the clause broken most often is printed in full, each other one in a line."""
    (cause,) = causes(
        [
            told("long", 300, PEEKS, broken="SDPA-9"),
            told("tiny", 1, PEEKS, broken="SDPA-16"),
            told("short", 20, PEEKS, broken="SDPA-9"),
        ]
    )
    assert cause.kind is Kind.EXPLAINED
    assert [one.result.case for one in cause.in_full] == ["short"]
    assert cause.others() == [
        "Same cause:",
        "  tiny  SDPA-16  output 3 times the bound, 1 of 2 elements wrong",
        "  long  SDPA-9   output 3 times the bound, 1 of 2 elements wrong",
    ]


def test_what_is_not_explained_comes_first() -> None:
    """Unexplained failures come first, however few, and even next to a known cause of the same implementation."""
    found = causes([told("a", 1, PEEKS), told("b", 2, PEEKS), told("c", 3)])
    assert [cause.kind for cause in found] == [Kind.UNKNOWN, Kind.EXPLAINED]
    assert found[0].title == "1 failure, not explained"


def test_a_wrong_adapter_comes_before_all_else() -> None:
    """What a function computes of other inputs than were meant fails in many ways: only the adapter is to be read."""
    adapter = "Adapter:  it computes in (B, S, H, D): set attention.layout = 'BSHD'"
    found = causes([told("a", 1), told("b", 2, PEEKS), told("c", 3, PEEKS), told("d", 4, adapter)])
    assert [cause.is_adapter for cause in found] == [True, False, False]
    lines = ending(found)
    assert lines[0].startswith("mine on cpu: it computes in (B, S, H, D)")
    assert [line for line in lines if FIRST in line] == [lines[3]]
    assert not [line for line in ending(causes([told("d", 4, adapter)])) if FIRST in line]


def test_two_causes_are_two_messages() -> None:
    """The cause that explains most comes first."""
    other = "Diagnosis: 1 of 4 failures equals “the default scale is missing” (as in a 1)"
    found = causes([told("a", 1, other), told("b", 2, PEEKS), told("c", 3, PEEKS)])
    assert [cause.sentence for cause in found] == [PEEKS[len("Diagnosis: ") :], other[len("Diagnosis: ") :]]


def test_two_implementations_never_share_a_message() -> None:
    """Failures of two implementations or two devices are separate causes."""
    found = causes(
        [told("a", 1, PEEKS), told("b", 2, PEEKS, implementation="other"), told("c", 3, PEEKS, device="cuda")]
    )
    assert [cause.name for cause in found] == ["mine on cpu", "other on cpu", "mine on cuda"]


def test_an_observation_is_no_cause() -> None:
    """The observation that a failure does not repeat says nothing about other failures."""
    alone = "Diagnosis: run again by itself, the result is different: it changes from call to call (SDPA-29)"
    (cause,) = causes([told("a", 1, alone), told("b", 2)])
    assert cause.kind is Kind.UNKNOWN
    assert len(cause.failures) == 2


def test_of_many_unexplained_failures_a_few_are_told() -> None:
    """Of 200 unexplained failures the smallest are printed in full, some get a line, and the rest are counted."""
    (cause,) = causes([told(f"case-{i:03}", i) for i in range(200)])
    assert [one.result.case for one in cause.in_full] == [f"case-{i:03}" for i in range(UNEXPLAINED)]
    head, *lines, last = cause.others()
    assert head == "Also not explained:"
    assert len(lines) == LISTED
    assert last == f"  … and {200 - UNEXPLAINED - LISTED} more; -v shows all messages"


def test_dtypes_of_a_case_share_a_line() -> None:
    """The dtypes of a case share one line, with the numbers of the first."""
    failures = [told("a", 1, PEEKS), *(told("b", 2, PEEKS, dtype=dtype) for dtype in ("float64", "float32"))]
    (cause,) = causes(failures)
    assert cause.others()[1].startswith("  b (float64, float32)  SDPA-1  ")


def test_a_process_that_dies_everywhere_is_one_message() -> None:
    """Equal crashes are one cause, and so are exceptions that differ only in numbers; two exceptions are two causes."""
    crash = "the process was killed by SIGABRT"
    crashes = [told(f"a{i}", i, failure=Failure.CRASHED, reason=crash) for i in range(5)]
    errors = [told(f"b{i}", i, failure=Failure.ERROR, reason=f"ValueError: {i} rows") for i in range(4)]
    other = told("c", 9, failure=Failure.ERROR, reason="ValueError: 3 keys")
    found = causes([*crashes, *errors, other])
    assert [len(cause.failures) for cause in found] == [5, 4, 1]
    assert found[0].sentence == f"5 failures alike: {crash}"
    assert found[1].sentence == "4 failures alike: an exception on a valid input: ValueError: 0 rows"


def test_the_words_of_an_exception_outweigh_a_mistake_that_raises_too() -> None:
    """One exception text is one cause, and is not blamed on a mistake that explains only some of the cases."""
    refusal = "Diagnosis: 1 of 2 failures equals “an error for Sq ≠ Sk” (as in a 1)"
    same = {"failure": Failure.ERROR, "reason": "ValueError: not a multiple of 4"}
    (cause,) = causes([told("a", 1, refusal, **same), told("b", 2, **same)])
    assert cause.kind is Kind.ALIKE


def test_a_looser_profile_is_a_cause_only_if_nothing_else_is_unexplained() -> None:
    """A result that keeps a looser profile joins the unexplained failures if others keep no bound."""
    loose = told("a", 1, meets=("tf32",))
    (cause,) = causes([loose])
    assert cause.sentence == "profile wide is declared; the results keep the bound of tf32"
    (both,) = causes([loose, told("b", 2)])
    assert both.kind is Kind.UNKNOWN


def test_the_end_says_cause_clause_and_script() -> None:
    """The end prints the cause, the clause broken most often and the script of the failure printed in full."""
    script = "Script:   conformance-scripts/mine-float32-short.py"
    found = causes([told("short", 1, PEEKS, script, broken="SDPA-9"), told("b", 2, PEEKS, broken="SDPA-9")])
    assert ending(found) == [
        f"mine on cpu: {PEEKS[len('Diagnosis: ') :]}",
        "  Clause:   SDPA-9 · Causal (MUST)",
        "  Script:   conformance-scripts/mine-float32-short.py",
    ]


def test_without_a_script_the_end_names_the_case() -> None:
    """Where no script was written, because there were too many or the call cannot be one, the case is named."""
    late = told("plain", 1, "Script:   run this case by itself (a run writes the 200 smallest)")
    assert ending(causes([late]))[-1] == "  Smallest: plain in float32: output 3 times the bound, 1 of 2 elements wrong"


def test_of_many_causes_the_first_are_told() -> None:
    """Only the first causes of each implementation are printed, and the end counts the rest."""
    texts = "abcdefghijklmnopqrstuvwxyz"
    many = [told(x, i, failure=Failure.ERROR, reason=f"ValueError: {x}") for i, x in enumerate(texts)]
    found = causes([*many, told("z", 1, implementation="other")])
    assert len(in_full(found)) == MESSAGES + 1
    said = ending(found)
    assert f"mine on cpu: … and {len(texts) - TOLD} more causes, above" in said
    assert sum("alike" in line or "1 failure: " in line for line in said) == TOLD


def test_a_terminal_breaks_sentences_and_no_command() -> None:
    """At 80 columns text wraps between words below its label; a path or command stays on one line, to be copied."""
    rerun = f"Rerun:    attention-conformance check {'x' * 90} --case plain"
    clause = "Worst:    " + "word " * 30
    lines = wrapped(f"{clause}\n{rerun}", 80).splitlines()
    assert lines[-1] == rerun
    assert max(map(len, lines[:-1])) <= 80
    assert lines[1].startswith(" " * 10 + "word")


def test_a_line_is_cut_at_the_width_of_a_terminal() -> None:
    """A line is cut at the width of the terminal, so that each failure keeps one line."""
    cause = Cause(Kind.UNKNOWN, "", tuple(told(f"case-{i}", i, reason="long " * 40) for i in range(9)))
    assert max(map(len, cause.others(80))) == 80
    assert len(cause.others(80)) == len(cause.others())
