"""The cells that both runs timed: their ratios with intervals, what the machine may have done, and the verdicts."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from bench.statistics import Interval, Verdict, median, ratio
from reports.cell import Samples
from reports.compare import machines
from reports.compare.changes import SLOWER, Allowance, Speed
from reports.compare.drift import allowance, allowed, among, verdict
from reports.compare.rules import Rules
from reports.records import Records

#: Calls of files that do not say how they were made in chunks are taken as this many runs of consecutive calls.
CHUNKS = 20

#: Fewer calls say nothing of their scatter.
CALLS = 5

Key = tuple[str, str, str, str]

#: Across machines the yardstick takes the place of the machine's factor, but no two machines prefer the same code:
#: the scatter is estimated, and the ratio of a machine is not known to drift by anything else.
NO_DRIFT = 1.0


def speeds(
    base: Records, new: Records, rules: Rules, yardstick: str = ""
) -> tuple[list[Speed], list[Allowance], list[str]]:
    """The verdicts, the allowances by device, and what could not be compared; with a yardstick, of ratios."""
    before, after = times(base), times(new)
    notes = []
    if yardstick:
        before, after = relative(before, yardstick), relative(after, yardstick)
    both = {key: ratio(before[key], after[key]) for key in before if key in after}
    if yardstick and not both:
        notes.append(f"{yardstick} was not timed in both runs on a workload that anything else was timed on")
    found: list[Speed] = []
    allowances = []
    for device in dict.fromkeys(key[1] for key in both):
        mine = {key: one for key, one in both.items() if key[1] == device}
        limits = {} if yardstick else machines.yardsticks(base.runs, new.runs, device)
        unknown = {"unknown": NO_DRIFT} if yardstick else {}
        given = allowance(device, [(key[0], one) for key, one in mine.items()], limits, **unknown)
        allowances.append(given)
        width = among(len(both))
        for key, one in mine.items():
            calls = min(len(base.samples[key].seconds), len(new.samples[key].seconds))
            found.append(_speed(key, before[key], after[key], one, given, width, rules, calls))
    return found, allowances, notes


def _speed(
    key: Key, base: Interval, new: Interval, one: Interval, given: Allowance, width: float, rules: Rules, calls: int
) -> Speed:
    place = dict(zip(("implementation", "device", "dtype", "workload"), key, strict=True))
    single, among_all = allowed(one, given), allowed(one, given, width)
    least, margin = (rules.threshold(name, **place) for name in ("least", "margin"))
    found, why = verdict(single, among_all, least, margin), ""
    if calls < CALLS:
        found, why = Verdict.UNCLEAR, f"{calls} calls are too few"
    elif found is Verdict.UNCLEAR:
        why = "too wide" if single.low <= 1 <= single.high else "not certain among all cells"
    ignored = found is Verdict.SLOWER and rules.ignored(SLOWER, **place)
    return Speed(*key, base, new, single, among_all, found, why, ignored)


def times(records: Records) -> dict[Key, Interval]:
    """The median of every timed cell that has its samples, in seconds."""
    found = {}
    for cell in records.cells:
        key = (cell["implementation"], cell["device"], cell["dtype"], cell["workload"])
        samples = records.samples.get(key)
        if cell["outcome"] == "timed" and samples is not None:
            known = "interval_low" in cell
            ends = (cell["median"], cell["interval_low"], cell["interval_high"]) if known else ()
            found[key] = Interval(*ends) if known else _median(samples)
    return found


def _median(samples: Samples) -> Interval:
    if samples.sizes:
        return median(samples.process_runs)
    parts = np.array_split(samples.seconds, min(CHUNKS, len(samples.seconds)))
    return median([[part.tolist() for part in parts]])


def relative(known: Mapping[Key, Interval], yardstick: str) -> dict[Key, Interval]:
    """The times as multiples of the yardstick's on the same workload, device and dtype, where it has one."""
    units = {key[1:]: one for key, one in known.items() if key[0] == yardstick}
    return {key: ratio(units[key[1:]], one) for key, one in known.items() if key[1:] in units and key[0] != yardstick}
