"""evidence.json.zst: the evidence's contents, and how it is collected, written and read.

It has numbers only; the page is made from them (page.py).  Each series of random problems is a separate part that can
be measured again without the others.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import numpy as np

from attention_conformance import conformance
from attention_conformance.conformance.cases.data import Shape
from attention_conformance.conformance.cases.layer import LayerShape
from attention_conformance.conformance.evidence import float32, sensitivity
from attention_conformance.conformance.evidence.measure import Measured, alarms, measure, rows
from attention_conformance.conformance.evidence.series import SERIES, Series
from attention_conformance.conformance.evidence.stamp import stamp
from attention_conformance.conformance.evidence.verdicts import Kind, Verdict
from attention_conformance.conformance.ledger.load import read as read_ledger
from attention_conformance.conformance.properties.drawn import SEED
from attention_conformance.conformance.properties.problem import Problem
from attention_conformance.conformance.results import fingerprint
from attention_conformance.impls import compressed, strict

#: Increased when the meaning of a field changes.
FORMAT = 3

EVIDENCE = Path(conformance.__file__).with_name("evidence.json.zst")

#: Fields that do not describe the inputs.
UNSAID = ("name", "operator")

#: Most bytes of a file that is read.
LIMIT = 1 << 24

#: Random float64 problems that are computed in float32, in addition to the suite's cases.
IN_FLOAT32 = 1_000


class Part(TypedDict):
    """A series of random problems."""

    problems: int
    machine: dict[str, str]
    versions: dict[str, str]
    every: dict[str, int]
    drawn: dict[str, dict[str, Any]]
    alarms: list[dict[str, Any]]
    rows: list[dict[str, Any]]
    deviations: dict[str, dict[str, str]]
    stamp: dict[str, dict[str, Any]]
    sensitivity: list[dict[str, Any]]
    float32: NotRequired[dict[str, dict[str, int]]]


class Evidence(TypedDict):
    """The file."""

    format: int
    seed: int
    series: dict[str, Part]


def collect(
    problems: int | None, parallel: int, only: Collection[str] = (), kept: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Measure everything, or ``only`` some series and keep the others of ``kept``; takes minutes.

    Judges ``problems`` random problems of each series (None: the series' own number), ``parallel`` blocks at a time.
    """
    found = dict(kept["series"]) if kept and only else {}
    for series in SERIES.values():
        if series.name in only or not only:
            count = series.problems if problems is None else problems
            found[series.name] = part(series, count, measure(series, count, parallel))
    return {"format": FORMAT, "seed": SEED, "series": {name: found[name] for name in SERIES if name in found}}


def part(series: Series, problems: int, judged: Measured) -> dict[str, Any]:
    """Evidence of a series: its problems, their verdicts, and the smallest errors that are caught."""
    machine = fingerprint()
    return {
        "problems": problems,
        "machine": {name: machine[name] for name in ("machine", "system", "python")},
        "versions": dict(sorted(judged.versions.items())),
        "every": dict(series.every),
        "drawn": count_drawn(series, problems),
        "alarms": alarms(judged.verdicts),
        "rows": sorted(rows(judged.verdicts), key=lambda row: _order(series, row)),
        "deviations": deviations(judged.verdicts),
        **small(series, problems),
    }


def small(series: Series, problems: int) -> dict[str, Any]:
    """The part about the suite's cases: the smallest errors that are caught on them, and the evidence's stamp."""
    found = {"stamp": stamp(series), "sensitivity": sensitivity.rows(series)}
    if series.name == "sdpa":
        found["float32"] = float32.counts(min(problems, IN_FLOAT32))
    return found


def remeasure_cases(kept: dict[str, Any]) -> dict[str, Any]:
    """The evidence with the part about the suite's cases measured again, after a change of cases; takes a minute."""
    parts = {name: {**each, **small(SERIES[name], each["problems"])} for name, each in kept["series"].items()}
    for name, each in parts.items():
        # The verdicts on random problems keep the stamp of the bounds that they were judged by.
        each["stamp"]["bounds"] = kept["series"][name]["stamp"]["bounds"]
    return {**kept, "series": parts}


def deviations(verdicts: Iterable[Verdict]) -> dict[str, dict[str, Any]]:
    """Records that excused a problem, with the clause and the behaviour of each."""
    met = {name for each in verdicts if each.kind is Kind.KNOWN for name in each.why.split(", ")}
    return {
        each.id: {"clause": each.clause, "instead": each.instead} for each in read_ledger().deviations if each.id in met
    }


def write(evidence: dict[str, Any], path: Path) -> None:
    """Write a file that ``read`` reads."""
    compressed.write(path, (json.dumps(evidence, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())


def read(path: Path = EVIDENCE) -> dict[str, Any]:
    """The evidence in a file.  Raises ValueError for another format, and for a field that is missing or wrong."""
    value = strict.loads(compressed.read(path, LIMIT))
    given = value.get("format") if isinstance(value, dict) else None
    if given != FORMAT:
        raise ValueError(f"{path} has format {given}, expected {FORMAT}")
    try:
        return {**strict.convert(value, Evidence)}
    except strict.WrongType as error:
        raise ValueError(error.of(str(path))) from None


def _order(series: Series, row: dict[str, Any]) -> tuple[bool, int, int]:
    names = [name.rpartition(":")[2] for name in series.implementations]
    return row["variant"], names.index(row["implementation"]), sensitivity.DTYPES.index(row["dtype"])


def count_drawn(series: Series, problems: int) -> dict[str, Any]:
    """Counts of the first problems of a series: how many are in each dtype, and how many give each field.

    Each field has its smallest and largest number, None for a field without numbers.
    """
    dtypes = [series.dtype(index) for index in range(problems)]
    given: dict[str, int] = {}
    numbers: dict[str, list[float]] = {}
    for index in range(problems):
        for name, value, default in _fields_of(series.problem(index)):
            given[name] = given.get(name, 0) + (
                value is True or (type(value) is not bool and value not in (None, default))
            )
            numbers.setdefault(name, []).extend(n for n in np.ravel(value).tolist() if type(n) in (int, float))
    return {
        "dtypes": {name: dtypes.count(name) for name in sorted(set(dtypes))},
        "fields": {
            name: {
                "given": count,
                "smallest": min(numbers[name], default=None),
                "largest": max(numbers[name], default=None),
            }
            for name, count in given.items()
            if count
        },
    }


def _fields_of(problem: Any) -> Iterator[tuple[str, Any, Any]]:
    """Name, value and default of each field, including those of an inner problem and of the shape (always given)."""
    for field in fields(problem):
        value = getattr(problem, field.name)
        if isinstance(value, Problem | Shape | LayerShape):
            yield from _fields_of(value)
        elif field.name not in UNSAID:
            yield field.name, value, MISSING if isinstance(problem, Shape | LayerShape) else field.default
