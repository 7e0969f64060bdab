"""Outputs of a history: its JSON, tables and pages."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import msgspec

from attention_conformance.impls.process.allocator import without_gc
from attention_conformance.reports.history import html
from attention_conformance.reports.history.pages import changes, page, points, tallies, totals
from attention_conformance.reports.history.series import History, Series, history
from attention_conformance.reports.input import columns
from attention_conformance.reports.input.bench import CELL
from attention_conformance.reports.input.places import files_of as found_in

#: Kind and version that the JSON names.
KIND = "attention-conformance history"
VERSION = 2


def write(found: History, folder: Path) -> list[Path]:
    """Write history.json, the tables and the pages; returns the paths, history.md last."""
    folder.mkdir(parents=True, exist_ok=True)
    document = {
        "kind": KIND,
        "version": VERSION,
        "files": found.files,
        "refused": found.refused,
        "records": totals(found),
        "versions": found.versions,
        "changes": msgspec.to_builtins(found.changes),
        "series": [_series(one) for one in found.series],
        "conformance": msgspec.to_builtins(found.tallies),
    }
    names = ("history.json", "history.csv", "steps.csv", "conformance.csv", "history.html", "history.md")
    paths = [folder / name for name in names]
    paths[0].write_text(json.dumps(document, allow_nan=False) + "\n", encoding="utf-8")
    points(found).to_csv(paths[1], index=False)
    changes(found).to_csv(paths[2], index=False)
    tallies(found).to_csv(paths[3], index=False)
    paths[5].write_text(page(found), encoding="utf-8")
    paths[4].write_text(html.page(found), encoding="utf-8")
    return paths


def _series(one: Series) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(one)
    return dict(zip(CELL, plain.pop("key"), strict=True)) | plain


def options(parser: argparse.ArgumentParser) -> None:
    """Options of ``history``."""
    parser.description = "The trend of every cell over the runs of a folder, and where it changed."
    parser.add_argument(
        "places",
        nargs="+",
        type=Path,
        metavar="FOLDER",
        help="folder of result files, with its subfolders; or a glob, or a file",
    )
    parser.add_argument("-o", "--output", required=True, type=Path, metavar="DIR", help="folder to write")
    parser.add_argument(
        "--dataset",
        type=Path,
        metavar="FILE",
        help="also write all conformance results as one Parquet file, which `report` and `history` take as well",
    )


def run(places: list[Path], output: Path, dataset: Path | None) -> str:
    """Read the places, write the history and return its paths.  Raises ReportError for what cannot be used."""
    with without_gc():
        lines = [*map(str, write(history(*places), output))]
        if dataset is not None:
            count, left_out = columns.write(found_in(places), dataset)
            lines += [f"{dataset}: {count} results", *(f"not in {dataset}: {why}" for why in left_out)]
    return "\n".join(lines)
