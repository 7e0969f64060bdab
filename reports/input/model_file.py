"""The result model as JSON (``model.json``), read back into the records that it was made from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from attention_conformance.conformance.results import Diagnosis, from_record
from attention_conformance.reports.input.bench import fault, is_entry, key_of
from attention_conformance.reports.input.records import BenchRun, Records, ReportError, Samples, Source
from attention_conformance.reports.schemas import ModelDocument

#: Kind and version that a model names.  A version that only adds fields stays the same.
KIND = "attention-conformance report"
VERSION = 2

#: The columns of a cell's interval.
_INTERVAL = ("interval_low", "interval_high")


def is_model(document: Any) -> bool:
    """Whether a JSON document says that it is a model."""
    return isinstance(document, dict) and document.get("kind") == KIND


def records_of(path: Path, document: Mapping[str, Any]) -> Records:
    """The records that a model was made from.  Raises ReportError for one of another version, or a damaged one."""
    if document.get("version") != VERSION:
        raise ReportError(f"{path} is a report of version {document.get('version')}, expected {VERSION}")
    try:
        msgspec.convert(document, ModelDocument)
        sources = tuple(_source(one) for one in document["files"])
        results = tuple(map(from_record, document["results"]))
        cells = tuple(dict(cell) for cell in document["cells"])
        for cell in cells:
            _check(cell)
        samples = {key_of(cell): _samples(cell.pop("samples")) for cell in cells if "samples" in cell}
        runs = tuple(msgspec.convert(run, BenchRun) for run in document["runs"])
        return Records(sources, results, cells, tuple(document["faults"]), document["cases"], runs, samples)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ReportError(f"{path} says that it is a report, and is damaged: {error}") from None


def _check(cell: Mapping[str, Any]) -> None:
    """Raises ValueError for a cell that cannot be from a file of the bench."""
    raw = cell.get("samples", {"seconds": [], "process_runs": []})
    as_read = {**cell, "data": raw["seconds"], "interval": [cell[name] for name in _INTERVAL if name in cell] or None}
    as_read.pop("process_runs", None)
    why = "" if is_entry(cell) else "not a cell of the bench"
    if not why and cell["outcome"] == "timed":
        why = fault(as_read | ({"process_runs": raw["process_runs"]} if raw["process_runs"] else {}), as_read)
    if why:
        raise ValueError(f"a cell of it is refused: {why}")


def _source(record: Mapping[str, Any]) -> Source:
    fields = {name: value for name, value in _tuples(record).items() if name not in ("name", "diagnoses")}
    diagnoses = msgspec.convert(record.get("diagnoses", ()), tuple[Diagnosis, ...])
    return Source(path=Path(record["name"]), diagnoses=diagnoses, **fields)


def _samples(record: Mapping[str, Any]) -> Samples:
    return Samples.of(record["seconds"], record["process_runs"])


def _tuples(record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in record.items()}
