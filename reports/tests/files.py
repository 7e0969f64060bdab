"""Miniature result files for the tests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attention_conformance.bench.analysis.statistics import ProcessRuns, median
from attention_conformance.conformance.judging.outcomes import Failure, Outcome, Result
from attention_conformance.conformance.results import Writer
from attention_conformance.reports.input.bench import PROPERTIES

#: Measured fields of a cell, which its record has and not the list of cells.
MEASURED = ("median_ms", *PROPERTIES, "data", "process_runs", "interval")


def result(implementation: str, case: str, outcome: Outcome = Outcome.PASSED, **fields: Any) -> Result:
    """A result on the CPU in float32, of a case of SDPA-1 and SDPA-9 unless the fields say otherwise."""
    given = {"device": "cpu", "dtype": "float32", "clauses": ("SDPA-1", "SDPA-9"), **fields}
    return Result(implementation=implementation, case=case, outcome=outcome, **given)


def failed(implementation: str, case: str, broken: str = "SDPA-9", reason: str = "wrong", **fields: Any) -> Result:
    """A result with a wrong value that breaks a clause."""
    return result(implementation, case, Outcome.FAILED, failure=Failure.VALUE, broken=broken, reason=reason, **fields)


def conformance_file(path: Path, *results: Result, diagnoses: Sequence[Mapping[str, Any]] = (), **header: Any) -> Path:
    """A result file of ``pytest conformance``."""
    with Writer(path, {"machine": "m1", "versions": {"numpy": "2.0"}, **header}) as writer:
        for one in results:
            writer.write(one)
        writer.close(diagnoses=diagnoses)
    return path


def cell(implementation: str, length: int, outcome: str = "timed", **fields: Any) -> dict[str, Any]:
    """A cell of the bench, with a median in milliseconds if it is timed."""
    named = {
        "implementation": implementation,
        "device": "cpu",
        "dtype": "float32",
        "workload": f"prefill-b1h8d64s{length}",
        "family": "prefill-b1h8d64s*",
        "S": length,
        "operator": "sdpa",
    }
    return {**named, "outcome": outcome, "clause": "", "reason": "", **fields}


def timed(implementation: str, length: int, process_runs: ProcessRuns, **fields: Any) -> dict[str, Any]:
    """A cell with its samples, by process run and batch."""
    interval = median(process_runs)
    return cell(
        implementation,
        length,
        median_ms=interval.value * 1e3,
        process_runs=[[len(batch) for batch in run] for run in process_runs],
        data=[seconds for run in process_runs for batch in run for seconds in batch],
        interval=[interval.low, interval.high],
        **fields,
    )


def steady(seconds: float, seed: int = 0, spread: float = 0.005) -> list[list[list[float]]]:
    """Three process runs of six batches of three calls that scatter by ``spread`` around a time."""
    return (seconds * np.exp(spread * np.random.default_rng(seed).normal(size=(3, 6, 3)))).tolist()


def fingerprint(**fields: Any) -> dict[str, Any]:
    """The fingerprint of a machine in a file."""
    return {"cpu": "a processor", "cores_usable": 2, "id": "0a1b", **fields}


def plan(cache: str = "warm", threads: int = 2) -> dict[str, Any]:
    """The plan of a run."""
    times = {"seconds": 0.6, "noise": 0.02, "process_runs": 3, "batch_seconds": 0.02, "limit": 10.8}
    return {**times, "least_calls": 9, "most_calls": 1500, "threads": threads, "seed": 0, "cache": cache}


def fit(implementation: str) -> dict[str, Any]:
    """The exponent of an implementation's memory."""
    line = {"exponent": 2.0, "low": 1.9, "high": 2.1, "points": 4, "shortest": 512, "longest": 4096}
    cells = {"implementation": implementation, "device": "cpu", "dtype": "float32", "family": "prefill-b1h8d64s*"}
    return {**line, **cells, "quantity": "bytes"}


def peak(device: str = "cpu", dtype: str = "float32", flops: float = 1e11, byte: float = 1e10) -> dict[str, Any]:
    """The measured peak and bandwidth of a device."""
    fields = {"flops_per_second": flops, "flops_by": "torch", "bytes_per_second": byte, "bytes_by": "numpy"}
    return {"device": device, "dtype": dtype, **fields}


def bench_run(path: Path, *cells: dict[str, Any], **ours: Any) -> Path:
    """A result file of ``pytest bench`` with all metadata of a run."""
    given = {"flops": {"sdpa": "any"}, "fingerprint": fingerprint(), "peaks": [peak()], **ours}
    return bench_file(path, *cells, **given)


def bench_file(path: Path, *cells: dict[str, Any], **ours: Any) -> Path:
    """A result file of ``pytest bench``; a timed cell's ``median_ms`` becomes its statistics."""
    document = {
        "machine_info": {"machine": "m2", "libraries": {"torch": "2.5"}, "threads": {"OMP_NUM_THREADS": "2"}},
        "datetime": "2026-01-02T03:04:05",
        "benchmarks": [_benchmark(one) for one in cells if "median_ms" in one],
        "attention_conformance": {
            "format": 4,
            "spec": "1",
            "flops": {"sdpa": "2·B·H·pairs·(D + Dv)"},
            "cells": [_listed(one) for one in cells],
            **ours,
        },
    }
    path.write_text(json.dumps(document))
    return path


def _listed(one: Mapping[str, Any]) -> dict[str, Any]:
    """A cell in the list of cells: an unstable one also has its time, as it has no record of its own."""
    return {key: value for key, value in one.items() if one["outcome"] == "unstable" or key not in MEASURED}


def _benchmark(one: Mapping[str, Any]) -> dict[str, Any]:
    seconds = one["median_ms"] / 1e3
    info = {name: one[name] for name in ("implementation", "device", "dtype", "workload", "S")}
    info |= {"B": 1, "H": 8, "D": 64, "flops": 1e9, "gflops": 1 / seconds, "prepare_seconds": 0.25}
    info |= {"first_call_seconds": 0.5, "peak_rss_bytes": one.get("peak_rss_bytes", 1), "share": 0.1, "profile": "wide"}
    info |= {name: one[name] for name in MEASURED if name in one and name not in ("median_ms", "data")}
    stats = dict.fromkeys(("min", "median", "mean", "max"), seconds) | {"stddev": 0.0, "rounds": 5}
    return {"extra_info": info, "stats": stats | ({"data": one["data"]} if "data" in one else {})}
