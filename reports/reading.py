"""From result files to records: each file is recognised by its content, and counted.

Three kinds are known: the JSON lines of ``pytest conformance --conformance-json``, the JSON of
``pytest bench --benchmark-json``, and the kill table of ``python -m conformance faults``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conformance import results as result_file
from conformance import strict
from conformance.outcomes import Result
from conformance.results import ResultFileError, Run
from reports import benchmark, faults
from reports.benchmark import BenchRun, Cells
from reports.cell import Samples
from reports.source import AGAIN, ReportError, Source, text_of

__all__ = ["Records", "ReportError", "Source", "incomplete", "read"]

#: What identifies a result.
CASE = ("implementation", "device", "dtype", "case")

#: Characters of the longest first line that can be a header; a run of 400 implementations has 50,000.
HEADER = 1 << 20


@dataclass(frozen=True)
class Records:
    """Everything that a report is made from.  A cell is a timed or untimed workload, as a flat dictionary."""

    sources: tuple[Source, ...]
    results: tuple[Result, ...]
    cells: tuple[dict[str, Any], ...]
    #: The kill table, and the number of cases that it is about.
    faults: tuple[dict[str, Any], ...] = ()
    cases: int = 0
    #: What each file of the bench says of its run, and the samples of each timed cell.
    runs: tuple[BenchRun, ...] = ()
    samples: Mapping[tuple, Samples] = field(default_factory=dict)


def read(paths: Sequence[Path]) -> Records:
    """Read result files of any kind and number; of records with the same identity the first is used.

    Raises ReportError for a file that is missing, empty, damaged, of another project or of another spec version.
    """
    sources: list[Source] = []
    results: dict[tuple, Result] = {}
    cells, runs = Cells(), []
    specs: dict[str, Path] = {}
    kills: dict[str, Any] = {}
    for path in paths:
        text = text_of(path)
        if faults.FORMAT in text[:200]:
            sources.append(_use_faults(path, text, kills))
            continue
        if _is_conformance(text):
            run = _conformance(path)
            spec, source = run.header["spec"], _use_results(path, run, results)
        else:
            document = _benchmark(path, text)
            runs.append(benchmark.run_of(path, document))
            spec, source = runs[-1].spec, benchmark.use_cells(path, document, cells)
        specs.setdefault(spec, path)
        if len(specs) > 1:
            first, other = specs.items()
            raise ReportError(
                f"{other[1]} is of spec version {other[0]} and {first[1]} of {first[0]}: report on them apart"
            )
        sources.append(source)
    caught, cases = tuple(kills.get("faults", ())), kills.get("cases", 0)
    timed = tuple(cells.cells.values())
    return Records(tuple(sources), tuple(results.values()), timed, caught, cases, tuple(runs), cells.samples)


def _is_conformance(text: str) -> bool:
    head = text.partition("\n")[0]
    try:
        first = strict.loads(head) if len(head) <= HEADER else None
    except ValueError:
        return False
    return isinstance(first, dict) and "kind" in first


def _use_faults(path: Path, text: str, kills: dict[str, Any]) -> Source:
    try:
        document = strict.loads(text)
        known = [fault for fault in document["faults"] if _is_fault(fault)]
        cases = int(document["cases"])
    except (KeyError, TypeError, ValueError):
        raise ReportError(f"{path} says that it is a kill table, and is not one") from None
    read = len(document["faults"])
    refused = {"not a fault": read - len(known), "of a second kill table": len(known) if kills else 0}
    if not kills:
        kills.update(faults=known, cases=cases)
    why = {reason: count for reason, count in refused.items() if count}
    return Source(path, "kill table", {"cases": cases}, read, read - sum(why.values()), why)


def _is_fault(fault: Any) -> bool:
    texts = ("name", "group", "clause", "title", "smallest")
    return (
        isinstance(fault, dict)
        and all(isinstance(fault.get(name), str) for name in texts)
        and all(isinstance(fault.get(name), dict) for name in ("sources", "caught"))
    )


def _conformance(path: Path) -> Run:
    try:
        run = result_file.read(path)
    except ResultFileError as error:
        raise ReportError(str(error)) from None
    missing = run.header.get("not_installed", [])
    if not isinstance(run.header.get("spec"), str) or not all(isinstance(one, str) for one in missing):
        raise ReportError(f"{path} is damaged: its header has no version of the spec, or names that are no text")
    return run


def _use_results(path: Path, run: Run, known: dict[tuple, Result]) -> Source:
    used = 0
    for result in run.results:
        key = tuple(getattr(result, name) for name in CASE)
        if key not in known:
            known[key] = result
            used += 1
    apart = ("kind", "format", "profiles", "adapters")
    environment = {name: value for name, value in run.header.items() if name not in apart}
    missing = tuple(environment.pop("not_installed", ()))
    if "ledgers" in environment:
        environment["ledgers"] = {ledger["file"]: f"({ledger['records']} records)" for ledger in environment["ledgers"]}
    read, again = len(run.results), len(run.results) - used
    return Source(path, "conformance", environment, read, used, {AGAIN: again} if again else {}, run.complete, missing)


def _benchmark(path: Path, text: str) -> Any:
    try:
        return strict.loads(text)
    except ValueError as error:
        raise ReportError(f"{path} is neither a conformance result file nor JSON: {error}") from None


def incomplete(sources: Iterable[Source]) -> list[str]:
    """Names of the files that were cut off."""
    return [source.path.name for source in sources if not source.complete]
