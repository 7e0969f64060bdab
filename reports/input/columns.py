"""Dataset of results: the results of many conformance files in one Parquet file, a column for each field.

A fleet's files of JSON lines become one file of a tenth of their size.  Data frames and query engines read it directly,
and reports and histories read it like the files.  Headers are in the file's metadata.  A dataset can also be made from
other datasets, so that new files can be added to one.  It needs pyarrow.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from attention_conformance.conformance import results as result_file
from attention_conformance.conformance.results import ResultFileError, Run
from attention_conformance.conformance.results.parse import Header, as_record, from_record
from attention_conformance.impls import compressed
from attention_conformance.reports.input.records import ReportError

SUFFIX = ".parquet"

#: The metadata's key, and the version of its content.
KEY, VERSION = b"attention-conformance results", 1

#: Fields of a result with a column of text; ``clauses`` is a list, ``share`` a number, and ``more`` the others in JSON.
TEXTS = ("implementation", "device", "dtype", "case", "outcome", "failure", "broken", "reason")


def write(paths: Sequence[Path], to: Path) -> tuple[int, list[str]]:
    """Write the results of conformance files and of datasets as one dataset.

    A duplicate run is kept once; if two runs have the same name, as from a file that is rewritten every day, the later
    one gets a number at the end.

    Parameters
    ----------
    paths
        Paths of result files of `check`, and of datasets; files of other kinds are left out.
    to
        The file, which is replaced; it may be one of the datasets.

    Returns
    -------
    tuple
        Number of results, and why unreadable files of JSON lines and unreadable datasets are left out.

    Raises
    ------
    ReportError
        Without pyarrow, if no file has results, or if the file to replace is a dataset that cannot be read.
    """
    arrow, parquet = _arrow()
    kept: dict[str, Run] = {}
    left_out: list[str] = []
    for path in paths:
        try:
            found = list(runs(path)) if path.suffix == SUFFIX else [(str(path), result_file.read(path))]
        except (ResultFileError, ReportError) as error:
            if path.suffix == SUFFIX and path.exists() and to.exists() and path.samefile(to):
                raise ReportError(f"{error}; it is not replaced") from None
            left_out += [str(error)] if compressed.kind(path) in (".jsonl", SUFFIX) else []
            continue
        for name, run in found:
            _keep(name, run, kept)
    headers: dict[str, Any] = {}
    columns: dict[str, list[Any]] = {name: [] for name in ("file", *TEXTS, "clauses", "share", "more")}
    for name, run in kept.items():
        headers[name] = {"header": msgspec.to_builtins(run.header), "complete": run.complete}
        for record in map(as_record, run.results):
            columns["file"].append(name)
            for text in TEXTS:
                value = record.pop(text)
                columns[text].append(None if value is None else str(getattr(value, "value", value)))
            columns["clauses"].append(list(record.pop("clauses")))
            share = record.pop("share")
            columns["share"].append(None if share is None else float(share))
            columns["more"].append(json.dumps(record, ensure_ascii=False, default=msgspec.to_builtins))
    if not headers:
        raise ReportError("no conformance result file among them: nothing to keep as a dataset")
    word = arrow.dictionary(arrow.int32(), arrow.string())
    types = {**dict.fromkeys(("file", *TEXTS), word), "share": arrow.float64(), "more": word}
    types["clauses"] = arrow.list_(arrow.string())
    table = arrow.table({name: arrow.array(values, types[name]) for name, values in columns.items()})
    document = json.dumps({"version": VERSION, "files": headers}, ensure_ascii=False)
    parquet.write_table(table.replace_schema_metadata({KEY: document.encode()}), to, compression="zstd")
    return int(table.num_rows), left_out


def _keep(name: str, run: Run, kept: dict[str, Run]) -> None:
    """Add a run under its name, with a number where another run has that name; skip a run that is already there."""
    free, number = name, 1
    while free in kept:
        if _recorded(kept[free]) == _recorded(run):
            return
        number += 1
        free = f"{name} ({number})"
    kept[free] = run


def _recorded(run: Run) -> tuple[Any, ...]:
    """Parts of a run that a dataset holds: not its diagnoses."""
    return run.header, run.results, run.complete


def runs(path: Path) -> Iterator[tuple[str, Run]]:
    """The runs of a dataset, each with the name of its file.

    Raises ReportError without pyarrow, or for a file that is no such dataset.
    """
    arrow, parquet = _arrow()
    try:
        table = parquet.read_table(path)
        document = json.loads((table.schema.metadata or {})[KEY])
        files, known = document["files"], document["version"] == VERSION
    except (OSError, KeyError, ValueError, TypeError, arrow.ArrowException) as error:
        raise ReportError(f"{path} is no dataset of results: {error or type(error).__name__}") from None
    if not known:
        raise ReportError(f"{path} is a dataset of version {document['version']}, and {VERSION} is known")
    by_file: dict[str, list[dict[str, Any]]] = {name: [] for name in files}
    try:
        for row in table.to_pylist():
            by_file[row.pop("file")].append({**json.loads(row.pop("more")), **row})
        for name, of_file in files.items():
            header = msgspec.convert(of_file["header"], Header)
            yield name, Run(header, tuple(map(_result, by_file[name])), complete=bool(of_file["complete"]))
    except (KeyError, ValueError, TypeError) as error:
        raise ReportError(f"{path} is damaged: {error}") from None


def _result(row: dict[str, Any]) -> Any:
    share = row["share"]
    return from_record({**row, "share": str(share) if share == float("inf") else share})


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ReportError("Parquet needs pyarrow: pip install 'attention-conformance[parquet]'") from None
    return pyarrow, pyarrow.parquet
