"""How time and memory grow with the length: exponents p of y ∝ S^p, with their intervals.

A line through (log S, log y) by least squares; its slope is p.  Its 95 % interval is Student's, from the scatter of the
points around the line, with n − 2 degrees of freedom: of three points it is wide, as it ought to be.

A call has a part that does not grow (dispatch, threads, buffers), which hides the growth at short lengths.  So a line
begins where it holds: **the shortest length is dropped while its point lies more than 10 % above the line through the
longer ones**, down to three points.  Overhead can only lift a short point, so one that lies below stays, as does noise
of the long ones; a line that is no line shows in the interval.  Bytes under a mebibyte say nothing and are left out.

Needs records alone: the ``extra_info`` of a result file, and each median.
"""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.statistics import NORMAL, STUDENT
from bench.workloads import parse

#: Lengths that a fit needs.
LEAST_POINTS = 3

#: How far the shortest point may lie above the line through the others.  In a sweep by doublings, y = a + b·S², that is
#: reached when a is 12 to 14 % of the shortest point, which lowers the exponent by 0.03 (six points) to 0.07 (four).
#: Medians scatter by 2 %, and what three of them say of a fourth by 4 %, so chance alone seldom drops a point.
LIFTED = 1.10

#: Bytes below which memory is not fitted: four times what a resident set may be wrong by on two cores.
LEAST_BYTES = 2**20
#: What the points of a fit have in common.
SERIES = ("implementation", "device", "dtype", "family")

#: Between linear and quadratic.
BETWEEN = 1.5


class Growth(enum.StrEnum):
    """What an exponent says; UNCLEAR if its interval has both."""

    LINEAR = "linear"
    QUADRATIC = "quadratic"
    UNCLEAR = "unclear"


@dataclass(frozen=True)
class Line:
    """The exponent, its interval, and the points that it was fitted to."""

    exponent: float
    low: float
    high: float
    points: int
    shortest: int
    longest: int

    @property
    def growth(self) -> Growth:
        """Linear or quadratic, if the whole interval lies on one side."""
        if self.high < BETWEEN:
            return Growth.LINEAR
        return Growth.QUADRATIC if self.low > BETWEEN else Growth.UNCLEAR


@dataclass(frozen=True)
class Fit(Line):
    """The line of what was measured of an implementation; ``quantity`` is "seconds" or "bytes"."""

    implementation: str = ""
    device: str = ""
    dtype: str = ""
    family: str = ""
    quantity: str = ""


#: What is fitted: how a record says it, and the least that counts.
QUANTITIES = {"seconds": ("seconds", 0.0), "bytes": ("memory_bytes", LEAST_BYTES)}


def line(points: Mapping[int, float]) -> Line | None:
    """The line through y by S (all positive), None if there are less than LEAST_POINTS lengths."""
    lengths = sorted(points)
    if len(lengths) < LEAST_POINTS:
        return None
    x, y = np.log(lengths), np.log([points[length] for length in lengths])
    first = 0
    while len(x) - first > LEAST_POINTS and _lifted(x[first:], y[first:]):
        first += 1
    x, y = x[first:], y[first:]
    slope, middle = _slope(x, y)
    rest = y - (np.mean(y) + slope * (x - middle))
    freedom = len(x) - 2
    quantile = STUDENT[freedom - 1] if freedom <= len(STUDENT) else NORMAL
    half = quantile * math.sqrt(float(rest @ rest) / freedom / float((x - middle) @ (x - middle)))
    return Line(slope, slope - half, slope + half, len(x), lengths[first], lengths[-1])


def fits(records: Iterable[Mapping[str, Any]]) -> list[Fit]:
    """A fit of each quantity for each series of records that has enough lengths.

    A record has implementation, device, dtype and workload, as ``extra_info`` has, ``seconds`` (the median) and
    ``memory_bytes``; what is None or missing is no point.
    """
    found = []
    for series, group in itertools.groupby(sorted(records, key=_series), key=_series):
        measured = list(group)
        named: dict[str, Any] = dict(zip(SERIES, series, strict=True))
        for quantity, (key, least) in QUANTITIES.items():
            known = [record for record in measured if (record.get(key) or 0) > least]
            fitted = line({parse(record["workload"]).sweep: record[key] for record in known})
            if fitted is not None:
                found.append(Fit(**vars(fitted), **named, quantity=quantity))
    return found


def sentences(found: Sequence[Fit]) -> list[str]:
    """Who is quadratic and who is linear, one sentence per quantity and family, for a terminal."""
    said = []
    groups = sorted({(fit.family, fit.device, fit.dtype, fit.quantity) for fit in found})
    for family, device, dtype, quantity in groups:
        these = [f for f in found if (f.family, f.device, f.dtype, f.quantity) == (family, device, dtype, quantity)]
        parts = []
        for growth in Growth:
            names = [f"{f.implementation} {f.exponent:.2f}" for f in these if f.growth is growth]
            parts += [f"{growth}: {', '.join(sorted(names))}"] if names else []
        said.append(f"{quantity} over S, {family} {device} {dtype}: {'; '.join(parts)}")
    return said


def _series(record: Mapping[str, Any]) -> tuple[str, ...]:
    return record["implementation"], record["device"], record["dtype"], parse(record["workload"]).family


def _slope(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """The slope of the least-squares line, and the middle of x."""
    middle = float(np.mean(x))
    return float((x - middle) @ y / ((x - middle) @ (x - middle))), middle


def _lifted(x: np.ndarray, y: np.ndarray) -> bool:
    """Whether the first point lies above what the line through the others says."""
    slope, middle = _slope(x[1:], y[1:])
    return bool(y[0] - (float(np.mean(y[1:])) + slope * (x[0] - middle)) > math.log(LIFTED))
