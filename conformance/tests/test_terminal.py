"""The table at the end of a run."""

from __future__ import annotations

from dataclasses import replace

from attention_conformance.conformance.judging.outcomes import Failure, Outcome, Result
from attention_conformance.conformance.run.progress import Spent
from attention_conformance.conformance.run.terminal import executed, meets_text, summary, time_lines

PASSED = Result(
    "mine",
    "cpu",
    "float16",
    "plain",
    ("SDPA-1",),
    Outcome.PASSED,
    profile="storage",
    meets=("fused", "storage"),
    share=0.5,
)
WORSE = replace(PASSED, case="mask", meets=("storage",), share=0.75)
FAILED = replace(PASSED, case="bias", outcome=Outcome.FAILED, failure=Failure.VALUE, meets=(), share=9.0)
LACKS = replace(PASSED, case="window", outcome=Outcome.UNSUPPORTED, meets=(), share=None)


def test_a_row_counts_the_outcomes() -> None:
    """A table has one row per implementation and device, with the number of each outcome."""
    head, _, *rows = summary([PASSED, WORSE, FAILED, LACKS], {}, width=200).splitlines()
    assert "  known deviation  " in head
    row = rows[-1].split()
    assert row[:7] == ["mine", "cpu", "2", "1", "0", "0", "1"]


def test_the_worst_share_is_of_what_passed() -> None:
    """A failure does not count in the worst share, as it says nothing about correct results."""
    assert " 0.75 " in summary([PASSED, WORSE, FAILED], {})


def test_a_dtype_meets_what_all_its_results_meet() -> None:
    """A single result that keeps only the loosest bound decides what the dtype meets."""
    assert meets_text([PASSED]) == "float16 fused"
    assert meets_text([PASSED, WORSE]) == "float16 storage"


def test_a_failure_of_accuracy_decides_what_a_dtype_meets() -> None:
    """A result outside the declared profile keeps a looser one or none; another mistake says nothing of profiles."""
    looser = replace(FAILED, broken="SDPA-25", meets=("storage",))
    assert meets_text([PASSED, looser]) == "float16 storage"
    assert meets_text([PASSED, replace(looser, meets=())]) == "float16 none"
    assert meets_text([PASSED, replace(FAILED, broken="SDPA-6")]) == "float16 fused"


def test_what_is_not_installed_is_listed_by_package() -> None:
    """Implementations without their package are listed together, below the table."""
    lines = summary([PASSED], {"jax-jit": ("jax",), "jax-nn": ("jax",), "ort-mha": ("onnxruntime",)}).splitlines()
    assert lines[-2:] == ["not installed: jax (jax-jit, jax-nn)", "not installed: onnxruntime (ort-mha)"]


def test_an_empty_run_has_an_empty_table() -> None:
    """Nothing judged and nothing installed is still a table."""
    assert "not installed: jax (jax-jit)" in summary([], {"jax-jit": ("jax",)})


def test_unsupported_is_not_executed() -> None:
    """Only results of an implementation that ran count as executed."""
    assert executed([PASSED, FAILED, LACKS]) == 2


def test_a_narrow_terminal_has_no_columns_of_nothing() -> None:
    """Outcomes without results are left out where the table is wider than the terminal; ``failed`` never is."""
    wide, narrow = (summary([PASSED, LACKS], {}, width).splitlines()[0] for width in (200, 80))
    assert "known deviation" in wide
    assert "known deviation" not in narrow
    assert "failed" in narrow
    assert len(narrow) <= 80


def test_the_whole_of_the_time_is_accounted_for() -> None:
    """Time is split into calls, their surroundings, references, judging and other work; the rest has a name too."""
    spent = Spent(2, seconds=20.0, calls=8.0, references=7.0)
    timed = replace(PASSED, run_seconds=2.0, prepare_seconds=1.0)
    line = time_lines([timed], 30.0, {"mine": spent}, {"importing and probing": 3.0, "diagnosis": 0.4})
    assert line == (
        "1 results in 30 s: 1 s preparing, 2 s in first calls, 5 s around them, 7 s references and bounds, 5 s judging,"
        " 3 s importing and probing, 7 s collecting and reporting"
    )


def test_parts_of_a_run_that_went_on_at_the_same_time_leave_no_rest() -> None:
    """No part of the time is printed as negative."""
    line = time_lines([PASSED], 5.0, {"a": Spent(1, seconds=4.0), "b": Spent(1, seconds=4.0)}).splitlines()[0]
    assert line == "1 results in 5 s: 0 s preparing, 0 s in first calls, 8 s judging"


def test_what_each_implementation_took_is_a_table_where_there_are_several() -> None:
    """A single implementation has one line; two have a row each and their sum."""
    one = Spent(2, 1.0, 3.0, 0.5)
    assert len(time_lines([PASSED], 1.0, {"mine": one}).splitlines()) == 1
    head, *rows = time_lines([PASSED, WORSE], 1.0, {"mine": one, "other": Spent(1, 1.0, 4.0, 0.0)}).splitlines()[1:]
    assert head.split("  ")[0] == "implementation"
    assert [row.split()[0] for row in rows] == ["other", "mine", "all"]
    assert rows[1].split() == ["mine", "2", "2", "3.5", "0.5"]
