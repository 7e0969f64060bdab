"""Whose memory grows with the square of the sequence length, and by which rule that is said."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from reports.html.cells import GROUP, timed
from reports.html.views import Cell, Table, columns, number, size

#: Halfway between an exponent of 1, which inputs and results have, and of 2, which the array of scores has.
SQUARE = 1.5

#: Bytes for each of the B·H·S² scores below which there is no array of them: the smallest is a boolean mask.  Where the
#: longest call has fewer than PROOF scores, little memory says nothing: an allocator has it already (bench.memory).
LEAST = 1.0
PROOF = 2**24


#: What a line of points is of.
LINE = ("implementation", *GROUP)
Line = tuple[str, str, str, str]


class Growth(enum.Enum):
    """How memory grows with S."""

    QUADRATIC = "quadratic"
    LESS = "less than quadratic"
    UNCLEAR = "unclear"


@dataclass(frozen=True)
class Memory:
    """How the memory of one implementation grows in one family, and what it is at the longest length."""

    implementation: str
    family: str
    device: str
    dtype: str
    longest: int
    bytes: float
    exponent: float
    #: The number of scores at the longest length, NaN where S is not the length of both sides.
    scores: float
    #: The 95 % interval of the exponent, where it was fitted.
    low: float = math.nan
    high: float = math.nan

    @property
    def growth(self) -> Growth:
        """Quadratic: at least LEAST bytes a score, and an exponent, with its interval, above SQUARE."""
        long, array = self.scores >= PROOF, self.bytes >= LEAST * self.scores
        if long and not array:
            return Growth.LESS
        fitted = not math.isnan(self.low)
        low, high = (self.low, self.high) if fitted else (self.exponent, self.exponent)
        if low > SQUARE and (long or (fitted and array)):
            return Growth.QUADRATIC
        return Growth.LESS if high <= SQUARE and (long or (fitted and math.isnan(self.scores))) else Growth.UNCLEAR


def growths(cells: pd.DataFrame, fits: Sequence[Mapping[str, Any]]) -> list[Memory]:
    """One for each implementation and family that was timed at two lengths or more."""
    fitted = {tuple(fit[name] for name in LINE): fit for fit in fits if fit["quantity"] == "bytes"}
    lines: dict[Line, list[tuple[float, float, float]]] = {}
    measured = timed(cells)
    if not measured.empty:
        measured = measured.dropna(subset=["memory"])[[*LINE, "S", "memory", "scores"]]
        for *key, length, held, scores in measured.itertuples(index=False, name=None):
            lines.setdefault((key[0], key[1], key[2], key[3]), []).append((length, held, scores))
    return [_growth(key, sorted(points), fitted.get(key)) for key, points in lines.items() if len(points) > 1]


def _growth(key: Line, points: list[tuple[float, float, float]], fit: Mapping[str, Any] | None) -> Memory:
    (short, less, _), (longest, most, scores) = points[-2:]
    if fit is not None:
        return Memory(*key, int(longest), most, fit["exponent"], scores, fit["low"], fit["high"])
    exponent = math.log(most / less) / math.log(longest / short) if most > 0 and less > 0 else math.nan
    return Memory(*key, int(longest), most, 0.0 if most == 0 else exponent, scores)


def table(found: Sequence[Memory]) -> Table:
    """One row for each."""
    rows = tuple(
        (
            Cell(one.implementation, look="name"),
            Cell(one.family, look="name"),
            Cell(one.device),
            Cell(one.dtype),
            Cell(one.growth.value, look="deviates" if one.growth is Growth.QUADRATIC else ""),
            number(one.exponent, tip=interval(one)),
            number(one.bytes, size(one.bytes)),
            number(one.bytes / one.scores),
            Cell(str(one.longest), one.longest),
        )
        for one in found
    )
    numbers = ("exponent", "memory", "bytes a score", "at S")
    heads = columns("implementation", "family", "device", "dtype", "growth", *numbers, numbers=numbers)
    note = (
        f"Quadratic: at the longest length a call holds at least {LEAST:.0f} byte for each of the B·H·S² scores, and"
        f" bytes grow as S to the power of more than {SQUARE}. The exponent is fitted over all lengths where the file"
        " has fits (then its 95 % interval has to lie above), and else that of the longest two lengths. Unclear: the"
        " interval lies on both sides, or the longest call has fewer than 2²⁴ scores, which hide in memory that the"
        " process has already."
    )
    return Table("memory", "Memory against sequence length", heads, rows, note)


def interval(one: Memory) -> str:
    """How the exponent is known."""
    if math.isnan(one.low):
        return "between the longest two lengths"
    return f"95 % interval {one.low:.2f} to {one.high:.2f}"
