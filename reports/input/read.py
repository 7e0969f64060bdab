"""Reader of result files: each file is recognised by its content, and counted.

Four kinds are known: the JSON lines of ``pytest conformance --conformance-json``, the JSON of
``pytest bench --benchmark-json``, the kill matrix of ``attention-conformance kill-matrix``, and the model of a report.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from attention_conformance.conformance import results as result_file
from attention_conformance.conformance.judging.outcomes import Result
from attention_conformance.conformance.results import ResultFileError, Run
from attention_conformance.impls import strict
from attention_conformance.reports.input import bench, columns, kill_matrix, model_file
from attention_conformance.reports.input.bench import Cells
from attention_conformance.reports.input.records import AGAIN, Records, ReportError, Source, labels, text_of

__all__ = ["Records", "ReportError", "Source", "incomplete", "read"]

#: Fields that identify a result.
CASE = ("implementation", "device", "dtype", "case")

#: Characters of the longest first line that can be a header; a run of 400 implementations has 50,000.
HEADER = 1 << 20


def read(paths: Sequence[Path]) -> Records:
    """Read result files of any kind and number; the first of several records with the same identity is used.

    Parameters
    ----------
    paths
        Paths of result files, compressed or not, and of datasets of them (columns.py).

    Returns
    -------
    Records
        Records of the files, and what was refused.

    Raises
    ------
    ReportError
        For a file that is missing, empty, damaged, of another project or of another spec version.
    """
    sources: list[Source] = []
    results: dict[tuple, Result] = {}
    cells, runs = Cells(), []
    specs: dict[str, Path] = {}
    kills: dict[str, Any] = {}
    for path in paths:
        if path.suffix == columns.SUFFIX:
            for name, run in columns.runs(path):
                _one_spec(run.header.spec, path, specs)
                sources.append(_use_results(Path(name), run, results))
            continue
        text = text_of(path)
        if kill_matrix.FORMAT in text[:200]:
            sources.append(_use_faults(path, text, kills))
            continue
        if _is_conformance(text):
            run = _conformance(path)
            spec, source = run.header.spec, _use_results(path, run, results)
        else:
            document = _document(path, text)
            if model_file.is_model(document):
                if len(paths) > 1:
                    raise ReportError("one of the files is a report already: name it alone, or what it was made of")
                return model_file.records_of(path, document)
            runs.append(bench.run_of(path, document))
            spec, source = runs[-1].spec, bench.use_cells(path, document, cells)
        _one_spec(spec, path, specs)
        sources.append(source)
    caught, cases = tuple(kills.get("faults", ())), kills.get("cases", 0)
    timed = tuple(cells.cells.values())
    return Records(tuple(sources), tuple(results.values()), timed, caught, cases, tuple(runs), cells.samples)


def _one_spec(spec: str, path: Path, specs: dict[str, Path]) -> None:
    specs.setdefault(spec, path)
    if len(specs) > 1:
        first, other = specs.items()
        raise ReportError(
            f"{other[1]} is of spec version {other[0]} and {first[1]} of {first[0]}: report on them apart"
        )


def _is_conformance(text: str) -> bool:
    head = text.partition("\n")[0]
    try:
        first = strict.loads(head, finite=False) if len(head) <= HEADER else None
    except ValueError:
        return False
    return isinstance(first, dict) and "kind" in first and not model_file.is_model(first)


def _use_faults(path: Path, text: str, kills: dict[str, Any]) -> Source:
    try:
        document = strict.convert(strict.loads(text), kill_matrix.KillMatrix)
    except strict.StrictError as error:
        raise ReportError(f"{path} says that it is a kill matrix, and is not one: {error}") from None
    known = []
    for fault in document["faults"]:
        with suppress(strict.WrongType):
            known.append(strict.convert(fault, kill_matrix.Fault))
    read, cases = len(document["faults"]), document["cases"]
    refused = {"not a fault": read - len(known), "of a second kill matrix": len(known) if kills else 0}
    if not kills:
        kills.update(faults=known, cases=cases)
    why = {reason: count for reason, count in refused.items() if count}
    return Source(path, "kill matrix", {"cases": cases}, read, read - sum(why.values()), why)


def _conformance(path: Path) -> Run:
    try:
        return result_file.read(path)
    except ResultFileError as error:
        raise ReportError(str(error)) from None


def _use_results(path: Path, run: Run, known: dict[tuple, Result]) -> Source:
    used = 0
    for result in run.results:
        key = tuple(getattr(result, name) for name in CASE)
        if key not in known:
            known[key] = result
            used += 1
    apart = ("kind", "format", "profiles", "adapters", "not_installed")
    environment = {name: value for name, value in msgspec.to_builtins(run.header).items() if name not in apart}
    if run.header.ledgers is not None:
        environment["ledgers"] = {ledger.file: f"({ledger.records} records)" for ledger in run.header.ledgers}
    read, again = len(run.results), len(run.results) - used
    return Source(
        path,
        "conformance",
        environment,
        read,
        used,
        {AGAIN: again} if again else {},
        run.complete,
        run.header.not_installed,
        run.diagnoses,
    )


def records_of(path: Path, run: Run) -> Records:
    """The records of one run of a dataset, by the name of its file."""
    results: dict[tuple, Result] = {}
    source = _use_results(path, run, results)
    return Records((source,), tuple(results.values()), ())


def _document(path: Path, text: str) -> Any:
    try:
        return strict.loads(text, finite=False)
    except ValueError as error:
        raise ReportError(f"{path} is neither a conformance result file nor JSON: {error}") from None


def incomplete(sources: Sequence[Source]) -> list[str]:
    """Labels of the files that were cut off.

    Parameters
    ----------
    sources
        Files that were read.

    Returns
    -------
    list[str]
        Labels of the files.
    """
    return [label for source, label in zip(sources, labels(sources), strict=True) if not source.complete]
