"""Possible changes of a case or a cell from one run to the next, step by step, and which of them are worse."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attention_conformance.bench.validity.checks import Call, check
from attention_conformance.bench.workloads.arguments import make
from attention_conformance.bench.workloads.presets import select
from attention_conformance.conformance.judging.outcomes import Outcome, Result
from attention_conformance.impls.contract import Profile
from attention_conformance.reports.compare.changes import Kind, Level, Status
from attention_conformance.reports.compare.compare import compare
from attention_conformance.reports.input.read import read
from attention_conformance.reports.tests.files import bench_run, cell, conformance_file, failed, result, steady
from attention_conformance.reports.tests.files import timed as timed_cell
from attention_conformance.reports.tests.test_compare import between

KEPT, WRONG = result("x", "c"), failed("x", "c")
DEVIATES, LACKS = result("x", "c", Outcome.KNOWN_DEVIATION), result("x", "c", Outcome.UNSUPPORTED)


@pytest.mark.parametrize(
    ("base", "new", "kind", "level"),
    [
        (KEPT, WRONG, Kind.FAILURE, Level.WORSE),
        (DEVIATES, WRONG, Kind.FAILURE, Level.WORSE),
        (LACKS, WRONG, Kind.FAILURE, Level.WORSE),
        (None, WRONG, Kind.FAILURE, Level.WORSE),
        (KEPT, DEVIATES, Kind.DEVIATION, Level.WORSE),
        (WRONG, DEVIATES, Kind.DEVIATION, Level.NOTE),
        (KEPT, LACKS, Kind.SUPPORT, Level.WORSE),
        (KEPT, None, Kind.RESULT, Level.WORSE),
        (WRONG, KEPT, Kind.PASS, Level.BETTER),
        (DEVIATES, KEPT, Kind.VANISHED, Level.BETTER),
        (LACKS, KEPT, Kind.SUPPORTED, Level.BETTER),
        (None, KEPT, Kind.NEW_RESULT, Level.NOTE),
        (WRONG, failed("x", "c", broken="SDPA-1"), Kind.OTHER_FAILURE, Level.NOTE),
        (KEPT, result("x", "c", Outcome.ADVISORY), Kind.OTHER_OUTCOME, Level.NOTE),
        (result("x", "c", share=0.2), result("x", "c", share=0.5), Kind.ACCURACY, Level.WORSE),
        (result("x", "c", share=0.5), result("x", "c", share=0.2), Kind.MORE_ACCURATE, Level.BETTER),
    ],
)
def test_steps_of_a_case(tmp_path: Path, base: Result | None, new: Result | None, kind: Kind, level: Level) -> None:
    """Each step from one outcome to another has a name, and is worse, better or neither."""
    always = result("x", "other")
    files = [
        conformance_file(tmp_path / f"{side}.jsonl", *([one] if one else []), always)
        for side, one in (("a", base), ("b", new))
    ]
    (change,) = between(*files).changes
    assert (change.kind, change.level, change.name) == (kind, level, "c")
    assert (between(*files).status is Status.WORSE) == (level is Level.WORSE)


@pytest.mark.parametrize(("old", "new"), [(0.2, 0.39), (0.01, 0.09), (0.5, 0.5), (None, 0.9)])
def test_small_drifts_of_accuracy_are_none(tmp_path: Path, old: float | None, new: float) -> None:
    """Less than twice the share, less than a tenth of the bound, or nothing to compare with is no change."""
    files = [
        conformance_file(tmp_path / f"{at}.jsonl", result("x", "c", share=one)) for at, one in enumerate((old, new))
    ]
    assert not between(*files).changes


@pytest.mark.parametrize(
    ("base", "new", "kind", "level"),
    [
        ({}, None, Kind.CELL, Level.WORSE),
        ({}, {"outcome": "invalid", "clause": "SDPA-25"}, Kind.INVALID, Level.WORSE),
        ({}, {"outcome": "skipped", "reason": "needs 9 GiB"}, Kind.UNTIMED, Level.WORSE),
        ({}, {"outcome": "known-deviation", "clause": "SDPA-10"}, Kind.UNTIMED, Level.WORSE),
        ({"outcome": "known-deviation"}, {"outcome": "invalid"}, Kind.INVALID, Level.WORSE),
        ({"outcome": "known-deviation"}, {}, Kind.PASS, Level.BETTER),
        (None, {"outcome": "invalid"}, Kind.INVALID, Level.WORSE),
        ({"outcome": "invalid"}, {}, Kind.PASS, Level.BETTER),
        (None, {}, Kind.NEW_CELL, Level.NOTE),
        ({"memory_bytes": 1 << 24}, {"memory_bytes": 1 << 25}, Kind.MEMORY, Level.WORSE),
        ({"memory_bytes": 1 << 25}, {"memory_bytes": 1 << 24}, Kind.LESS_MEMORY, Level.BETTER),
        ({"share": 0.05}, {"share": 0.6}, Kind.ACCURACY, Level.WORSE),
    ],
)
def test_steps_of_a_cell(
    tmp_path: Path, base: dict[str, Any] | None, new: dict[str, Any] | None, kind: Kind, level: Level
) -> None:
    """A cell that is gone, wrong, larger or less accurate is worse; one that is new is not."""
    files = []
    for side, fields in (("a", base), ("b", new)):
        cells = [timed_cell("y", 64, steady(1e-3))]
        if fields is not None:
            timed = fields.get("outcome", "timed") == "timed"
            cells.append(timed_cell("x", 128, steady(1e-3), **fields) if timed else cell("x", 128, **fields))
        files.append(bench_run(tmp_path / f"{side}.json", *cells))
    (change,) = between(*files).changes
    assert (change.kind, change.level, change.implementation) == (kind, level, "x")


#: Worst shares of eight runs of the same two kernels on prefill-b1h8d64s512-causal in float32, each on its own inputs.
SHARES = {
    "tiled": (0.03594, 0.05221, 0.10423, 0.07437, 0.04990, 0.02924, 0.01967, 0.04331),
    "eager": (0.03199, 0.04702, 0.19913, 0.10433, 0.02764, 0.02246, 0.01669, 0.03087),
}


def test_worst_shares_of_the_same_kernel_on_other_inputs_are_no_change(tmp_path: Path) -> None:
    """No pair of runs of the bench of the same code is called less, or more, accurate."""
    runs = []
    for run in range(8):
        cells = [timed_cell(name, 128, steady(1e-3), share=shares[run]) for name, shares in SHARES.items()]
        runs.append(read([bench_run(tmp_path / f"{run}.json", *cells)]))
    assert not [change for pair in permutations(runs, 2) for change in compare(*pair).changes]


def _attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, bits: int) -> np.ndarray:
    """Attention in float32 whose weights are rounded to so many bits."""
    scores = q @ k.swapaxes(-1, -2) / np.float32(q.shape[-1] ** 0.5)
    mantissa, exponent = np.frexp(np.exp(scores - scores.max(-1, keepdims=True)))
    weights = np.ldexp(np.round(mantissa * 2.0**bits) / 2.0**bits, exponent).astype(np.float32)
    return weights @ v / weights.sum(-1, keepdims=True)


def test_a_kernel_that_rounds_its_weights_is_less_accurate(tmp_path: Path) -> None:
    """Weights with 14 bits where there were 24 are within the bound, and a finding although the inputs differ."""
    (workload,), files = select(["prefill-b1h8d64s128"]), []
    for seed, bits in enumerate((24, 14)):
        arrays, keywords = make(workload, "float32", seed)
        got = {"output": _attention(**arrays, bits=bits)}
        share = check(Call(workload, arrays, keywords, "float32", Profile.WIDE), got, seed)
        files.append(bench_run(tmp_path / f"{bits}.json", timed_cell("x", 128, steady(1e-3), share=share)))
    (change,) = between(*files).changes
    assert (change.kind, change.level) == (Kind.ACCURACY, Level.WORSE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"memory_bytes": 1 << 24}, {"memory_bytes": (1 << 24) + (1 << 20)}),
        ({"memory_bytes": 10}, {"memory_bytes": 1000}),
        ({"memory_bytes": 1 << 20, "memory_method": "a"}, {"memory_bytes": 1 << 30, "memory_method": "b"}),
        ({}, {"memory_bytes": 1 << 30}),
    ],
)
def test_small_drifts_of_memory_are_none(tmp_path: Path, old: dict[str, Any], new: dict[str, Any]) -> None:
    """A few per cent, a few bytes, or numbers that were measured in two ways are no change."""
    files = [
        bench_run(tmp_path / f"{at}.json", timed_cell("x", 128, steady(1e-3), **fields))
        for at, fields in enumerate((old, new))
    ]
    assert not between(*files).changes
