"""Series of a folder of result files: the times of every cell over the runs, and the results of conformance."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from attention_conformance.conformance.judging.outcomes import Outcome
from attention_conformance.reports.compare import machines
from attention_conformance.reports.history import levels
from attention_conformance.reports.input import columns
from attention_conformance.reports.input.bench import CACHE, CELL, CLOCK, Key, key_of
from attention_conformance.reports.input.places import files_of as in_places
from attention_conformance.reports.input.read import read, records_of
from attention_conformance.reports.input.records import BenchRun, Records, ReportError, Source
from attention_conformance.reports.schemas import Found, Point, Step
from attention_conformance.reports.text import NONE

#: Fields of a machine that distinguish series where files have no fingerprint.
_MACHINE = ("processor", "usable cores")


@dataclass(frozen=True)
class Series:
    """A cell on one machine, over time, with its changes, alone or with others."""

    key: Key
    machine: str
    points: tuple[Point, ...]
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Tally:
    """Tally of the conformance of an implementation on a device in one run."""

    when: str
    file: str
    implementation: str
    device: str
    counts: dict[str, int]


@dataclass
class History:
    """The whole history; ``refused`` files are named with their reason."""

    files: int = 0
    series: list[Series] = field(default_factory=list)
    #: The oldest first, and within a run the highest level.
    changes: list[Found] = field(default_factory=list)
    tallies: list[Tally] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    #: Libraries by file of the bench.
    versions: dict[str, dict[str, str]] = field(default_factory=dict)
    sources: list[Source] = field(default_factory=list)


def history(*places: Path) -> History:
    """Read every result file of folders, globs and datasets, in the order of their dates.

    Raises ReportError if none can be read.
    """
    paths = in_places(places)
    found, refused = History(), 0
    only = places[0] if len(places) == 1 else None  # files of several folders may have the same name
    points: dict[tuple[Key, str], list[Point]] = {}
    for path in paths:
        name = str(path.relative_to(only)) if only and only in path.parents else str(path)
        try:
            for file, records in _runs(path, name):
                found.files += 1
                found.sources += records.sources
                _add(file, records, points, found)
        except ReportError as error:
            found.files, refused = found.files + 1, refused + 1
            found.refused[name] = str(error)
    if refused == len(paths):
        raise ReportError(f"{', '.join(map(str, places))} has no result file that can be read, of {len(paths)}")
    found.tallies.sort(key=lambda tally: (tally.when, tally.file))
    series = {place: sorted(those, key=lambda one: (one.when, one.file)) for place, those in sorted(points.items())}
    for place in dict.fromkeys((key[1], machine) for key, machine in series):
        _judge(place[1], {key: those for (key, on), those in series.items() if (key[1], on) == place}, found)
    found.series.sort(key=lambda one: (one.key, one.machine))
    found.changes.sort(key=lambda one: (one.when, one.file))
    return found


def _runs(path: Path, name: str) -> Iterator[tuple[str, Records]]:
    """The runs of a file, each with its name: for a dataset the runs of all its files."""
    if path.suffix != columns.SUFFIX:
        yield name, read([path])
        return
    for file, run in columns.runs(path):
        yield file, records_of(Path(file), run)


def _judge(machine: str, cells: Mapping[Key, Sequence[Point]], found: History) -> None:
    """Add the series of a machine's cells on one device, and their changes."""
    keys = list(cells)
    runs = sorted({(one.when, one.file) for those in cells.values() for one in those})
    at = {run: number for number, run in enumerate(runs)}
    logs = np.full((len(keys), len(runs)), np.nan)
    for row, those in zip(logs, cells.values(), strict=True):
        row[[at[one.when, one.file] for one in those]] = [math.log(one.median) for one in those]
    changed = levels.find_changes(logs, keys)
    series = [
        Series(key, machine, tuple(cells[key]), tuple(steps(row, places)))
        for key, row, places in zip(keys, changed.logs, changed.places, strict=True)
    ]
    found.series += series
    for one in changed.findings:
        first, when, file = series[one.cells[0]], *runs[one.at]
        number = int(np.sum(~np.isnan(changed.logs[one.cells[0]][: one.at])))
        alone = next((s for s in first.steps if s.at == number and one.level is levels.Level.CELL), None)
        named = levels.NAMED[one.level]
        found.changes.append(
            Found(
                **{name: text if name in named else "" for name, text in zip(CELL, first.key, strict=True)},
                level=one.level.value,
                machine=machine,
                when=when,
                file=file,
                ratio=alone.ratio if alone else one.ratio,
                before=alone.before if alone else None,
                after=alone.after if alone else None,
                cells=len(one.cells),
                of=one.of,
                versions=changed_versions(*(found.versions[first.points[at].file] for at in (number - 1, number))),
            )
        )


def steps(row: np.ndarray, places: Sequence[int]) -> list[Step]:
    """The changes of a cell.

    Parameters
    ----------
    row
        Log seconds by run, NaN where a run lacks the cell.
    places
        The runs at which it changed.

    Returns
    -------
    list of Step
        Steps, each with its number among the runs that have the cell.
    """
    there = np.flatnonzero(~np.isnan(row))
    starts = sorted({int(np.searchsorted(there, place)) for place in places} - {0, len(there)})
    times = [math.exp(float(np.median(part))) for part in np.split(row[there], starts)]
    return [Step(at, *pair) for at, pair in zip(starts, pairwise(times), strict=True)]


def changed_versions(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """Libraries whose versions differ between two files, in words; empty for none."""
    changed = [name for name in dict.fromkeys((*before, *after)) if before.get(name) != after.get(name)]
    return ", ".join(f"{name} {before.get(name, NONE)} → {after.get(name, NONE)}" for name in changed)


def _add(file: str, records: Records, points: dict[tuple[Key, str], list[Point]], found: History) -> None:
    for run in records.runs[:1]:  # a model may be of several runs, whose cells it does not distinguish
        found.versions[file] = dict(machines.versions_of(run))
        machine = _machine(run)
        for cell in records.cells:
            if cell["outcome"] == "timed":
                ends = (cell["median"], cell.get("interval_low"), cell.get("interval_high"))
                place = ", ".join((machine, *_ways(run, cell)))
                points.setdefault((key_of(cell), place), []).append(Point(run.started, file, *ends))
    when = next((str(one.environment.get("started", "")) for one in records.sources if one.kind == "conformance"), "")
    counts: dict[tuple[str, str], Counter[str]] = {}
    for result in records.results:
        counts.setdefault((result.implementation, result.device), Counter())[result.outcome.value] += 1
    for who, count in counts.items():
        found.tallies.append(Tally(when, file, *who, {one.value: count[one.value] for one in Outcome}))


def _ways(run: BenchRun, cell: Mapping[str, Any]) -> list[str]:
    """Unusual ways in which a cell was timed: times that were taken in two ways are two series."""
    cache, clock = run.plan.cache if run.plan else CACHE, cell.get("clock") or CLOCK
    cores = run.fingerprint.get("cores_usable")
    fewer = [f"threads {run.plan.threads}"] if run.plan and cores and run.plan.threads != cores else []
    return [f"caches {cache}"] * (cache != CACHE) + fewer + [str(clock)] * (clock != CLOCK)


def _machine(run: BenchRun) -> str:
    known = machines.machine_of(run)
    return str(run.fingerprint.get("id") or ", ".join(str(known[name]) for name in _MACHINE if known[name]))
