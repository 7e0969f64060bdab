"""Speed of the reports: time to make them from large runs, and to open and use their pages.

The runs are those of reports.tests.large and the published one; the commands are those of the pages with the tables.
Nothing else should run on the machine.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from importlib import metadata
from pathlib import Path
from typing import Any

from attention_conformance.reports import publish
from attention_conformance.reports.tests import large
from attention_conformance.reports.tests.browsers import Opened, launched
from studies.common import Measured, Study, markdown, measured, resources_used, sentence

#: Libraries whose versions are kept with the numbers, as they decide.
LIBRARIES = ("pandas", "numpy", "jinja2", "vl-convert-python")

_NEW = ("new/bench.json", "new/conformance.jsonl")
_OF_PUBLISHED = tuple(map(str, publish.published_files()))
_NO_PAGE = tuple(word for name in ("markdown", "csv", "json", "badges") for word in ("--format", name))

#: Arguments of ``attention-conformance`` and its exit status, by a description.
COMMANDS: Mapping[str, tuple[tuple[str, ...], int]] = {
    "the large run as Markdown, CSV, JSON and badges": (("report", *_NEW, "-o", "out", *_NO_PAGE), 0),
    "the large run as a page": (("report", *_NEW, "-o", "large", "--format", "html"), 0),
    "the large run in all default formats, with a base run as large": (
        ("report", *_NEW, "-o", "both", "--base", "base"),
        0,
    ),
    "`compare` of the two, as Markdown and JSON": (
        ("compare", "base", "new", "--markdown", "compared.md", "--json", "compared.json"),
        1,
    ),
    "`history` of 1,000 runs": (("history", "history", "-o", "trends"), 0),
    "the published run as a page": (("report", *_OF_PUBLISHED, "-o", "published", "--format", "html"), 0),
}

#: The pages that are opened, by their run, and a heading to sort by where there is a long table.
PAGES: Mapping[str, tuple[str, str]] = {
    "the published run": ("published/report.html", "#bench thead button"),
    "the large run": ("large/report.html", "#bench thead button"),
    "the large run, with a base run as large": ("both/report.html", "#bench thead button"),
    "`history` of 1,000 runs": ("trends/history.html", ""),
}

#: Milliseconds until the clicked element has finished, and the page is laid out again.
_SORTED = """head => { const began = performance.now(); head.click(); document.body.offsetHeight;
  return performance.now() - began; }"""

#: Milliseconds until the details of the first clause of the matrix are shown, whether data were unpacked before or not.
_DETAILS = """() => new Promise(done => {
  const began = performance.now(), shown = () => document.querySelector("#details-body *");
  const look = () => shown() ? done(performance.now() - began) : requestAnimationFrame(look);
  document.querySelector("[id^=matrix-] tbody td a").click(); look(); })"""

#: Milliseconds from the opening until every plot is drawn; plots further down are drawn when there is time.
_DRAWN = """() => new Promise(done => {
  const all = document.querySelectorAll(".plot").length;
  const look = () => document.querySelectorAll(".plot .drawing svg.marks").length >= all
    ? done(performance.now()) : requestAnimationFrame(look);
  look(); })"""

_LOADED = 'performance.getEntriesByType("navigation")[0].loadEventEnd'


def timed(arguments: Sequence[str], code: int, folder: Path) -> dict[str, float]:
    """Seconds by the clock and of the processor, and most bytes in memory, of ``attention-conformance``.

    Raises RuntimeError if it does not end with the code.
    """
    return resources_used([sys.executable, "-m", "attention_conformance", *arguments], (code,), folder)


def opened(browser: Any, path: Path, heading: str) -> dict[str, float | None]:
    """Milliseconds of one opening of a page: until it is loaded and all plots are drawn, of sorting, of details."""
    with closing(Opened(browser, path.as_uri()).context) as context:
        page = context.pages[0]
        found: dict[str, float | None] = {"drawn": page.evaluate(_DRAWN), "loaded": page.evaluate(_LOADED)}
    if not heading:
        return found | {"sorted": None, "details": None}
    with closing(Opened(browser, path.as_uri()).context) as context:  # of an unused page
        page = context.pages[0]
        found["details"] = page.evaluate(_DETAILS)
        page.evaluate("document.querySelector('#details').close()")
        found["sorted"] = page.locator(heading, has_text="median").evaluate(_SORTED)
    return found


def measure(runs: int, openings: int, folder: Path | None) -> dict[str, Any]:
    """The commands, each ``runs`` times, and then the pages, each opened ``openings`` times; one after the other.

    Their input and output is left in ``folder`` if there is one.
    """
    versions = {library: metadata.version(library) for library in LIBRARIES}
    with contextlib.nullcontext(folder) if folder else tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for run, seed, worse in (("base", 1, False), ("new", 2, True)):
            large.write(folder / run, seed, worse)
        large.write_history(folder / "history")
        timed(*COMMANDS["the published run as a page"], folder)  # the first page after an installation bundles Vega

        def commands() -> dict[str, Any]:
            rows = [(what, [timed(*how, folder) for _ in range(runs)]) for what, how in COMMANDS.items()]
            return {
                "commands": [{"what": what, "runs": each} for what, each in rows],
                "versions": versions,
                "threads": 1,
            }

        def pages() -> dict[str, Any]:
            with launched() as browser:
                opened(browser, folder / "published/report.html", "")
                rows = []
                for what, (path, heading) in PAGES.items():
                    each = [opened(browser, folder / path, heading) for _ in range(openings)]
                    rows.append({"what": what, "bytes": (folder / path).stat().st_size, "openings": each})
            return {"pages": rows, "versions": versions, "threads": 1}

        return {"commands": measured(commands), "pages": measured(pages), "threads": 1}


def commands_table(both: Measured) -> str:
    """Markdown: the seconds of the runs, from the least to the most, and the most memory."""
    found, rows = both["commands"], []
    for one in found["commands"]:
        taken = [[run[name] for run in one["runs"]] for name in ("seconds", "cpu_seconds")]
        most = max(run["bytes"] for run in one["runs"])
        rows.append([one["what"], *(f"{min(each):.1f} to {max(each):.1f}" for each in taken), f"{most / 1e6:.0f} MB"])
    runs = len(found["commands"][0]["runs"])
    lines = markdown(["made", "seconds", "of the processor", "memory"], rows)
    return f"{lines}\n\n{runs} runs each. {sentence(found)}"


def pages_table(both: Measured) -> str:
    """Markdown: the medians of the openings."""
    found, rows = both["pages"], []
    for one in found["pages"]:
        taken = [[each[name] for each in one["openings"]] for name in ("loaded", "drawn", "sorted", "details")]
        rows.append([one["what"], f"{one['bytes'] / 1e6:.1f} MB", *map(_milliseconds, taken)])
    openings = len(found["pages"][0]["openings"])
    lines = markdown(["page of", "size", "opened", "all plots", "sorting every cell", "first details"], rows)
    return f"{lines}\n\nMedians of {openings} openings in Chromium. {sentence(found)}"


def _milliseconds(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{statistics.median(known):.3g} ms" if known else "–"


STUDY = Study(
    "report_speed",
    "how fast reports are made of large runs, and how fast their pages are",
    measure,
    {"reports/README.md": commands_table, "reports/html/README.md": pages_table},
    {
        "--runs": {"type": int, "default": 5, "help": "of each command (default: %(default)s)"},
        "--openings": {"type": int, "default": 7, "help": "of each page (default: %(default)s)"},
        "--folder": {"type": Path, "metavar": "FOLDER", "help": "leave the runs there, and what is made of them"},
    },
)
