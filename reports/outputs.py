"""Outputs of a report: one function per format, each a view of the one model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from attention_conformance.reports import badge
from attention_conformance.reports.input.records import ReportError
from attention_conformance.reports.markdown import page as markdown
from attention_conformance.reports.markdown import summary
from attention_conformance.reports.model import model
from attention_conformance.reports.model.model import Model


def written(given: Model, folder: Path, formats: Sequence[str]) -> list[Path]:
    """Write these formats of a report, in the order of FORMATS; returns the paths, the page last.

    Parameters
    ----------
    given
        Model of the report.
    folder
        Folder, made if it is missing.
    formats
        Keys of FORMATS.

    Returns
    -------
    list[Path]
        Paths in the order of FORMATS.

    Raises
    ------
    ReportError
        Where a library that a format needs is missing.
    """
    if "html" in formats:
        import attention_conformance.reports.html.page  # noqa: F401 (nothing is written where a library is missing)
    folder.mkdir(parents=True, exist_ok=True)
    return [path for name, write in FORMATS.items() if name in formats for path in write(given, folder)]


def _csv(given: Model, folder: Path) -> list[Path]:
    for name, frame in given.frames.items():
        frame.to_csv(folder / f"{name}.csv", index=False)
    return [folder / f"{name}.csv" for name in given.frames]


def _parquet(given: Model, folder: Path) -> list[Path]:
    try:
        for name, frame in given.frames.items():
            frame.to_parquet(folder / f"{name}.parquet", index=False)
    except ImportError:
        raise ReportError("Parquet needs pyarrow: pip install 'attention-conformance[parquet]'") from None
    return [folder / f"{name}.parquet" for name in given.frames]


def _json(given: Model, folder: Path) -> list[Path]:
    model.write(given, folder / "model.json")
    return [folder / "model.json"]


def _badges(given: Model, folder: Path) -> list[Path]:
    """One path for all badges: dozens of lines would hide the path of the page."""
    texts, badges = badge.badges(given), folder / "badges"
    if texts:
        badges.mkdir(exist_ok=True)
    for name, text in texts.items():
        _text(text, badges / f"{name}.svg")
    return [badges] if texts else []


def _summary(given: Model, folder: Path) -> list[Path]:
    return [_text(summary.page(given), folder / "summary.md")]


def _markdown(given: Model, folder: Path) -> list[Path]:
    return [*_summary(given, folder), _text(markdown.page(given), folder / "report.md")]


def _html(given: Model, folder: Path) -> list[Path]:
    from attention_conformance.reports.html.page import page

    return [_text(page(given), folder / "report.html")]


def _text(text: str, path: Path) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


#: Every format by its name; the page is the last, so that its path is the last line that is printed.
FORMATS: Mapping[str, Callable[[Model, Path], list[Path]]] = {
    "csv": _csv,
    "parquet": _parquet,
    "json": _json,
    "badges": _badges,
    "html": _html,
    "summary": _summary,
    "markdown": _markdown,
}

#: Formats that are written unless one is named.
DEFAULT = ("csv", "badges", "html", "markdown")
