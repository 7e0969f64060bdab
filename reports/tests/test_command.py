"""``attention-conformance report``: what it writes, prints and returns."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from attention_conformance.cli import main
from attention_conformance.conformance.judging.outcomes import Outcome
from attention_conformance.reports.tests.files import bench_file, cell, conformance_file, failed, result
from attention_conformance.reports.text import WIDEST, digits, inert, shortened, table


def report(folder: Path, *files: Path) -> str:
    """The page made from the files."""
    assert main(["report", *map(str, files), "-o", str(folder / "out")]) == 0
    return (folder / "out" / "report.md").read_text()


def test_the_page_and_the_tables_are_written_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The last line printed is the page's path."""
    one = conformance_file(tmp_path / "a.jsonl", result("x", "c1"))
    report(tmp_path, one, bench_file(tmp_path / "b.json", cell("x", 128, median_ms=1.5)))
    assert capsys.readouterr().out.splitlines()[-1] == str(tmp_path / "out" / "report.md")
    assert pd.read_csv(tmp_path / "out" / "conformance.csv")["case"].tolist() == ["c1"]
    assert pd.read_csv(tmp_path / "out" / "bench.csv")["median_ms"].tolist() == [1.5]
    assert set(pd.read_csv(tmp_path / "out" / "matrix.csv")["clause"]) >= {"SDPA-1", "SDPA-36"}


def test_the_garbage_collector_is_on_afterwards(tmp_path: Path) -> None:
    """A report that is made in another program's process, here a test's, leaves the process unchanged."""
    report(tmp_path, bench_file(tmp_path / "b.json", cell("x", 128, median_ms=1.5)))
    assert gc.isenabled()
    main(["report", str(tmp_path / "none.json"), "-o", str(tmp_path / "out")])
    assert gc.isenabled()


def test_only_tables_with_records_are_written(tmp_path: Path) -> None:
    """A report on only a run of the bench has no conformance table."""
    report(tmp_path, bench_file(tmp_path / "b.json", cell("x", 128, median_ms=1.5)))
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "bench.csv",
        "report.html",
        "report.md",
        "summary.md",
    ]


def test_the_verdict_comes_first_and_names_who_failed(tmp_path: Path) -> None:
    """The first sentence reports one failure among two implementations."""
    page = report(tmp_path, conformance_file(tmp_path / "a.jsonl", result("x", "c1"), failed("y", "c1")))
    assert page.splitlines()[2].startswith("**Conformance: 1 of 2 implementations failed**: `y`. 2 results: 1 passed")


def test_a_run_without_failures_says_who_deviates(tmp_path: Path) -> None:
    """A recorded deviation fails nothing and is not hidden."""
    deviates = result("y", "c1", Outcome.KNOWN_DEVIATION, reason="the mean of V")
    page = report(tmp_path, conformance_file(tmp_path / "a.jsonl", result("x", "c1"), deviates))
    assert "no new failure in 2 implementations**; 1 has known deviations: `y`" in page


def test_a_run_in_which_nothing_was_executed_is_no_success(tmp_path: Path) -> None:
    """Unsupported everywhere means that nothing is known."""
    page = report(tmp_path, conformance_file(tmp_path / "a.jsonl", result("x", "c1", Outcome.UNSUPPORTED)))
    assert "unknown, as nothing was executed" in page


def test_an_incomplete_run_is_said_first(tmp_path: Path) -> None:
    """A run without a footer is marked in the verdict and in the table of files."""
    path = conformance_file(tmp_path / "a.jsonl", result("x", "c1"))
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    page = report(tmp_path, path)
    assert page.splitlines()[2].startswith("**Incomplete run**: `a.jsonl`")
    assert "**no: cut off**" in page


def test_an_invalid_cell_is_shown_with_its_clause(tmp_path: Path) -> None:
    """It has no number in any table of speed."""
    wrong = cell("bad", 128, "invalid", clause="SDPA-25", reason="64 elements are outside the bound")
    page = report(tmp_path, bench_file(tmp_path / "b.json", cell("good", 128, median_ms=1.5), wrong))
    rows = [line for line in page.splitlines() if line.startswith("| bad")]
    assert [row.split("|")[2].strip() for row in rows[:2]] == ["✗ SDPA-25", "✗ SDPA-25"]
    assert "64 elements are outside the bound" in rows[2]
    assert "1 invalid (`bad`)" in page


def test_each_family_is_counted_by_the_formula_of_its_operator(tmp_path: Path) -> None:
    """Two files may count in two ways; the page names both."""
    one = bench_file(tmp_path / "a.json", cell("x", 128, median_ms=1.5), flops={"sdpa": "old"})
    layer = cell("y", 64, median_ms=1.0, operator="mha", workload="mha-b1h8d64s64", family="mha-b1h8d64s*")
    other = bench_file(tmp_path / "b.json", layer, flops={"sdpa": "new", "mha": "of the layer"})
    page = report(tmp_path, one, other)
    assert [line for line in page.splitlines() if "counted as" in line] == [
        "GFLOP/s, by the median; operations are counted as old or new; the highest is bold.",
        "GFLOP/s, by the median; operations are counted as of the layer; the highest is bold.",
    ]


def test_a_file_that_does_not_say_how_operations_are_counted_has_its_rates(tmp_path: Path) -> None:
    """It is read and shown like any other, also from its model."""
    path = bench_file(tmp_path / "b.json", cell("x", 128, median_ms=1.5))
    document = json.loads(path.read_text())
    del document["attention_conformance"]["flops"]
    path.write_text(json.dumps(document))
    assert "GFLOP/s, by the median; the highest is bold." in report(tmp_path, path)
    assert main(["report", str(path), "-o", str(tmp_path / "m"), "--format", "json"]) == 0
    assert "GFLOP/s, by the median; the highest is bold." in report(tmp_path, tmp_path / "m" / "model.json")


def test_decoding_has_tokens_per_second_by_past_keys(tmp_path: Path) -> None:
    """The open length of its family is the number of past keys."""
    decode = {"operator": "sdpa", "workload": "decode-b1h8d64s1k64", "family": "decode-b1h8d64s1k*"}
    one = cell("x", 64, median_ms=1.0, tokens_per_second=1000.0, **decode)
    page = report(tmp_path, bench_file(tmp_path / "b.json", one, flops={"sdpa": "any"}))
    assert "by past keys k" in page
    assert "Tokens per second" in page
    assert "k=64" in page
    assert "S=64" not in page


def test_environments_are_given_per_file(tmp_path: Path) -> None:
    """Machine, libraries and thread settings are next to the file's name."""
    one = conformance_file(tmp_path / "a.jsonl", result("x", "c1"), not_installed=["jax-jit"])
    page = report(tmp_path, one, bench_file(tmp_path / "b.json", cell("x", 128, median_ms=1.5)))
    assert "`a.jsonl`: spec 1; machine m1; versions numpy 2.0" in page
    assert "threads OMP_NUM_THREADS 2; versions torch 2.5" in page
    assert "Not installed, so not run: jax-jit." in page


def test_a_file_that_cannot_be_used_ends_with_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence on stderr names the file; nothing is written."""
    assert main(["report", str(tmp_path / "no.json"), "-o", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == f"error: {tmp_path / 'no.json'} does not exist\n"
    assert not (tmp_path / "out").exists()


@pytest.mark.slow(2)
def test_no_framework_and_no_implementation_is_imported(tmp_path: Path) -> None:
    """A report needs only files, even where none of the libraries is installed."""
    path = conformance_file(tmp_path / "a.jsonl", result("x", "c1"))
    code = (
        "import sys; from attention_conformance.cli import main;"
        f"main(['report', {str(path)!r}, '-o', {str(tmp_path / 'out')!r}]);"
        "print([m for m in sys.modules if m.split('.')[0] in ('torch', 'jax', 'onnx', 'onnxruntime', 'pytest')"
        " or m.removeprefix('attention_conformance.')"
        ".startswith(('impls.numpy', 'impls.torch', 'impls.jax', 'impls.onnx', 'bench.'))"
        " and m.removeprefix('attention_conformance.bench.')"
        " not in ('analysis', 'clocks', 'records', 'analysis.statistics', 'analysis.fits',"  # types, sums
        " 'workloads', 'workloads.workload', 'workloads.presets', 'workloads.titles')])"  # names of shapes
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("number", "text"),
    [(1234.5, "1234"), (98.76, "98.8"), (3.0, "3.00"), (0.04567, "0.0457"), (0.00000123, "1.2e-06"), (0.0, "0")],
)
def test_numbers_have_three_significant_digits(number: float, text: str) -> None:
    """Whole numbers are not cut, small ones keep their digits."""
    assert digits(number) == text


@pytest.mark.parametrize(
    ("given", "cell"),
    [
        ("a|b\nc <d>", r"a\|b c &lt;d>"),
        ("a\\|b", r"a\\\|b"),
        ("![x](y)", r"!\[x\](y)"),
        ("snake_case, _a_", r"snake_case, \_a\_"),
    ],
)
def test_text_cannot_break_a_table(given: str, cell: str) -> None:
    """Bars and line breaks of a reason stay inside its cell, and nothing of it becomes a picture or emphasis."""
    row = table(pd.DataFrame({"reason": [given]})).splitlines()[-1]
    assert row.removeprefix("|").removesuffix("|").strip() == cell


@pytest.mark.parametrize("text", ["see #12", "org/name#12", "GH-12", "https://a.b/c", "www.a.b", "WWW.a.b", "@name"])
def test_text_becomes_no_link_by_itself(text: str) -> None:
    """Text that GitHub turns into a link or a mention is broken by a zero-width space, and reads as before."""
    assert inert(text) != text
    assert inert(text).replace("\u200b", "") == text


def test_other_text_stays_as_it_is() -> None:
    """A sentence with a number and a colon is unchanged."""
    assert inert("case #a: 3 of 4 (S = 128): see wwwa") == "case #a: 3 of 4 (S = 128): see wwwa"


def test_a_long_reason_is_shortened_in_the_page() -> None:
    """A library's message of many lines does not widen the table; the CSV keeps it."""
    assert shortened("short") == "short"
    assert len(shortened("x" * 1000)) == WIDEST
