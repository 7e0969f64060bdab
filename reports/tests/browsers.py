"""A real browser for the tests of the pages, and a page that is open in it."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from typing import Any

import altair
import pytest

#: Names of an installed Chromium; none is ever downloaded.
NAMES = ("chromium", "chromium-browser", "google-chrome")

#: Nothing but the page: no profile, no updates, no services.  Root, as in a container, has no sandbox.
ARGUMENTS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]


@contextlib.contextmanager
def launched() -> Iterator[Any]:
    """An installed Chromium; without one, or without its driver, the test is skipped."""
    reason = "playwright, which drives the browser, is not installed"
    sync_api = pytest.importorskip("playwright.sync_api", reason=reason)
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=ARGUMENTS)
        yield browser
        browser.close()


class Opened:
    """A page that is open, with all its complaints and network requests."""

    def __init__(self, browser: Any, address: str, **context: Any) -> None:
        self.context = browser.new_context(**context)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(dialog.message))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(address)

    def specifications(self) -> list[dict[str, Any]]:
        """The specification of every plot, checked against the schema of Vega-Lite."""
        found: list[dict[str, Any]] = self.page.evaluate("[...document.querySelectorAll('.drawing')].map(d => d.spec)")
        for one in found:
            altair.Chart.from_dict(one, validate=True)
        return found

    def rows(self, table: str) -> list[str]:
        """The first cells of the rows that are shown."""
        found: list[str] = self.page.locator(f"#{table} tbody tr:visible th").all_inner_texts()
        return found
