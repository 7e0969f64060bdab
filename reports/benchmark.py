"""From the JSON of ``pytest bench`` to cells with their samples; each record is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from bench.records import FORMAT, JSON_KEY, Run, RunInfo
from reports.cell import NO_CELL, Samples, fault, is_entry, kept, key_of, named, samples_of
from reports.source import AGAIN, ReportError, Source

#: Refusals of a record that is a cell, and of a cell.
TWICE = "twice in this file"
UNLISTED = "timed, but not among the cells"
UNTIMED = "timed, but without statistics"


class BenchRun(RunInfo, frozen=True, kw_only=True):
    """What a file of the bench says of the run as a whole: its name, the machine by pytest-benchmark, and RunInfo."""

    name: str
    machine: dict[str, Any]


@dataclass
class Cells:
    """The cells of some files, by identity, and the samples of those that are timed."""

    cells: dict[tuple, dict[str, Any]] = field(default_factory=dict)
    samples: dict[tuple, Samples] = field(default_factory=dict)


def run_of(path: Path, document: Any) -> BenchRun:
    """The run that a document is of.  Raises ReportError for one that is no result file of the bench."""
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
    """Add the cells of a document to those that are known; of two with one identity the first is used."""
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
            cell, samples = timed.get(key, ({}, None))
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
    """The timed cells with their samples, and why those that have a name are refused; the others are counted."""
    timed: dict[tuple, Any] = {}
    reasons: dict[tuple, str] = {}
    for benchmark in benchmarks:
        info, stats = (benchmark.get(name) if isinstance(benchmark, dict) else None for name in ("extra_info", "stats"))
        if not isinstance(info, dict) or not isinstance(stats, dict) or not named(info):
            refused[NO_CELL] += 1
            continue
        key = key_of(info)
        why = TWICE if key in timed else fault(info, stats)
        if why == TWICE:
            refused[why] += 1
        elif why:
            reasons[key] = why
        else:
            timed[key] = kept(info, stats), samples_of(info, stats)
    return timed, {key: why for key, why in reasons.items() if key not in timed}


def _environment(document: Mapping[str, Any]) -> dict[str, Any]:
    """What the page says of the machine, beside what the fingerprint says."""
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
        "flops": ours.get("flops", ""),
    }
    said = ours.get("fingerprint", {})
    cache = (ours.get("plan") or {}).get("cache")
    later = ({"caches": cache} if cache else {}) | {
        name: said[name] for name in ("governor", "smt", "gpu", "driver", "blas", "id") if said.get(name)
    }
    return found | ({"command": ours["command"]} if ours.get("command") else {}) | later
