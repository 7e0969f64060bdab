"""The model of two runs: what it must find, what it must not, and what it says about the machine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from attention_conformance.bench.analysis.statistics import Verdict
from attention_conformance.reports.compare import machines
from attention_conformance.reports.compare.effects import (
    CHANGED,
    LUCK_OF_CELL,
    PRIOR,
    SCATTER,
    UNKNOWN,
    Cell,
    Effects,
    common_over_runs,
    degrees_of_freedom,
    effects,
    huber_mean,
    judge_level,
    level,
    machine_factor,
    variance_component,
    variances,
    without_common,
)

#: Number of simulated comparisons of each kind.
TIMES = 40

UNITS, EACH = 8, 6


def run(
    seed: int,
    slow: float = 1.0,
    one: float = 1.0,
    whole: float = 1.0,
    units: int = UNITS,
    runs: int = 5,
    rounds: float = 0.03,
    changed: int = 1,
    **scatter: float,
) -> list[Cell]:
    """Cells of a machine that is slower or faster by 5 % as a whole, with slow first implementations or first cell."""
    rng = np.random.default_rng(seed)
    sd = {"machine": 0.05, "unit": 0.005, "cell": 0.01, "run": 0.015} | scatter
    common = rounds * rng.normal(size=(2, EACH, runs))
    moved, found = math.log(whole) + sd["machine"] * rng.normal(), []
    for unit in range(units):
        luck = sd["unit"] * rng.normal()
        for at in range(EACH):
            change = math.log(slow) * (unit < changed) + math.log(one) * (unit == at == 0)
            base, new = common[:, at] + sd["run"] * math.exp(0.3 * rng.normal()) * rng.normal(size=(2, runs))
            shift = moved + luck + sd["cell"] * rng.normal() + change
            start = math.log(1e-3) + 0.5 * at
            found.append(
                Cell((f"{'torch' if unit % 2 else 'jax'}-{unit}", "f"), start + base, start + new + shift, str(at))
            )
    return found


FIRST = ("jax-0", "f")


def any_change(found: Effects) -> bool:
    """Whether anything is called faster or slower."""
    whole = [found.everything] if found.everything else []
    return any(one.verdict in CHANGED for one in (*whole, *found.units.values(), *found.cells))


def share(of: Any, **options: Any) -> float:
    """The share of simulated comparisons where something holds."""
    return float(np.mean([of(effects(run(seed, **options), {})) for seed in range(TIMES)]))


def test_of_equal_runs_nothing_is_found() -> None:
    """None of 40 comparisons of 48 cells has a false finding, and most cells are the same."""
    assert share(any_change) == 0
    assert share(lambda found: np.mean([one.verdict is Verdict.SAME for one in found.cells])) > 0.8


def test_intervals_cover_what_they_are_of() -> None:
    """95 % intervals of cells that did not change cover 1 in about 95 %."""
    covered = share(lambda found: np.mean([one.ratio.low <= 1 <= one.ratio.high for one in found.cells]))
    assert 0.93 < covered < 0.99


@pytest.mark.parametrize(("slow", "least"), [(1.15, 0.95), (1.10, 0.8)])
def test_an_implementation_that_is_slower_is_one_finding(slow: float, least: float) -> None:
    """It is found as a whole, with most of its cells; nothing else changed."""
    results = [effects(run(seed, slow=slow), {}) for seed in range(TIMES)]
    assert np.mean([one.units[FIRST].verdict is Verdict.SLOWER for one in results]) >= least
    found = [one for one in results if one.units[FIRST].verdict is Verdict.SLOWER]
    assert np.mean([cell.verdict is Verdict.SLOWER for one in found for cell in one.cells[:EACH]]) > 0.9
    assert not any(cell.verdict in CHANGED for one in results for cell in one.cells[EACH:])


def test_a_library_that_became_twice_as_fast_hides_nothing_else() -> None:
    """Six of 24 implementations changed; this is not counted as luck of the others."""
    library = {"units": 24, "changed": 6, "slow": 0.5}
    assert share(lambda found: sum(one.verdict is Verdict.FASTER for one in found.units.values()) == 6, **library) == 1
    alike = share(lambda found: np.mean([one.verdict is Verdict.SAME for one in found.cells[6 * EACH :]]), **library)
    assert alike > 0.8
    assert share(lambda found: found.luck[1] < 0.02, **library) == 1


def test_what_moves_by_a_few_hundredths_is_luck_however_many_do() -> None:
    """Seven small deviations widen the luck of all others; seven that doubled or halved do not."""
    few, many, known = np.array([0.06, -0.06, 0.05, -0.07, 0.06, 0.05, -0.06]), [range(32)], np.full(32, 1e-5)
    others = np.linspace(-0.01, 0.01, 25)
    lucky, changed = (variance_component(np.append(some, others), known, many, 0.01) for some in (few, 12 * few))
    assert lucky > 0.02**2
    assert changed < 0.01**2


def test_one_cell_is_found_and_is_not_its_implementation() -> None:
    """A cell that is a quarter slower is called so; its implementation is not."""
    results = [effects(run(seed, one=1.25), {}) for seed in range(TIMES)]
    assert np.mean([one.cells[0].verdict is Verdict.SLOWER for one in results]) >= 0.9
    assert not any(one.units[FIRST].verdict in CHANGED for one in results)


def test_what_could_have_been_seen_is_seen_nine_times_in_ten() -> None:
    """The slowdown that a comparison says it would have seen, injected, is found in about 90 %."""
    hits = []
    for seed in range(TIMES):
        cells = run(seed)
        add = math.log(effects(cells, {}).units[FIRST].seen)
        after = [Cell(c.unit, c.base, c.new + add * (c.unit == FIRST), c.rounds) for c in cells]
        hits.append(effects(after, {}).units[FIRST].verdict is Verdict.SLOWER)
    assert 0.75 <= np.mean(hits) <= 1


def test_more_scatter_is_seen_and_not_called_a_change() -> None:
    """On a machine where cells scatter ten times as much, nothing is found, and less could have been seen."""
    wild: dict[str, Any] = {"cell": 0.1, "run": 0.15, "unit": 0.05}
    assert share(any_change, **wild) <= 1 / TIMES
    seen = [effects(cells, {}).units[FIRST].seen for cells in (run(1), run(1, **wild))]
    assert seen[0] < 1.15 < 1.3 < seen[1]


def test_everything_slower_than_the_yardsticks_say_is_a_finding() -> None:
    """Half as slow again with peaks that stayed: everything; with peaks that moved along: the machine."""
    cells = run(1, whole=1.5, machine=0.0)
    found = effects(cells, {"peak": 1.0, "bandwidth": 1.01})
    assert found.everything is not None
    assert found.everything.verdict is Verdict.SLOWER
    assert {one.verdict for one in found.cells} == {Verdict.SLOWER}
    along = effects(cells, {"peak": 1.48, "bandwidth": 1.5})
    assert not any_change(along)
    assert along.machine.value == pytest.approx(1.5, rel=0.03)


def test_a_yardstick_of_a_machine_that_scatters_proves_nothing() -> None:
    """Peaks are measured once and, where process runs scatter by a fifth, may have moved by chance."""
    cells = run(1, machine=0.0, rounds=0.2, run=0.1)
    assert not any_change(effects(cells, {"bandwidth": 0.7}))


def test_one_implementation_has_the_yardsticks_alone() -> None:
    """Only they distinguish the machine from the code: without them, a third may be the machine's; with them not."""
    cells = run(1, units=1, slow=1.32, machine=0.0, rounds=0.0)
    assert not any_change(effects(cells, {}))
    assert effects(cells, {"peak": 1.0, "bandwidth": 1.0}).units[FIRST].verdict is Verdict.SLOWER
    assert effects(run(1, units=1, slow=1.6, machine=0.0), {}).units[FIRST].verdict is Verdict.SLOWER


def in_dtypes(count: int, seed: int, **options: Any) -> list[Cell]:
    """Cells of ``run`` with its implementations as the dtypes of fewer, ``count`` of each."""
    names = {f"{'torch' if unit % 2 else 'jax'}-{unit}": unit for unit in range(UNITS * count)}
    return [
        Cell((f"jax-{names[c.unit[0]] // count}", f"dtype{names[c.unit[0]] % count}"), c.base, c.new, c.rounds)
        for c in run(seed, **options)
    ]


def test_one_implementation_in_three_dtypes_is_no_machine() -> None:
    """It is a fifth slower in all of them and the peaks stayed: no verdict is "same", as nothing else was slower."""
    cells = in_dtypes(3, 1, units=3, slow=1.2, changed=3, machine=0.0, rounds=0.0)
    found = effects(cells, {"peak": 1.0, "bandwidth": 1.0})
    assert found.everything is None
    assert not any(one.verdict is Verdict.SAME for one in (*found.units.values(), *found.cells))


def test_a_slower_implementation_in_most_of_the_units_does_not_move_the_machine() -> None:
    """One of three in five dtypes, the others in one: its dtypes are slower, and the others did not get faster."""
    names = [("jax-0", f"dtype{at}") for at in range(5)] + [("jax-5", "f"), ("torch-6", "f")]
    cells = [
        Cell(names[at // EACH], c.base, c.new, c.rounds)
        for at, c in enumerate(run(1, units=7, slow=1.3, changed=5, machine=0.0))
    ]
    found = effects(cells, {})
    assert {unit[0] for unit, one in found.units.items() if one.verdict is Verdict.SLOWER} == {"jax-0"}
    assert not any(one.verdict is Verdict.FASTER for one in found.units.values())


def test_the_machine_by_yardsticks() -> None:
    """It is shrunk to 1 as far as a yardstick scatters, 1 without any, and absent in multiples of another's times."""
    cells = run(1, runs=5)
    assert machine_factor(cells, {}, UNKNOWN)[0] == 0
    value, error = machine_factor(cells, {"a": 1.1, "b": 1.1}, UNKNOWN)
    assert 0.3 * math.log(1.1) < value < math.log(1.1)
    assert 0 < error < machine_factor(cells, {}, UNKNOWN)[1]
    assert machine_factor(cells, {"a": 2.0}, 0.0) == (0.0, 0.0)


def test_what_rounds_have_in_common_is_taken_off() -> None:
    """Without what all cells of a workload share, process runs scatter by the cell's own part."""
    base = without_common(run(1, rounds=0.3))[0]
    assert np.median([np.std(side, ddof=1) for side in base]) < 0.03


def workload(cells: Sequence[Cell], factor: float, kinds: Sequence[str], **given: float) -> tuple[float, float]:
    """Move of one workload's cells relative to the others, and what was taken off it, with these libraries."""
    units = [(f"{kinds[at // EACH % len(kinds)]}-{at // EACH}", "f") for at in range(len(cells))]
    lengthened = [
        Cell(unit, c.base, c.new + math.log(factor) * (c.rounds == "0"), c.rounds)
        for unit, c in zip(units, cells, strict=True)
    ]
    _, _, moved, off = without_common(lengthened, **given)
    beside = np.array([c.rounds == "0" for c in lengthened])
    return float(np.median(moved[beside]) - np.median(moved[~beside])), off["0"]


def test_a_workload_that_lost_more_than_the_machine_shows_keeps_it() -> None:
    """All cells of one workload are half as slow again, more than any process run shows: they stay so."""
    assert workload(run(1), 1.5, ("torch", "jax"))[0] > 0.3
    assert workload(run(1), 1.5, ("torch", "jax", "onnx", "numpy"))[0] > 0.25


def test_a_machine_that_moved_in_one_workload_is_taken_off() -> None:
    """7 % in implementations of four libraries without a majority; where one has half, it may be the cause."""
    rest, off = workload(run(1, rounds=0.0), 0.93, ("torch", "jax", "onnx", "numpy"))
    assert abs(rest) < 0.01
    assert off == pytest.approx(math.log(0.93), abs=0.01)
    assert workload(run(1, rounds=0.0), 0.93, ("torch", "torch", "onnx", "numpy"))[0] < -0.04


def test_multiples_of_anothers_times_have_no_machine_in_a_workload() -> None:
    """7 % in all implementations on it is theirs, or the other one's."""
    assert workload(run(1, rounds=0.0), 0.93, ("torch", "jax", "onnx", "numpy"), unknown=0.0)[0] < -0.04


def test_a_cell_that_happens_to_show_no_scatter_is_not_trusted() -> None:
    """A cell's variance is shrunk to that of all cells, and a wild one keeps most of its own."""
    rng = np.random.default_rng(0)
    sides = [[0.02 * rng.normal(size=5) for _ in range(40)] for _ in range(2)]
    sides[0][0], sides[1][0] = sides[0][0] * 0.01, sides[1][0] * 0.01
    sides[0][1], sides[1][1] = sides[0][1] * 10, sides[1][1] * 10
    found, freedom = variances(["a"] * 40, *sides)
    assert math.sqrt(found[0]) > 0.01
    assert math.sqrt(found[1]) > 0.04
    assert math.sqrt(np.median(found)) == pytest.approx(0.02, rel=0.2)
    assert (freedom > 8).all()


def test_cells_without_a_second_process_run_have_the_usual_scatter() -> None:
    """One number on each side shows nothing."""
    found, freedom = variances(["a"], [np.zeros(1)], [np.ones(1)])
    assert math.sqrt(found[0]) == pytest.approx(SCATTER)
    assert freedom[0] == PRIOR


def test_luck_is_what_the_middle_of_the_deviations_says() -> None:
    """A few that changed do not count; without any deviation it is the usual value."""
    rng = np.random.default_rng(1)
    values = 0.05 * rng.normal(size=200)
    values[:10] += 1
    assert math.sqrt(variance_component(values, np.zeros(200), [range(200)], 0.01)) == pytest.approx(0.05, rel=0.15)
    assert variance_component(np.zeros(1), np.ones(1), [range(1)], LUCK_OF_CELL) == LUCK_OF_CELL**2


def test_one_cell_does_not_move_an_implementation() -> None:
    """Huber's mean of eight stays within a deviation of the seven others."""
    value, variance = huber_mean(np.array([0.0] * 7 + [1.0]), np.full(8, 0.01**2))
    assert abs(value) < 0.01
    assert variance == pytest.approx(0.01**2 / 8 / 0.95)


def test_many_cells_need_more_for_one_to_have_changed() -> None:
    """A change that is found for a single cell is not found among a thousand that did not change."""
    alone, many = (
        judge_level([math.log(1.2), *[0.0] * rest], [0.04] * (rest + 1), np.full(rest + 1, 30.0), 0.01)
        for rest in (0, 999)
    )
    assert (alone[0].verdict, many[0].verdict) == (Verdict.SLOWER, Verdict.UNCLEAR)
    assert many[0].ratio == alone[0].ratio


def test_a_level_is_a_low_quantile() -> None:
    """Calls that other work lengthened do not move it, nor does a single short one."""
    calls = [1.0] * 20
    assert level([*calls, 5.0, 5.0, 5.0]) == level([*calls, 0.1]) == 0


def test_the_machine_over_runs_is_what_all_have_in_common() -> None:
    """It shows a run in which all are slower; one changed implementation, a missing cell or too few show nothing."""
    logs = np.zeros((6, 5))
    logs[:, 2] = 0.2
    logs[0, 3:] = 1.0
    logs[1, 0] = np.nan
    names = ["a", "a", "b", "b", "c", "c"]
    assert common_over_runs(logs, names) == pytest.approx([0, 0, 0.2, 0, 0])
    assert common_over_runs(logs[:4], names[:4]) == pytest.approx([0] * 5)


def test_a_sum_of_variances_is_known_by_as_much_as_its_parts() -> None:
    """It has the larger part's degrees of freedom where the other is small, and both together where they are equal."""
    few, many = np.array([4.0]), 40.0
    assert degrees_of_freedom([(np.array([1.0]), few), (1e-9, many)]) == pytest.approx(4, rel=1e-6)
    assert degrees_of_freedom([(np.array([1e-9]), few), (1.0, many)]) == pytest.approx(40, rel=1e-6)
    assert degrees_of_freedom([(np.array([1.0]), few), (1.0, 4.0)]) == pytest.approx(8)


def test_one_process_run_that_everything_waited_in_is_no_change() -> None:
    """Other work began in the last of three: twice the time in all cells, which yardsticks do not show."""
    cells = run(5, runs=3, machine=0.0)
    slow = np.array([0.0, 0.0, math.log(2)])
    after = [Cell(c.unit, c.base, c.new + slow, c.rounds) for c in cells]
    assert not any_change(effects(after, {"peak": 1.0, "bandwidth": 1.01}))
    always = [Cell(c.unit, c.base, c.new + math.log(2), c.rounds) for c in cells]
    assert any_change(effects(always, {"peak": 1.0, "bandwidth": 1.01}))


def test_load_is_no_change_of_everything() -> None:
    """Twice the time in all process runs: found on an idle machine, and not where the load average may explain it."""
    cells = [Cell(c.unit, c.base, c.new + math.log(2), c.rounds) for c in run(6, machine=0.0)]
    known = {"peak": 1.0, "bandwidth": 1.01}
    assert effects(cells, known).everything.verdict is Verdict.SLOWER  # type: ignore[union-attr]
    assert not any_change(effects(cells, known, load=math.log(3) / 2))


def test_load_counts_beyond_the_cores() -> None:
    """Half the log of load ÷ cores, over both runs; nothing for an idle run, or for one that does not say."""
    runs: list[Any] = [
        SimpleNamespace(name="", core_wait=None, load_average=load, fingerprint={"cores_usable": 2})
        for load in (0.5, 2.0, 4.0, 8.0, None)
    ]
    assert machines.load(runs[:2] + runs[4:]) == 0
    assert machines.load(runs[2:3]) == pytest.approx(math.log(2) / 2)
    assert machines.load(runs[2:4]) == pytest.approx(math.hypot(math.log(2), math.log(4)) / 2)


def test_waiting_for_a_core_counts_in_place_of_a_load() -> None:
    """A neighbour on another core is load but makes no call wait; half of the time counts like twice the threads."""
    runs: list[Any] = [
        SimpleNamespace(name="", core_wait=wait, load_average=load, fingerprint={"cores_usable": 2})
        for wait, load in ((0.0, 2.9), (0.5, 1.0), (1.0, 1.0))
    ]
    assert machines.load(runs[:1]) == 0
    assert machines.load(runs[1:2]) == pytest.approx(math.log(2) / 2)
    assert machines.load(runs[2:]) == pytest.approx(math.log(20) / 2)
