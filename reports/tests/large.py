"""Large input, to see that reports stay fast; ``python -m studies report_speed --folder FOLDER`` leaves it there.

Two runs of 2,000 cells with 50 samples each and 50,000 conformance results, on the cases of the suite; the second run
is 20 % slower in one implementation of twenty-five and has 50 new failures.  A history has 1,000 runs of 16 cells, a
run an hour, in which one cell becomes 30 % slower with a version and later as fast as before.
"""

from __future__ import annotations

import datetime
from pathlib import Path

import numpy as np

from attention_conformance.conformance.cases import every_case
from attention_conformance.conformance.judging.outcomes import Failure, Outcome, Result
from attention_conformance.reports.tests.files import bench_run, conformance_file, fingerprint, peak, timed

CELLS, SAMPLES, RESULTS = 2_000, (2, 5, 5), 50_000
IMPLEMENTATIONS, WORKLOADS = 25, 80

#: A history: its runs, its cells, and how much slower the first cell is for a time.
RUNS, TRENDS, SLOWER = 1_000, 16, 1.3
DTYPES = ("float64", "float32", "float16", "bfloat16")


def write(folder: Path, seed: int, worse: bool, cells: int = CELLS, results: int = RESULTS) -> tuple[Path, Path]:
    """The two files of a run."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    timings = [_cell(at, rng, worse) for at in range(cells)]
    bench = bench_run(folder / "bench.json", *timings, fingerprint=fingerprint(), peaks=[peak()])
    cases = list(every_case().values())
    every = (
        (f"implementation-{who:03}", case, dtype)
        for who in range(results)
        for case in cases
        for dtype in DTYPES
        if dtype in case.dtypes
    )
    lines = [_result(at, *place, worse) for at, place in zip(range(results), every, strict=False)]
    return bench, conformance_file(folder / "conformance.jsonl", *lines)


def write_history(folder: Path, runs: int = RUNS, cells: int = TRENDS) -> None:
    """A folder of runs; the first cell is slow in the third quarter of them."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for run in range(runs):
        slow = runs // 2 <= run < runs * 3 // 4
        timings = [_cell(at * WORKLOADS, rng, False, SLOWER if slow and at == 0 else 1.0) for at in range(cells)]
        when = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(hours=run)
        versions = {"torch": "2.13" if slow else "2.12"}
        of_machine = {"fingerprint": fingerprint(versions=versions), "peaks": [peak()]}
        bench_run(folder / f"{run:04}.json", *timings, started=when.isoformat(), **of_machine)


def _cell(at: int, rng: np.random.Generator, worse: bool, factor: float = 1.0) -> dict:
    who, workload = divmod(at, WORKLOADS)
    length, width = 64 * 2 ** (workload % 8), 16 * (1 + workload // 8)
    seconds = 1e-8 * length**1.8 * (1 + who / 10) * (1.2 if worse and who == 3 else factor)
    process_runs = seconds * np.exp(0.005 * rng.normal(size=(SAMPLES[0], 1, 1)) + 0.005 * rng.normal(size=SAMPLES))
    name = f"prefill-b1h8d{width}s"
    fields = {"workload": f"{name}{length}", "family": f"{name}*", "operator": "sdpa", "memory_bytes": length**2}
    return timed(f"implementation-{who:03}", length, process_runs.tolist(), **fields)


def _result(at: int, name: str, case: object, dtype: str, worse: bool) -> Result:
    place = (name, "cpu", dtype, case.name, case.clauses)  # type: ignore[attr-defined]
    if at % 97 == 0 or (worse and at % 1000 == 1):
        said = {"failure": Failure.VALUE, "broken": place[4][0], "reason": f"{at % 7} times the bound"}
        return Result(*place, Outcome.FAILED, message="what is wrong, " * 60, profile="wide", share=9.0, **said)
    if at % 5 == 0:
        return Result(*place, Outcome.UNSUPPORTED, reason=f"no {at % 11}")
    return Result(*place, Outcome.PASSED, profile="wide", meets=("wide", "fused", "storage"), share=at % 100 / 100)
