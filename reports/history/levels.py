"""Changes of the cells of a machine over its runs, at the levels of a comparison of two runs.

What all implementations have in common in a run is the machine's, and so is what all have in common on one workload:
both are taken off.  What lasts is a change of everything, or of a workload.  A cell changed if it did so both with the
common part and without it: if only with it, the machine moved; if only without it, the others did.  The cells of an
implementation are also judged together, as their mean scatters less than each of them, and are one finding.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

import numpy as np

from attention_conformance.bench.analysis.statistics import LEAST
from attention_conformance.reports.compare.effects import common_over_runs
from attention_conformance.reports.history.changepoints import SHORTEST, changes
from attention_conformance.reports.input.bench import CELL, Key

#: Two changes are one if their places are at most this far apart: a run at the edge may fall to either side.
BESIDE = 1

#: Least share, of the log of a change of several cells, by which a cell must move to take part in it.
PART = 0.5


class Level(StrEnum):
    """Level of a change."""

    EVERYTHING = "everything"
    WORKLOAD = "workload"
    IMPLEMENTATION = "implementation"
    CELL = "cell"


#: Fields that name a change of each level.
NAMED = {
    Level.EVERYTHING: ("device",),
    Level.WORKLOAD: ("device", "dtype", "workload"),
    Level.IMPLEMENTATION: ("implementation", "device", "dtype"),
    Level.CELL: CELL,
}


@dataclass(frozen=True)
class Finding:
    """A change.

    Parameters
    ----------
    level
        Level of what changed.
    at
        The first run with the new times.
    ratio
        New ÷ old; the median for several cells.
    cells
        Indices of the cells that changed.
    of
        Number of all cells of what changed, such as an implementation.
    """

    level: Level
    at: int
    ratio: float
    cells: tuple[int, ...]
    of: int


@dataclass(frozen=True)
class Changes:
    """Changes of the cells of a machine.

    Parameters
    ----------
    findings
        Findings in the order of their runs.
    places
        Runs at which each cell changed, at any level.
    logs
        Log seconds, shape (cells, runs), without what all had in common and did not last.
    """

    findings: list[Finding]
    places: list[list[int]]
    logs: np.ndarray


@dataclass(frozen=True)
class _Step:
    """A change of a series: its run, the log of new ÷ old, and the range of runs between its neighbours."""

    at: int
    log: float
    start: int
    end: int


def find_changes(logs: np.ndarray, keys: Sequence[Key]) -> Changes:
    """The changes of the cells of a machine.

    Parameters
    ----------
    logs
        Log seconds, shape (cells, runs), in the order of the dates; NaN where a run lacks a cell.
    keys
        Implementation, device, dtype and workload of each cell.

    Returns
    -------
    Changes
        The findings, and the cells' places.
    """
    names = [key[0] for key in keys]
    common = common_over_runs(logs, names)
    without, lasting = logs - common, logs - (common - _levels(common))
    shared = [(Level.EVERYTHING, list(range(len(keys))), _levels(common))]
    for at in _groups(key[2:] for key in keys):
        common = common_over_runs(without[at], [names[cell] for cell in at])
        without[at] -= common
        lasting[at] -= common - _levels(common)
        shared.append((Level.WORKLOAD, at, _levels(common)))
    own = [{step.at: step.log for step in _both(*rows)} for rows in zip(lasting, without, strict=True)]
    units = list(_groups((key[0], key[2]) for key in keys))
    for at in units:
        for step in _both(_mean(lasting[at]), _mean(without[at])) if len(at) > 1 else ():
            alike = {cell: _alike(own[cell], step, lasting[cell], without[cell]) for cell in at}
            changed = {cell: log for cell, log in alike.items() if log is not None}
            for cell, log in changed.items() if 2 * len(changed) > len(at) else ():
                rest = {place: by for place, by in own[cell].items() if abs(place - step.at) >= SHORTEST}
                own[cell] = rest | {step.at: log}
    findings = [one for at in units for one in _findings(at, own)]
    places = [list(each) for each in own]
    for level, at, row in shared:
        for step in _steps(row):
            moved = {cell: _log_ratio(lasting[cell], step) for cell in at}
            cells = tuple(cell for cell, log in moved.items() if log / step.log >= PART)
            if 2 * len(cells) > len(at):
                ratio = math.exp(float(np.median([moved[cell] for cell in cells])))
                findings.append(Finding(level, step.at, ratio, cells, len(at)))
                for cell in cells:
                    places[cell] += [] if _near(places[cell], step.at) else [step.at]
    order = list(Level)
    findings.sort(key=lambda one: (one.at, order.index(one.level), one.cells))
    return Changes(findings, [sorted(each) for each in places], lasting)


def _levels(values: np.ndarray) -> np.ndarray:
    """A series as the medians of the segments between its changes."""
    places = [0, *changes(values.tolist()), len(values)]
    return np.concatenate([np.full(end - start, np.median(values[start:end])) for start, end in pairwise(places)])


def _steps(row: np.ndarray) -> list[_Step]:
    """The changes of a series of logs that are large enough to count; NaN is a run without the cell."""
    there = np.flatnonzero(~np.isnan(row))
    levels = _levels(row[there]) if len(there) else row[there]
    by = np.diff(levels)
    places = np.flatnonzero(np.abs(by) >= math.log(LEAST)) + 1
    starts = [0, *there[places].tolist(), len(row)]
    return [
        _Step(at, float(by[place - 1]), start, end)
        for place, start, at, end in zip(places, starts, starts[1:], starts[2:], strict=False)
    ]


def _both(lasting: np.ndarray, without: np.ndarray) -> list[_Step]:
    """The changes of the first series that the second has too."""
    other = _steps(without)
    return [
        step
        for step in _steps(lasting)
        if any(abs(one.at - step.at) <= BESIDE and one.log * step.log > 0 for one in other)
    ]


def _mean(rows: np.ndarray) -> np.ndarray:
    """The mean of cells in each run, each relative to its median over the runs; NaN for a run without any of them."""
    rest = np.ma.masked_invalid(rows)
    return np.asarray((rest - np.ma.median(rest, axis=1, keepdims=True)).mean(axis=0).filled(np.nan))


def _alike(own: dict[int, float], step: _Step, *rows: np.ndarray) -> float | None:
    """The log of new ÷ old of a cell at a change of its implementation; None where it took no part in the change."""
    for place, log in own.items():
        if abs(place - step.at) < SHORTEST and log * step.log > 0:
            return log
    moved = [_log_ratio(row, step) for row in rows]
    return moved[0] if min(log / step.log for log in moved) >= PART else None


def _log_ratio(row: np.ndarray, step: _Step) -> float:
    """The log of new ÷ old of a cell around a change of several cells; 0 where it lacks the runs before or after it."""
    before, after = (part[~np.isnan(part)] for part in (row[step.start : step.at], row[step.at : step.end]))
    return float(np.median(after) - np.median(before)) if len(before) and len(after) else 0.0


def _findings(at: Sequence[int], own: Sequence[dict[int, float]]) -> list[Finding]:
    """The changes of an implementation: a change of most of its cells at once is one finding."""
    rest = sorted((place, log > 0, cell) for cell in at for place, log in own[cell].items())
    found = []
    while rest:
        place, slower, _ = rest[0]
        alike = {cell: where for where, way, cell in reversed(rest) if where - place <= BESIDE and way is slower}
        if len(alike) == 1 or 2 * len(alike) <= len(at):
            alike = {rest[0][2]: place}
            level, of = Level.CELL, 1
        else:
            level, of = Level.IMPLEMENTATION, len(at)
        logs = [own[cell][where] for cell, where in alike.items()]
        first = Counter(alike.values()).most_common(1)[0][0]
        found.append(Finding(level, first, math.exp(float(np.median(logs))), tuple(sorted(alike)), of))
        rest = [one for one in rest if alike.get(one[2]) != one[0]]
    return found


def _near(places: Iterable[int], at: int) -> bool:
    return any(abs(place - at) <= BESIDE for place in places)


def _groups(names: Iterable[Hashable]) -> list[list[int]]:
    """The indices of equal names, in groups."""
    groups: dict[Hashable, list[int]] = {}
    for at, name in enumerate(names):
        groups.setdefault(name, []).append(at)
    return list(groups.values())
