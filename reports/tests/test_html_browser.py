"""The HTML page in a real browser: it works from a single file, by mouse, keyboard and address."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import ValidationError

from attention_conformance.conformance.spec.clauses import clauses
from attention_conformance.reports.html.page import page
from attention_conformance.reports.input.read import read
from attention_conformance.reports.model.model import Model
from attention_conformance.reports.tests import browsers, pages
from attention_conformance.reports.tests.browsers import launched
from attention_conformance.reports.tests.files import bench_run, cell, conformance_file, steady, timed

pytestmark = [pytest.mark.browser, pytest.mark.slow]

#: Known numbers of the run in attention_conformance.reports.tests.pages.
WRONG_ROWS = "✗2/3"
FASTEST = "49.9 ms"
SQUARE_BYTES = "537 MB"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """An installed Chromium."""
    with launched() as one:
        yield one


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of the small run, as a file."""
    return pages.written(tmp_path_factory.mktemp("page"), base=True).as_uri()


class Opened(browsers.Opened):
    """A page of a report that is open."""

    def drawn(self) -> None:
        """Wait for every plot."""
        for name in ("time", "memory", "frontier", "accuracy"):
            self.page.locator(f"#plot-{name} .drawing svg.marks").wait_for(state="attached")


@pytest.fixture
def opened(browser: Any, address: str) -> Iterator[Opened]:
    """The page in a window of its own."""
    one = Opened(browser, address)
    yield one
    one.context.close()


def test_it_opens_from_a_file_without_an_error_or_a_request(opened: Opened, address: str) -> None:
    """Every plot is drawn, the console stays empty, and a name with markup runs nothing."""
    opened.drawn()
    assert opened.complaints == []
    assert opened.requests == [address]


def test_the_plots_are_valid_vega_lite(opened: Opened) -> None:
    """They match the schema of the version that draws them; a plot with an unknown kind of mark does not."""
    opened.drawn()
    found = opened.specifications()
    assert [one["description"].partition(" ")[0] for one in found] == ["Median", "Error", "Peak", "Worst"]
    opened.page.evaluate("document.querySelector('.drawing').spec.layer[0].mark.type = 'lines'")
    with pytest.raises(ValidationError):
        opened.specifications()


def test_it_is_right_about_three_known_numbers(opened: Opened) -> None:
    """The failures on masked rows, the time of the fastest, and the bytes of the one with an array of scores."""
    page = opened.page
    assert page.locator("#matrix-sdpa tr", has_text="SDPA-15").locator("td").all_text_contents() == [
        "✓",
        WRONG_ROWS,
        "–",
    ]
    assert page.locator("#q-fastest-here .lead").inner_text() == f"quick, {FASTEST} on cpu."
    longest = page.locator("#bench tr", has_text="square").filter(has_text="s4096")
    assert longest.locator("td").nth(6).text_content() == SQUARE_BYTES


def test_the_answers_are_at_the_top(opened: Opened) -> None:
    """A newcomer finds them, and the pictures next to them, without scrolling; names are folded."""
    text = opened.page.locator("#questions").inner_text()
    for question in (
        "fully masked rows",
        "fastest at S = 4096, causal",
        "quadratic memory",
        "worse since the base run",
    ):
        assert question in text
    assert opened.page.locator("#q-empty-rows .lead").bounding_box()["y"] < 720
    assert opened.page.locator("#picture svg").bounding_box()["y"] < 720
    assert opened.page.locator("#plot-time").bounding_box()["y"] < 720
    assert not opened.page.locator("#q-empty-rows .item").first.is_visible()


def test_a_cell_of_the_small_matrix_opens_its_clauses(opened: Opened) -> None:
    """A tip names what is under the pointer, and a click shows the clauses of the group."""
    opened.drawn()
    cell = opened.page.locator("#picture path.failed")
    cell.hover()
    assert opened.page.locator("#tip").inner_text() == "square, Fully masked rows: 2 of 3 cases failed"
    cell.click()
    row = opened.page.locator("#details", has_text="square on cpu: Fully masked rows").locator("tbody tr")
    assert row.inner_text().split("\t") == ["SDPA-15 Fully masked rows", "✗ failed", "2 failed, 1 passed"]


def test_an_address_with_the_former_name_of_a_group_opens_it(opened: Opened) -> None:
    """The details have the name that the group has now."""
    opened.page.evaluate("location.hash = 'group/Every%20call%20alike/square/cpu'")
    opened.page.locator("#details-h", has_text="square on cpu: Call consistency").wait_for()


def test_words_filter_the_rows(opened: Opened) -> None:
    """All words must match, the number of rows is shown, and nothing is lost."""
    box = opened.page.locator("#bench input")
    box.fill("square 4096")
    assert opened.rows("bench") == ["square"]
    assert opened.page.locator("#bench output").inner_text() == "1 of 12 rows"
    box.fill("no such")
    assert opened.rows("bench") == []
    box.fill("")
    assert len(opened.rows("bench")) == 12


def test_columns_of_the_matrix_are_filtered_too(opened: Opened) -> None:
    """A column matches any of the words; the clauses stay."""
    opened.page.locator("#matrix-sdpa input.columns").fill("square")
    assert opened.page.locator("#matrix-sdpa thead th:visible").all_inner_texts() == ["clause", "square"]


def test_headings_sort_by_value(opened: Opened) -> None:
    """They sort by number and not by text, up and then down, and the heading says so."""
    head = opened.page.locator("#bench thead th", has_text="median")
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert opened.rows("bench")[0] == "quick"
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    assert opened.rows("bench")[0] == pages.HOSTILE


@pytest.mark.parametrize("key", ["Enter", "Space"])
def test_headings_sort_by_keyboard(opened: Opened, key: str) -> None:
    """The button in a heading takes the focus visibly."""
    button = opened.page.locator("#bench thead button", has_text="implementation")
    button.focus()
    opened.page.keyboard.press(key)
    assert opened.rows("bench")[0] == pages.HOSTILE
    opened.page.keyboard.press("Shift+Tab")
    opened.page.keyboard.press("Tab")
    assert button.evaluate("node => getComputedStyle(node).outlineStyle") == "solid"


def test_a_cell_of_the_matrix_opens_its_cases(opened: Opened) -> None:
    """Each has message, script and command; there are as many as the cell says."""
    opened.page.locator("#matrix-sdpa td a", has_text=WRONG_ROWS).click()
    details = opened.page.locator("#details")
    details.locator("h2", has_text="square on cpu: SDPA-15").wait_for()
    assert details.locator(".counts").inner_text() == "2 failed, 1 passed."
    assert "wrong by value" in details.locator("pre").first.inner_text()
    assert "scripts/empty-row.py" in details.inner_text()
    assert "attention-conformance check square --device cpu --dtype float32 --case empty-row" in details.inner_text()


def test_details_open_and_close_by_keyboard(opened: Opened) -> None:
    """Enter opens them, Escape closes them, and the focus is where it was."""
    link = opened.page.locator("#matrix-sdpa td a", has_text=WRONG_ROWS)
    link.focus()
    opened.page.keyboard.press("Enter")
    opened.page.locator("#details h2", has_text="SDPA-15").wait_for()
    opened.page.keyboard.press("Escape")
    assert not opened.page.locator("#details").is_visible()
    assert link.evaluate("node => node === document.activeElement")
    assert "clause" not in opened.page.url


@pytest.mark.parametrize(
    ("fragment", "title"),
    [
        ("clause/SDPA-15/square/cpu", "square on cpu: SDPA-15"),
        ("clause/SDPA-15", "SDPA-15"),
        ("result/square/cpu/float32/empty-row", "square on cpu in float32: empty-row"),
        ("cell/quick/cpu/float32/prefill-b1h8d64s4096-causal", "quick on cpu in float32: prefill-b1h8d64s4096-causal"),
        ("result/%3Cscript%3Ealert(1)%3C/script%3E/cpu/float32/plain", "This page has no such record."),
        ("result/%3Cscript%3Ealert(1)%3C%2Fscript%3E/cpu/float32/plain", f"{pages.HOSTILE} on cpu in float32: plain"),
        ("cell/no/such/thing", "This page has no such record."),
    ],
)
def test_an_address_opens_the_details(browser: Any, address: str, fragment: str, title: str) -> None:
    """A link to a cell, a case or a clause can be sent; one to nothing says so."""
    one = Opened(browser, f"{address}#{fragment}")
    one.page.locator("#details", has_text=title).wait_for()
    assert one.complaints == []
    one.context.close()


@pytest.mark.parametrize("section", ["files", "memory-of", "divergence"])
def test_an_address_of_a_section_lands_there(browser: Any, address: str, section: str) -> None:
    """It does although plots above it are drawn later, and tables get their heights as they come into view."""
    one = Opened(browser, f"{address}#{section}", viewport={"width": 900, "height": 500})
    one.drawn()
    one.page.wait_for_timeout(300)
    top = one.page.locator(f"#{section}").bounding_box()["y"]
    below = one.page.evaluate("() => document.documentElement.scrollHeight - scrollY - innerHeight")
    assert 0 <= top < 80 or below < 2
    one.context.close()


def of(browser: Any, folder: Path, *files: Path) -> Opened:
    """A page of some files that is open."""
    (folder / "p.html").write_text(page(Model(read(files), clauses())), encoding="utf-8")
    return Opened(browser, (folder / "p.html").as_uri())


def test_every_case_that_is_wrong_can_be_seen(browser: Any, tmp_path: Path) -> None:
    """The first 200 of 250 at one clause are there, and a button shows the others."""
    cases = [pages.wrong("x", f"c{at}", "SDPA-9") for at in range(250)]
    one = of(browser, tmp_path, conformance_file(tmp_path / "a.jsonl", *cases))
    one.page.evaluate("location.hash = 'clause/SDPA-9/x/cpu'")
    details = one.page.locator("#details")
    details.locator("h2", has_text="SDPA-9").wait_for()
    assert details.locator("details.case").count() == 200
    details.get_by_role("button", name="Show the other 50").click()
    assert details.locator("details.case").count() == 250
    assert details.get_by_role("button", name="Show the other 50").count() == 0
    one.context.close()


def test_the_time_of_an_unstable_cell_is_in_its_details(browser: Any, tmp_path: Path) -> None:
    """The details also say which calls it is of, as no table ranks it."""
    times = {"seconds": 2e-3, "interval": [1e-3, 3e-3], "calls": 7}
    unstable = cell("x", 128, "unstable", clause="SDPA-25", reason="wrong once", **times)
    one = of(browser, tmp_path, bench_run(tmp_path / "b.json", timed("y", 128, steady(1e-3)), unstable))
    one.page.evaluate("location.hash = 'cell/x/cpu/float32/prefill-b1h8d64s128'")
    details = one.page.locator("#details")
    details.locator("dt", has_text="median of the equal calls, not ranked").wait_for()
    assert "2 ms" in details.locator("dl").inner_text().splitlines()
    assert "7" in details.locator("dl").inner_text().splitlines()
    one.context.close()


@pytest.mark.parametrize(
    ("text", "kept"), [("-1.5e-3", "-1.5e-3"), ("-1+cmd", "'-1+cmd"), ("=1", "'=1"), ("–", "–"), ("-", "'-")]
)
def test_no_text_of_a_download_is_a_formula(opened: Opened, text: str, kept: str) -> None:
    """A spreadsheet takes it as text, and a negative number as a number."""
    with opened.page.expect_download() as waiting:
        opened.page.evaluate("text => page.save('x', [[text]])", text)
    assert Path(waiting.value.path()).read_text(encoding="utf-8").strip() == kept


def test_the_data_of_a_view_can_be_downloaded(opened: Opened) -> None:
    """It is CSV with exact values, for the rows that the filter leaves."""
    opened.page.locator("#bench input").fill("square 4096")
    with opened.page.expect_download() as waiting:
        opened.page.locator("#bench .csv").click()
    head, *rows = Path(waiting.value.path()).read_text(encoding="utf-8").splitlines()
    assert head.startswith("implementation,workload,S,device,dtype,median")
    assert len(rows) == 1
    assert rows[0].startswith("square,prefill-b1h8d64s4096-causal,4096,cpu,float32,0.1")
    assert waiting.value.suggested_filename == "bench.csv"


def test_the_data_of_a_plot_can_be_downloaded(opened: Opened) -> None:
    """It is the data of the chosen group."""
    opened.drawn()
    with opened.page.expect_download() as waiting:
        opened.page.locator("#plot-time .csv").click()
    assert len(Path(waiting.value.path()).read_text(encoding="utf-8").splitlines()) == 1 + 12


def test_a_name_in_the_legend_fades_the_others(opened: Opened) -> None:
    """It works by click or keyboard, and the button says whether it is pressed."""
    opened.drawn()
    plot = opened.page.locator("#plot-time")
    button = plot.locator(".names button", has_text="square")
    button.press("Enter")
    assert button.get_attribute("aria-pressed") == "true"
    opacities = plot.locator("svg .mark-symbol path").evaluate_all(
        "all => all.map(node => node.getAttribute('opacity'))"
    )
    assert sorted(set(opacities)) == ["0.08", "1"]
    assert opacities.count("1") == 4


def test_a_point_has_a_tip_and_opens_its_cell(opened: Opened) -> None:
    """The tip has the exact median and its interval."""
    opened.drawn()
    point = opened.page.locator("#plot-time svg .mark-symbol path").first
    point.scroll_into_view_if_needed()
    point.hover(force=True)
    tip = opened.page.locator("#vg-tooltip-element")
    tip.wait_for()
    assert "median, ms" in tip.inner_text()
    assert "95 % from, ms" in tip.inner_text()
    point.click(force=True)
    opened.page.locator("#details h2", has_text="prefill-b1h8d64s").wait_for()


def test_dark_and_light_follow_the_system(browser: Any, address: str) -> None:
    """Text and background have a contrast of at least 7 to 1 in both, by the formula of WCAG 2."""
    grounds = []
    for scheme in ("light", "dark"):
        one = Opened(browser, address, color_scheme=scheme)
        ground, ink = one.page.evaluate(
            "() => ['backgroundColor', 'color'].map(name => getComputedStyle(document.body)[name])"
        )
        assert _contrast(ground, ink) > 7
        for look in ("passed", "failed", "unsupported"):
            texts = one.page.locator(f"#matrix-sdpa td.{look}").first.evaluate(
                "node => [getComputedStyle(node).backgroundColor, getComputedStyle(node).color]"
            )
            assert _contrast(ground if texts[0] == "rgba(0, 0, 0, 0)" else texts[0], texts[1]) > 4.5, (scheme, look)
        grounds.append(ground)
        one.context.close()
    assert grounds[0] != grounds[1]


def _contrast(*colours: str) -> float:
    def light(colour: str) -> float:
        parts = [int(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
        linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted(map(light, colours))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("width", [375, 900, 1600])
def test_the_page_never_scrolls_sideways(browser: Any, address: str, width: int) -> None:
    """Wide tables scroll in a frame of their own."""
    one = Opened(browser, address, viewport={"width": width, "height": 800})
    one.drawn()
    assert one.page.evaluate("() => document.documentElement.scrollWidth") <= width
    one.page.goto(f"{address}#clause/SDPA-15/square/cpu")
    one.page.locator("#details h2").wait_for()
    assert one.page.evaluate("() => document.documentElement.scrollWidth") <= width
    one.context.close()


def test_a_screen_reader_has_a_name_for_everything(opened: Opened) -> None:
    """Controls have names, tables captions and headings with a scope, plots a description."""
    opened.drawn()
    nameless = opened.page.evaluate(
        """() => [...document.querySelectorAll("button, input, select, a")].filter((node) =>
            !(node.getAttribute("aria-label") || node.textContent.trim() || (node.labels || []).length)
        ).map((node) => node.outerHTML)"""
    )
    assert nameless == []
    assert opened.page.locator("table:not(:has(caption))").count() == 0
    assert opened.page.locator("th:not([scope])").count() == 0
    plots = opened.page.locator(".drawing svg")
    assert all(plots.nth(at).get_attribute("aria-label") for at in range(plots.count()))


def test_a_printed_page_has_every_plot_and_no_controls(opened: Opened) -> None:
    """It is printed on white, whatever the theme."""
    opened.drawn()
    opened.page.emulate_media(media="print", color_scheme="dark")
    assert opened.page.evaluate("() => getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not opened.page.locator("nav").is_visible()
    assert opened.page.locator("input:visible").count() == 0
    assert opened.page.locator("#plot-time svg").first.is_visible()


def test_without_javascript_the_tables_are_there(browser: Any, address: str) -> None:
    """The page also says what is missing."""
    one = Opened(browser, address, java_script_enabled=False)
    assert one.page.locator("#matrix-sdpa td", has_text=WRONG_ROWS).is_visible()
    assert "Without JavaScript" in one.page.locator("body").inner_text()
    one.context.close()
