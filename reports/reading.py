"""From result files to records: each file is recognised by its content, and counted.

Three kinds are known: the JSON lines of ``pytest conformance --conformance-json``, the JSON of
``pytest bench --benchmark-json``, and the kill table of ``python -m conformance faults``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conformance import results as result_file
from conformance.outcomes import Result
from conformance.results import ResultFileError, Run
from reports import faults

#: What ``pytest bench`` adds to pytest-benchmark's JSON, by which its files are known, and the versions of that.
#: Files of 1 are of sdpa alone and do not name the operator; ``flops`` is one formula there, and by operator in 2.
BENCH_KEY = "attention_conformance"
BENCH_FORMATS = (1, 2, 3)

#: Statistics (seconds) and properties of a timed cell that are kept.
STATISTICS = ("min", "median", "mean", "max", "stddev", "rounds")
PROPERTIES = (
    "B",
    "H",
    "D",
    "flops",
    "gflops",
    "prepare_seconds",
    "first_call_seconds",
    "peak_bytes",
    "share",
    "profile",
)

#: Properties that files of format 1 do not have.
LATER = ("Hkv", "Sk", "Dv", "tokens_per_second")

#: What identifies a cell, and a result.
CELL = ("implementation", "device", "dtype", "workload")
CASE = ("implementation", "device", "dtype", "case")

#: What a fault of a kill table has.
FAULT = ("name", "group", "clause", "title", "sources", "smallest", "caught")


class ReportError(ValueError):
    """A file that cannot be reported on; the text is one sentence that names it."""


@dataclass(frozen=True)
class Source:
    """One file: what it is, where it was made, and how many of its records were read, used and refused."""

    path: Path
    kind: str
    environment: dict[str, Any]
    read: int
    used: int
    #: Why the others were not used, with their numbers.
    refused: dict[str, int] = field(default_factory=dict)
    complete: bool = True
    #: Packages that were not installed, by implementation.
    not_installed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Records:
    """Everything that a report is made from.  A cell is a timed or untimed workload, as a flat dictionary."""

    sources: tuple[Source, ...]
    results: tuple[Result, ...]
    cells: tuple[dict[str, Any], ...]
    #: The kill table, and the number of cases that it is about.
    faults: tuple[dict[str, Any], ...] = ()
    cases: int = 0


def read(paths: Sequence[Path]) -> Records:
    """Read result files of any kind and number; of records with the same identity the first is used.

    Raises ReportError for a file that is missing, empty, damaged, of another project or of another spec version.
    """
    sources: list[Source] = []
    results: dict[tuple, Result] = {}
    cells: dict[tuple, dict[str, Any]] = {}
    specs: dict[str, Path] = {}
    kills: dict[str, Any] = {}
    for path in paths:
        text = _text(path)
        if faults.FORMAT in text[:200]:
            killed, source = _kill_table(path, text)
            kills = kills or killed
            sources.append(source)
            continue
        if _is_conformance(text):
            run = _conformance(path)
            spec, source = run.header["spec"], _use_results(path, run, results)
        else:
            document = _benchmark(path, text)
            spec, source = document[BENCH_KEY]["spec"], _use_cells(path, document, cells)
        specs.setdefault(spec, path)
        if len(specs) > 1:
            first, other = specs.items()
            raise ReportError(
                f"{other[1]} is of spec version {other[0]} and {first[1]} of {first[0]}: report on them apart"
            )
        sources.append(source)
    caught, cases = tuple(kills.get("faults", ())), kills.get("cases", 0)
    return Records(tuple(sources), tuple(results.values()), tuple(cells.values()), caught, cases)


def _text(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ReportError(f"{path} does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ReportError(f"{path} cannot be read: {error}") from None
    if not text.strip():
        raise ReportError(f"{path} is empty")
    return text


def _is_conformance(text: str) -> bool:
    try:
        first = json.loads(text.partition("\n")[0])
    except json.JSONDecodeError:
        return False
    return isinstance(first, dict) and "kind" in first


def _kill_table(path: Path, text: str) -> tuple[dict[str, Any], Source]:
    try:
        document = json.loads(text)
        known = [fault for fault in document["faults"] if set(FAULT) <= set(fault)]
        cases = int(document["cases"])
    except (json.JSONDecodeError, KeyError, TypeError, ValueError):
        raise ReportError(f"{path} says that it is a kill table, and is not one") from None
    refused = len(document["faults"]) - len(known)
    why = {"not a fault": refused} if refused else {}
    source = Source(path, "kill table", {"cases": cases}, len(document["faults"]), len(known), why)
    return {"faults": known, "cases": cases}, source


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
    apart = ("kind", "format", "profiles", "adapters")
    environment = {name: value for name, value in run.header.items() if name not in apart}
    missing = tuple(environment.pop("not_installed", ()))
    if "ledgers" in environment:
        environment["ledgers"] = {ledger["file"]: f"({ledger['records']} records)" for ledger in environment["ledgers"]}
    read, again = len(run.results), len(run.results) - used
    return Source(path, "conformance", environment, read, used, _again(again), run.complete, missing)


def _benchmark(path: Path, text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise ReportError(
            f"{path} is neither a conformance result file nor JSON ({error.msg}, line {error.lineno})"
        ) from None
    if not isinstance(document, dict) or "benchmarks" not in document:
        raise ReportError(f"{path} is neither a conformance result file nor the JSON of pytest-benchmark")
    ours = document.get(BENCH_KEY)
    if ours is None:
        raise ReportError(f"{path} was written by pytest-benchmark for another project, not by `pytest bench`")
    if not isinstance(ours, dict) or ours.get("format") not in BENCH_FORMATS:
        found = ours.get("format") if isinstance(ours, dict) else ours
        raise ReportError(f"{path} has bench format {found}, expected {' or '.join(map(str, BENCH_FORMATS))}")
    return document


def _use_cells(path: Path, document: dict[str, Any], known: dict[tuple, dict[str, Any]]) -> Source:
    timed = {}
    for benchmark in document["benchmarks"]:
        found = {**benchmark.get("extra_info", {}), **benchmark.get("stats", {})}
        if all(name in found for name in (*CELL, *PROPERTIES, *STATISTICS)):
            later = [name for name in LATER if name in found]
            kept = (*PROPERTIES, *later, *STATISTICS)
            timed[tuple(found[name] for name in CELL)] = {name: found[name] for name in kept}
    refused = {"not a cell of the bench": len(document["benchmarks"]) - len(timed)}
    used = again = incomplete = 0
    for cell in document[BENCH_KEY]["cells"]:
        key = tuple(cell[name] for name in CELL)
        if cell["outcome"] == "timed" and key not in timed:
            incomplete += 1
        elif key in known:
            again += 1
        else:
            known[key] = cell | timed.get(key, {})
            used += 1
    refused |= {"timed, but without statistics": incomplete, **_again(again)}
    refused = {why: count for why, count in refused.items() if count}
    return Source(path, "benchmark", _machine(document), used + sum(refused.values()), used, refused)


def _again(count: int) -> dict[str, int]:
    return {"of a case or cell that an earlier file has": count} if count else {}


def _machine(document: dict[str, Any]) -> dict[str, Any]:
    machine = document.get("machine_info", {})
    return {
        "written": document.get("datetime", ""),
        "machine": machine.get("machine", ""),
        "processor": machine.get("cpu", {}).get("brand_raw", ""),
        "system": f"{machine.get('system', '')} {machine.get('release', '')}",
        "python": machine.get("python_version", ""),
        "usable_cores": machine.get("usable_cores", ""),
        "load_average": document[BENCH_KEY].get("load_average", ""),
        "threads": {name: value for name, value in machine.get("threads", {}).items() if value != "not set"},
        "versions": machine.get("libraries", {}),
        "flops": document[BENCH_KEY].get("flops", ""),
    }


def incomplete(sources: Iterable[Source]) -> list[str]:
    """Names of the files that were cut off."""
    return [source.path.name for source in sources if not source.complete]
