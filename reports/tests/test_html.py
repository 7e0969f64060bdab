"""The HTML page without a browser: what is in the file, and what is not."""

from __future__ import annotations

import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from attention_conformance.cli import main
from attention_conformance.conformance.spec.clauses import clauses
from attention_conformance.reports.compare.compare import compare
from attention_conformance.reports.html import conformance, document, speed
from attention_conformance.reports.html.page import page
from attention_conformance.reports.html.views import number, size
from attention_conformance.reports.input.read import read
from attention_conformance.reports.markdown import page as markdown
from attention_conformance.reports.model.model import Model
from attention_conformance.reports.tests import pages
from attention_conformance.reports.tests.files import (
    bench_file,
    bench_run,
    cell,
    conformance_file,
    failed,
    fingerprint,
    peak,
    result,
    timed,
)


class Elements(HTMLParser):
    """The elements of a page: the name of each, and its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep an element."""
        self.found.append((tag, dict(attrs)))


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of the small run."""
    return pages.written(tmp_path_factory.mktemp("page"), base=True).read_text(encoding="utf-8")


def test_the_page_needs_no_other_file_and_no_network(text: str) -> None:
    """No element loads anything, and the policy forbids it to scripts."""
    for tag, attributes in Elements(text).found:
        assert not {"src", "srcset", "data", "action", "poster"} & attributes.keys(), tag
        assert tag != "link"
        assert (attributes.get("href") or "#").startswith("#")
    assert "default-src 'none'" in text
    assert "unsafe-eval" not in text


def test_a_name_with_markup_is_shown_and_not_run(text: str) -> None:
    """It is escaped wherever it is written, in attributes too."""
    assert pages.HOSTILE not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert pages.HOSTILE in pages.unpacked(text)


def test_only_scripts_with_a_known_hash_run(text: str) -> None:
    """One of them is Vega, which is unpacked for the first plot."""
    policy = re.search(r"script-src ([^;]*);", text)
    assert policy
    assert policy[1].count("sha256-") == len(re.findall(r"<script>", text)) + 1
    assert "unsafe-inline" not in policy[1]
    assert "vegaEmbed" in pages.unpacked(text, "vega")


def test_the_same_run_gives_the_same_page(tmp_path: Path) -> None:
    """They are equal byte by byte, so that a published page can be checked."""
    model = pages.model(tmp_path)
    assert page(model) == page(model)


def test_the_data_are_those_of_the_tables(text: str, tmp_path: Path) -> None:
    """Every result and every cell is there, with its numbers."""
    data = json.loads(pages.unpacked(text))
    frames = data["frames"]
    assert frames["conformance"]["length"] == len(pages.results())
    assert frames["bench"]["length"] == len(pages.cells())
    shares = pages.model(tmp_path).results["share"]
    assert [value for value in frames["conformance"]["columns"]["share"] if value is not None] == list(shares.dropna())
    assert data["clauses"]["SDPA-15"][0] == "Fully masked rows"


def test_numbers_that_json_has_not_are_kept() -> None:
    """Missing ones are null, infinite ones text, texts are stored once."""
    frame = pd.DataFrame({"x": [1.0, float("nan"), float("inf")], "name": ["a", None, "a"]})
    data = json.loads(pages.plain(document.packed({"f": frame})))["frames"]["f"]
    assert data["columns"] == {"x": [1, None, "inf"], "name": {"codes": [0, 1, 0], "texts": ["a", ""]}}


def test_messages_are_limited_and_the_first_of_each_kind_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Messages that are left out are counted, and a note replaces them."""
    monkeypatch.setattr(document, "MESSAGES", 250)
    found = [failed("x", f"c{at}", f"SDPA-{1 + at // 3}", message="m" * 100) for at in range(6)]
    model = Model(read([conformance_file(tmp_path / "a.jsonl", *found)]), clauses())
    frame, left_out = document.limited(model.results)
    kept = frame["message"] == "m" * 100
    assert left_out == 4
    assert frame[kept]["broken"].tolist() == ["SDPA-1", "SDPA-2"]
    assert set(frame[~kept]["message"]) == {document.LEFT_OUT}
    assert "4 messages are left out" in page(model)


def test_a_message_that_is_cut_says_so(tmp_path: Path) -> None:
    """It says so at its end; one that just fits is whole."""
    found = [failed("x", f"c{more}", message="m" * (document.MESSAGE + more)) for more in (0, 1)]
    model = Model(read([conformance_file(tmp_path / "a.jsonl", *found)]), clauses())
    whole, cut = document.limited(model.results)[0]["message"]
    assert whole == "m" * document.MESSAGE
    assert cut == whole + document.CUT


def test_the_line_at_the_measured_peak_is_operations_by_peak(tmp_path: Path) -> None:
    """The helper's 1e9 operations take 10 ms at 1e11 a second; without a measured peak there is no such line."""
    model = Model(read([bench_run(tmp_path / "b.json", *pages.cells(), peaks=[peak(flops=1e11)])]), clauses())
    found = speed.frame(model)
    guides = speed.guides(found, speed.peaks(model.records))
    line = guides[guides["name"] == "at the measured peak"]
    assert line["value"].tolist() == [10.0] * 4
    assert "at the measured peak" not in set(speed.guides(found, {})["name"])


def test_the_steep_line_has_the_slope_of_the_square(tmp_path: Path) -> None:
    """From 512 to 4096 it rises by 64, above every measured point."""
    found = speed.frame(pages.model(tmp_path))
    guides = speed.guides(found, {})
    steep = guides[(guides["name"] == speed.STEEP) & (guides["quantity"] == "milliseconds")]
    assert steep["value"].iloc[-1] / steep["value"].iloc[0] == pytest.approx(64)
    assert steep["value"].iloc[-1] > 1e3 * found["median"].max()


def test_the_frontier_is_what_nothing_beats_in_both(tmp_path: Path) -> None:
    """A slower and less accurate cell is not on it; a slower and more accurate one is."""
    told = {"family": "prefill-b1h8d64s*"}
    one = [cell(name, 128, median_ms=ms, **told) for name, ms in (("a", 1.0), ("b", 2.0), ("c", 3.0))]
    path = bench_file(tmp_path / "b.json", *one)
    document = json.loads(path.read_text())
    for benchmark, share in zip(document["benchmarks"], (0.5, 0.6, 0.1), strict=True):
        benchmark["extra_info"]["share"] = share
    path.write_text(json.dumps(document))
    found = speed.frame(Model(read([path]), clauses()))
    assert found.loc[found["optimal"], "implementation"].tolist() == ["a", "c"]


def test_accuracy_is_over_the_cases_that_passed(tmp_path: Path) -> None:
    """A failed case is not counted; the worst passed one is named."""
    found = [result("x", f"c{at}", share=share, profile="wide") for at, share in enumerate((0.1, 0.2, 0.9))]
    found.append(failed("x", "bad", share=5.0, profile="wide"))
    model = Model(read([conformance_file(tmp_path / "a.jsonl", *found)]), clauses())
    (row,) = conformance.shares(model.results).to_dict("records")
    assert (row["worst"], row["median"], row["case"], row["cases"]) == (0.9, 0.2, "c2", 3)


def test_an_implementation_that_lacks_a_feature_conforms(tmp_path: Path) -> None:
    """Unsupported cases next to passed ones change no verdict, and a failure outweighs both."""
    table = conformance.implementations(pages.model(tmp_path).implementations)
    assert {row[0].text: row[2].text for row in table.rows} == {
        "quick": "✓ conforms",
        "square": "✗ fails",
        pages.HOSTILE: "✓ conforms",
    }


def test_a_symbol_has_words_for_a_screen_reader(tmp_path: Path) -> None:
    """✗2/3 is read by its meaning."""
    (table,) = conformance.matrices(pages.model(tmp_path).matrix)
    row = next(row for row in table.rows if row[0].text.startswith("SDPA-15"))
    assert [(one.text, one.spoken) for one in row[1:]] == [
        ("✓", "all 2 cases passed"),
        ("✗2/3", "2 of 3 cases failed"),
        ("–", "unsupported"),
    ]


def test_numbers_keep_what_is_measured() -> None:
    """Three digits are shown, six are there to sort and download."""
    assert (number(0.123456789).text, number(0.123456789).value) == ("0.123", 0.123457)
    assert number(float("nan")).value == ""
    assert (size(537e6), size(0), size(999.0)) == ("537 MB", "0 B", "999 B")


@pytest.mark.parametrize("kind", ["results", "cells", "nothing"])
def test_a_page_of_one_kind_of_record_is_made(kind: str, tmp_path: Path) -> None:
    """Sections without records are left out."""
    files: dict[str, Any] = {
        "results": lambda: conformance_file(tmp_path / "a.jsonl", *pages.results()),
        "cells": lambda: bench_run(tmp_path / "b.json", *pages.cells()),
        "nothing": lambda: bench_run(tmp_path / "b.json"),
    }
    text = page(Model(read([files[kind]()]), clauses()))
    assert ('id="conformance"' in text) == (kind == "results")
    assert ('id="speed"' in text) == (kind == "cells")


def targets(text: str) -> set[str]:
    """The sections that links of a page lead to, without those that scripts open."""
    links = {attributes.get("href") or "" for tag, attributes in Elements(text).found if tag == "a"}
    return {one.removeprefix("#") for one in links if one and "/" not in one}


@pytest.mark.parametrize("kind", ["results", "cells", "untimed", "compared"])
def test_every_link_of_a_page_leads_somewhere(kind: str, tmp_path: Path) -> None:
    """No link leads to divergence, memory or changes where the page has no such section."""
    one = result("x", "c", clauses=("SDPA-15",))
    made = {
        "results": lambda: [conformance_file(tmp_path / "a.jsonl", one)],
        "cells": lambda: [bench_run(tmp_path / "b.json", *pages.cells())],
        "untimed": lambda: [bench_run(tmp_path / "b.json", cell("x", 4096, "skipped"))],
        "compared": lambda: [conformance_file(tmp_path / "a.jsonl", one)],
    }
    records = read(made[kind]())
    text = page(Model(records, clauses(), compare(records, records) if kind == "compared" else None))
    ids = {attributes.get("id") for _, attributes in Elements(text).found}
    assert targets(text) <= ids
    assert ("changes" in ids) == (kind == "compared")


def test_what_a_reader_of_a_comparison_should_know_is_on_the_page(tmp_path: Path) -> None:
    """The rule for times and every note are there, a paragraph each, even where no table has a row."""
    few = [timed("a", 128, [[[1e-3] * 4]])]
    base, new = (
        read([bench_run(tmp_path / f"{at}.json", *few, fingerprint=fingerprint(versions={"torch": f"2.{at}"}))])
        for at in (1, 2)
    )
    text = page(Model(new, clauses(), compare(base, new)))
    assert "No certain change in anything that could be compared." in text
    assert '<p class="note">Times are in milliseconds: ' in text
    assert '<p class="note">version of torch: 2.1 → 2.2</p>' in text


def test_times_of_two_machines_side_by_side_are_said(tmp_path: Path) -> None:
    """The sentence is above everything on both pages; for one machine there is none, whatever the number of files."""
    one = bench_run(tmp_path / "a.json", cell("x", 128, median_ms=1.0))
    alike = bench_run(tmp_path / "b.json", cell("y", 128, median_ms=1.0))
    other = bench_run(tmp_path / "c.json", cell("z", 128, median_ms=1.0), fingerprint=fingerprint(id="f", cpu="B"))
    said = "These times are from different machines (cpu: a processor → B): do not rank them against each other."
    for files, there in (([one], False), ([one, alike], False), ([one, other], True)):
        model = Model(read(files), clauses())
        assert (f'<p class="alarm">{said}</p>' in page(model)) == there
        assert (f"**{said}**" in markdown.verdict(model)) == there


def test_one_file_that_says_nothing_of_its_machine_is_of_one_machine(tmp_path: Path) -> None:
    """There are no other times next to its own."""
    path = bench_file(tmp_path / "b.json", cell("x", 128, median_ms=1.0))
    document = json.loads(path.read_text())
    document["machine_info"] = {}
    path.write_text(json.dumps(document))
    assert Model(read([path]), clauses()).machines == ""


def test_an_infinite_share_is_on_the_page(tmp_path: Path) -> None:
    """JSON has no infinity; a script reads the word as the number."""
    path = bench_run(tmp_path / "b.json", cell("x", 128, median_ms=1.0, share="inf"))
    assert "∞" in page(Model(read([path]), clauses()))
    assert (number(float("inf")).text, number(float("inf")).value) == ("∞", "Infinity")


def test_every_part_of_the_spec_is_named() -> None:
    """Each part has the name of the small matrix, and not just its prefix again."""
    prefixes = {name.rpartition("-")[0] for name in clauses()}
    assert not prefixes - conformance.PARTS.keys()


def test_a_missing_library_of_the_page_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence names it before anything is written; other formats do not need it."""
    monkeypatch.setitem(sys.modules, "jinja2", None)
    room = page.__module__.rpartition(".")[0]
    for name in ("page", "document"):
        monkeypatch.delitem(sys.modules, f"{room}.{name}", raising=False)
        monkeypatch.delattr(sys.modules[room], name, raising=False)
    path = conformance_file(tmp_path / "a.jsonl", *pages.results())
    assert main(["report", str(path), "-o", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == "error: report needs jinja2: pip install 'attention-conformance[reports]'\n"
    assert not (tmp_path / "out").exists()
    assert main(["report", str(path), "-o", str(tmp_path / "out"), "--format", "markdown"]) == 0
    assert (tmp_path / "out" / "report.md").exists()


def test_the_page_is_among_the_outputs(tmp_path: Path) -> None:
    """With a base run it says what got worse."""
    base = bench_run(tmp_path / "base.json", *pages.cells())
    new = bench_run(tmp_path / "new.json", *pages.cells(2.0))
    assert main(["report", str(new), "--base", str(base), "-o", str(tmp_path / "out")]) == 0
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "Worse: square float32 is 100 % slower (all 4 cells)." in page
