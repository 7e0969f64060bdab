"""Cells of the bench, from its JSON: which records are cells, what is kept from them, and why others are refused."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from attention_conformance.bench.records import FORMAT, JSON_KEY, Benchmark, Record, Run, Timed
from attention_conformance.reports.input.records import AGAIN, BenchRun, ReportError, Samples, Source

#: Fields that identify a cell.
CELL = ("implementation", "device", "dtype", "workload")

Key = tuple[str, str, str, str]

#: Statistics of a timed cell: seconds that are positive, and two that may be 0.
SECONDS = ("min", "median", "mean", "max")

STATISTICS = (*SECONDS, "stddev", "rounds")

#: Fields of ``extra_info`` in the tables: all except those of the call itself, which the list of cells has.
_ELSEWHERE = (*CELL, "operator", "S", "is_causal", "formula", "threads", "process_runs", "interval")

PROPERTIES = tuple(name for name in Timed.__struct_fields__ if name not in _ELSEWHERE)

#: Clock and caches of a time where the file does not say: the host's clock, and caches as earlier calls left them.
CLOCK, CACHE = "wall", "warm"

#: Refusals of a record.
NO_CELL = "not a cell of the bench"

NO_TIME = "a time that is not a positive number"

NO_NUMBER = "a field of the wrong type"

NO_BATCHES = "process runs that do not add up to the samples"

NO_INTERVAL = "an interval that does not hold the median"

#: Reasons why a record is refused, by the field of the wrong type; NO_NUMBER for fields that are not here.
_REFUSALS = {"process_runs": NO_BATCHES, "interval": NO_INTERVAL} | dict.fromkeys((*SECONDS, "data"), NO_TIME)

#: The part of msgspec's message that names the wrong field of a record.
_FIELD = re.compile(r"at `\$\.(?:extra_info|stats)\.(\w+)")

#: Refusals of a record that is a cell, and of a cell.
TWICE = "twice in this file"

UNLISTED = "timed, but not among the cells"

UNTIMED = "timed, but without statistics"


def key_of(cell: Mapping[str, Any]) -> Key:
    """Key of a cell.

    Parameters
    ----------
    cell
        A record.

    Returns
    -------
    Key
        Implementation, device, dtype and workload.
    """
    return cell["implementation"], cell["device"], cell["dtype"], cell["workload"]


def is_entry(entry: Any) -> bool:
    """Whether something is an entry of the list of cells.

    Parameters
    ----------
    entry
        A JSON value.

    Returns
    -------
    bool
        Whether it is an object with a benchmark's parts.
    """
    try:
        found = msgspec.convert(entry, Record)
    except msgspec.ValidationError:
        return False
    return found.outcome != "unstable" or (found.seconds is not None and found.interval is not None)


def fault(info: Mapping[str, Any], stats: Mapping[str, Any]) -> str:
    """Fault of a record: why it cannot be used, "" if it can.

    Parameters
    ----------
    info
        Fields that the suite adds to a benchmark's record.
    stats
        Pytest-benchmark's statistics, in seconds.

    Returns
    -------
    str
        One sentence.
    """
    try:
        found = msgspec.convert({"extra_info": info, "stats": stats}, Benchmark)
    except msgspec.ValidationError as error:
        where = _FIELD.search(str(error))
        return _REFUSALS.get(where[1], NO_NUMBER) if where else NO_CELL
    runs, interval = found.extra_info.process_runs, found.extra_info.interval
    if runs is not msgspec.UNSET and sum(map(sum, runs)) != len(found.stats.data):
        return NO_BATCHES
    return "" if interval is None or interval[0] <= found.stats.median <= interval[1] else NO_INTERVAL


def _table_columns(info: Mapping[str, Any], stats: Mapping[str, Any]) -> dict[str, Any]:
    """Columns of a timed cell in the tables; the interval becomes two columns, the process runs become their number."""
    found = {name: info[name] for name in PROPERTIES if name in info} | {name: stats[name] for name in STATISTICS}
    if info.get("interval"):
        found["interval_low"], found["interval_high"] = info["interval"]
    if info.get("process_runs"):
        found["process_runs"] = len(info["process_runs"])
    return found


def _samples_of(info: Mapping[str, Any], stats: Mapping[str, Any]) -> Samples | None:
    """Samples of a timed cell, by process run, None if the file was written without them."""
    if not stats.get("data"):
        return None
    return Samples.of(stats["data"], info.get("process_runs", ()))


@dataclass
class Cells:
    """The cells of some files, by identity, and the samples of the timed ones."""

    cells: dict[tuple, dict[str, Any]] = field(default_factory=dict)
    samples: dict[tuple, Samples] = field(default_factory=dict)


def run_of(path: Path, document: Any) -> BenchRun:
    """The run that a document describes.

    Parameters
    ----------
    path
        Path of the file.
    document
        The JSON value.

    Returns
    -------
    BenchRun
        Name, machine, plan and versions.

    Raises
    ------
    ReportError
        For a document that is no result file of the bench.
    """
    if not isinstance(document, dict) or not isinstance(document.get("benchmarks"), list):
        raise ReportError(f"{path} is neither a conformance result file nor the JSON of pytest-benchmark")
    ours = document.get(JSON_KEY)
    if ours is None:
        raise ReportError(f"{path} was written by pytest-benchmark for another project, not by `pytest bench`")
    found = ours.get("format") if isinstance(ours, dict) else ours
    if found != FORMAT or isinstance(found, (bool, float)):
        raise ReportError(f"{path} has bench format {found}, expected {FORMAT}: run `pytest bench` again")
    machine = document.get("machine_info", {})
    try:
        if not isinstance(machine, dict):
            raise msgspec.ValidationError("machine_info is no object")
        known = msgspec.structs.asdict(msgspec.convert(ours, Run))
    except msgspec.ValidationError as error:
        raise ReportError(f"{path} is damaged: {JSON_KEY}: {error}") from None
    del known["cells"]
    known["started"] = known["started"] or str(document.get("datetime", ""))
    return BenchRun(name=path.name, machine=machine, **known)


def use_cells(path: Path, document: Mapping[str, Any], known: Cells) -> Source:
    """Add the cells of a document to those that are known; the first of two with the same identity is used.

    Parameters
    ----------
    path
        Path of the file.
    document
        The JSON value.
    known
        Cells by key; new ones are added.

    Returns
    -------
    Source
        The file with its counts of records.
    """
    refused: Counter[str] = Counter()
    timed, reasons = _timed(document["benchmarks"], refused)
    seen: set[tuple] = set()
    used = 0
    for entry in document[JSON_KEY]["cells"]:
        if not is_entry(entry):
            refused[NO_CELL] += 1
            continue
        key = key_of(entry)
        if key in seen:
            refused[TWICE] += 1
        elif entry["outcome"] == "timed" and key not in timed:
            refused[reasons.pop(key, UNTIMED)] += 1
        elif key in known.cells:
            refused[AGAIN] += 1
        else:
            cell, samples = timed.get(key, ({}, None)) if entry["outcome"] == "timed" else ({}, None)
            known.cells[key] = entry | cell
            if samples is not None:
                known.samples[key] = samples
            used += 1
        seen.add(key)
    refused.update(reasons.values())
    refused[UNLISTED] += len(timed.keys() - seen)
    why = {reason: count for reason, count in refused.items() if count}
    return Source(path, "benchmark", _environment(document), used + sum(why.values()), used, why)


def _timed(benchmarks: list[Any], refused: Counter[str]) -> tuple[dict[tuple, Any], dict[tuple, str]]:
    """The timed cells with their samples, and why others are refused, by key; records without a key are counted."""
    timed: dict[tuple, Any] = {}
    reasons: dict[tuple, str] = {}
    for benchmark in benchmarks:
        info, stats = (benchmark.get(name) if isinstance(benchmark, dict) else None for name in ("extra_info", "stats"))
        if (
            not isinstance(info, dict)
            or not isinstance(stats, dict)
            or not all(isinstance(info.get(name), str) for name in CELL)
        ):
            refused[NO_CELL] += 1
            continue
        key = key_of(info)
        why = TWICE if key in timed else fault(info, stats)
        if why == TWICE:
            refused[why] += 1
        elif why:
            reasons[key] = why
        else:
            timed[key] = _table_columns(info, stats), _samples_of(info, stats)
    return timed, {key: why for key, why in reasons.items() if key not in timed}


def _environment(document: Mapping[str, Any]) -> dict[str, Any]:
    """Lines about the machine, including parts of its fingerprint."""
    machine, ours = document.get("machine_info", {}), document[JSON_KEY]
    cpu, threads = machine.get("cpu"), machine.get("threads")
    found = {
        "written": document.get("datetime", ""),
        "machine": machine.get("machine", ""),
        "processor": cpu.get("brand_raw", "") if isinstance(cpu, dict) else "",
        "system": f"{machine.get('system', '')} {machine.get('release', '')}",
        "python": machine.get("python_version", ""),
        "usable_cores": machine.get("usable_cores", ""),
        "load_average": ours.get("load_average", ""),
        "threads": {name: value for name, value in threads.items() if value != "not set"}
        if isinstance(threads, dict)
        else {},
        "versions": machine.get("libraries", {}),
        "flops": ours.get("flops", {}),
    }
    said = ours.get("fingerprint", {})
    cache = (ours.get("plan") or {}).get("cache")
    wait = {"core_wait": ours["core_wait"]} if ours.get("core_wait") is not None else {}
    later = (
        wait
        | ({"caches": cache} if cache else {})
        | {name: said[name] for name in ("governor", "smt", "gpu", "driver", "blas", "id") if said.get(name)}
    )
    return found | ({"command": ours["command"]} if ours.get("command") else {}) | later
