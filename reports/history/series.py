"""From a folder of result files to series: the times of every cell over the runs, and what conformance came to."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from attention_conformance.bench.analysis.statistics import LEAST
from attention_conformance.conformance.judging.outcomes import Outcome
from attention_conformance.reports.compare import machines
from attention_conformance.reports.compare.effects import over_runs
from attention_conformance.reports.history.changepoints import changes
from attention_conformance.reports.input import columns
from attention_conformance.reports.input.bench import CACHE, CLOCK, Key, key_of
from attention_conformance.reports.input.places import found as in_places
from attention_conformance.reports.input.read import read, records_of
from attention_conformance.reports.input.records import BenchRun, Records, ReportError, Source
from attention_conformance.reports.schemas import Point, Step

#: What of a machine tells series apart where files have no fingerprint.
_MACHINE = ("processor", "usable cores")


@dataclass(frozen=True)
class Series:
    """A cell on one machine, over time, with its changes: those of LEAST or more."""

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
    """All of it; ``refused`` files are named with their reason."""

    files: int = 0
    series: list[Series] = field(default_factory=list)
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
    points: dict[tuple[Key, str], list[Point]] = {}
    for path in paths:
        name = next((str(path.relative_to(folder)) for folder in places if folder in path.parents), str(path))
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
        mine = {key: those for (key, machine), those in series.items() if (key[1], machine) == place}
        runs = sorted({(one.when, one.file) for those in mine.values() for one in those})
        at = {run: number for number, run in enumerate(runs)}
        logs = np.full((len(mine), len(runs)), np.nan)
        for row, those in zip(logs, mine.values(), strict=True):
            row[[at[one.when, one.file] for one in those]] = [math.log(one.median) for one in those]
        for (key, those), row in zip(mine.items(), settled(logs, [key[0] for key in mine]), strict=True):
            found.series.append(Series(key, place[1], tuple(those), tuple(steps(np.exp(row[~np.isnan(row)]).tolist()))))
    found.series.sort(key=lambda one: (one.key, one.machine))
    return found


def _runs(path: Path, name: str) -> Iterator[tuple[str, Records]]:
    """The runs of a file, each with its name: of a dataset those of all its files."""
    if path.suffix != columns.SUFFIX:
        yield name, read([path])
        return
    for file, run in columns.runs(path):
        yield file, records_of(Path(file), run)


def settled(logs: np.ndarray, implementations: Sequence[str]) -> np.ndarray:
    """Log seconds, by cell and run, without what the machine did to a run; what all changed by for good stays.

    Parameters
    ----------
    logs
        Shape (cells, runs), NaN where a run lacks a cell.
    implementations
        Of each cell.

    Returns
    -------
    numpy.ndarray
        As ``logs``.
    """
    common = over_runs(logs, implementations)
    places = [0, *changes(common.tolist()), len(common)]
    lasting = np.concatenate([np.full(end - start, np.median(common[start:end])) for start, end in pairwise(places)])
    return logs - (common - lasting)


def steps(values: Sequence[float]) -> list[Step]:
    """The changes of a series that are large enough to be of interest."""
    places = [0, *changes([math.log(value) for value in values]), len(values)]
    levels = [median(values[start:end]) for start, end in pairwise(places)]
    found = [Step(at, *pair) for at, pair in zip(places[1:], pairwise(levels), strict=False)]
    return [step for step in found if not 1 / LEAST < step.ratio < LEAST]


def _add(file: str, records: Records, points: dict[tuple[Key, str], list[Point]], found: History) -> None:
    for run in records.runs[:1]:  # a model may be of several, whose cells it does not tell apart
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
    """How a cell was timed, where that is not as always: times that were taken in two ways are two series."""
    cache, clock = run.plan.cache if run.plan else CACHE, cell.get("clock") or CLOCK
    cores = run.fingerprint.get("cores_usable")
    fewer = [f"threads {run.plan.threads}"] if run.plan and cores and run.plan.threads != cores else []
    return [f"caches {cache}"] * (cache != CACHE) + fewer + [str(clock)] * (clock != CLOCK)


def _machine(run: BenchRun) -> str:
    known = machines.known(run)
    return str(run.fingerprint.get("id") or ", ".join(str(known[name]) for name in _MACHINE if known[name]))
