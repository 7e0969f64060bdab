"""Agreement of two runs of the bench: the intervals of each cell in both runs must overlap.

Both are 95 % intervals of the same median, so even between two perfect runs about one cell in 180 does not overlap:
independent normal errors of equal size differ by more than 2 · 1.96 of them with probability 0.6 %.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from attention_conformance.bench.analysis.statistics import Interval
from attention_conformance.reports.input.bench import key_of
from attention_conformance.reports.input.read import read
from attention_conformance.reports.input.records import Records
from attention_conformance.reports.text import percent

#: Exit status: all cells agree, some do not, there is none in both files.
AGREE, DISAGREE, CANNOT_TELL = 0, 1, 2


@dataclass(frozen=True)
class Pair:
    """A cell in two runs: its median with its interval, in seconds."""

    name: str
    one: Interval
    other: Interval

    @property
    def agrees(self) -> bool:
        """Whether the intervals overlap."""
        return self.one.low <= self.other.high and self.other.low <= self.one.high

    def __str__(self) -> str:
        told = " and ".join(
            f"{1e3 * i.value:.4g} ms ({1e3 * i.low:.4g} to {1e3 * i.high:.4g})" for i in (self.one, self.other)
        )
        return f"{self.name}: {told}, ratio {self.other.value / self.one.value:.3f}"


def medians(records: Records) -> dict[str, Interval]:
    """Median and interval of each timed cell that has one, by the cell's name.

    Parameters
    ----------
    records
        Records of any files.

    Returns
    -------
    dict[str, Interval]
        Seconds, by the name of the cell.
    """
    return {
        " ".join(key_of(cell)): Interval(cell["median"], cell["interval_low"], cell["interval_high"])
        for cell in records.cells
        if cell["outcome"] == "timed" and "interval_low" in cell
    }


def compared(one: Records, other: Records) -> tuple[list[Pair], int]:
    """The cells that both runs timed, and how many only one of them timed.

    Parameters
    ----------
    one
        Records of one run.
    other
        Records of the other.

    Returns
    -------
    tuple[list[Pair], int]
        The pairs, and a count of cells.
    """
    first, second = medians(one), medians(other)
    return [Pair(name, first[name], second[name]) for name in first if name in second], len(
        first.keys() ^ second.keys()
    )


def text(pairs: Sequence[Pair], alone: int) -> str:
    """Text of an agreement: how many agree, how wide the intervals are, and every cell that does not agree.

    Parameters
    ----------
    pairs
        Pairs as ``compared`` gives them.
    alone
        Number of cells that only one run timed.

    Returns
    -------
    str
        Several lines.
    """
    lines = [f"{sum(pair.agrees for pair in pairs)} of {len(pairs)} cells agree within their intervals"]
    if alone:
        lines += [f"{alone} cells are in one run only"]
    half, most = np.quantile([each.spread for pair in pairs for each in (pair.one, pair.other)], (0.5, 0.9))
    apart = np.median([abs(math.log(pair.other.value / pair.one.value)) for pair in pairs])
    lines += [
        f"half of the intervals are within {percent(half, 1)} of their medians, nine of ten within {percent(most, 1)}"
    ]
    lines += [f"half of the medians differ by at most {percent(math.expm1(apart), 1)} between the runs"]
    return "\n".join(lines + [str(pair) for pair in pairs if not pair.agrees])


def options(parser: argparse.ArgumentParser) -> None:
    """Options of ``agree``.

    Parameters
    ----------
    parser
        Parser of the command.
    """
    parser.description = "Whether two runs of the bench agree within their intervals."
    parser.epilog = "Exit status: 0 every cell agrees, 1 some do not, 2 cannot tell (no cell in both, damaged input)."
    parser.add_argument("one", type=Path, metavar="ONE.json")
    parser.add_argument("other", type=Path, metavar="OTHER.json")


def run(one: Path, other: Path) -> tuple[str, int]:
    """Compare two files of ``pytest bench --benchmark-json``.

    Parameters
    ----------
    one
        A file of the bench.
    other
        Another.

    Returns
    -------
    tuple[str, int]
        The text, and the exit status: 0 where all cells agree, 1 where some do not, 2 where no cell is in both.

    Raises
    ------
    ReportError
        For a file that ``read`` refuses.
    """
    pairs, alone = compared(read([one]), read([other]))
    if not pairs:
        return "no cell is in both runs", CANNOT_TELL
    return text(pairs, alone), AGREE if all(pair.agrees for pair in pairs) else DISAGREE
