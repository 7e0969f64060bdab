"""Comparisons of real runs: what is kept of them, and that the figures distinguish a blind or wild rule from ours."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from attention_conformance.reports.compare import effects
from attention_conformance.reports.compare.effects import QUANTILE
from attention_conformance.reports.tests.files import bench_run, peak, steady, timed
from studies.common import Unfit
from studies.comparisons import (
    INJECTED,
    NEIGHBOUR,
    QUANTILES,
    STUDY,
    between,
    cells,
    falsely,
    kept,
    library,
    longer,
    luck,
    measure,
    rates,
    series,
    target,
    yardsticks,
)

#: Implementations by library, where one of the libraries changes.
COUNTS = {"torch": 12, "onnx": 8, "jax": 5}

NAMES = [f"{kind}-{at}" for kind in ("torch", "jax") for at in range(4)]


def run(seed: int, cell: float = 0.005, noise: float = 0.01, names: Sequence[str] = NAMES) -> dict[str, Any]:
    """The kept record of a run of implementations, eight unless they are named, on five workloads."""
    rng = np.random.default_rng(seed)
    machine, found = 0.02 * rng.normal(), {}
    for who in names:
        for at in range(5):
            level = math.log(1000.0) + machine + cell * rng.normal() + noise * rng.normal(size=5)
            found[f"{who} cpu float32 w{at}"] = [np.exp(level).tolist()] * len(QUANTILES)
    return {"started": str(seed), "load": 0.1, "cores": 2, "peaks": {"peak": 1e11 * math.exp(-machine)}, "cells": found}


QUIET = [run(seed) for seed in range(12)]


def test_what_is_kept_of_a_file_is_what_a_comparison_takes(tmp_path: Path) -> None:
    """It has the level of each process run, by name, in microseconds to five digits; the peaks as factors of time."""
    path = bench_run(tmp_path / "a.json", timed("x", 128, steady(1e-3)), peaks=[peak(flops=1e11)])
    slow = bench_run(tmp_path / "b.json", timed("x", 128, steady(2e-3)), peaks=[peak(flops=5e10)])
    one, other = kept(path), kept(slow)
    (cell,) = cells(one, other)
    calls = [np.ravel(batches) for batches in steady(1e-3)]
    assert cell.base == pytest.approx([math.log(np.quantile(each, QUANTILE)) for each in calls], abs=1e-4)
    assert cell.new - cell.base == pytest.approx([math.log(2)] * 3, abs=1e-4)
    assert yardsticks(one, other)["matmul peak float32 by torch"] == 2


def test_a_series_goes_on_after_a_run_that_was_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bench refuses an existing checkpoint, so that of the interrupted run is removed before it is repeated."""
    left = tmp_path / "idle" / "001.json.checkpoint.jsonl"
    left.parent.mkdir()
    left.write_text("{}\n")
    made: list[bool] = []
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: made.append(left.exists()))
    monkeypatch.setattr("studies.comparisons.STUDY", SimpleNamespace(file=tmp_path / "none"))
    with pytest.raises(Unfit):
        measure(1, "idle", tmp_path, "")
    assert made == [False]


def test_a_neighbour_ends_with_its_parent() -> None:
    """A study that is killed leaves no process that keeps a core busy: this one has another parent from the start."""
    subprocess.run([sys.executable, "-c", NEIGHBOUR, str(os.getpid() + 1)], check=True, timeout=60)


def test_quiet_runs_have_the_figures_that_are_aimed_at() -> None:
    """There is no false finding, cells are the same, intervals cover, and injected changes are found."""
    found = rates(QUIET[:6])
    assert found["false"] == 0
    assert found["same"] > 0.9
    assert 0.9 < found["covered"] <= 1
    for (_, _, aim), (hit, other) in zip(INJECTED, found["injected"], strict=True):
        assert hit >= aim
        assert other == 0


def test_wild_runs_do_not() -> None:
    """Runs whose cells jump by a fifth are not called the same, and a slowdown is not found in them."""
    found = rates([run(seed, cell=0.2, noise=0.2) for seed in range(4)])
    assert found["same"] < 0.1
    assert found["injected"][0][0] < 0.5


def test_what_is_falsely_called_changed_is_named() -> None:
    """An implementation that is slower in one run is named for its pairs with the other runs, and nothing else is."""
    slow = {name: [[2 * one for one in runs] for runs in levels] for name, levels in QUIET[1]["cells"].items()}
    strange = {**QUIET[1], "cells": QUIET[1]["cells"] | {n: slow[n] for n in slow if n.startswith("jax-2 ")}}
    assert falsely(QUIET[:3]) == {}
    assert falsely([QUIET[0], strange, QUIET[2]]) == {"jax-2": 2}


@pytest.mark.parametrize("moves", [0.0, 0.03])
def test_luck_is_what_cells_move_by_beyond_their_process_runs(moves: float) -> None:
    """It is that of a difference of two runs, which contains it twice; implementations have two cells."""
    runs = [run(seed, cell=moves) for seed in range(8)]
    two = [{**one, "cells": {n: v for n, v in one["cells"].items() if n.endswith(("w0", "w1"))}} for one in runs]
    of_cell, of_implementation = luck(two)
    assert of_cell == pytest.approx(moves * math.sqrt(2), rel=0.25, abs=0.005)
    assert of_implementation < 0.01


def test_what_is_lengthened_is_lengthened_alone() -> None:
    """All cells of an implementation are lengthened, or one cell; the base stays."""
    before = cells(QUIET[0], QUIET[1])
    for what, count in (("an implementation", 5), ("a cell", 1)):
        which = target(before, what, 3)
        after = longer(before, which, 1.5)
        moved = [at for at, (old, new) in enumerate(zip(before, after, strict=True)) if (new.new != old.new).any()]
        assert moved == which
        assert len(which) == count
        assert all((new.base == old.base).all() for old, new in zip(before, after, strict=True))


def test_a_library_that_changed_hides_nothing_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a fifth of the implementations; a rule that takes that for luck calls few of the others the same."""
    names = [f"{kind}-{at}" for kind, count in COUNTS.items() for at in range(count)]
    many = [run(seed, names=names) for seed in range(4)]
    found, same, others = library(many)
    assert (found, others) == (1, 0)
    assert same > 0.8
    monkeypatch.setattr(effects, "CHANGE", math.inf)
    assert library(many)[1] < 0.2


def test_a_history_of_quiet_runs_has_the_steps_that_are_injected() -> None:
    """It has few others; for fewer runs there is no result."""
    found = series(QUIET)
    assert found["without"] <= 1
    for hit, other in found["injected"]:
        assert hit > 0.95
        assert other < 0.01
    assert series(QUIET[:5]) == {}


def test_a_history_of_runs_of_which_half_are_of_another_machine_has_changes() -> None:
    """Changes without an injected step are counted: cells that moved by themselves."""
    wild = [*QUIET[:6], *(run(seed, cell=0.2) for seed in range(6, 12))]
    shift = np.random.default_rng(0).normal(scale=0.3, size=len(wild[0]["cells"]))
    for one in wild[6:]:
        for name, by in zip(list(one["cells"]), shift, strict=True):
            one["cells"][name] = (np.array(one["cells"][name]) * math.exp(by)).tolist()
    assert series(wild)["without"] > 5


def test_runs_of_another_host_are_counted_by_what_is_called_changed() -> None:
    """It is everything, where no yardstick moved; an implementation, where the others stayed; or nothing."""
    assert between(QUIET[:2], QUIET[2:4]) == [4, 0, 0]
    faster, one = ([{**each, "cells": dict(each["cells"])} for each in QUIET[2:4]] for _ in range(2))
    for each in faster:
        each["cells"] = {name: (np.array(levels) / 1.5).tolist() for name, levels in each["cells"].items()}
    for each in one:
        mine = {name: levels for name, levels in each["cells"].items() if name.startswith("torch-0 ")}
        each["cells"] |= {name: (np.array(levels) / 1.5).tolist() for name, levels in mine.items()}
    assert between(QUIET[:2], faster) == [4, 4, 0]
    assert between(QUIET[:2], one) == [4, 0, 4]


def test_the_real_runs_that_are_kept_have_no_more_false_findings_than_promised() -> None:
    """At most 1 % of the pairs of each machine have any, and intervals cover."""
    for found in STUDY.kept()["results"].values():
        assert found["rates"]["false"] <= 0.01
        assert found["rates"]["covered"] > 0.92
