"""The published report is what its result files give."""

from __future__ import annotations

import html
from pathlib import Path

from bench.fits import Growth
from conformance.clauses import clauses
from reports.compare.command import records as of_folder
from reports.compare.comparing import compare
from reports.html import changes
from reports.html.page import page as html_page
from reports.markdown import page
from reports.model import Model
from reports.outputs import written
from reports.reading import read
from reports.records import Records
from reports.tests import pages

PUBLISHED = Path(__file__).parents[1] / "published"

#: What is published: results, times, and the kill table.
FILES = [PUBLISHED / name for name in ("conformance.jsonl", "bench.json", "bench-half.json", "faults.json")]

#: An earlier run of some of the cells, and earlier results.
BASE = PUBLISHED / "base"


def published() -> Model:
    """What the published files give."""
    records = read(FILES)
    return Model(records, clauses(), compare(of_folder(str(BASE)), records))


def test_the_published_page_is_made_from_the_published_files() -> None:
    """Made again from the result files beside it, the page is the same."""
    assert page(published()) == (PUBLISHED / "report.md").read_text(encoding="utf-8")


def test_the_published_tables_are_made_from_the_published_files(tmp_path: Path) -> None:
    """So are the short form for a CI job and every table that is published."""
    written(published(), tmp_path, ["csv", "markdown"])
    for name in ("summary.md", "answers.csv", "matrix.csv", "bench.csv"):
        assert (tmp_path / name).read_bytes() == (PUBLISHED / name).read_bytes()


def test_the_published_html_page_says_what_got_worse_since_the_base_run() -> None:
    """What a comparison with the base run finds, or that there is none."""
    lead = html.escape(changes.worse(published().since).lead)
    assert f'<p class="lead">{lead}</p>' in (PUBLISHED / "report.html").read_text(encoding="utf-8")


def test_the_published_html_page_has_the_data_of_the_published_files() -> None:
    """The numbers behind its tables and plots are those that the files give now."""
    kept = (PUBLISHED / "report.html").read_text(encoding="utf-8")
    assert pages.unpacked(html_page(published())) == pages.unpacked(kept)


def test_the_published_run_is_complete_and_has_no_failure() -> None:
    """What is published was run to its end, and everything that deviates is in the ledger."""
    records = read([PUBLISHED / "conformance.jsonl"])
    assert all(source.complete for source in records.sources)
    assert not [result for result in records.results if result.outcome.value == "failed"]


def test_whose_memory_is_quadratic_is_as_their_code_says() -> None:
    """Who writes all scores out is found to hold them, who works in blocks is not, and neither from short calls."""
    records = read([PUBLISHED / "bench.json"])
    found = {(one.implementation, one.family): one.growth for one in Model(records, clauses()).memories}
    families = ("prefill-b1h8d64s*", "prefill-b1h8d64s*-causal")
    short = Records((), (), tuple(one for one in records.cells if one["family"] in families and one["S"] <= 1024))
    for name in ("numpy-eager", "torch-eager", "onnx-attention23", "torch-sdpa-math", "jax-jit"):
        assert [found[name, family] for family in families] == [Growth.QUADRATIC] * 2
    for name in ("numpy-tiled", "jax-tiled", "torch-sdpa-flash", "torch-sdpa"):
        assert [found[name, family] for family in families] == [Growth.LESS] * 2
    assert {one.growth for one in Model(short, clauses()).memories} == {Growth.UNCLEAR}
