"""Comparisons of stored runs: the scatter of real runs of one code, and what ``compare`` finds in all pairs of them.

``python -m studies comparisons --runs 40 --machine idle --work FOLDER`` makes the runs of the quick preset that the
folder lacks, one after the other, so that it can be stopped and resumed.  Runs on an idle machine, on one whose last
core a NEIGHBOUR keeps busy, and on all cores are kept separately, in ``FOLDER/idle`` and so on; every result file there
counts.  ``--page`` keeps the levels of all process runs, leaves those of a machine without runs in the folder
unchanged, and writes the tables into the page; with ``--runs 0`` the present rule is applied to the existing runs.

A change is injected by lengthening every call of the new run: of one implementation or of one cell.  Each of them is
lengthened in each pair; where that is more than MOST, they take turns.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil

from attention_conformance.bench.analysis.statistics import Interval, Verdict, of_process_runs
from attention_conformance.bench.timing.checkpoint import checkpoint_of
from attention_conformance.impls import compressed
from attention_conformance.impls.process.threads import environment, usable_cores
from attention_conformance.reports.compare import machines
from attention_conformance.reports.compare.agreement import Pair
from attention_conformance.reports.compare.effects import (
    CHANGED,
    FALSE,
    HALF,
    QUANTILE,
    TAILED,
    TOGETHER,
    UNKNOWN,
    Cell,
    Effects,
    effects,
    variances,
    without_common,
)
from attention_conformance.reports.history import levels
from attention_conformance.reports.input.bench import Key
from attention_conformance.reports.input.read import read
from attention_conformance.reports.input.records import Records
from studies.common import Measured, Study, Unfit, markdown, sentence

#: Two sets of one machine by its own description; in the second everything took a fifth less time, as on another host.
HOSTS = ("idle", "idle, another host")

#: Quantiles of the calls of a process run, including the one that is used.
QUANTILES = (0.0, QUANTILE, 0.25, 0.5)

#: Sets by what else the machine did, which machine it was, and the cores of the calls, with options for the bench.
SETS = {
    "idle": (),
    "idle, another host": (),
    "idle, AMD": (),
    "idle, three process runs": ("--process-runs", "3"),
    "neighbour": (),
    "busy": (),
    "idle, all cores": ("--threads", str(usable_cores())),
}

#: Script that keeps a core busy next to the runs of the set "neighbour": products of matrices larger than a core's own
#: cache.  It ends with the study, even if that is killed: it gets the number of its parent, which is another then.
NEIGHBOUR = """
import os
import sys
import numpy as np
a = np.ones((1536, 1536), np.float32)
out = np.empty_like(a)
while os.getppid() == int(sys.argv[1]):
    np.matmul(a, a, out=out)
"""

#: Changes: what is lengthened, by how much, and the share of pairs where it should be found on an idle machine.
WHOLE = "an implementation"
INJECTED = ((WHOLE, 1.15, 0.95), (WHOLE, 1.10, 0.80), ("a cell", 1.25, 0.90))

#: A library whose implementations all change at once, as with a new version, and the factor.
LIBRARY, HALVED = "jax", 0.5

#: Most changes that are injected into a set of runs, where all of every pair would be more: a share of 90 % is then
#: known to a percent.
MOST = 3000

#: Number of implementations that are named because their slowdown is found least often.
LEAST_FOUND = 4

#: Fewest cells of an implementation that changes as a whole.
LEAST_CELLS = 2

#: Fewest runs of a series.
SERIES = 10


def measure(runs: int, machine: str, work: Path, bench: str) -> dict[str, Any]:
    """Make the runs that the folder lacks, and keep the levels of all."""
    folder = work / machine
    folder.mkdir(parents=True, exist_ok=True)
    with neighbour() if machine == "neighbour" else contextlib.nullcontext():
        for number in range(1, runs + 1):
            path = folder / f"{number:03}.json"
            if not path.exists():
                print(f"{machine} run {number} of {runs}", flush=True)
                checkpoint_of(path).unlink(missing_ok=True)  # an interrupted run starts over
                made = ["bench", "--preset", "quick", "-q", "--benchmark-json", str(path)]
                subprocess.run(  # noqa: S603  (our own command)
                    [sys.executable, "-m", "attention_conformance", *made, *SETS[machine], *bench.split()],
                    check=False,
                    stdout=subprocess.DEVNULL,
                )
    before = STUDY.kept()["sets"] if STUDY.file.exists() else {}
    sets = {name: [kept(path) for path in files(work / name)] or before.get(name, []) for name in SETS}
    several = {name: runs for name, runs in sets.items() if len(runs) > 1}
    if not several:
        raise Unfit(f"{work} has no two runs of one machine")
    results = {
        name: {
            "rates": rates(runs),
            "falsely": falsely(runs),
            "falsely_with_all": falsely(runs, FALSE / TAILED),
            "luck": luck(runs),
            "library": library(runs),
            "scatter": scatter(runs),
            "series": series(runs),
        }
        for name, runs in several.items()
    }
    return {"sets": sets, "results": results, "between": between(*(sets[name] for name in HOSTS)), "threads": 1}


@contextlib.contextmanager
def neighbour() -> Iterator[None]:
    """Keep the last usable core busy meanwhile, by another process with one thread."""
    given = os.environ | environment(1)
    process = subprocess.Popen([sys.executable, "-c", NEIGHBOUR, str(os.getpid())], env=given)  # noqa: S603  (our own)
    try:
        seen = psutil.Process(process.pid)
        if hasattr(seen, "cpu_affinity"):
            seen.cpu_affinity(seen.cpu_affinity()[-1:])
        yield
    finally:
        process.kill()
        process.wait()


def files(folder: Path) -> list[Path]:
    """The result files of a folder, in the order of their names; not the checkpoint of an unfinished run."""
    return sorted(path for path in folder.glob("*") if compressed.kind(path) == ".json")


def kept(path: Path) -> dict[str, Any]:
    """Record of a run: its load, yardsticks, and microseconds by cell, quantile and process run."""
    records = read([path])
    run = records.runs[0]
    return {
        "started": run.started,
        "load": run.load_average,
        "core_wait": run.core_wait,
        "cores": run.fingerprint.get("cores_usable"),
        "peaks": machines.rates(records.runs, "cpu"),
        "cells": {" ".join(key): _quantiles(records, key) for key in records.samples},
    }


def _quantiles(records: Records, key: tuple) -> list[list[float]]:
    calls = [[one for batch in run for one in batch] for run in records.samples[key].process_runs]
    return [[float(f"{1e6 * np.quantile(run, at):.5g}") for run in calls] for at in QUANTILES]


def cells(base: Mapping[str, Any], new: Mapping[str, Any], at: int = QUANTILES.index(QUANTILE)) -> list[Cell]:
    """The cells that two runs have in common, by one of the quantiles."""
    found = []
    for name in base["cells"]:
        if name in new["cells"]:
            who, _, dtype, workload = name.split(" ")
            one, other = (np.log(np.array(side["cells"][name][at]) / 1e6) for side in (base, new))
            found.append(Cell((who, dtype), one, other, f"{dtype} {workload}"))
    return found


def yardsticks(base: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, float]:
    """The factors of time of the peaks that both runs measured."""
    return {name: rate / new["peaks"][name] for name, rate in base["peaks"].items() if name in new["peaks"]}


def longer(found: Sequence[Cell], which: Sequence[int], factor: float) -> list[Cell]:
    """The cells, some of which take ``factor`` times as long in the new run."""
    add = math.log(factor)
    return [Cell(cell.unit, cell.base, cell.new + add * (at in which), cell.rounds) for at, cell in enumerate(found)]


def targets(found: Sequence[Cell], what: str) -> list[list[int]]:
    """Targets that may be lengthened: each cell, or the cells of each implementation that has several."""
    if what != WHOLE:
        return [[at] for at in range(len(found))]
    units: dict[tuple[str, str], list[int]] = {}
    for at, cell in enumerate(found):
        units.setdefault(cell.unit, []).append(at)
    return [those for those in units.values() if len(those) >= LEAST_CELLS]


def target(found: Sequence[Cell], what: str, turn: int) -> list[int]:
    """The cells that are lengthened at a turn."""
    of = targets(found, what)
    return of[turn % len(of)]


def compared(base: Mapping[str, Any], new: Mapping[str, Any], q: float = FALSE) -> Callable[[Sequence[Cell]], Effects]:
    """Function for the effects that ``compare`` finds in cells of two runs, if a share ``q`` may be false."""
    loads = (
        SimpleNamespace(
            name="",
            core_wait=run.get("core_wait"),
            load_average=run["load"],
            fingerprint={"cores_usable": run["cores"]},
        )
        for run in (base, new)
    )
    load = machines.load(loads)  # type: ignore[arg-type]
    return lambda those: effects(those, yardsticks(base, new), q=q, load=load)


def pairs(
    runs: Sequence[Mapping[str, Any]], q: float = FALSE
) -> Iterator[tuple[list[Cell], Callable[[Sequence[Cell]], Effects]]]:
    """The cells of all pairs of runs, the earlier as the base, and the function that compares them."""
    for base, new in itertools.combinations(runs, 2):
        yield cells(base, new), compared(base, new, q)


def changed(found: Effects, but: Sequence[int] = (), unit: tuple[str, str] | None = None) -> bool:
    """Whether anything is called faster or slower, except some cells and a unit."""
    whole = found.everything is not None and found.everything.verdict in CHANGED
    units = any(one.verdict in CHANGED for name, one in found.units.items() if name != unit)
    return whole or units or any(one.verdict in CHANGED for at, one in enumerate(found.cells) if at not in but)


def rates(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Rates of the rule over all pairs, unchanged and with injected changes: shares of pairs and of cells."""
    false, same, covered, seen = [], [], [], []
    injected: list[list[tuple[bool, bool]]] = [[] for _ in INJECTED]
    of_units: dict[str, list[bool]] = {}
    most = MOST // math.comb(len(runs), 2)
    for turn, (those, judge) in enumerate(pairs(runs)):
        found = judge(those)
        false.append(changed(found))
        same += [one.verdict is Verdict.SAME for one in found.cells]
        covered += [one.ratio.low <= 1 <= one.ratio.high for one in found.cells]
        seen.append([np.median([one.seen for one in each]) for each in (list(found.units.values()), found.cells)])
        for (what, by, _), results in zip(INJECTED, injected, strict=True):
            each = min(most, len(targets(those, what)))
            for which in (target(those, what, turn * each + number) for number in range(each)):
                unit = those[which[0]].unit
                after = judge(longer(those, which, by))
                one = after.units[unit] if what == WHOLE else after.cells[which[0]]
                results.append((one.verdict is Verdict.SLOWER, changed(after, which, unit)))
                if (what, by) == INJECTED[0][:2]:
                    of_units.setdefault(unit[0], []).append(results[-1][0])
    shares = [[_mean(each) for each in zip(*results, strict=True)] for results in injected]
    told = np.median(np.array(seen), axis=0).tolist()
    least = sorted((_mean(hits), name) for name, hits in of_units.items())[:LEAST_FOUND]
    parts = {"false": _mean(false), "same": _mean(same), "covered": _mean(covered), "seen": told, "injected": shares}
    return parts | {"least_found": [[name, share] for share, name in least]}


def library(runs: Sequence[Mapping[str, Any]]) -> list[float]:
    """Rates over all pairs in which a whole library is faster: its cells found, others SAME, others called changed."""
    found, same, others = [], [], []
    for those, judge in pairs(runs):
        which = [at for at, cell in enumerate(those) if cell.kind == LIBRARY]
        after = judge(longer(those, which, HALVED))
        found += [after.cells[at].verdict is Verdict.FASTER for at in which]
        rest = [one.verdict for at, one in enumerate(after.cells) if at not in which]
        same += [verdict is Verdict.SAME for verdict in rest]
        others.append(any(verdict in CHANGED for verdict in rest))
    return [_mean(found), _mean(same), _mean(others)]


def scatter(runs: Sequence[Mapping[str, Any]]) -> list[list[float]]:
    """Scatter by quantile: of process runs, with and without what rounds share, and of a cell from run to run."""
    found = []
    for at in range(len(QUANTILES)):
        alone, without, moved = [], [], []
        for base, new in itertools.combinations(runs, 2):
            those = cells(base, new, at)
            alone += [float(np.std(cell.base, ddof=1)) for cell in those if len(cell.base) > 1]
            first, _, far, _ = without_common(those)
            without += [float(np.std(one, ddof=1)) for one in first if len(one) > 1]
            moved += np.abs(far - np.median(far)).tolist()
        found.append([float(np.median(each)) if each else 0.0 for each in (alone, without, moved)])
    return found


def falsely(runs: Sequence[Mapping[str, Any]], q: float = FALSE) -> dict[str, int]:
    """Number of pairs that have a finding although nothing changed, by the implementations that are called changed."""
    counts: dict[str, int] = {}
    for those, judge in pairs(runs, q):
        found = judge(those)
        if changed(found):
            units = {name for (name, _), one in found.units.items() if one.verdict in CHANGED}
            cells = {cell.unit[0] for cell, one in zip(those, found.cells, strict=True) if one.verdict in CHANGED}
            named = ", ".join(sorted(units | cells)) or "everything"
            counts[named] = counts.get(named, 0) + 1
    return dict(sorted(counts.items(), key=lambda each: (-each[1], each[0])))


def luck(runs: Sequence[Mapping[str, Any]]) -> list[float]:
    """Standard deviations of what a cell, and an implementation, moves by beyond what its process runs show.

    With them, over all pairs of runs, the squares of the differences between the two cells of an implementation, and of
    the distances of implementations from their median, have the median of χ²₁.
    """
    squares: list[list[np.ndarray]] = [[], []]
    known: list[list[np.ndarray]] = [[], []]
    found = [0.0, 0.0]
    both = [cells(base, new) for base, new in itertools.combinations(runs, 2)]
    for level in (0, 1):
        for those in both:
            base, new, moved, _ = without_common(those)
            variance, _ = variances([cell.kind for cell in those], base, new)
            within = variance * np.array([1 / len(b) + 1 / len(n) for b, n in zip(base, new, strict=True)])
            two = np.array([at for at in targets(those, WHOLE) if len(at) == LEAST_CELLS])
            if level:
                means = moved[two].mean(axis=1)
                squares[1].append((means - np.median(means)) ** 2)
                known[1].append((within[two].mean(axis=1) + found[0] ** 2) / LEAST_CELLS)
            else:
                squares[0].append(np.subtract(*moved[two].T) ** 2 / 2)
                known[0].append(within[two].mean(axis=1))
        square, own = np.concatenate(squares[level]), np.concatenate(known[level])
        tried = np.linspace(0, float(np.sqrt(np.max(square))), 1000)
        below = np.mean(square[:, None] <= HALF * (own[:, None] + tried**2), axis=0)
        found[level] = float(tried[int(np.argmax(below >= 0.5))])
    return found


def series(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Changes that a history of the runs has unmodified, and with a step in the middle of each target in turn.

    Unmodified: the number of findings.  With a step: the share of lengthened cells that changed there, and the new
    changes per other cell.
    """
    if len(runs) < SERIES:
        return {}
    at, middle = QUANTILES.index(0.5), len(runs) // 2
    names = [name for name in runs[0]["cells"] if all(name in run["cells"] for run in runs)]
    logs = np.array([[float(np.mean(np.log(run["cells"][name][at]))) for run in runs] for name in names])
    keys: list[Key] = [(who, device, dtype, work) for who, device, dtype, work in (name.split(" ") for name in names)]
    like = [Cell((who, dtype), row, row) for (who, _, dtype, _), row in zip(keys, logs, strict=True)]
    plain = levels.find_changes(logs, keys)
    injected = []
    for what, by, _ in INJECTED:
        hits, others = [], []
        for which in targets(like, what):
            slowed = logs.copy()
            slowed[which, middle:] += math.log(by)
            after = levels.find_changes(slowed, keys).places
            hits += [any(abs(place - middle) <= levels.BESIDE for place in after[each]) for each in which]
            rest = [each for each in range(len(names)) if each not in which]
            others += [len(after[each]) > len(plain.places[each]) for each in rest]
        injected.append([_mean(hits), _mean(others)])
    return {"without": len(plain.findings), "injected": injected}


def between(first: Sequence[Mapping[str, Any]], second: Sequence[Mapping[str, Any]]) -> list[int]:
    """Numbers of pairs of runs of both sets: all, with everything called changed, and with anything else called so."""
    found = [compared(base, new)(cells(base, new)) for base, new in itertools.product(first, second)]
    everything = [one.everything is not None and one.everything.verdict in CHANGED for one in found]
    others = [changed(one) and not all_of for one, all_of in zip(found, everything, strict=True)]
    return [len(found), sum(everything), sum(others)]


def _mean(values: Sequence[Any]) -> float:
    return float(np.mean(np.array(values, dtype=float)))


def agreements(runs: Sequence[Mapping[str, Any]]) -> list[list[Pair]]:
    """The cells of all pairs of runs, the earlier first, each with the interval from its process runs only.

    The bench prints this interval or a wider one: it also uses the batches, which are not kept.
    """
    at = QUANTILES.index(0.5)
    return [
        [
            Pair(name, of_process_runs(one["cells"][name][at]), of_process_runs(other["cells"][name][at]))
            for name in one["cells"]
            if name in other["cells"]
        ]
        for one, other in itertools.combinations(runs, 2)
    ]


def without_the_machine(pairs: Sequence[Pair]) -> list[Pair]:
    """The cells of a pair of runs, without the median factor of all cells, and that of each workload.

    They are taken off as in a comparison: for a workload up to UNKNOWN, and where no library has half of its cells.
    """
    moved = np.log([pair.other.value / pair.one.value for pair in pairs])
    off = np.full(len(pairs), np.median(moved))
    groups: dict[str, list[int]] = {}
    for at, pair in enumerate(pairs):
        groups.setdefault(" ".join(pair.name.split(" ")[2:]), []).append(at)
    for group in groups.values():
        kinds = Counter(pairs[at].name.partition("-")[0] for at in group)
        if len(group) >= TOGETHER and 2 * max(kinds.values()) < len(group):
            off[group] += np.clip(np.median(moved[group]) - off[group], -UNKNOWN, UNKNOWN)
    return [
        Pair(pair.name, Interval(*(math.exp(by) * end for end in astuple(pair.one))), pair.other)
        for pair, by in zip(pairs, off.tolist(), strict=True)
    ]


def agreement(found: Measured) -> str:
    """Markdown: the share of cells that agree within their intervals, by machine."""
    rows = []
    for name, runs in found["sets"].items():
        both = agreements(runs)
        if not both:
            continue
        agree = [_mean([pair.agrees for pair in each]) for each in both]
        apart = [abs(math.log(pair.other.value / pair.one.value)) for each in both for pair in each]
        spread = np.median([one.spread for each in both for pair in each for one in (pair.one, pair.other)])
        agreeing = [pair.agrees for each in both for pair in each]
        told = [
            f"{len(runs)}, {len(both)}",
            f"{sum(agreeing)} of {len(agreeing)}",
            f"{_mean(agreeing):.1%}",
            f"{min(agree):.1%}",
            f"{_mean([pair.agrees for each in both for pair in without_the_machine(each)]):.1%}",
        ]
        rows.append([name, *told, f"{spread:.1%}", f"{math.expm1(np.median(apart)):.1%}"])
    heads = [
        "machine",
        "runs, pairs of them",
        "cells that agree",
        "share",
        "least of a pair",
        "share without the machine",
    ]
    heads += ["half of the intervals are within", "half of the medians differ by at most"]
    return markdown(heads, rows)


def table(found: Measured) -> str:
    """Markdown: a column for each machine, then the scatter of its runs, and the changes in their history."""
    sets = {name: runs for name, runs in found["sets"].items() if name in found["results"]}
    results = {name: each["rates"] for name, each in found["results"].items()}
    rows: list[list[str]] = [
        ["runs, pairs of them", *(f"{len(runs)}, {math.comb(len(runs), 2)}" for runs in sets.values())],
        ["process runs of a run", *(_process_runs(runs) for runs in sets.values())],
        ["cells of a run", *(str(max(len(run["cells"]) for run in runs)) for runs in sets.values())],
        ["load average at the end", *(_range(runs, "load", "{:.1f}") for runs in sets.values())],
        ["calls waited for a core", *(_range(runs, "core_wait", "{:.1%}") for runs in sets.values())],
        ["pairs with any false finding (aim 1 %)", *(f"{one['false']:.1%}" for one in results.values())],
        ["… of which pairs", *(_counts(found["results"][name]["falsely"]) for name in sets)],
        ["… with all of the share of false findings", *(_with_all(found, name) for name in sets)],
        ["cells SAME (aim 80 %)", *(f"{one['same']:.1%}" for one in results.values())],
        ["95 % intervals that cover 1", *(f"{one['covered']:.1%}" for one in results.values())],
        [
            "would have seen in an implementation, in a cell",
            *(", ".join(f"{each - 1:.0%}" for each in one["seen"]) for one in results.values()),
        ],
    ]
    lucks = [found["results"][name]["luck"] for name in sets]
    rows.append(["luck of a cell, of an implementation", *(", ".join(f"{each:.1%}" for each in one) for one in lucks)])
    for at, (what, by, aim) in enumerate(INJECTED):
        shares = [one["injected"][at] for one in results.values()]
        rows.append([f"{what} × {by:.2f} found (aim {aim:.0%})", *(f"{hit:.1%}" for hit, _ in shares)])
        rows.append(["… anything else is called changed", *(f"{other:.1%}" for _, other in shares)])
        if not at:
            of_each = (one["least_found"] for one in results.values())
            rows.append(
                ["… least often of", *(", ".join(f"{name} {hit:.0%}" for name, hit in each) for each in of_each)]
            )
    of_library = [found["results"][name]["library"] for name in sets]
    texts = (f"all {LIBRARY} × {HALVED} found, cells", "… other cells SAME", "… anything else is called changed")
    rows += [[text, *(f"{shares[at]:.1%}" for shares in of_library)] for at, text in enumerate(texts)]
    first = markdown(["machine", *sets], rows)
    names = [
        f"{quantile:.0%} quantile" if 0 < quantile < 0.5 else "median" if quantile else "minimum"
        for quantile in QUANTILES
    ]
    each_of = ("process runs", "without what rounds share", "a cell moves by")
    second = markdown(
        ["level, medians", *(f"{name}: {one}" for name in sets for one in each_of)],
        [
            [name, *(f"{value:.1%}" for of in found["results"].values() for value in of["scatter"][at])]
            for at, name in enumerate(names)
        ],
    )
    heads = ["history of a machine", "runs", "injected in the middle", "found", "new changes per other cell"]
    third = markdown(
        [*heads, "changes in all without"],
        [
            [name, str(len(sets[name])), f"{what} × {by:.2f}", f"{hit:.1%}", f"{other:.3f}", str(of["without"])]
            for name, of in ((name, each["series"]) for name, each in found["results"].items())
            if of
            for (what, by, _), (hit, other) in zip(INJECTED, of["injected"], strict=True)
        ],
    )
    pairs, everything, others = found["between"]
    across = (
        f'Of the {pairs} pairs of a run of "{HOSTS[0]}" and one of "{HOSTS[1]}", {everything} are said to have changed'
        f" as a whole, and {others} in anything else."
    )
    return "\n\n".join([first, second, third, across, sentence(found, "aims are those of an idle machine")])


def _with_all(found: Measured, name: str) -> str:
    counts = found["results"][name]["falsely_with_all"]
    return f"{sum(counts.values()) / math.comb(len(found['sets'][name]), 2):.1%} ({_counts(counts)})"


def _counts(pairs: Mapping[str, int]) -> str:
    return "; ".join(f"{count}: {names}" for names, count in pairs.items()) or "none"


def _process_runs(runs: Sequence[Mapping[str, Any]]) -> str:
    counts = {len(of[0]) for run in runs for of in run["cells"].values()}
    return " or ".join(map(str, sorted(counts)))


def _range(runs: Sequence[Mapping[str, Any]], name: str, form: str) -> str:
    """The least and the largest value of a field over some runs; older runs lack it."""
    told = [run[name] for run in runs if run.get(name) is not None]
    return f"{form.format(min(told))} to {form.format(max(told))}" if told else "not told"


STUDY = Study(
    "comparisons",
    "what real runs scatter by, and what `compare` and `history` find in them",
    measure,
    {"reports/README.md#real": table, "bench/README.md#agreement": agreement},
    {
        "--runs": {"type": int, "default": 40, "help": "in the folder of the machine; default: %(default)s"},
        "--machine": {
            "choices": tuple(SETS),
            "default": "idle",
            "help": "what else the machine does; default: %(default)s",
        },
        "--work": {"type": Path, "default": Path("comparisons"), "help": "what was run so far; default: %(default)s"},
        "--bench": {"default": "", "help": "more words for the bench, such as --impl=torch-sdpa"},
    },
)
