"""The history of a folder: where series changed, and where they did not."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from attention_conformance.cli import main
from attention_conformance.conformance.judging.outcomes import Outcome
from attention_conformance.reports.history import changepoints
from attention_conformance.reports.history.changepoints import SHORTEST, changes
from attention_conformance.reports.history.series import history, steps
from attention_conformance.reports.input.records import ReportError
from attention_conformance.reports.tests.files import (
    bench_run,
    conformance_file,
    failed,
    fingerprint,
    plan,
    result,
    steady,
    timed,
)


def noise(count: int, seed: int = 0, spread: float = 0.01) -> np.ndarray:
    """Log times that scatter around 0."""
    return spread * np.random.default_rng(seed).normal(size=count)


def segmentations(count: int) -> list[list[int]]:
    """Every way to cut a series into segments that are long enough."""
    places = range(SHORTEST, count - SHORTEST + 1)
    ways = itertools.chain.from_iterable(itertools.combinations(places, n) for n in range(count // SHORTEST))
    return [list(way) for way in ways if all(b - a >= SHORTEST for a, b in itertools.pairwise((0, *way, count)))]


def cost(values: np.ndarray, way: list[int]) -> float:
    """The cost that PELT minimises, written out."""
    parts = np.split(changepoints.standard(values), way)
    penalty = changepoints.PENALTY * math.log(len(values))
    return sum(float(((part - part.mean()) ** 2).sum()) for part in parts) + penalty * len(way)


@pytest.mark.parametrize("seed", range(8))
def test_the_segmentation_is_the_best_of_all(seed: int) -> None:
    """Pruning loses nothing: no other way to cut 18 values costs less."""
    values = noise(18, seed) + np.repeat([0.0, 0.03, 0.01], 6) * (seed % 3)
    best = min(cost(values, way) for way in segmentations(18))
    assert cost(values, changes(values.tolist())) == pytest.approx(best)


def test_a_segmentation_that_is_not_the_best_is_seen() -> None:
    """A change that is moved by one run, left out or added costs more, so the test above can fail."""
    values = noise(18) + np.repeat([0.0, 0.03], 9)
    assert changes(values.tolist()) == [9]
    assert all(cost(values, way) > cost(values, [9]) for way in ([8], [10], [], [5, 9]))


@pytest.mark.parametrize("count", [10, 20, 40, 200])
def test_a_series_that_did_not_change_has_no_change(count: int) -> None:
    """At most 8 % of 200 series have one."""
    found = [noise(count, 1000 + seed) for seed in range(200)]
    assert sum(bool(changes(one.tolist())) for one in found) <= 16


def test_a_step_is_found_where_it_is() -> None:
    """A fifth slower from the 30th of 50 runs on, and back from the 40th."""
    values = noise(50) + np.repeat([0.0, 0.2, 0.0], [30, 10, 10])
    places = changes(values.tolist())
    assert places == [30, 40]
    found = steps(values, places)
    assert [step.at for step in found] == places
    assert found[0].ratio == pytest.approx(math.exp(0.2), rel=0.02)


def test_the_steps_of_a_cell_are_numbered_among_the_runs_that_have_it() -> None:
    """With two of eight runs missing, the change at index 5 is at point 3; one before the first point is none."""
    row = np.log([np.nan, 1.0, 1.0, np.nan, 1.0, 2.0, 2.0, 2.0])
    (step,) = steps(row, [1, 5])
    assert (step.at, step.before) == (3, 1.0)
    assert step.after == pytest.approx(2.0)


def test_outliers_are_no_change() -> None:
    """Single runs that took ten times as long are neither a change nor hide one."""
    values = noise(60) + np.repeat([0.0, 0.2], 30)
    values[[5, 17, 44]] = math.log(10)
    assert changes(values.tolist()) == [30]


def test_equal_and_short_series_have_no_change() -> None:
    """Without scatter, or with too few runs to tell, there is no change."""
    assert changes([1.0] * 50) == []
    assert changes([1.0, 1.0, 1.0, 9.0, 9.0, 9.0, 9.0]) == []


def runs(folder: Path, count: int, slow_from: int, **ours: object) -> None:
    """A run of one cell each day, slower from one day on, when a library had another version."""
    folder.mkdir(exist_ok=True)
    for day in range(count):
        slow = day >= slow_from
        seconds = 1e-3 * (1.3 if slow else 1.0)
        given = {"fingerprint": fingerprint(versions={"torch": "2.13" if slow else "2.12"}), **ours}
        cells = [timed("x", 128, steady(seconds, day))]
        bench_run(folder / f"{count - day}.json", *cells, started=f"2026-01-{day + 1:02}T00:00:00Z", **given)


def test_a_folder_becomes_tables_and_a_page(tmp_path: Path) -> None:
    """Runs are in the order of their dates, whatever the files' names; the change names the versions."""
    runs(tmp_path / "in", 20, 12)
    assert main(["history", str(tmp_path / "in"), "-o", str(tmp_path / "out")]) == 0
    (step,) = pd.read_csv(tmp_path / "out" / "steps.csv").to_dict("records")
    assert (step["when"], step["file"]) == ("2026-01-13T00:00:00Z", "8.json")
    assert step["versions"] == "torch 2.12 → 2.13"
    assert pd.read_csv(tmp_path / "out" / "history.csv")["segment"].tolist() == [0] * 12 + [1] * 8
    page = (tmp_path / "out" / "history.md").read_text()
    assert "**1 change in 1 cells over 20 files**: 1 slower" in page
    assert "│" in page
    document = json.loads((tmp_path / "out" / "history.json").read_text())
    assert [one["at"] for one in document["series"][0]["steps"]] == [12]


def test_two_machines_are_two_series(tmp_path: Path) -> None:
    """A faster machine is no change of a cell."""
    runs(tmp_path / "in", 10, 99)
    runs(tmp_path / "in" / "other", 10, 0, fingerprint=fingerprint(id="ffff"))
    found = history(tmp_path / "in")
    assert [(one.machine, len(one.points), one.steps) for one in found.series] == [("0a1b", 10, ()), ("ffff", 10, ())]


def test_files_of_several_folders_are_named_by_their_paths(tmp_path: Path) -> None:
    """Two folders with the same names of files are as many runs, with the versions of each."""
    runs(tmp_path / "one", 10, 99)
    runs(tmp_path / "two", 10, 0)
    assert main(["history", str(tmp_path / "one"), str(tmp_path / "two"), "-o", str(tmp_path / "out")]) == 0
    document = json.loads((tmp_path / "out" / "history.json").read_text())
    assert {one["file"] for one in document["series"][0]["points"]} == set(document["versions"])
    assert len(document["versions"]) == 20
    assert document["versions"][str(tmp_path / "two" / "10.json")] == {"torch": "2.13"}


def test_times_that_were_taken_in_two_ways_are_two_series(tmp_path: Path) -> None:
    """Cold caches, or one thread, are no change of a cell; a file that does not say is warm and on all cores."""
    runs(tmp_path / "in", 5, 99)
    runs(tmp_path / "in" / "warm", 5, 99, plan=plan())
    runs(tmp_path / "in" / "cold", 10, 0, plan=plan("cold"))
    runs(tmp_path / "in" / "one", 10, 0, plan=plan(threads=1))
    found = history(tmp_path / "in")
    ways = [("0a1b", 10), ("0a1b, caches cold", 10), ("0a1b, threads 1", 10)]
    assert sorted((one.machine, len(one.points)) for one in found.series) == ways


def test_a_file_that_cannot_be_read_is_named_and_the_others_used(tmp_path: Path) -> None:
    """One damaged file of many does not cost the history; none that can be read is an error."""
    runs(tmp_path / "in", 2, 9)
    (tmp_path / "in" / "bad.json").write_text("{")
    found = history(tmp_path / "in")
    assert (found.files, list(found.refused)) == (3, ["bad.json"])
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "bad.json").write_text("{")
    with pytest.raises(ReportError, match="no result file that can be read, of 1"):
        history(tmp_path / "none")


def test_conformance_is_counted_by_run(tmp_path: Path) -> None:
    """The table has the numbers that failed, deviated and passed, by implementation and date."""
    (tmp_path / "in").mkdir()
    for day, second in enumerate((result("x", "d"), failed("x", "d"), result("x", "d", Outcome.KNOWN_DEVIATION))):
        conformance_file(tmp_path / "in" / f"{9 - day}.jsonl", result("x", "c"), second, started=f"2026-01-0{day + 1}")
    assert main(["history", str(tmp_path / "in"), "-o", str(tmp_path / "out")]) == 0
    table = pd.read_csv(tmp_path / "out" / "conformance.csv")
    assert table["passed"].tolist() == [2, 1, 1]
    assert table["failed"].tolist() == [0, 1, 0]
    assert table["known-deviation"].tolist() == [0, 0, 1]
