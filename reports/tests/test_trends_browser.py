"""The HTML page of a history in a real browser: it works from a single file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from attention_conformance.cli import main
from attention_conformance.reports.tests import trends
from attention_conformance.reports.tests.browsers import Opened, launched
from attention_conformance.reports.tests.pages import HOSTILE

pytestmark = [pytest.mark.browser, pytest.mark.slow]

#: The mark of the change, whose ratio is known, and the plot that has it.
RATIO = f"{trends.RATIO:.2f}×"
SLOWER = ".trend:has-text('quick')"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """An installed Chromium."""
    with launched() as one:
        yield one


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of the small history, as a file."""
    folder = tmp_path_factory.mktemp("history")
    main(["history", str(trends.folder(folder / "in")), "-o", str(folder / "out")])
    return (folder / "out" / "history.html").as_uri()


@pytest.fixture
def opened(browser: Any, address: str) -> Iterator[Opened]:
    """The page in a window of its own, with every plot drawn."""
    one = Opened(browser, address)
    drawn(one)
    yield one
    one.context.close()


def drawn(one: Opened) -> None:
    """Wait for the trends and the outcomes."""
    for at in range(3):
        one.page.locator(".plot .drawing").nth(at).locator("svg.marks").wait_for(state="attached")


def test_it_opens_from_a_file_without_an_error_or_a_request(opened: Opened, address: str) -> None:
    """The console stays empty, and a name with markup is shown and runs nothing."""
    assert opened.complaints == []
    assert opened.requests == [address]
    assert HOSTILE in opened.rows("every-cell")


@pytest.mark.parametrize(("across", "field"), [(0, "time"), (1, "run"), (2, "version")])
def test_the_plots_are_valid_vega_lite(opened: Opened, across: int, field: str) -> None:
    """They match the schema of the version that draws them, across dates, runs and versions."""
    opened.page.locator("#across").select_option(index=across)
    opened.page.wait_for_function(
        f"JSON.stringify(document.querySelector('.drawing').spec).includes('\"field\":\"{field}\"')"
    )
    *trends_of, outcomes = opened.specifications()
    assert len(trends_of) == 2
    assert outcomes["mark"]["type"] == "line"


def test_the_change_is_in_the_table_and_marked_in_its_plot_alone(opened: Opened) -> None:
    """The mark has new ÷ old, which is known; the other cell has no mark."""
    assert opened.page.locator("#steps tbody td").first.inner_text() == f"✗ slower {RATIO}"
    assert RATIO in opened.page.locator(SLOWER).locator("svg.marks").text_content()
    others = opened.page.locator(".trend").filter(has_not_text="quick")
    assert "×" not in others.locator("svg.marks").text_content()


def test_a_change_leads_to_its_plot(opened: Opened) -> None:
    """The address of its link can be sent."""
    opened.page.locator("#steps tbody th a").click()
    opened.page.wait_for_timeout(300)
    assert "#trend-quick-" in opened.page.url
    top = opened.page.locator(SLOWER).evaluate("node => node.getBoundingClientRect().top")
    assert 0 <= top < 200


def test_trends_go_across_versions_too(opened: Opened) -> None:
    """A library with several versions can be chosen; then the axis has its versions."""
    assert opened.page.locator("#across option").all_inner_texts()[2:] == ["versions of torch"]
    opened.page.locator("#across").select_option(index=2)
    marks = opened.page.locator(SLOWER).locator("svg.marks")
    marks.get_by_text("2.13").first.wait_for()
    assert opened.complaints == []


@pytest.mark.parametrize("width", [375, 1400])
def test_the_page_is_no_wider_than_its_window(browser: Any, address: str, width: int) -> None:
    """Tables scroll within themselves."""
    one = Opened(browser, address, viewport={"width": width, "height": 800})
    drawn(one)
    assert one.page.evaluate("document.documentElement.scrollWidth") == width
    one.context.close()
