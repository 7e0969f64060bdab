"""The study of bug reports: a cause is named by its own words, and a function that fails no case is not counted."""

from __future__ import annotations

import re

from studies import bug_reports
from studies.bug_reports import REPORTS, counted, graded, table
from studies.causes import CAUSES


def test_what_names_no_cause_is_wrong() -> None:
    """It is wrong even if it is true of another function."""
    report = next(each for each in REPORTS if each.function == "lse_base_two")
    row = graded(report, ["“lse in base 2”", "“key lengths ignored”"], 6)
    assert (row["named"], row["wrong"]) == (["“lse in base 2”"], ["“key lengths ignored”"])
    assert counted([row]) == (1, 1, 1, 2)


def test_a_function_that_fails_no_case_is_not_counted() -> None:
    """It shows nothing."""
    assert counted([{"function": "a", "failed": 0, "named": [], "wrong": []}]) == (0, 0, 0, 0)


def test_reports_are_of_no_earlier_set() -> None:
    """Each has a function, a thread that no cause of the other sets has, and words that are not in all explanations."""
    threads = {report.thread for report in REPORTS}
    assert len(threads) == len(REPORTS) >= 20
    assert not threads & {cause.where for cause in CAUSES}
    assert all(hasattr(bug_reports, report.function) for report in REPORTS)
    assert not [report for report in REPORTS if re.search(report.says, "“inputs of unequal dtype accepted”")]


def test_both_runs_are_on_the_page() -> None:
    """The first run's diagnosis stays next to the present one."""
    row = {"function": "lse_base_two", "failed": 6, "named": [], "wrong": ["“another”"]}
    now = {"function": "lse_base_two", "failed": 6, "named": ["“lse in base 2”"], "wrong": []}
    text = table(
        {"first": [row], "functions": [now], "machine": {}, "threads": 1, "load_average": [1.0, 1.0], "written": "now"}
    )
    assert "| wrong: “another” | “lse in base 2” |" in text
    assert "| at first | 0 of 1 (0%) | 1 of 1 (100%) |" in text
