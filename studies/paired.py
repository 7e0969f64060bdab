"""Paired comparison: how often it is wrong, with the same code on both sides and with an injected slowdown.

The medians of all rounds are kept, and the rules can be applied to them again (``--of``), so the figures of the page
come from raw ratios and not from a run of the present rule.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from attention_conformance.bench.analysis.statistics import Interval, ProcessRuns, Verdict, judge, paired_process_runs
from attention_conformance.bench.paired.measure import BASE, LEAST, MARGIN, NEW, PairedComparison, Plan, Result, Task
from attention_conformance.bench.paired.revisions import RevisionError, ready
from attention_conformance.bench.workloads.workload import parse
from studies.common import Measured, Study, markdown

#: Injected slowdowns: none, and two that must be found in 80 % and in 95 % of comparisons.
SLOWDOWNS = (0.0, 0.05, 0.10)

#: Cells that are compared with themselves: libraries with and without their own thread pools, 1 to 10 ms a call.
CELLS = (
    ("numpy-eager", "prefill-b1h8d64s256"),
    ("numpy-tiled", "prefill-b1h8d64s512-causal"),
    ("torch-sdpa-flash", "prefill-b1h8d64s512"),
    ("onnx-attention23", "prefill-b1h8d64s512"),
)


def tasks_of(number: int) -> list[Task]:
    """The comparisons of one repetition: every cell without a slowdown, and with one of the others, in turn."""
    slowdowns = (0.0, SLOWDOWNS[1 + number % (len(SLOWDOWNS) - 1)])
    return [Task(name, "cpu", "float32", parse(w), slowdown) for name, w in CELLS for slowdown in slowdowns]


def measure(rounds: int, plan: Plan | None = None) -> dict[str, Any]:
    """Compare the working tree with itself; returns the medians of every pair of rounds.

    Raises RevisionError for a comparison that is not timed: if skipped, it would not count against the rule.
    """
    found: list[dict[str, Any]] = []
    started = time.perf_counter()
    with ready(".") as here:
        both = PairedComparison(here, here, plan)
        offers = both.offers([name for name, _ in CELLS], "cpu", "float32")
        for number in range(rounds):
            began = time.perf_counter()
            results = both.run(tasks_of(number), offers, lambda text: None)
            each = (time.perf_counter() - began) / len(results)
            found += [_record(one, each) for one in results]
            print(f"round {number + 1} of {rounds}, {time.perf_counter() - started:.0f} s", flush=True)
    return {"rounds": rounds, "comparisons": found, "versions": offers[NEW]["versions"]}


def _record(one: Result, seconds: float) -> dict[str, Any]:
    if one.outcome != "timed":
        raise RevisionError(f"{one.task.implementation} {one.task.workload.name}: {one.outcome}: {one.reason}")
    return {
        "implementation": one.task.implementation,
        "workload": one.task.workload.name,
        "slowdown": one.task.slowdown,
        "seconds": round(seconds, 2),
        "base_ms": _medians(one.rounds[BASE]),
        "new_ms": _medians(one.rounds[NEW]),
    }


def _medians(pairs: ProcessRuns) -> list[list[float]]:
    """Milliseconds with four digits: exact to half a thousandth, where changes of fifty thousandths are searched."""
    return [[float(f"{np.median(batch) * 1e3:.4g}") for batch in rounds] for rounds in pairs]


def ratio(comparison: dict[str, Any]) -> Interval:
    """New ÷ base of one comparison."""
    base, new = ([[[value] for value in pair] for pair in comparison[side]] for side in ("base_ms", "new_ms"))
    return paired_process_runs(base, new)


def rates(ratios: Sequence[Interval], least: float = LEAST, margin: float = MARGIN) -> dict[Verdict, float]:
    """Shares of the verdicts."""
    verdicts = [judge(one, least, margin) for one in ratios]
    return {verdict: verdicts.count(verdict) / len(verdicts) for verdict in Verdict}


def table(evidence: Measured) -> str:
    """The figures as Markdown: for all comparisons, and for each implementation's."""
    found = [
        (one["slowdown"], one["implementation"], (ratio(one), len(one["base_ms"]))) for one in evidence["comparisons"]
    ]
    names = dict.fromkeys(name for _, name, _ in found)
    rows = [
        [
            f"{slowdown:.0%}",
            title,
            *_row([each for injected, name, each in found if injected == slowdown and name in of]),
        ]
        for slowdown in SLOWDOWNS
        for title, of in (("all", names), *((name, (name,)) for name in names))
    ]
    heads = ["injected", "of", "comparisons", "slower", "faster", "same", "unclear", "scatter of the ratio", "pairs"]
    each = np.median([one["seconds"] for one in evidence["comparisons"]])
    load = ", ".join(f"{value:.1f}" for value in evidence["load_average"])
    below = f"{each:.1f} s a comparison (median); load average before and after: {load}; {evidence['written']}."
    return f"{markdown(heads, rows, left=(1,))}\n\n{below}"


def _row(found: Sequence[tuple[Interval, int]]) -> list[str]:
    ratios = [one for one, _ in found]
    shares = rates(ratios)
    scatter = float(np.std(np.log([one.value for one in ratios]), ddof=1))
    order = (Verdict.SLOWER, Verdict.FASTER, Verdict.SAME, Verdict.UNCLEAR)
    pairs = np.median([count for _, count in found])
    return [str(len(ratios)), *(f"{shares[verdict]:.1%}" for verdict in order), f"{scatter:.2%}", f"{pairs:g}"]


STUDY = Study(
    "paired",
    "how often a paired comparison is wrong (an hour)",
    measure,
    {"bench/PAIRED.md": table},
    {"--rounds": {"type": int, "default": 50, "help": "of about 90 s: one of each cell (default: %(default)s)"}},
)
