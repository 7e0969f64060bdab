"""The figures of the pages of the bench are those of their files, and keep what the pages promise."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bench import agreement, cold, cores, fits, freed, harness, interference
from bench.document import COST, IDLE
from bench.figures import FOLDER
from bench.tests import held
from impls.figures import Figures

ALL = {one.file.stem: one for one in (each.FIGURES for each in (agreement, cold, cores, freed, harness, interference))}
MEMORY = {"held": held.LENGTHS_FIGURES, "asked": held.ASKED_FIGURES}


@pytest.mark.parametrize("figures", (ALL | MEMORY).values(), ids=ALL | MEMORY)
def test_the_page_has_the_figures_of_the_file(figures: Figures) -> None:
    """Each table is made from the numbers beside it, by the command that it names."""
    assert figures.block() in figures.page.read_text(encoding="utf-8")


def test_every_file_is_on_the_page() -> None:
    """There are no numbers that nobody sees."""
    assert set(FOLDER.glob("*.json")) == {one.file for one in (ALL | MEMORY).values()}


def found(name: str) -> Any:
    """What a file has."""
    return json.loads(ALL[name].file.read_text(encoding="utf-8"))


def test_taking_turns_changes_no_time_by_more_than_two_percent() -> None:
    """No ratio to turns alone is certainly beyond, and a process that is stopped does nothing."""
    turns = found("turns")
    ratios = [interference.ratio(cell, interference.STOPPED) for cell in turns["cells"]]
    assert len(ratios) == len(interference.IMPLEMENTATIONS) * len(interference.WORKLOADS)
    assert all(one.low <= 1.02 and one.high >= 0.98 for one in ratios)
    assert all(each[interference.STOPPED] <= IDLE for each in turns["idle"].values())


def test_two_runs_of_the_quick_preset_agree() -> None:
    """All cells that both timed, within the intervals that they print."""
    runs = found("agree")
    assert all("--preset quick" in run["command"] for run in runs["runs"])
    assert runs["cells"]
    assert not runs["in_one_only"]
    assert all(pair.agrees for pair in agreement.cells(runs))


def test_the_harness_costs_less_than_two_percent() -> None:
    """Of a call of about 100 µs, in every run."""
    assert all(one["ratio"] <= COST and one["loop_seconds"] <= 2e-4 for one in found("harness")["runs"])


def test_a_call_finds_nothing_in_cold_caches() -> None:
    """What a cache holds takes longer to read after the caches were emptied, certainly; what none holds does not."""
    *held, beyond = found("cold")["sizes"]
    assert all(cold.ratio(one).low > 1 for one in held)
    assert cold.ratio(beyond).low < 1.1


def test_the_bench_measures_the_memory_that_libraries_say_they_take() -> None:
    """Within 2 MiB of tracemalloc and of torch's profiler, which lack BLAS' own for threads; XLA's plan lacks more."""
    memory = json.loads(held.LENGTHS_FIGURES.file.read_text(encoding="utf-8"))
    at = memory["lengths"].index(held.AT)
    apart = {name: memory["held"][name][at] - size for name, size in memory["asked"].items()}
    assert set(apart) == set(held.ASKED)
    assert all(abs(each) < 2 * held.MIB for name, each in apart.items() if name != "jax-jit")
    assert apart["jax-jit"] > 0


def test_who_holds_all_scores_is_said() -> None:
    """Those that compute block by block do not, and the plain ones do."""
    memory = json.loads(held.LENGTHS_FIGURES.file.read_text(encoding="utf-8"))
    grown = {one.implementation: one.growth for one in held.grown(memory)}
    assert {grown[name] for name in ("numpy-tiled", "torch-sdpa-flash", "jax-tiled", "ort-mha")} == {fits.Growth.LESS}
    assert {grown[name] for name in ("numpy-eager", "torch-eager", "jax-jit")} == {fits.Growth.QUADRATIC}
