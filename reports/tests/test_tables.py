"""Tables: what is counted where."""

from __future__ import annotations

from attention_conformance.conformance.judging.outcomes import Outcome, Result
from attention_conformance.conformance.spec.clauses import clauses
from attention_conformance.reports.model import tables
from attention_conformance.reports.tests.files import cell, failed, result


def cells_of(*results: Result) -> dict[tuple[str, str], str]:
    """The symbols of the matrix by implementation and clause number."""
    table = tables.matrix(tables.conformance(results), clauses())
    return {(row["implementation"], row["clause"]): row["cell"] for row in table.to_dict("records")}


def test_every_testable_clause_has_a_cell() -> None:
    """The matrix covers the spec, not only what ran; implementation-defined clauses are not in it."""
    found = cells_of(result("x", "c1"))
    assert found["x", "SDPA-1"] == "✓"
    assert found["x", "SDPA-36"] == tables.NOT_RUN
    assert ("x", "SDPA-37") not in found


def test_a_failure_counts_at_the_clause_it_broke_alone() -> None:
    """The other clauses of a failed case are neither passed nor failed by it."""
    found = cells_of(result("x", "c1"), failed("x", "c2", broken="SDPA-9"), failed("x", "c3", broken="SDPA-27"))
    assert found["x", "SDPA-9"] == "✗1/2"
    assert found["x", "SDPA-27"] == "✗1/1"
    assert found["x", "SDPA-1"] == "✓"


def test_a_failure_without_a_named_clause_counts_at_all_of_its_clauses() -> None:
    """A failure is never lost."""
    found = cells_of(result("x", "c1", Outcome.FAILED))
    assert found["x", "SDPA-1"] == found["x", "SDPA-9"] == "✗1/1"


def test_the_most_serious_outcome_decides_the_symbol() -> None:
    """A failure is not hidden by deviations, a deviation not by advice; unsupported cases are not executed ones."""
    deviates = result("x", "c2", Outcome.KNOWN_DEVIATION)
    advised = result("x", "c3", Outcome.ADVISORY)
    unsupported = result("x", "c4", Outcome.UNSUPPORTED)
    assert cells_of(result("x", "c1"), deviates, advised, unsupported)["x", "SDPA-1"] == "≠1/3"
    assert cells_of(result("x", "c1"), advised, unsupported)["x", "SDPA-1"] == "!1/2"
    assert cells_of(unsupported)["x", "SDPA-1"] == "–"
    assert cells_of(failed("x", "c5", "SDPA-1"), deviates)["x", "SDPA-1"] == "✗1/2"


def test_side_effects_are_text() -> None:
    """They are joined like clauses and profiles, not in Python's syntax."""
    frame = tables.conformance(
        [result("x", "c1", side_effects=("prints: 1 byte", "threads: 1 → 2")), result("x", "c2")]
    )
    assert frame["side_effects"].tolist() == ["prints: 1 byte; threads: 1 → 2", ""]


def test_profiles_met_are_those_of_every_passed_case() -> None:
    """One case that keeps only a looser bound decides, dtype by dtype."""
    frame = tables.conformance(
        [
            result("x", "c1", share=0.5, meets=("wide", "fused", "storage"), dtype="float16"),
            result("x", "c2", share=0.9, meets=("storage",), dtype="float16"),
            result("x", "c3", share=0.1, meets=("wide",)),
        ]
    )
    row = tables.implementations(frame).iloc[0]
    assert row["profiles met"] == "float16 storage, float32 wide"
    assert row["worst share"] == 0.9


def test_an_infinite_share_of_a_failure_is_kept_apart() -> None:
    """The worst share is over the cases that passed; the failure has its own row."""
    frame = tables.conformance([result("x", "c1", share=0.5), failed("x", "c2", share=float("inf"))])
    row = tables.implementations(frame).iloc[0]
    assert (row["passed"], row["failed"], row["worst share"]) == (1, 1, 0.5)


def test_devices_are_rows_of_their_own() -> None:
    """Results on one device say nothing about another."""
    frame = tables.conformance([result("x", "c1"), failed("x", "c1", device="cuda")])
    table = tables.implementations(frame)
    assert list(zip(table["device"], table["failed"], strict=True)) == [("cpu", 0), ("cuda", 1)]


def test_differences_are_grouped_by_clause_and_reason() -> None:
    """Deviations with one reason are one row; failures of one kind too, with the first reason and a count."""
    frame = tables.conformance(
        [
            result("x", "c1", Outcome.KNOWN_DEVIATION, broken="SDPA-15", reason="the mean of V"),
            result("x", "c2", Outcome.KNOWN_DEVIATION, broken="SDPA-15", reason="the mean of V", dtype="float16"),
            result("x", "c3", Outcome.KNOWN_DEVIATION, broken="SDPA-15", reason="NaN"),
            failed("y", "c1", "SDPA-9", "2.0× the bound"),
            failed("y", "c2", "SDPA-9", "3.0× the bound"),
        ]
    )
    table = tables.differences(frame)
    assert list(zip(table["clause"], table["implementation"], table["what it does"], table["cases"], strict=True)) == [
        ("SDPA-9", "y", "2.0× the bound (and 1 more)", 2),
        ("SDPA-15", "x", "the mean of V", 2),
        ("SDPA-15", "x", "NaN", 1),
    ]
    assert list(table["dtypes"]) == ["float32", "float32 float16", "float32"]


def test_lengths_are_columns_and_the_fastest_at_the_longest_is_first() -> None:
    """An implementation without a timing at the longest length comes after those with one."""
    timed = [cell("slow", 128, median=2e-3), cell("slow", 256, median=9e-3), cell("fast", 256, median=1e-3)]
    frame = tables.bench([*timed, cell("short", 128, median=1e-3), cell("short", 256, "skipped")])
    table = tables.by_length(frame, "median_ms")
    assert list(table.index) == ["fast", "slow", "short"]
    assert [str(length) for length in table.columns] == ["128", "256"]
    assert table.loc["slow", 256] == 9.0


def test_untimed_cells_of_one_kind_of_reason_are_one_row() -> None:
    """The lengths are listed, with the first reason."""
    over = "over the time budget: predicted {} s"
    left = [cell("x", 128, "skipped", reason=over.format(6)), cell("x", 256, "skipped", reason=over.format(24))]
    table = tables.untimed(tables.bench(left))
    assert list(zip(table["S"], table["reason"], strict=True)) == [("128, 256", "over the time budget: predicted 6 s")]
