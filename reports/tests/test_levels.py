"""Changes at the levels of a history: a common change is one finding, and the machine's is no change of a cell."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from attention_conformance.cli import main
from attention_conformance.reports.history.levels import Finding, Level, find_changes
from attention_conformance.reports.input.bench import Key
from attention_conformance.reports.tests.files import bench_run, fingerprint, steady, timed

RUNS = 40


def series(names: Sequence[str], spread: float = 0.01, seed: int = 0) -> tuple[np.ndarray, list[Key]]:
    """Cells that scatter: each of "a b, a b, c d" an implementation with its workloads."""
    keys = [(who, "cpu", "float32", work) for who, *works in (name.split() for name in names) for work in works]
    rng = np.random.default_rng(seed)
    return spread * rng.normal(size=(len(keys), RUNS)), keys


MANY = ("a p d", "b p d", "c p d", "e p d", "f p")


def said(findings: Sequence[Finding]) -> list[tuple[Level, int, tuple[int, ...], int]]:
    """Findings without their ratios."""
    return [(one.level, one.at, one.cells, one.of) for one in findings]


def test_nothing_is_found_where_nothing_changed() -> None:
    """Five implementations that scatter by 1 % give no finding."""
    result = find_changes(*series(MANY))
    assert result.findings == []
    assert result.places == [[]] * 9


def test_an_implementation_that_changed_is_one_finding() -> None:
    """It has both of its cells, from index 25 on, with the median of their ratios."""
    logs, keys = series(MANY)
    logs[:2, 25:] += math.log(1.1)
    result = find_changes(logs, keys)
    assert said(result.findings) == [(Level.IMPLEMENTATION, 25, (0, 1), 2)]
    assert result.findings[0].ratio == pytest.approx(1.1, rel=0.01)
    assert result.places[:3] == [[25], [25], []]


def test_cells_show_together_what_few_show_alone() -> None:
    """6 % in nine cells that scatter by 4 %: four of them are found by themselves, and all of them together."""
    logs, keys = series(("a p d m g q r s t u", *MANY[1:]), 0.04, seed=1)
    assert find_changes(logs, keys).findings == []
    logs[:9, 20:] += math.log(1.06)
    assert said(find_changes(logs, keys).findings) == [(Level.IMPLEMENTATION, 20, tuple(range(9)), 9)]
    rest = range(9, len(keys))
    assert sum(bool(find_changes(logs[[at, *rest]], [keys[at], *keys[9:]]).findings) for at in range(9)) == 4


def test_a_cell_that_became_much_slower_takes_no_other_with_it() -> None:
    """One of nine is twice as slow: the mean of all moved by 8 %, and eight did not change."""
    logs, keys = series(("a p d m g q r s t u", *MANY[1:]), 0.03)
    logs[4, 20:] += math.log(2.0)
    assert said(find_changes(logs, keys).findings) == [(Level.CELL, 20, (4,), 1)]


def test_one_cell_of_an_implementation_is_a_finding_of_its_own() -> None:
    """It is, although the mean of both moved by half of it."""
    logs, keys = series(MANY)
    logs[1, 25:] += math.log(1.25)
    result = find_changes(logs, keys)
    assert said(result.findings) == [(Level.CELL, 25, (1,), 1)]
    assert result.places[:2] == [[], [25]]


def test_what_a_machine_does_from_run_to_run_hides_no_change() -> None:
    """Whole runs are slower or faster by a tenth: one implementation's 10 % is found, and nothing else."""
    logs, keys = series(MANY)
    logs += 0.1 * np.random.default_rng(1).normal(size=RUNS)
    logs[:2, 25:] += math.log(1.1)
    assert said(find_changes(logs, keys).findings) == [(Level.IMPLEMENTATION, 25, (0, 1), 2)]


def test_what_everything_changed_by_for_good_is_one_finding() -> None:
    """A compiler that made everything slower is neither a busy day nor a change of each cell."""
    logs, keys = series(MANY)
    logs[:, 20:] += math.log(1.2)
    result = find_changes(logs, keys)
    assert said(result.findings) == [(Level.EVERYTHING, 20, tuple(range(9)), 9)]
    assert result.places == [[20]] * 9


def test_what_a_workload_changed_by_is_one_finding() -> None:
    """All implementations changed on it and on no other: it is the machine's, or the bench's."""
    logs, keys = series(MANY)
    of = [at for at, key in enumerate(keys) if key[3] == "d"]
    logs[of, 20:] += math.log(0.8)
    assert said(find_changes(logs, keys).findings) == [(Level.WORKLOAD, 20, tuple(of), len(of))]


def test_a_small_change_of_everything_is_no_change_of_those_that_moved_a_little_more() -> None:
    """4 % in all and 2 % more in one implementation are 6 %, which is not its own change."""
    logs, keys = series(MANY, 0.003)
    logs[:, 20:] += math.log(0.96)
    logs[:2, 20:] += math.log(0.98)
    assert find_changes(logs, keys).findings == []


def test_what_stays_when_most_others_change_did_not_change() -> None:
    """Three of four implementations are of one library that slowed: the fourth is not faster for that."""
    logs, keys = series(("a p d", "b p d", "c p d", "mine p d"))
    logs[:6, 20:] += math.log(1.3)
    assert said(find_changes(logs, keys).findings) == [(Level.EVERYTHING, 20, tuple(range(6)), 8)]


def test_two_implementations_have_no_machine_to_be_compared_with() -> None:
    """Each is judged by itself."""
    logs, keys = series(("a p d", "b p d"))
    logs[:, 20:] += math.log(1.2)
    assert said(find_changes(logs, keys).findings) == [
        (Level.IMPLEMENTATION, 20, (0, 1), 2),
        (Level.IMPLEMENTATION, 20, (2, 3), 2),
    ]


def test_a_cell_that_runs_lack_is_judged_by_the_others() -> None:
    """Runs of another preset have other cells; the change of a cell is in the first run that has it again."""
    logs, keys = series(MANY)
    logs[1, 25:] += math.log(1.25)
    logs[1, [3, 9, 24, 25]] = np.nan
    (finding,) = find_changes(logs, keys).findings
    assert (finding.level, finding.at) == (Level.CELL, 26)


def test_the_tables_have_what_changed_together_as_one(tmp_path: Path) -> None:
    """The CSV has it by level, the Markdown in words; a cell that changed by itself has its times."""
    (tmp_path / "in").mkdir()
    for day in range(20):
        late, factor = day >= 12, 1.3 if day >= 12 else 1.0
        cells = [timed("x", size, steady(1e-3 * factor, 10 * day + size)) for size in (128, 256)]
        cells += [
            timed("y", size, steady(2e-3 * (factor**2 if size == 256 else 1.0), day + size)) for size in (128, 256)
        ]
        given = {"fingerprint": fingerprint(versions={"torch": "2.13" if late else "2.12"})}
        bench_run(tmp_path / "in" / f"{day}.json", *cells, started=f"2026-01-{day + 1:02}T00:00:00Z", **given)
    assert main(["history", str(tmp_path / "in"), "-o", str(tmp_path / "out")]) == 0
    rows = pd.read_csv(tmp_path / "out" / "steps.csv", keep_default_na=False).to_dict("records")
    assert [(row["level"], row["implementation"], row["cells"], row["of"]) for row in rows] == [
        ("implementation", "x", 2, 2),
        ("cell", "y", 1, 1),
    ]
    assert rows[0]["before"] == ""
    assert float(rows[1]["before"]) == pytest.approx(2e-3, rel=0.05)
    page = (tmp_path / "out" / "history.md").read_text()
    assert "**2 changes in 4 cells over 20 files**: 2 slower" in page
    assert "all 2 cells" in page
    assert "torch 2.12 → 2.13" in page
