"""The published report is what its result files give."""

from __future__ import annotations

from pathlib import Path

from conformance.clauses import clauses
from reports.markdown import page
from reports.model import Model
from reports.outputs import written
from reports.reading import read

PUBLISHED = Path(__file__).parents[1] / "published"


def test_the_published_page_is_made_from_the_published_files() -> None:
    """Made again from the result files beside it, the page is the same."""
    records = read([PUBLISHED / "conformance.jsonl", PUBLISHED / "bench.json", PUBLISHED / "faults.json"])
    assert page(Model(records, clauses())) == (PUBLISHED / "report.md").read_text(encoding="utf-8")


def test_the_published_tables_are_made_from_the_published_files(tmp_path: Path) -> None:
    """So are the short form for a CI job and every table that is published."""
    records = read([PUBLISHED / "conformance.jsonl", PUBLISHED / "bench.json", PUBLISHED / "faults.json"])
    written(Model(records, clauses()), tmp_path, ["csv", "markdown"])
    for name in ("summary.md", "answers.csv", "matrix.csv", "bench.csv"):
        assert (tmp_path / name).read_bytes() == (PUBLISHED / name).read_bytes()


def test_the_published_run_is_complete_and_has_no_failure() -> None:
    """What is published was run to its end, and everything that deviates is in the ledger."""
    records = read([PUBLISHED / "conformance.jsonl"])
    assert all(source.complete for source in records.sources)
    assert not [result for result in records.results if result.outcome.value == "failed"]
