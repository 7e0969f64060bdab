"""Bench file: what the suite adds to pytest-benchmark's JSON (format 4), as a run writes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from attention_conformance.bench.machine import gpu
from attention_conformance.bench.machine.machine import load_average
from attention_conformance.bench.output.extra_metrics import ExtraMetrics
from attention_conformance.bench.records import BUSY, FORMAT, JSON_KEY, PlanRecord, Record, Timed
from attention_conformance.bench.roofline.costs import FORMULAS, flops
from attention_conformance.bench.timing.plan import Plan
from attention_conformance.bench.validity.outcomes import UNSTABLE, Cell, Outcome
from attention_conformance.conformance import SPEC_VERSION
from attention_conformance.impls import strict


def plan_record(plan: Plan) -> dict[str, Any]:
    """A plan, as the file has it."""
    found: dict[str, Any] = msgspec.to_builtins(PlanRecord(**asdict(plan), least_calls=plan.least_calls))
    return found


def record(cell: Cell, outcome: Outcome) -> Record:
    """The entry of a cell in the list of all cells."""
    t, w = cell.target, cell.workload
    named = (t.implementation.name, t.device, t.dtype, w.name, w.family, w.sweep, w.operator)
    apart: dict[str, Any] = {}
    if outcome.kind == UNSTABLE:
        known = outcome.interval
        apart = {"seconds": known.value, "interval": (known.low, known.high), "calls": len(outcome.seconds)}
    return Record(*named, outcome.kind, outcome.clause, outcome.reason, **apart)  # type: ignore[arg-type]


def reason_of(one: Record) -> str:
    """The reason of a cell; for an unstable one after its time, which is given nowhere else."""
    if one.seconds is None or one.interval is None:
        return one.reason
    low, high = (f"{1e3 * end:.3g}" for end in one.interval)
    return f"{1e3 * one.seconds:.3g} ms ({low} to {high}) apart: {one.reason}"


def extra_info(cell: Cell, outcome: Outcome, extra: ExtraMetrics) -> dict[str, Any]:
    """Fields of a timed cell in its benchmark's record."""
    target, workload, interval = cell.target, cell.workload, outcome.interval
    first, last = outcome.process_runs[0], outcome.process_runs[-1]
    count = flops(workload)
    found = Timed(
        implementation=target.implementation.name,
        device=target.device,
        dtype=target.dtype,
        workload=workload.name,
        operator=workload.operator,
        B=workload.batch,
        H=workload.heads,
        Hkv=workload.kv_heads,
        S=workload.length,
        Sk=workload.keys,
        D=workload.width,
        Dv=workload.value_width,
        is_causal=workload.is_causal,
        flops=count,
        formula=FORMULAS[workload.operator],
        gflops=count / interval.value / 1e9,
        tokens_per_second=workload.tokens / interval.value,
        process_runs=[[len(batch) for batch in process_run.batches] for process_run in outcome.process_runs],
        interval=(interval.low, interval.high),
        stopped=last.stopped,
        threads=outcome.threads,
        clock=last.clock,
        host_seconds=last.host_seconds,
        evicted_bytes=last.evicted_bytes,
        prepare_seconds=first.prepare_seconds,
        first_call_seconds=first.first_call_seconds,
        peak_rss_bytes=first.peak_rss_bytes,
        share=outcome.share,
        profile=target.profile.value,
        **extra.info(cell, interval.value),
    )
    plain: dict[str, Any] = msgspec.to_builtins(found)
    return plain | {"interval": [interval.low, interval.high]}


def run(records: Sequence[Record], plan: Plan, **rest: Any) -> dict[str, Any]:
    """The run as a whole; ``rest`` has the bench's measurements of the machine and of itself."""
    return {
        "format": FORMAT,
        "spec": SPEC_VERSION,
        "flops": FORMULAS,
        "load_average": load_average(),
        "plan": plan_record(plan),
        **rest,
        "cells": [msgspec.to_builtins(each) for each in records],
    }


def finished(path: Path, header: Mapping[str, Any]) -> list[str] | None:
    """The outcomes in a JSON that has every cell of a run with this checkpoint header: spec, plan and versions.

    None where there is no such file.  Every run draws new inputs, so the seed of the plan may differ.
    """
    try:
        found = strict.loads(path.read_bytes())[JSON_KEY]
        names = ("implementation", "device", "dtype", "workload")
        cells = {"-".join(str(cell[name]) for name in names): str(cell["outcome"]) for cell in found["cells"]}
        plan = found["plan"] | {"seed": header["plan"]["seed"]}
        there = (found["spec"], plan, found["fingerprint"]["versions"])
        same = there == (header["spec"], header["plan"], dict(header["versions"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return list(cells.values()) if same and set(cells) == set(header["cells"]) else None


def in_force(outcomes: Mapping[Cell, Outcome]) -> dict[str, int]:
    """Threads that worked at the same time, by process: the use that libraries make of those they are given."""
    found: dict[str, int] = {}
    for cell, outcome in outcomes.items():
        if cell.target.device == "cpu" and outcome.process_runs:
            name = cell.target.implementation.process
            found[name] = max(found.get(name, 0), outcome.threads)
    return dict(sorted(found.items()))


#: Share of a core above which a waiting process was not idle, and the ratio above which overhead of timing is noted.
IDLE, COST = 0.02, 1.02


def notes(
    outcomes: Mapping[Cell, Outcome],
    idle: Mapping[str, float],
    overhead: Mapping[str, Any],
    gpu_state: Mapping[str, Any] | None = None,
    core_wait: float | None = None,
) -> list[str]:
    """Notes for a reader who compares: other work on the machine, unequal threads, busy processes, a costly overhead.

    Notes on the clocks of GPUs follow.
    """
    found = []
    if core_wait is not None and core_wait > BUSY:
        found.append(f"calls waited {100 * core_wait:.0f} % of their time for a core: other work runs on this machine")
    threads = in_force(outcomes)
    if len(set(threads.values())) > 1:
        found.append(
            f"threads that worked at the same time: {', '.join(f'{name} {count}' for name, count in threads.items())}"
        )
    busy = [f"{name} {share:.0%} of a core" for name, share in idle.items() if share > IDLE]
    if busy:
        found.append(f"not idle while others worked: {', '.join(busy)}")
    if overhead and overhead["interval"][0] > COST:
        found.append(
            f"timing a call of {1e6 * overhead['loop_seconds']:.0f} µs costs {overhead['ratio'] - 1:.1%} of it"
        )
    return found + gpu.notes(gpu_state or {})
