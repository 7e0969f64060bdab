"""Miniature result files for the tests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bench.statistics import Visits, median
from conformance.outcomes import Failure, Outcome, Result
from conformance.results import Writer
from reports.cell import OF_3

#: What is measured of a cell, and so is of its record and not of the list of cells.
MEASURED = ("median_ms", "tokens_per_second", "peak_bytes", "share", *OF_3, "data", "visits", "interval")


def result(implementation: str, case: str, outcome: Outcome = Outcome.PASSED, **fields: Any) -> Result:
    """A result on the CPU in float32, of a case of SDPA-1 and SDPA-9 unless the fields say otherwise."""
    given = {"device": "cpu", "dtype": "float32", "clauses": ("SDPA-1", "SDPA-9"), **fields}
    return Result(implementation=implementation, case=case, outcome=outcome, **given)


def failed(implementation: str, case: str, broken: str = "SDPA-9", reason: str = "wrong", **fields: Any) -> Result:
    """A result with a wrong value that breaks a clause."""
    return result(implementation, case, Outcome.FAILED, failure=Failure.VALUE, broken=broken, reason=reason, **fields)


def conformance_file(path: Path, *results: Result, **header: Any) -> Path:
    """A result file of ``pytest conformance``."""
    with Writer(path, {"machine": "m1", "versions": {"numpy": "2.0"}, **header}) as writer:
        for one in results:
            writer.write(one)
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
    }
    return {**named, "outcome": outcome, "clause": "", "reason": "", **fields}


def timed(implementation: str, length: int, visits: Visits, **fields: Any) -> dict[str, Any]:
    """A cell with its samples, by visit and chunk, as files of format 3 have them."""
    interval = median(visits)
    return cell(
        implementation,
        length,
        median_ms=interval.value * 1e3,
        visits=[[len(chunk) for chunk in visit] for visit in visits],
        data=[seconds for visit in visits for chunk in visit for seconds in chunk],
        interval=[interval.low, interval.high],
        **fields,
    )


def steady(seconds: float, seed: int = 0, spread: float = 0.005) -> list[list[list[float]]]:
    """Three visits of six chunks of three calls that scatter by ``spread`` around a time."""
    return (seconds * np.exp(spread * np.random.default_rng(seed).normal(size=(3, 6, 3)))).tolist()


def fingerprint(**fields: Any) -> dict[str, Any]:
    """What a file of format 3 says of its machine."""
    return {"cpu": "a processor", "cores_usable": 2, "id": "0a1b", **fields}


def roof(device: str = "cpu", dtype: str = "float32", flops: float = 1e11, byte: float = 1e10) -> dict[str, Any]:
    """The measured peak and bandwidth of a device."""
    fields = {"flops_per_second": flops, "flops_by": "torch", "bytes_per_second": byte, "bytes_by": "numpy"}
    return {"device": device, "dtype": dtype, **fields}


def bench_3(path: Path, *cells: dict[str, Any], **ours: Any) -> Path:
    """A result file of ``pytest bench`` of format 3."""
    given = {"format": 3, "flops": {"sdpa": "any"}, "fingerprint": fingerprint(), "roofs": [roof()], **ours}
    return bench_file(path, *cells, **given)


def bench_file(path: Path, *cells: dict[str, Any], **ours: Any) -> Path:
    """A result file of ``pytest bench``; a timed cell's ``median_ms`` becomes its statistics."""
    document = {
        "machine_info": {"machine": "m2", "libraries": {"torch": "2.5"}, "threads": {"OMP_NUM_THREADS": "2"}},
        "datetime": "2026-01-02T03:04:05",
        "benchmarks": [_benchmark(one) for one in cells if "median_ms" in one],
        "attention_conformance": {
            "format": 1,
            "spec": "1",
            "flops": "2·B·H·pairs·(D + Dv)",
            "cells": [{key: value for key, value in one.items() if key not in MEASURED} for one in cells],
            **ours,
        },
    }
    path.write_text(json.dumps(document))
    return path


def _benchmark(one: Mapping[str, Any]) -> dict[str, Any]:
    seconds = one["median_ms"] / 1e3
    info = {name: one[name] for name in ("implementation", "device", "dtype", "workload", "S")}
    info |= {"B": 1, "H": 8, "D": 64, "flops": 1e9, "gflops": 1 / seconds, "prepare_seconds": 0.25}
    info |= {"first_call_seconds": 0.5, "peak_bytes": one.get("peak_bytes", 1), "share": 0.1, "profile": "wide"}
    info |= {name: one[name] for name in MEASURED if name in one and name not in ("median_ms", "data")}
    stats = dict.fromkeys(("min", "median", "mean", "max"), seconds) | {"stddev": 0.0, "rounds": 5}
    return {"extra_info": info, "stats": stats | ({"data": one["data"]} if "data" in one else {})}
