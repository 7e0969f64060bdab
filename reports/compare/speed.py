"""Changes of the bench's cells: their times, which are there, their memory, their accuracy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from attention_conformance.bench.analysis.statistics import LEAST, Verdict
from attention_conformance.reports.compare import machines
from attention_conformance.reports.compare.changes import SLOWER, Change, Finding, Kind, Level, Machine, Speed
from attention_conformance.reports.compare.effects import CHANGED, FALSE, UNKNOWN, Cell, Effects, effects, level
from attention_conformance.reports.compare.results import drift, with_rules
from attention_conformance.reports.compare.rules import Rules
from attention_conformance.reports.input.bench import CELL, key_of
from attention_conformance.reports.input.records import Records
from attention_conformance.reports.text import percent

#: Additional bytes of a call that are not reported: what an allocator takes at once.
LEAST_BYTES = 1 << 20

#: A share of the bound below this is ignored for a cell.  The worst shares of correct kernels reach 0.21 in the
#: published float32 cells, and one that stores all intermediate results in bfloat16 reached 0.44 on 280 inputs.
#: Weights of 14 bits in float32 have more (tests/test_compare_steps.py), and those of bfloat16 are beyond the bound.
LEAST_SHARE = 0.5

TIMED, UNSTABLE, INVALID, SKIPPED = "timed", "unstable", "invalid", "skipped"
KNOWN = "known-deviation"

#: Kind and level of a step from one outcome to another; a pair that is equal or not here is no change.
STEPS: dict[tuple[str | None, str | None], tuple[Kind, Level]] = {
    (TIMED, None): (Kind.CELL, Level.WORSE),
    **{(old, INVALID): (Kind.INVALID, Level.WORSE) for old in (TIMED, UNSTABLE, KNOWN, SKIPPED, None)},
    **{(old, UNSTABLE): (Kind.INVALID, Level.WORSE) for old in (TIMED, KNOWN, SKIPPED, None)},
    (TIMED, SKIPPED): (Kind.UNTIMED, Level.WORSE),
    (TIMED, KNOWN): (Kind.UNTIMED, Level.WORSE),
    (None, TIMED): (Kind.NEW_CELL, Level.NOTE),
    (SKIPPED, TIMED): (Kind.NEW_CELL, Level.NOTE),
    (KNOWN, TIMED): (Kind.PASS, Level.BETTER),
    (INVALID, TIMED): (Kind.PASS, Level.BETTER),
    (UNSTABLE, TIMED): (Kind.PASS, Level.BETTER),
}

#: Fewer calls say nothing about their scatter.
CALLS = 5

Key = tuple[str, str, str, str]


def changes(base: Records, new: Records, rules: Rules, *, memory: bool = True) -> list[Change]:
    """Missing, new and invalid cells, more and less memory, and shares of the bound that moved.

    The memory of a call depends on the machine and on the number of threads, so it is not compared between runs that
    differ in these.

    Parameters
    ----------
    base
        Records of the base run.
    new
        Records of the new run.
    rules
        Thresholds and what is ignored.
    memory
        Whether memory is compared.

    Returns
    -------
    list[Change]
        Changes in the order of the cells.
    """
    before, after = ({key_of(cell): cell for cell in side.cells} for side in (base, new))
    found: list[Change] = []
    for key in dict.fromkeys((*before, *after)):
        rules.consult(**dict(zip(CELL, key, strict=True)))
        old, now = before.get(key), after.get(key)
        step = STEPS.get((_outcome(old), _outcome(now)))
        if step:
            found.append(Change(*step, *key, _outcome_text(old), _outcome_text(now)))
        elif old and now and old["outcome"] == now["outcome"] == TIMED:
            found += _drifts(key, old, now, rules, memory=memory)
    return [with_rules(change, rules, workload=change.name) for change in found]


def _drifts(
    key: Key, old: Mapping[str, Any], new: Mapping[str, Any], rules: Rules, *, memory: bool
) -> Iterable[Change]:
    place = dict(zip(CELL, key, strict=True))
    accuracy = drift(key, old.get("share"), new.get("share"), rules.threshold("accuracy", **place), LEAST_SHARE)
    if accuracy:
        yield accuracy
    before, after = (one.get("memory_bytes") for one in (old, new))
    alike = memory and old.get("memory_method") == new.get("memory_method")
    if before is None or after is None or not alike:
        return
    factor = rules.threshold("memory", **place)
    texts = tuple(f"{number / 2**20:.1f} MiB" for number in (before, after))
    if after > factor * before and after - before >= LEAST_BYTES:
        yield Change(Kind.MEMORY, Level.WORSE, *key, *texts)
    elif before > factor * after and before - after >= LEAST_BYTES:
        yield Change(Kind.LESS_MEMORY, Level.BETTER, *key, *texts)


def _outcome(cell: Mapping[str, Any] | None) -> str | None:
    return None if cell is None else cell["outcome"]


def _outcome_text(cell: Mapping[str, Any] | None) -> str:
    if cell is None:
        return "missing"
    why = " ".join(text for text in (cell["clause"], cell["reason"]) if text)
    return f"{cell['outcome']}: {why}" if why else cell["outcome"]


def speeds(
    base: Records, new: Records, rules: Rules, yardstick: str = ""
) -> tuple[list[Speed], list[Machine], list[Finding], list[str]]:
    """The verdicts, the machine by device, what changed as a whole, and what could not be compared.

    Parameters
    ----------
    base
        Records of the base run.
    new
        Records of the new run.
    rules
        Thresholds and what is ignored.
    yardstick
        The implementation that times are taken relative to; "" for none.

    Returns
    -------
    tuple[list[Speed], list[Machine], list[Finding], list[str]]
        Verdicts by cell, factors of time by device, changes as a whole, and sentences about what could not be compared.
    """
    before, after = levels(base), levels(new)
    notes = []
    if yardstick:
        before, after = relative(before, yardstick), relative(after, yardstick)
    both = [key for key in before if key in after]
    if yardstick and not both:
        notes.append(f"{yardstick} was not timed in both runs on any workload of another implementation")
    devices = list(dict.fromkeys(key[1] for key in both))
    found: list[Speed] = []
    machine: list[Machine] = []
    wholes: list[Finding] = []
    for device in devices:
        keys = [key for key in both if key[1] == device]
        places = [dict(zip(CELL, key, strict=True)) for key in keys]
        limits = [[rules.threshold(name, **place) for name in ("least", "margin")] for place in places]
        cells = [
            Cell((key[0], key[2]), before[key], after[key], f"{key[2]} {key[3]}", *each)
            for key, each in zip(keys, limits, strict=True)
        ]
        known = {} if yardstick else machines.yardsticks(base.runs, new.runs, device)
        load = machines.load((*base.runs, *new.runs))
        result = effects(cells, known, 0.0 if yardstick else UNKNOWN, FALSE / len(devices), load)
        machine.append(_machine(device, result, known))
        mine = []
        for key, place, cell, one in zip(keys, places, cells, result.cells, strict=True):
            calls = min(len(base.samples[key].seconds), len(new.samples[key].seconds))
            verdict, why = one.verdict, ""
            if calls < CALLS:
                verdict, why = Verdict.UNCLEAR, f"{calls} calls are too few"
            elif verdict is Verdict.UNCLEAR:
                why = "interval too wide" if one.ratio.low <= 1 <= one.ratio.high else "not certain among so many cells"
            ignored = verdict is Verdict.SLOWER and rules.ignored(SLOWER, **place)
            old, now = (math.exp(float(np.mean(side))) for side in (cell.base, cell.new))
            mine.append(Speed(*key, old, now, one.ratio, one.among_all, verdict, why, ignored))
        wholes += _wholes(device, result, mine, rules)
        found += mine
    return found, machine, wholes, notes


def taken_off(found: Sequence[Machine]) -> list[str]:
    """Sentences about workloads where as much was taken off all implementations as would be a finding for one.

    Parameters
    ----------
    found
        The machine by device.

    Returns
    -------
    list[str]
        A sentence for each such workload.
    """
    moved = [(f"{name} on {one.device}", by) for one in found for name, by in one.workloads]
    return [
        f"{name} is {percent(abs(by - 1))} {(Verdict.SLOWER if by > 1 else Verdict.FASTER).value} in all"
        " implementations together, which is attributed to the machine"
        for name, by in moved
        if not 1 / LEAST < by < LEAST
    ]


def _machine(device: str, found: Effects, yardsticks: Mapping[str, float]) -> Machine:
    known = tuple(yardsticks.items())
    seen = [[one.seen for one in those] for those in (found.units.values(), found.cells)]
    implementation, cell = (float(np.median(each)) if each else None for each in seen)
    beside = tuple(found.workloads.items())
    return Machine(
        device, found.machine, known, found.scatter, found.luck, len(found.cells), implementation, cell, beside
    )


def _wholes(device: str, found: Effects, cells: Sequence[Speed], rules: Rules) -> Iterable[Finding]:
    """Everything, if that changed, or else the implementations that did, the largest change first."""
    everything = {("", ""): found.everything} if found.everything and found.everything.verdict in CHANGED else {}
    units = sorted(found.units.items(), key=lambda item: -abs(math.log(item[1].ratio.value)))
    for (name, dtype), one in (everything or dict(units)).items():
        if one.verdict in CHANGED:
            mine = [cell for cell in cells if not name or (cell.implementation, cell.dtype) == (name, dtype)]
            places = [{part: getattr(cell, part) for part in CELL} for cell in mine]
            ignored = one.verdict is Verdict.SLOWER and all(rules.ignored(SLOWER, **place) for place in places)
            changed = [cell.ratio.value for cell in mine if cell.verdict is one.verdict]
            most = max(changed, key=lambda ratio: abs(math.log(ratio)), default=1.0)
            yield Finding(name, device, dtype, one.ratio, one.verdict, len(mine), len(changed), ignored, most)


def levels(records: Records) -> dict[Key, np.ndarray]:
    """The level of every process run of the timed cells that have samples; of all calls where process runs are unknown.

    Parameters
    ----------
    records
        Records of one run.

    Returns
    -------
    dict[Key, np.ndarray]
        Natural logarithms of seconds, by cell.
    """
    timed = {key_of(cell) for cell in records.cells if cell["outcome"] == "timed"}
    return {
        key: np.array([level([seconds for batch in run for seconds in batch]) for run in samples.process_runs])
        for key, samples in records.samples.items()
        if key in timed
    }


def relative(known: Mapping[Key, np.ndarray], yardstick: str) -> dict[Key, np.ndarray]:
    """The levels relative to the yardstick's on the same workload, device and dtype, where it has as many process runs.

    Parameters
    ----------
    known
        Levels by cell.
    yardstick
        An implementation.

    Returns
    -------
    dict[Key, np.ndarray]
        Differences of logs, by cell.
    """
    units = {key[1:]: one for key, one in known.items() if key[0] == yardstick}
    return {
        key: one - units[key[1:]]
        for key, one in known.items()
        if key[1:] in units and len(units[key[1:]]) == len(one) and key[0] != yardstick
    }
