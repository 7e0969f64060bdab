"""The result model: everything that a report shows, made once; Markdown, CSV, Parquet, JSON and pages are views.

As JSON (``model.json``) it can be read again, and then gives the same report.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd

from attention_conformance.bench.analysis.fits import Memory
from attention_conformance.conformance.results import as_record
from attention_conformance.conformance.spec.clauses import Clause
from attention_conformance.reports.compare import machines
from attention_conformance.reports.compare.changes import Comparison
from attention_conformance.reports.input.bench import key_of
from attention_conformance.reports.input.model_file import KIND, VERSION
from attention_conformance.reports.input.records import Records, Samples, Source, labels
from attention_conformance.reports.model import faults, memory, tables


@dataclasses.dataclass(frozen=True)
class Model:
    """The records, and the tables that are made from them."""

    records: Records
    clauses: Mapping[str, Clause]
    #: What changed since a base run, where there is one.
    since: Comparison | None = None

    @cached_property
    def results(self) -> pd.DataFrame:
        """One row per result."""
        return tables.conformance(self.records.results)

    @cached_property
    def cells(self) -> pd.DataFrame:
        """One row per cell of the bench."""
        return tables.bench(self.records.cells)

    @cached_property
    def memories(self) -> list[Memory]:
        """Growth of memory of each series of cells."""
        return memory.memories(self.records.cells)

    @property
    def machines(self) -> str:
        """Sentence about the machines that the times are from, where there are several; "" for one."""
        runs = self.records.runs
        apart = machines.differences(runs, ()) if len(runs) > 1 else []
        if not apart:
            return ""
        return f"These times are from different machines ({'; '.join(apart)}): do not rank them against each other."

    @cached_property
    def divergence(self) -> pd.DataFrame:
        """One row per implementation and device, one column per question on which libraries disagree."""
        return tables.divergence(self.records.results).reset_index()

    @cached_property
    def matrix(self) -> pd.DataFrame:
        """One row per implementation, device and clause."""
        return tables.matrix(self.results, self.clauses)

    @cached_property
    def implementations(self) -> pd.DataFrame:
        """One row per implementation and device."""
        return tables.implementations(self.results)

    @cached_property
    def differences(self) -> pd.DataFrame:
        """One row per way not to follow a clause."""
        return tables.differences(self.results)

    @cached_property
    def faults(self) -> pd.DataFrame:
        """One row per known fault and case that catches it."""
        return faults.frame(self.records.faults)

    @property
    def frames(self) -> dict[str, pd.DataFrame]:
        """The tables that there are records for, by the names of their files."""
        found: dict[str, pd.DataFrame] = {}
        if self.records.results:
            found |= {"conformance": self.results, "divergence": self.divergence, "matrix": self.matrix}
        if self.records.faults:
            found["faults"] = self.faults
        if self.records.cells:
            found["bench"] = self.cells
        return found

    @property
    def document(self) -> dict[str, Any]:
        """The model as plain data."""
        records = self.records
        some = bool(records.results)
        wide = self.divergence if some else pd.DataFrame()
        long = wide.melt(tables.WHO, var_name="question", value_name="answer") if "device" in wide else wide
        return {
            "kind": KIND,
            "version": VERSION,
            "files": [_file(*one) for one in zip(records.sources, labels(records.sources), strict=True)],
            "results": [as_record(result) for result in records.results],
            "implementations": _rows(self.implementations) if some else [],
            "matrix": _rows(self.matrix) if some else [],
            "divergence": _rows(long) if "question" in long else [],
            "differences": _rows(self.differences) if some else [],
            "memory": _rows(memory.frame(self.memories)),
            "runs": [_plain(msgspec.to_builtins(run)) for run in records.runs],
            "cells": [_cell(cell, records.samples.get(key_of(cell))) for cell in records.cells],
            "cases": records.cases,
            "faults": list(records.faults),
        }


def write(model: Model, path: Path) -> None:
    """Write the model as JSON, one record a line."""
    parts = []
    for name, value in model.document.items():
        text = _lines(value) if isinstance(value, list) else json.dumps(value, allow_nan=False)
        parts.append(f"{json.dumps(name)}: {text}")
    path.write_text("{" + ",\n".join(parts) + "}\n", encoding="utf-8")


def _lines(records: list[Any]) -> str:
    encode = json.JSONEncoder(allow_nan=False, ensure_ascii=False).encode
    return "[" + "".join(f"{',' if at else ''}\n{encode(one)}" for at, one in enumerate(records)) + "]"


def _file(source: Source, label: str) -> dict[str, Any]:
    found = {field.name: getattr(source, field.name) for field in dataclasses.fields(source)}
    del found["path"]
    return _plain({"name": label, **found, "diagnoses": msgspec.to_builtins(source.diagnoses)})


def _cell(cell: Mapping[str, Any], samples: Samples | None) -> dict[str, Any]:
    plain = dict(cell)
    if samples is not None:
        plain["samples"] = {
            "seconds": samples.seconds.tolist(),
            "process_runs": [list(sizes) for sizes in samples.sizes],
        }
    return plain


def _rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    names = {name: name.replace(" ", "_") for name in frame.columns}
    return [_plain(row) for row in frame.rename(columns=names).to_dict("records")]


def _plain(value: Any) -> Any:
    """JSON has no NaN and no infinity: what is not known is null, an infinite share is text as in result files."""
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value
