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


def test_the_published_table_of_speed_is_made_from_the_published_file(tmp_path: Path) -> None:
    """The table beside the bench file is the one that it gives."""
    written(Model(read([PUBLISHED / "bench.json"]), clauses()), tmp_path, ["csv"])
    assert (tmp_path / "bench.csv").read_text() == (PUBLISHED / "bench.csv").read_text()


def test_the_published_run_is_complete_and_has_no_failure() -> None:
    """What is published was run to its end, and everything that deviates is in the ledger."""
    records = read([PUBLISHED / "conformance.jsonl"])
    assert all(source.complete for source in records.sources)
    assert not [result for result in records.results if result.outcome.value == "failed"]
