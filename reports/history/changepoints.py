"""Where a series of times changed: outliers out, then PELT.

A run on a busy afternoon is no change, so a value that lies far from the median of its neighbours is replaced by it
first (the Hampel filter; Pearson, Outliers in process modeling and identification, IEEE TCST 10, 2002): that leaves
steps where they are.  PELT then finds the segmentation with the least cost plus a penalty for each change, exactly and
fast (Killick, Fearnhead & Eckley, Optimal detection of changepoints with a linear computational cost, JASA 107, 2012).
The cost of a segment is the sum of squares around its mean, in variances of the scatter from run to run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

#: Runs between two changes, and before the first and after the last, at least: less is an outlier.
SHORTEST = 4

#: A value is an outlier beyond this many deviations from the median of the WINDOW runs on each side.
OUTLIER = 5.0
WINDOW = 3

#: The penalty of a change is this times log n.  Of 1,000 simulated series in which nothing changed 5 % of 10 runs have
#: a change, 4 % of 20, 0.5 % of 40 and none of 300 of 200 runs, and about as many with Student's scatter of 3 degrees
#: of freedom.  A step of three standard deviations in the middle is found in 80 % of 10 runs, and in 96 % of 20 or
#: more.  At 3 it would be 12 % of 10 or 20 runs that have a change.
PENALTY = 5.0

#: The standard deviation of normal values, in medians of their absolute deviations.
_MAD = 1.4826


def changes(values: Sequence[float]) -> list[int]:
    """The places at which a new segment starts, in order; none for a series that is too short to tell."""
    count = len(values)
    if count < 2 * SHORTEST:
        return []
    scaled = standard(np.asarray(values, dtype=float))
    sums, squares = (np.concatenate([[0.0], np.cumsum(one)]) for one in (scaled, scaled**2))
    penalty = PENALTY * math.log(count)
    best, last = np.full(count + 1, np.inf), np.zeros(count + 1, dtype=int)
    best[0] = -penalty
    starts, ends = np.array([0]), np.array([count + 1])
    for end in range(SHORTEST, count + 1):
        length = end - starts
        costs = best[starts] + squares[end] - squares[starts] - (sums[end] - sums[starts]) ** 2 / length
        least = int(np.argmin(costs))
        best[end], last[end] = costs[least] + penalty, starts[least]
        # A start that is worse by the penalty than a change here stays so, once a segment from here is long enough.
        ends[costs > best[end]] = np.minimum(ends, end + SHORTEST)[costs > best[end]]
        kept = ends > end + 1
        starts = np.append(starts[kept], end - SHORTEST + 1)
        ends = np.append(ends[kept], count + 1)
    found, at = [], last[count]
    while at > 0:
        found.append(int(at))
        at = last[at]
    return found[::-1]


def standard(values: np.ndarray) -> np.ndarray:
    """The values without outliers, in deviations of the scatter from run to run.

    That is estimated from the differences of neighbours, of which a step moves one.
    """
    around = np.lib.stride_tricks.sliding_window_view(np.pad(values, WINDOW, mode="reflect"), 2 * WINDOW + 1)
    middle = np.median(around, axis=1)
    reach = OUTLIER * _MAD * np.median(np.abs(around - middle[:, None]), axis=1)
    kept = np.where(np.abs(values - middle) > reach, middle, values)
    typical = float(np.mean(np.abs(np.diff(kept)))) * math.sqrt(math.pi) / 2
    return (kept - np.median(kept)) / (typical or 1.0)
