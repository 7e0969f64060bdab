"""Places of result files as they are named on a command line: files, folders, and globs."""

from __future__ import annotations

import glob
from collections.abc import Iterable
from pathlib import Path

from attention_conformance.impls import compressed
from attention_conformance.reports.input.records import ReportError

#: Suffixes of result files, apart from compression; the last one is a dataset of many (columns.py).
ENDINGS = (".json", ".jsonl", ".parquet")


def files_of(places: Iterable[Path]) -> list[Path]:
    """Files of some places, each once, in the order of the places and sorted within each.

    Parameters
    ----------
    places
        Files with any ending; folders, for all result files in them and in their subfolders; and globs that a shell
        has not expanded, including ``**``.

    Returns
    -------
    list[Path]
        Paths of files, including one that is named but missing.

    Raises
    ------
    ReportError
        For a folder or a glob without a result file.
    """
    paths: list[Path] = []
    for place in places:
        if place.is_dir():
            those = sorted(path for path in place.rglob("*") if _is_result(path))
        elif place.exists() or not glob.has_magic(str(place)):
            those = [place]
        else:
            those = sorted(path for path in map(Path, glob.iglob(str(place), recursive=True)) if path.is_file())
        if not those:
            raise ReportError(f"{place} has no result file: none ends with {' or '.join(ENDINGS)}")
        paths += those
    return list(dict.fromkeys(paths))


def _is_result(path: Path) -> bool:
    return compressed.kind(path) in ENDINGS and path.is_file()
