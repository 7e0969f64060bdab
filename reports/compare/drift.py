"""Drift between two runs made one after the other: how much of a change may be the machine's, and what is left of it.

Such runs drift by 3 to 10 % on a shared machine, for two reasons with a remedy each.  The whole machine is faster or
slower in one run: the interval of every cell is widened by how far *yardsticks* moved that are the same code in both
runs - the measured peak and bandwidth, and the factor that is common to the implementations where there are several.
And each cell has luck of its own, with its memory or its minute, of which its few process runs may show nothing:
no cell is taken to scatter less than the cells of one implementation lie apart, most of which change alike.

Nothing is ever corrected: a ratio stays what was measured, and only what is certain about it shrinks.
One comparison judges many cells, so a cell is called faster or slower by an interval that holds for all cells at once
(Bonferroni): the chance of any false alarm in a run is bounded, not that in a cell.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist, median

import numpy as np

from attention_conformance.bench.analysis.statistics import LEAST, MARGIN, Interval, Verdict, Z, judge
from attention_conformance.reports.compare.changes import Allowance

#: Chance that a comparison calls any cell faster or slower that is not, as far as scatter is normal.
FALSE_ALARMS = 0.01

#: What two runs on a shared machine may drift by where no yardstick was measured: the top of 3 to 10 %.
UNKNOWN = 1.10

#: A common factor needs this many implementations: the median of three is moved by no single one.
IMPLEMENTATIONS = 3

#: From this many residuals on the scatter from run to run is estimated; below it is SCATTER, which it never falls below
#: LEAST_SCATTER.  ``python -m studies two_runs`` shows what they do.
CELLS = 6
SCATTER = 0.03
LEAST_SCATTER = 0.01

#: Quantiles of the absolute residuals that the scatter is estimated from, as multiples of a normal deviation: the
#: half and three quarters.  The larger estimate is used, as run-to-run scatter has heavier tails than the normal.
QUANTILES = tuple((share, NormalDist().inv_cdf(0.5 + share / 2)) for share in (0.5, 0.75))


def allowance(
    device: str, ratios: Sequence[tuple[str, Interval]], yardsticks: Mapping[str, float], unknown: float = UNKNOWN
) -> Allowance:
    """What the machine may have done to the cells of a device: (implementation, new ÷ base) each.

    ``yardsticks`` are factors of time by name; ``unknown`` is the factor in either direction where there is none.
    """
    known = dict(yardsticks)
    if len({name for name, _ in ratios}) >= IMPLEMENTATIONS and unknown > 1:
        known["common factor"] = common(ratios)
    spread = [1.0, *known.values()] if known else [1 / unknown, unknown]
    scatter = SCATTER
    residuals = _residuals(ratios)
    if len(residuals) >= CELLS:
        scatter = max(LEAST_SCATTER, *(float(np.quantile(residuals, at)) / unit for at, unit in QUANTILES))
    return Allowance(device, min(spread), max(spread), scatter, len(ratios), tuple(known.items()))


def _residuals(ratios: Sequence[tuple[str, Interval]]) -> np.ndarray:
    """How far each cell's log ratio lies from the median of its implementation, which may have changed as a whole.

    One cell of each, which the median lies at or next to, is left out: it is at 0 whatever the scatter.
    """
    by: dict[str, list[float]] = {}
    for name, one in ratios:
        by.setdefault(name, []).append(math.log(one.value))
    parts = [np.sort(np.abs(np.array(values) - np.median(values)))[1:] for values in by.values()]
    return np.concatenate([np.zeros(0), *parts])


def common(ratios: Sequence[tuple[str, Interval]]) -> float:
    """The factor that implementations have in common: the median of their medians."""
    by: dict[str, list[float]] = {}
    for name, one in ratios:
        by.setdefault(name, []).append(one.value)
    return median(median(values) for values in by.values())


def allowed(ratio: Interval, given: Allowance, deviations: float = Z) -> Interval:
    """The interval of a ratio so many standard deviations wide, with what the machine may have done."""
    up, down = (math.log(ratio.high / ratio.value) / Z, math.log(ratio.value / ratio.low) / Z)
    low = ratio.value * math.exp(-deviations * max(down, given.scatter)) / given.high
    high = ratio.value * math.exp(deviations * max(up, given.scatter)) / given.low
    return Interval(ratio.value, low, high)


def among(cells: int) -> float:
    """How many standard deviations an interval has to be wide to hold for so many cells at once."""
    return NormalDist().inv_cdf(1 - FALSE_ALARMS / (2 * max(cells, 1)))


def verdict(single: Interval, among_all: Interval, least: float = LEAST, margin: float = MARGIN) -> Verdict:
    """A change is judged by the interval that holds for all cells, sameness by the cell's own."""
    found = judge(among_all, least, margin)
    if found is Verdict.UNCLEAR and judge(single, least, margin) is Verdict.SAME:
        return Verdict.SAME
    return found
