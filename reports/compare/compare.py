"""Comparison of two sets of records: the changes, and the reasons where something cannot be compared."""

from __future__ import annotations

from attention_conformance.reports.compare import machines, results, speed
from attention_conformance.reports.compare.changes import Comparison, Finding, Machine, Speed
from attention_conformance.reports.compare.rules import Rules
from attention_conformance.reports.input.read import incomplete
from attention_conformance.reports.input.records import Records, Source

#: Advice where the runs are of two machines.
REMEDY = "measure both on one machine, or name an implementation that both timed: --across-machines NAME"


def compare(base: Records, new: Records, rules: Rules | None = None, yardstick: str = "") -> Comparison:
    """Everything that changed from base to new.

    Parameters
    ----------
    base
        Records of the base run.
    new
        Records of the new run.
    rules
        Thresholds and what to ignore; None for the defaults.
    yardstick
        The implementation that times are taken relative to; "" for none.

    Returns
    -------
    Comparison
        Changes, verdicts and the exit status.
    """
    given = rules or Rules()
    cut = incomplete(new.sources)
    unfit = [*_one_sided(base, new), *(f"{name} was cut off" for name in cut)]
    notes = [f"{name} of the base was cut off" for name in incomplete(base.sources)]
    specs = [{run.spec for run in side.runs} | {_spec(source) for source in side.sources} for side in (base, new)]
    before, after = (" ".join(sorted(filter(None, side))) for side in specs)
    if before and after and before != after:
        unfit.append(f"the runs used different versions of the spec: {before} → {after}")
        return Comparison(base.sources, new.sources, (), (), unfit=tuple(unfit), rules=given.name)
    changed = results.changes(base.results, new.results, given, cut=bool(cut)) if base.results and new.results else []
    speeds: list[Speed] = []
    found: list[Machine] = []
    wholes: list[Finding] = []
    if base.cells and new.cells:
        apart, ways = machines.differences(base.runs, new.runs), machines.ways(base, new)
        changed += speed.changes(base, new, given, memory=not (apart or ways))
        if apart or ways:
            differ = "were timed in different ways" if ways else "are from different machines"
            notes.append(f"memory is not compared: the runs {differ}")
        if ways:
            unfit.append(f"times measured in different ways are not compared ({'; '.join(ways)})")
        elif apart and not yardstick:
            unfit.append(f"times from different machines are not compared ({'; '.join(apart)}): {REMEDY}")
        else:
            speeds, found, wholes, why = speed.speeds(base, new, given, yardstick)
            unfit += why
            unfit += [] if speeds or why else ["no cell has samples in both runs"]
        notes += [f"version of {text}" for text in machines.libraries(base.runs, new.runs)]
        notes += speed.taken_off(found)
        notes += machines.busy((*base.runs, *new.runs))
    keys = set(map(results.key_of, base.results))
    both = sum(results.key_of(one) in keys for one in new.results)
    return Comparison(
        base.sources,
        new.sources,
        tuple(speeds),
        tuple(changed),
        tuple(found),
        tuple(wholes),
        tuple(unfit),
        (*notes, *given.idle),
        yardstick,
        both,
        given.name,
        max((run.plan.threads for run in (*base.runs, *new.runs) if run.plan), default=0),
    )


def _one_sided(base: Records, new: Records) -> list[str]:
    """Parts that one run has and the other lacks entirely."""
    kinds = {"conformance results": (base.results, new.results), "benchmark cells": (base.cells, new.cells)}
    found = [f"the base has {kind}, the new run has none" for kind, (old, now) in kinds.items() if old and not now]
    found += [f"the new run has {kind}, the base has none" for kind, (old, now) in kinds.items() if now and not old]
    return found or ([] if any(old and now for old, now in kinds.values()) else ["neither run has any records"])


def _spec(source: Source) -> str:
    found = source.environment.get("spec", "")
    return found if isinstance(found, str) else ""
