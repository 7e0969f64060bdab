"""Whether two runs were made on one machine and timed in one way, and which measured limits both have."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attention_conformance.bench.records import BUSY
from attention_conformance.reports.input.bench import CACHE, CLOCK, key_of
from attention_conformance.reports.input.records import BenchRun, Records

#: Entries of ``machine_info`` that must be equal where there is no fingerprint, with the keys that lead to them.
OLD = {
    "machine": ("machine",),
    "processor": ("cpu", "brand_raw"),
    "cores": ("cpu", "count"),
    "usable cores": ("usable_cores",),
    "system": ("system",),
    "threads": ("threads",),
}

#: Fields of a fingerprint that are not named among the differences: its id, what is compared, and what is in no id.
MAY_DIFFER = ("id", "versions", "libraries", "blas", "python", "kernel", "libc", "memory_bytes", "in_force")

#: Characters of a value that are printed.
WIDEST = 60

#: The share of their time that calls waited for a core counts as at most this.
MOST_WAIT = 0.95


def differences(base: Sequence[BenchRun], new: Sequence[BenchRun]) -> list[str]:
    """Fields in which the machines of some runs differ, one text each; none if there is only one machine.

    Parameters
    ----------
    base
        Runs of the base.
    new
        Runs of the new side.

    Returns
    -------
    list[str]
        Differences, such as "processor: A → B".
    """
    runs = [*base, *new]
    marks = [run.fingerprint.get("id") for run in runs]
    if all(marks):
        if len(set(marks)) == 1:
            return []
        found = _fields([{k: v for k, v in run.fingerprint.items() if k not in MAY_DIFFER} for run in runs])
        return found or [f"id: {' → '.join(dict.fromkeys(map(str, marks)))}"]
    fields = [machine_of(run) for run in runs]
    blank = [run.name for run, said in zip(runs, fields, strict=True) if not any(said.values())]
    return [f"{', '.join(blank)}: the machine is not recorded"] if blank else _fields(fields)


def ways(base: Records, new: Records) -> list[str]:
    """Differences in the way that the times of two sides were taken, one text each; none if it was the same.

    Clocks are compared only for cells that both have: a run may have cells on a GPU and on the CPU.

    Parameters
    ----------
    base
        Records of the base run.
    new
        Records of the new run.

    Returns
    -------
    list[str]
        Differences, such as another cache, clock or number of threads.
    """
    both = (*base.runs, *new.runs)
    runs: list[dict[str, Any]] = [{"cache": run.plan.cache if run.plan else CACHE} for run in both]
    threads = [run.plan.threads for run in both if run.plan]
    if len(threads) == len(both):  # a run that records none may have used any number
        runs = [way | {"threads": count} for way, count in zip(runs, threads, strict=True)]
    before, after = ({key_of(cell): cell.get("clock") or CLOCK for cell in side.cells} for side in (base, new))
    changed = [f"{one} → {after[key]}" for key, one in before.items() if after.get(key, one) != one]
    return _fields(runs) + [f"clock: {text}" for text in dict.fromkeys(changed)]


def machine_of(run: BenchRun) -> dict[str, Any]:
    """Machine as a file without a fingerprint describes it.

    Parameters
    ----------
    run
        One run of the bench.

    Returns
    -------
    dict[str, Any]
        Values by the field's name.
    """
    return {name: _at(run.machine, way) for name, way in OLD.items()}


def libraries(base: Sequence[BenchRun], new: Sequence[BenchRun]) -> list[str]:
    """Versions that changed, "torch: 2.12 → 2.13".

    Parameters
    ----------
    base
        Runs of the base.
    new
        Runs of the new side.

    Returns
    -------
    list[str]
        One text for each library.
    """
    return _fields([_merged(map(versions_of, side)) for side in (base, new)])


def load(runs: Iterable[BenchRun]) -> float:
    """Standard deviation of the log of the slowdown of some runs by other work; 0 where nothing ran beside them.

    Calls that waited half of their time for a core took up to twice as long, which yardsticks, the best of several, do
    not show: that is two standard deviations.  Where a run does not record the wait, its load average is used: with
    twice as many threads as cores, each waits half of its time.

    Parameters
    ----------
    runs
        Runs of both sides.

    Returns
    -------
    float
        Standard deviation of a log.
    """
    return math.hypot(*(math.log(factor) / 2 for factor, _ in map(_slowed, runs)))


def busy(runs: Iterable[BenchRun]) -> list[str]:
    """A sentence for each run that other work ran beside.

    Parameters
    ----------
    runs
        Runs of both sides.

    Returns
    -------
    list[str]
        Sentences, such as "other work ran during new.json: calls waited 31 % of their time for a core".
    """
    return [
        f"other work ran during {run.name}: {words}"
        for run, (_, words) in ((run, _slowed(run)) for run in runs)
        if words
    ]


def _slowed(run: BenchRun) -> tuple[float, str]:
    """The factor by which other work may have lengthened the calls of a run, and words for it if it counts."""
    if run.core_wait is not None:
        waited = min(run.core_wait, MOST_WAIT)
        return 1 / (1 - waited), f"calls waited {100 * waited:.0f} % of their time for a core" if waited > BUSY else ""
    average, cores = run.load_average, run.fingerprint.get("cores_usable")
    if average and cores and average > cores:
        return average / cores, f"a load average of {average:.1f} on {cores} cores"
    return 1.0, ""


def yardsticks(base: Sequence[BenchRun], new: Sequence[BenchRun], device: str) -> dict[str, float]:
    """The factors of time, new ÷ base, of the measured limits of a device that both runs have, by name.

    Parameters
    ----------
    base
        Runs of the base.
    new
        Runs of the new side.
    device
        Device, such as "cpu".

    Returns
    -------
    dict[str, float]
        Factors by the limit's name.
    """
    before, after = (rates(side, device) for side in (base, new))
    return {name: before[name] / after[name] for name in before if name in after}


def rates(runs: Iterable[BenchRun], device: str) -> dict[str, float]:
    """The measured peaks and bandwidths of a device, per second, by name.

    Parameters
    ----------
    runs
        Runs of one side.
    device
        Device, such as "cpu".

    Returns
    -------
    dict[str, float]
        Flops or bytes per second, by name.
    """
    found: dict[str, float] = {}
    for run in runs:
        for peak in run.peaks:
            known = (
                ("matmul peak", peak.flops_per_second, peak.flops_by),
                ("bandwidth", peak.bytes_per_second, peak.bytes_by),
            )
            for name, rate, by in known if peak.device == device else ():
                if rate is not None:
                    found.setdefault(f"{name} {peak.dtype}{f' by {by}' if by else ''}", rate)
    return found


def _fields(sides: Sequence[Mapping[str, Any]]) -> list[str]:
    flat = [dict(_flat(side)) for side in sides]
    found = []
    for name in dict.fromkeys(name for side in flat for name in side):
        values = list(dict.fromkeys(side.get(name, "unknown") for side in flat))
        if len(values) > 1:
            found.append(f"{name}: {' → '.join(map(_shortened, values))}")
    return found


def _flat(value: Mapping[str, Any], before: str = "") -> Iterable[tuple[str, str]]:
    for name, one in value.items():
        if isinstance(one, Mapping):
            yield from _flat(one, f"{before}{name}.")
        elif one is not None:
            yield f"{before}{name}", " ".join(str(one).split())


def _shortened(text: str) -> str:
    return text if len(text) <= WIDEST else text[: WIDEST - 1] + "…"


def versions_of(run: BenchRun) -> Mapping[str, Any]:
    """The libraries that were used.

    Parameters
    ----------
    run
        One run of the bench.

    Returns
    -------
    Mapping[str, Any]
        Versions by name.
    """
    found = run.fingerprint.get("versions") or run.machine.get("libraries")
    return found if isinstance(found, Mapping) else {}


def _merged(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    return {name: value for part in parts for name, value in part.items()}


def _at(record: Mapping[str, Any], way: Sequence[str]) -> Any:
    value: Any = record
    for step in way:
        value = value.get(step) if isinstance(value, Mapping) else None
    return value
