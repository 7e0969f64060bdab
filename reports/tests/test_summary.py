"""The short page of a job's summary."""

from __future__ import annotations

from pathlib import Path

from attention_conformance.conformance.judging.outcomes import Outcome
from attention_conformance.conformance.spec.clauses import clauses
from attention_conformance.reports.html import page as html
from attention_conformance.reports.html.conformance import differences, implementations
from attention_conformance.reports.input.read import read
from attention_conformance.reports.markdown import page, summary
from attention_conformance.reports.model.model import Model
from attention_conformance.reports.tests.files import (
    bench_file,
    bench_run,
    cell,
    conformance_file,
    failed,
    result,
    steady,
    timed,
)


def made(*files: Path) -> str:
    """The summary of some files."""
    return summary.page(Model(read(files), clauses()))


def test_the_verdict_is_first_then_what_failed_then_folded_tables(tmp_path: Path) -> None:
    """A reader of three lines knows what failed where."""
    text = made(conformance_file(tmp_path / "c.jsonl", result("x", "c1"), failed("y", "c2", reason="twice the bound")))
    assert text.index("1 of 2 implementations failed") < text.index("twice the bound") < text.index("<details>")


def test_many_failures_are_counted_not_listed(tmp_path: Path) -> None:
    """Ten are shown, and the number of the others is given."""
    text = made(conformance_file(tmp_path / "c.jsonl", *(failed("y", f"case{at}") for at in range(25))))
    assert "15 more failed" in text


def test_the_fastest_of_a_workload_are_named(tmp_path: Path) -> None:
    """Three are named with their milliseconds, best first; a cell without a timing is not."""
    times = {"a": 4.0, "b": 1.0, "c": 2.0, "d": 3.0}
    cells = [cell(name, 128, median_ms=ms) for name, ms in times.items()]
    text = made(bench_file(tmp_path / "b.json", *cells, cell("e", 128, "skipped", reason="too long")))
    assert "b 1.00, c 2.00, d 3.00" in text
    assert "e " not in text.partition("b 1.00")[2].partition("\n")[0]


def test_times_of_a_device_by_different_clocks_are_said_to_be(tmp_path: Path) -> None:
    """The summary says so, and the page next to its plot and its table; for one clock there is no note."""
    clocks_of = {"a": "device events behind a held queue", "b": "wall"}
    cells = [timed(name, 128, steady(1e-3), device="cuda", clock=clock) for name, clock in clocks_of.items()]
    said = "a by the device's clock, without the launch; b by the host's clock, launch included"
    model = Model(read([bench_run(tmp_path / "b.json", *cells)]), clauses())
    assert said in summary.page(model)
    assert html.page(model).replace("&#39;", "'").count(said) == 2
    assert "different clocks" not in made(bench_run(tmp_path / "one.json", cells[0]))


def test_a_summary_stays_within_what_fits(tmp_path: Path) -> None:
    """Parts that would make it too long are left out, with a note."""
    results = [failed(f"implementation-{at}", "c", reason="x" * 130) for at in range(400)]
    text = made(conformance_file(tmp_path / "c.jsonl", *results))
    assert len(text) < 65_536
    assert "is left out here" in text


def test_an_outcome_is_said_in_the_terminal_s_words(tmp_path: Path) -> None:
    """Pages use them everywhere; the tables that programs read keep the name of the result files."""
    deviating = result("x", "c1", Outcome.KNOWN_DEVIATION, reason="as recorded")
    model = Model(read([conformance_file(tmp_path / "c.jsonl", deviating)]), clauses())
    for text in (summary.page(model), page.page(model)):
        assert "1 known deviation" in text
        assert "known-deviation" not in text
    shown = [implementations(model.implementations), differences(model.differences)]
    texts = [cell.text for table in shown for row in table.rows for cell in row]
    assert "≠ known deviation" in texts
    assert not any("known-deviation" in text for text in (*texts, *(c.title for t in shown for c in t.columns)))


def test_an_envelope_is_one_readable_line_of_each_implementation(tmp_path: Path) -> None:
    """Every page has it, with its disagreements; it is not among the settings, and not in Python's syntax."""
    header = [
        {
            "implementation": "x",
            "text": "float16; D = Dv in 64, 128",
            "source": "declared",
            "disagreements": ["differs"],
        },
        {"implementation": "<y>", "text": "B = 1", "source": "static axes", "refusals": ["no"]},
    ]
    model = Model(read([conformance_file(tmp_path / "c.jsonl", result("x", "c1"), envelopes=header)]), clauses())
    for text in (summary.page(model), page.page(model)):
        assert "* `x`: float16; D = Dv in 64, 128; differs (declared)\n" in text
        assert "* `<y>`: B = 1 (static axes)" in text
    shown = html.page(model)
    assert "<li><code>x</code>: float16; D = Dv in 64, 128; differs (declared)</li>" in shown
    assert "<li><code>&lt;y&gt;</code>: B = 1 (static axes)</li>" in shown
    for text in (summary.page(model), page.page(model), shown):
        assert "'implementation'" not in text
        assert "envelopes: [" not in text


def test_an_envelope_that_is_no_envelope_is_left_out(tmp_path: Path) -> None:
    """A report of a report may say anything there."""
    model = Model(read([conformance_file(tmp_path / "c.jsonl", result("x", "c1"))]), clauses())
    for wrong in ("text", [1], [{"implementation": "x"}], {"x": 1}):
        model.records.sources[0].environment["envelopes"] = wrong
        assert "Envelopes of the implementations" not in page.page(model)


def test_a_known_deviation_of_the_bench_is_no_invalid_cell(tmp_path: Path) -> None:
    """It is counted and named separately, with its clause in place of its time, and its record among the reasons."""
    one = cell("x", 128, "known-deviation", clause="SDPA-10", reason="no kernel [the-record]")
    model = Model(read([bench_file(tmp_path / "b.json", cell("y", 128, median_ms=1.0), one)]), clauses())
    whole = page.page(model)
    assert "0 invalid. 1 known deviation (`x`)." in whole
    assert "≠ SDPA-10" in whole
    assert "| known deviation | SDPA-10" in whole
    assert r"no kernel \[the-record\]" in whole
    assert "1 known deviation (x)" in html.page(model)
