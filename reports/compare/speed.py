"""What changed in the cells of the bench beside their times: which are there, their memory, their accuracy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from attention_conformance.bench.analysis.statistics import Interval, Verdict, median, ratio
from attention_conformance.reports.compare import machines
from attention_conformance.reports.compare.changes import SLOWER, Allowance, Change, Kind, Level, Speed
from attention_conformance.reports.compare.drift import allowance, allowed, among, verdict
from attention_conformance.reports.compare.results import counted, drift
from attention_conformance.reports.compare.rules import Rules
from attention_conformance.reports.input.bench import CELL, key_of
from attention_conformance.reports.input.records import Records, Samples

#: Bytes that a call may need more without it being said: what an allocator takes at once.
LEAST_BYTES = 1 << 20

TIMED, UNSTABLE, INVALID, SKIPPED = "timed", "unstable", "invalid", "skipped"

#: What a step from one outcome to another is; what is equal or not here is no change.
STEPS = {
    (TIMED, None): (Kind.CELL, Level.WORSE),
    **{(old, INVALID): (Kind.INVALID, Level.WORSE) for old in (TIMED, UNSTABLE, SKIPPED, None)},
    **{(old, UNSTABLE): (Kind.INVALID, Level.WORSE) for old in (TIMED, SKIPPED, None)},
    (TIMED, SKIPPED): (Kind.UNTIMED, Level.WORSE),
    (None, TIMED): (Kind.NEW_CELL, Level.NOTE),
    (SKIPPED, TIMED): (Kind.NEW_CELL, Level.NOTE),
    (INVALID, TIMED): (Kind.PASS, Level.BETTER),
    (UNSTABLE, TIMED): (Kind.PASS, Level.BETTER),
}

#: Calls of cells without process runs are taken as this many batches of consecutive calls.
BATCHES = 20

#: Fewer calls say nothing of their scatter.
CALLS = 5

Key = tuple[str, str, str, str]

#: Across machines the yardstick takes the place of the machine's factor, but no two machines prefer the same code:
#: the scatter is estimated, and the ratio of a machine is not known to drift by anything else.
NO_DRIFT = 1.0


def changes(base: Records, new: Records, rules: Rules) -> list[Change]:
    """Missing, new and invalid cells, more and less memory, and shares of the bound that moved."""
    before, after = ({key_of(cell): cell for cell in side.cells} for side in (base, new))
    found: list[Change] = []
    for key in dict.fromkeys((*before, *after)):
        old, now = before.get(key), after.get(key)
        step = STEPS.get((_outcome(old), _outcome(now)))
        if step:
            found.append(Change(*step, *key, _told(old), _told(now)))
        elif old and now and old["outcome"] == now["outcome"] == TIMED:
            found += _drifts(key, old, now, rules)
    return [counted(change, rules, workload=change.name) for change in found]


def _drifts(
    key: tuple[str, str, str, str], old: Mapping[str, Any], new: Mapping[str, Any], rules: Rules
) -> Iterable[Change]:
    place = dict(zip(CELL, key, strict=True))
    accuracy = drift(key, old.get("share"), new.get("share"), rules.threshold("accuracy", **place))
    if accuracy:
        yield accuracy
    before, after = (one.get("memory_bytes") for one in (old, new))
    if before is None or after is None or old.get("memory_method") != new.get("memory_method"):
        return
    factor = rules.threshold("memory", **place)
    texts = tuple(f"{number / 2**20:.1f} MiB" for number in (before, after))
    if after > factor * before and after - before >= LEAST_BYTES:
        yield Change(Kind.MEMORY, Level.WORSE, *key, *texts)
    elif before > factor * after and before - after >= LEAST_BYTES:
        yield Change(Kind.LESS_MEMORY, Level.BETTER, *key, *texts)


def _outcome(cell: Mapping[str, Any] | None) -> str | None:
    return None if cell is None else cell["outcome"]


def _told(cell: Mapping[str, Any] | None) -> str:
    if cell is None:
        return "not there"
    why = " ".join(text for text in (cell["clause"], cell["reason"]) if text)
    return f"{cell['outcome']}: {why}" if why else cell["outcome"]


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
    place = dict(zip(CELL, key, strict=True))
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
        key = key_of(cell)
        samples = records.samples.get(key)
        if cell["outcome"] == "timed" and samples is not None:
            known = "interval_low" in cell
            ends = (cell["median"], cell["interval_low"], cell["interval_high"]) if known else ()
            found[key] = Interval(*ends) if known else _median(samples)
    return found


def _median(samples: Samples) -> Interval:
    if samples.sizes:
        return median(samples.process_runs)
    parts = np.array_split(samples.seconds, min(BATCHES, len(samples.seconds)))
    return median([[part.tolist() for part in parts]])


def relative(known: Mapping[Key, Interval], yardstick: str) -> dict[Key, Interval]:
    """The times as multiples of the yardstick's on the same workload, device and dtype, where it has one."""
    units = {key[1:]: one for key, one in known.items() if key[0] == yardstick}
    return {key: ratio(units[key[1:]], one) for key, one in known.items() if key[1:] in units and key[0] != yardstick}
