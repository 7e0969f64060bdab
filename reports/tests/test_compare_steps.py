"""Possible changes of a case or a cell from one run to the next, step by step, and which of them are worse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from attention_conformance.conformance.judging.outcomes import Outcome, Result
from attention_conformance.reports.compare.changes import Kind, Level, Status
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
        ({"share": 0.2}, {"share": 0.8}, Kind.ACCURACY, Level.WORSE),
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
