"""Growth of time and memory with the length: exponents p of y ∝ S^p, with their intervals.

A least-squares line through (log S, log y) has the slope p.  Its 95 % interval is Student's, from the scatter of the
points around the line, with n − 2 degrees of freedom: it is wide for three points, as it should be.

A call has a part that does not grow (dispatch, threads, buffers), which hides the growth at short lengths.  So
**the shortest length is dropped while its point lies more than 10 % above the line through the longer ones**, down to
three points.  Overhead can only lift a short point, so one that lies below stays, as does noise of the long ones;
points that do not form a line give a wide interval.  Fewer bytes than a mebibyte show nothing and are skipped.

Only ``Memory.growth`` decides whether memory is quadratic, so whether a call holds an array of all B·H·S² scores, for
the terminal and every report: by the exponent, by the bytes for each score, and, where the exponent cannot tell, by the
bytes that grow as S².

The module does only arithmetic on records: the ``extra_info`` of a result file, its list of cells, and each median.
"""

from __future__ import annotations

import enum
import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attention_conformance.bench.analysis.statistics import student

#: Fewest lengths for a fit.
LEAST_POINTS = 3

#: Factor by which the shortest point may lie above the line of the others.  In a sweep by doublings, y = a + b·S², it
#: is reached when a is 12 to 14 % of the shortest point, which lowers the exponent by 0.03 (six points) to 0.07 (four).
#: Medians scatter by 2 %, and a fourth predicted from three of them by 4 %, so chance seldom drops a point.
LIFTED = 1.10

#: Bytes below which memory is not fitted: four times the possible error of a resident set on two cores.
LEAST_BYTES = 2**20
#: Fields that the points of a fit have in common.
SERIES = ("implementation", "device", "dtype", "family")

#: Halfway between the exponents of inputs and results (1) and of the array of scores (2).
BETWEEN = 1.5

#: Bytes for each of the B·H·S² scores below which there is no array of them: the smallest is a boolean mask.
LEAST_PER_SCORE = 1.0

#: Share of the bytes of the longest call that must grow as S² where the exponent cannot tell: the square term of the
#: parabola through the three longest lengths, to which constant and linear parts add nothing.  In a sweep by doublings
#: a linear part reaches it if the middle one of the three is 19 % too low, or the longest 39 % too high.
SQUARED = 0.75

#: Scores of the longest call below which memory shows nothing: an allocator may have such an array already (up to
#: 32 MiB in glibc), and a kernel in blocks of 1024 rows and keys holds all scores of eight heads up to S = 1024, half
#: as many.
PROOF = 2**24

#: A family whose query length is not its key length: decode, and cross.
RECTANGULAR = re.compile(r"s(\d+|\*)k")


class Growth(enum.StrEnum):
    """Growth with the length; UNCLEAR if what was measured cannot tell."""

    QUADRATIC = "quadratic"
    LESS = "less than quadratic"
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
    def side(self) -> Growth:
        """The side of BETWEEN that the whole interval lies on."""
        if self.high < BETWEEN:
            return Growth.LESS
        return Growth.QUADRATIC if self.low > BETWEEN else Growth.UNCLEAR


@dataclass(frozen=True)
class Fit(Line):
    """The line of an implementation's measurements; ``quantity`` is "seconds" or "bytes"."""

    implementation: str = ""
    device: str = ""
    dtype: str = ""
    family: str = ""
    quantity: str = ""


@dataclass(frozen=True)
class Memory:
    """Memory of an implementation in one family: its growth, and its bytes at the longest length."""

    implementation: str
    device: str
    dtype: str
    family: str
    longest: int
    bytes: float
    #: The number of scores at the longest length, NaN where query and key lengths differ.
    scores: float
    #: None with fewer than LEAST_POINTS lengths above LEAST_BYTES.
    line: Line | None
    #: Bytes at the longest length that grow as S² (see SQUARED); NaN with fewer than three lengths.
    squared: float = math.nan

    @property
    def growth(self) -> Growth:
        """Growth: UNCLEAR with too few scores, LESS with too few bytes a score, else decided by the exponent.

        If its interval cannot tell, as where a quadratic part outgrows a constant one, the bytes growing as S² decide.
        """
        if self.scores < PROOF:
            return Growth.UNCLEAR
        if self.bytes < LEAST_PER_SCORE * self.scores:
            return Growth.LESS
        side = self.line.side if self.line else Growth.UNCLEAR
        return Growth.QUADRATIC if side is Growth.UNCLEAR and self.squared >= SQUARED * self.bytes else side


#: Quantities that are fitted: the field of a record, and the value that it must exceed.
QUANTITIES = {"seconds": ("seconds", 0.0), "bytes": ("memory_bytes", LEAST_BYTES)}


def line(points: Mapping[int, float]) -> Line | None:
    """The line through y by S (all positive), None for fewer than LEAST_POINTS lengths."""
    lengths = sorted(points)
    if len(lengths) < LEAST_POINTS:
        return None
    x, y = np.log(lengths), np.log([points[length] for length in lengths])
    first = 0
    while len(x) - first > LEAST_POINTS and _lifted(x[first:], y[first:]):
        first += 1
    fitted = _regression(x[first:], y[first:])
    slope, half = float(fitted.slope), float(student(len(x) - first - 2) * fitted.stderr)
    return Line(slope, slope - half, slope + half, len(x) - first, lengths[first], lengths[-1])


def fits(records: Iterable[Mapping[str, Any]]) -> list[Fit]:
    """A fit of each quantity for each series of records that has enough lengths.

    A record has implementation, device, dtype, family and ``S``, the length that the family leaves open, ``seconds``
    (the median) and ``memory_bytes``; a value that is None or missing gives no point.
    """
    return [
        Fit(**vars(fitted), **series, quantity=quantity)
        for series, measured in _series(records)
        for quantity, (key, least) in QUANTITIES.items()
        if (fitted := line({record["S"]: record[key] for record in measured if (record.get(key) or 0) > least}))
    ]


def memories(records: Iterable[Mapping[str, Any]]) -> list[Memory]:
    """The memory of each series of records that has the bytes of at least two lengths.

    Parameters
    ----------
    records
        Records of cells: the series, ``S`` (tokens), ``memory_bytes``, ``B`` and ``H``.

    Returns
    -------
    list[Memory]
        The bytes at the longest length, with lines fitted over the lengths.
    """
    found = []
    for series, measured in _series(records):
        points = {record["S"]: record for record in measured if record.get("memory_bytes") is not None}
        if len(points) < 2:
            continue
        longest = max(points)
        held = points[longest]["memory_bytes"]
        sizes = {s: one["memory_bytes"] for s, one in points.items() if one["memory_bytes"] > LEAST_BYTES}
        of = scores(points[longest])
        found.append(Memory(**series, longest=longest, bytes=held, scores=of, line=line(sizes), squared=squared(sizes)))
    return found


def squared(points: Mapping[int, float]) -> float:
    """Part that grows as S² at the longest length: the square term of the parabola through the three longest ones.

    NaN for fewer than three.
    """
    if len(points) < 3:
        return math.nan
    lengths = sorted(points)[-3:]
    a, b, c = (points[length] for length in lengths)
    steep, flat = (c - b) / (lengths[2] - lengths[1]), (b - a) / (lengths[1] - lengths[0])
    return (steep - flat) / (lengths[2] - lengths[0]) * lengths[2] ** 2


def scores(record: Mapping[str, Any]) -> float:
    """The number of scores of a call, B·H·S², NaN where query and key lengths differ or a size is unknown."""
    if RECTANGULAR.search(record["family"]):
        return math.nan
    return float(record.get("B") or math.nan) * float(record.get("H") or math.nan) * record["S"] ** 2


def sentences(fitted: Sequence[Fit], held: Sequence[Memory]) -> list[str]:
    """Growth of time, by exponents, and of memory, by Memory.growth: sentences for a terminal, one for each family."""
    told: list[tuple[str, Fit | Memory, Growth, Line | None]] = [("memory", one, one.growth, one.line) for one in held]
    told += [("seconds", one, one.side, one) for one in fitted if one.quantity == "seconds"]
    groups: dict[tuple[str, ...], dict[Growth, list[str]]] = {}
    for quantity, one, growth, of in told:
        words = groups.setdefault((one.family, one.device, one.dtype, quantity), {})
        words.setdefault(growth, []).append(f"{one.implementation} {of.exponent:.2f}" if of else one.implementation)
    return [
        f"{quantity} over S, {family} {device} {dtype}: "
        + "; ".join(f"{growth}: {', '.join(sorted(words[growth]))}" for growth in Growth if growth in words)
        for (family, device, dtype, quantity), words in sorted(groups.items())
    ]


def _series(records: Iterable[Mapping[str, Any]]) -> list[tuple[dict[str, Any], list[Mapping[str, Any]]]]:
    """The common fields and the records of each series."""

    def series(record: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(record[name] for name in SERIES)

    groups = itertools.groupby(sorted(records, key=series), key=series)
    return [(dict(zip(SERIES, key, strict=True)), list(group)) for key, group in groups]


def _regression(x: np.ndarray, y: np.ndarray) -> Any:
    """The least-squares line, and the standard error of its slope."""
    from scipy import stats  # takes half a second, and no worker needs it

    return stats.linregress(x, y)


def _lifted(x: np.ndarray, y: np.ndarray) -> bool:
    """Whether the first point lies too far above the line through the others."""
    others = _regression(x[1:], y[1:])
    return bool(y[0] - (others.intercept + others.slope * x[0]) > math.log(LIFTED))
