"""Growth of time and memory with the length: exponents p of y ∝ S^p, with their intervals.

A line through (log S, log y) by least squares; its slope is p.  Its 95 % interval is Student's, from the scatter of the
points around the line, with n − 2 degrees of freedom: of three points it is wide, as it ought to be.

A call has a part that does not grow (dispatch, threads, buffers), which hides the growth at short lengths.  So a line
begins where it holds: **the shortest length is dropped while its point lies more than 10 % above the line through the
longer ones**, down to three points.  Overhead can only lift a short point, so one that lies below stays, as does noise
of the long ones; a line that is no line shows in the interval.  Bytes under a mebibyte say nothing and are skipped.

Whether memory is quadratic, so whether a call holds an array of all B·H·S² scores, is decided here alone
(``Memory.growth``), for the terminal and every report: by the exponent, by the bytes for each score, and where the
exponent cannot tell by those that grow as S².

Arithmetic alone, over records: the ``extra_info`` of a result file, its list of cells, and each median.
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

#: Lengths that a fit needs.
LEAST_POINTS = 3

#: Most distance of the shortest point above the line of the others.  In a sweep by doublings, y = a + b·S², that is
#: reached when a is 12 to 14 % of the shortest point, which lowers the exponent by 0.03 (six points) to 0.07 (four).
#: Medians scatter by 2 %, and what three of them say of a fourth by 4 %, so chance alone seldom drops a point.
LIFTED = 1.10

#: Bytes below which memory is not fitted: four times what a resident set may be wrong by on two cores.
LEAST_BYTES = 2**20
#: What the points of a fit have in common.
SERIES = ("implementation", "device", "dtype", "family")

#: Halfway between an exponent of 1, which inputs and results have, and of 2, which the array of scores has.
BETWEEN = 1.5

#: Bytes for each of the B·H·S² scores below which there is no array of them: the smallest is a boolean mask.
LEAST_PER_SCORE = 1.0

#: Share of the bytes of the longest call that has to grow as S² where the exponent cannot tell, by the parabola through
#: the three longest lengths, of which a constant and a linear part have none.  In a sweep by doublings a linear part
#: reaches it if the middle one of the three is 19 % too low, or the longest 39 % too high.
SQUARED = 0.75

#: Scores of the longest call below which memory says nothing: an allocator may have such an array already (up to 32 MiB
#: in glibc), and a kernel in blocks of 1024 rows and keys holds all scores of eight heads up to S = 1024, half as many.
PROOF = 2**24

#: A family whose rows are not its keys: decode, and cross.
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
    """The line of what was measured of an implementation; ``quantity`` is "seconds" or "bytes"."""

    implementation: str = ""
    device: str = ""
    dtype: str = ""
    family: str = ""
    quantity: str = ""


@dataclass(frozen=True)
class Memory:
    """Memory of an implementation in one family: its growth, and what it is at the longest length."""

    implementation: str
    device: str
    dtype: str
    family: str
    longest: int
    bytes: float
    #: The number of scores at the longest length, NaN where S is not the length of both sides.
    scores: float
    #: None of less than LEAST_POINTS lengths with LEAST_BYTES.
    line: Line | None
    #: Share of the bytes at the longest length that grow as S² (see SQUARED); NaN of less than three lengths.
    squared: float = math.nan

    @property
    def growth(self) -> Growth:
        """Too few scores say nothing, too few bytes a score that there is no array of them; else the exponent says.

        If its interval cannot, as where a constant part grows into a quadratic one, the bytes that grow as S² do.
        """
        if self.scores < PROOF:
            return Growth.UNCLEAR
        if self.bytes < LEAST_PER_SCORE * self.scores:
            return Growth.LESS
        side = self.line.side if self.line else Growth.UNCLEAR
        return Growth.QUADRATIC if side is Growth.UNCLEAR and self.squared >= SQUARED * self.bytes else side


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
    fitted = _regression(x[first:], y[first:])
    slope, half = float(fitted.slope), float(student(len(x) - first - 2) * fitted.stderr)
    return Line(slope, slope - half, slope + half, len(x) - first, lengths[first], lengths[-1])


def fits(records: Iterable[Mapping[str, Any]]) -> list[Fit]:
    """A fit of each quantity for each series of records that has enough lengths.

    A record has implementation, device, dtype, family and ``S``, the length that the family leaves open, ``seconds``
    (the median) and ``memory_bytes``; what is None or missing is no point.
    """
    return [
        Fit(**vars(fitted), **series, quantity=quantity)
        for series, measured in _series(records)
        for quantity, (key, least) in QUANTITIES.items()
        if (fitted := line({record["S"]: record[key] for record in measured if (record.get(key) or 0) > least}))
    ]


def memories(records: Iterable[Mapping[str, Any]]) -> list[Memory]:
    """One for each series of such records that has the bytes of two lengths; they have ``B`` and ``H`` too.

    Parameters
    ----------
    records
        Records of cells: the series, ``S`` (tokens) and ``memory_bytes``.

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

    NaN of less than three.
    """
    if len(points) < 3:
        return math.nan
    lengths = sorted(points)[-3:]
    a, b, c = (points[length] for length in lengths)
    steep, flat = (c - b) / (lengths[2] - lengths[1]), (b - a) / (lengths[1] - lengths[0])
    return (steep - flat) / (lengths[2] - lengths[0]) * lengths[2] ** 2


def scores(record: Mapping[str, Any]) -> float:
    """The number of scores of a call, B·H·S², NaN where its rows are not its keys or that is not known."""
    if RECTANGULAR.search(record["family"]):
        return math.nan
    return float(record.get("B") or math.nan) * float(record.get("H") or math.nan) * record["S"] ** 2


def sentences(fitted: Sequence[Fit], held: Sequence[Memory]) -> list[str]:
    """Growth of time, by its exponents, and of memory, by Memory.growth: a sentence for each family, for a terminal."""
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
    """The records of each series, and what they have in common."""

    def series(record: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(record[name] for name in SERIES)

    groups = itertools.groupby(sorted(records, key=series), key=series)
    return [(dict(zip(SERIES, key, strict=True)), list(group)) for key, group in groups]


def _regression(x: np.ndarray, y: np.ndarray) -> Any:
    """The least-squares line, and the standard error of its slope."""
    from scipy import stats  # takes half a second, and no worker needs it

    return stats.linregress(x, y)


def _lifted(x: np.ndarray, y: np.ndarray) -> bool:
    """Whether the first point lies above what the line through the others says."""
    others = _regression(x[1:], y[1:])
    return bool(y[0] - (others.intercept + others.slope * x[0]) > math.log(LIFTED))
