"""What the suite adds to pytest-benchmark's JSON (format 3): to each record, and about the run as a whole."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench import gpu
from bench.besides import Besides
from bench.flops import FORMULAS, flops
from bench.machine import load_average
from bench.outcomes import Cell, Outcome
from bench.plan import Plan
from conformance import SPEC_VERSION

#: Key and version of what the suite adds.
JSON_KEY = "attention_conformance"
#: 2: cells of every operator; ``flops`` has a formula for each.  3: visits, intervals, and what was in force.
FORMAT = 3


@dataclass(frozen=True)
class Record:
    """What became of a cell: "timed", "struck out" (``clause`` says by what) or "not timed".

    ``family`` is the workload's name with its length left open, which is ``S``: query rows, of decode past keys.
    """

    implementation: str
    device: str
    dtype: str
    workload: str
    family: str
    S: int
    operator: str
    outcome: str
    clause: str = ""
    reason: str = ""


def record(cell: Cell, outcome: Outcome) -> Record:
    """The line of a cell in the list of all."""
    t, w = cell.target, cell.workload
    named = (t.implementation.name, t.device, t.dtype, w.name, w.family, w.sweep, w.operator)
    return Record(*named, outcome.kind, outcome.clause, outcome.reason)


def extra_info(cell: Cell, outcome: Outcome, besides: Besides) -> dict[str, Any]:
    """What a benchmark's record says of its timed cell."""
    measured = besides.info(cell, outcome.interval.value)
    return {**_shape(cell), **_speed(cell, outcome), **_sampling(outcome), **_paid(cell, outcome), **measured}


def _shape(cell: Cell) -> dict[str, Any]:
    target, workload = cell.target, cell.workload
    return {
        "implementation": target.implementation.name,
        "device": target.device,
        "dtype": target.dtype,
        "workload": workload.name,
        "operator": workload.operator,
        "B": workload.batch,
        "H": workload.heads,
        "Hkv": workload.kv_heads,
        "S": workload.length,
        "Sk": workload.keys,
        "D": workload.width,
        "Dv": workload.value_width,
        "is_causal": workload.is_causal,
    }


def _speed(cell: Cell, outcome: Outcome) -> dict[str, Any]:
    """By the median of all samples."""
    count, median = flops(cell.workload), outcome.interval.value
    return {
        "flops": count,
        "formula": FORMULAS[cell.workload.operator],
        "gflops": count / median / 1e9,
        "tokens_per_second": cell.workload.tokens / median,
    }


def _sampling(outcome: Outcome) -> dict[str, Any]:
    """How the raw samples lie in visits and chunks, and what they say."""
    interval = outcome.interval
    return {
        "visits": [[len(chunk) for chunk in visit.chunks] for visit in outcome.visits],
        "interval": [interval.low, interval.high],
        "stopped": outcome.visits[-1].stopped,
        "threads": outcome.threads,
        "clock": outcome.visits[-1].clock,
        "host_seconds": outcome.visits[-1].host_seconds,
        "emptied_bytes": outcome.visits[-1].emptied_bytes,
    }


def _paid(cell: Cell, outcome: Outcome) -> dict[str, Any]:
    """What was paid before the timing, by the first visit, and how right the results were, by all."""
    first = outcome.visits[0]
    return {
        "prepare_seconds": first.prepare_seconds,
        "first_call_seconds": first.first_call_seconds,
        "peak_bytes": first.peak_bytes,
        "share": outcome.share,
        "profile": cell.target.implementation.profile(cell.target.dtype).value,
    }


def run(records: Sequence[Record], plan: Plan, **rest: Any) -> dict[str, Any]:
    """About the run as a whole; ``rest`` is what the parts of the bench measured of the machine and of themselves."""
    return {
        "format": FORMAT,
        "spec": SPEC_VERSION,
        "flops": FORMULAS,
        "load_average": load_average(),
        "plan": dataclasses.asdict(plan),
        **rest,
        "cells": [dataclasses.asdict(each) for each in records],
    }


def in_force(outcomes: Mapping[Cell, Outcome]) -> dict[str, int]:
    """How many threads worked at the same time, by process: what libraries do with those that they are given."""
    found: dict[str, int] = {}
    for cell, outcome in outcomes.items():
        if cell.target.device == "cpu" and outcome.visits:
            name = cell.target.implementation.process
            found[name] = max(found.get(name, 0), outcome.threads)
    return dict(sorted(found.items()))


#: Share of a core above which a process that waited was not idle, and the cost of the harness above which it shows.
IDLE, COST = 0.02, 1.02


def remarks(
    outcomes: Mapping[Cell, Outcome],
    idle: Mapping[str, float],
    harness: Mapping[str, Any],
    gpu_state: Mapping[str, Any] | None = None,
) -> list[str]:
    """What a reader has to know before comparing: unequal threads, processes that were not idle, a costly harness.

    And what the GPUs say of their clocks.
    """
    found = []
    threads = in_force(outcomes)
    if len(set(threads.values())) > 1:
        found.append(
            f"threads that worked at the same time: {', '.join(f'{name} {count}' for name, count in threads.items())}"
        )
    busy = [f"{name} {share:.0%} of a core" for name, share in idle.items() if share > IDLE]
    if busy:
        found.append(f"not idle while others worked: {', '.join(busy)}")
    if harness and harness["interval"][0] > COST:
        found.append(f"timing a call of {1e6 * harness['loop_seconds']:.0f} µs costs {harness['ratio'] - 1:.1%} of it")
    return found + gpu.remarks(gpu_state or {})
