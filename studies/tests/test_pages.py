"""The tables in the pages match their files, and keep what the pages promise."""

from __future__ import annotations

import pytest

from attention_conformance.bench.analysis import fits
from attention_conformance.bench.analysis.statistics import CONFIDENCE
from attention_conformance.bench.output.document import COST, IDLE
from studies import cold_cache, comparisons, interference, memory, overhead
from studies.__main__ import main, names, study
from studies.common import DATA, Study

#: Share of cells that two runs agree on without the machine's part; for perfect runs it is 99.4 %.
AGREEING = 0.98

STUDIES = {name: one for name in names() if any((one := study(name)).tables)}


@pytest.mark.slow(3)
@pytest.mark.documents
@pytest.mark.parametrize("one", STUDIES.values(), ids=STUDIES)
def test_a_page_has_the_figures_of_the_file(one: Study) -> None:
    """Each table is made from the numbers in the file, by the command that it names."""
    for page, begin, block in one.blocks():
        assert begin + block in page.read_text(encoding="utf-8")


def test_every_file_is_on_a_page() -> None:
    """No numbers are hidden."""
    assert set(DATA.glob("*.json.zst")) == {one.file for one in STUDIES.values()}


def test_taking_turns_changes_no_time_by_more_than_two_percent() -> None:
    """No ratio to batches alone is certainly beyond 2 %, and a stopped process does nothing."""
    batches = interference.STUDY.kept()
    ratios = [interference.ratio(cell, interference.STOPPED) for cell in batches["cells"]]
    assert len(ratios) == len(interference.IMPLEMENTATIONS) * len(interference.WORKLOADS)
    assert all(one.low <= 1.02 and one.high >= 0.98 for one in ratios)
    assert all(each[interference.STOPPED] <= IDLE for each in batches["idle"].values())


def _agreeing(machine: str, *, whole: bool) -> float:
    """Share of the cells that agree in all pairs of runs, with or without the machine's part."""
    both = comparisons.agreements(comparisons.STUDY.kept()["sets"][machine])
    pairs = [pair for each in both for pair in (each if whole else comparisons.without_the_machine(each))]
    assert len(pairs) > 1000
    return sum(pair.agrees for pair in pairs) / len(pairs)


#: A machine where decoding moved by itself, in all implementations together.
MOVED = "idle, another host"


@pytest.mark.parametrize("machine", ["idle", "idle, AMD", "idle, three process runs"])
def test_two_runs_of_the_quick_preset_agree(machine: str) -> None:
    """They agree as often as 95 % intervals promise."""
    assert _agreeing(machine, whole=True) >= CONFIDENCE


@pytest.mark.parametrize("machine", ["idle", MOVED, "idle, AMD", "idle, three process runs"])
def test_two_runs_of_the_quick_preset_agree_but_for_the_machine(machine: str) -> None:
    """They agree nearly as often as two perfect runs."""
    assert _agreeing(machine, whole=False) >= AGREEING


def test_what_a_machine_does_to_a_workload_is_no_agreement() -> None:
    """Without it two runs agree, and with it they do not."""
    assert _agreeing(MOVED, whole=True) < CONFIDENCE


def test_runs_beside_other_work_do_not_agree() -> None:
    """The same rules reject what the intervals do not cover."""
    assert _agreeing("busy", whole=True) < CONFIDENCE
    assert _agreeing("busy", whole=False) < AGREEING


def test_the_protocol_costs_less_than_two_percent() -> None:
    """It does for a call of about 100 µs, in every run."""
    assert all(one["ratio"] <= COST and one["loop_seconds"] <= 2e-4 for one in overhead.STUDY.kept()["runs"])


def test_a_call_finds_nothing_in_cold_caches() -> None:
    """Arrays that fit a cache certainly take longer to read after the caches were cleared; larger ones do not."""
    *held, beyond = cold_cache.STUDY.kept()["sizes"]
    assert all(cold_cache.ratio(one).low > 1 for one in held)
    assert cold_cache.ratio(beyond).low < 1.1


def test_the_bench_measures_the_memory_that_libraries_say_they_take() -> None:
    """It is within 2 MiB of tracemalloc and torch's profiler, which lack BLAS' memory for threads; XLA's lacks more."""
    kept = memory.STUDY.kept()
    at = kept["lengths"].index(memory.AT)
    apart = {name: kept["held"][name][at] - size for name, size in kept["asked"].items()}
    assert set(apart) == set(memory.ASKED)
    assert all(abs(each) < 2 * memory.MIB for name, each in apart.items() if name != "jax-jit")
    assert apart["jax-jit"] > 0


def test_who_holds_all_scores_is_said() -> None:
    """Implementations that compute block by block do not hold them, and the plain ones do."""
    kept = memory.STUDY.kept()
    grown = {one.implementation: one.growth for one in memory.grown(kept)}
    assert {grown[name] for name in ("numpy-tiled", "torch-sdpa-flash", "jax-tiled", "ort-mha")} == {fits.Growth.LESS}
    assert {grown[name] for name in ("numpy-eager", "torch-eager", "jax-jit")} == {fits.Growth.QUADRATIC}


def test_a_study_is_named_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown name is refused with the nearest one; without a name all are listed."""
    assert main(["core", "--of", "x"]) == 2
    assert capsys.readouterr().err == "error: no study 'core'; did you mean cores?\n"
    with pytest.raises(SystemExit):
        main(["cores", "--help"])
    assert "usage: python -m studies cores" in capsys.readouterr().out
    assert main([]) == 0
    assert [line.split()[3] for line in capsys.readouterr().out.splitlines()] == names()
