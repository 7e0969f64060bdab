"""Whether two runs of the bench agree: each cell's interval of one run has to overlap that of the other.

Both intervals are 95 % intervals of the same median, so even of two perfect runs about one cell in 170 does not
overlap: independent normal errors of equal size differ by more than 2 · 1.96 of them with probability 0.6 %.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.statistics import Interval

#: How the command ends: all cells agree, some do not, there is none in both files.
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


def medians(document: Mapping[str, Any]) -> dict[str, Interval]:
    """Median and interval of each timed cell of a benchmark JSON, by name; KeyError or TypeError for another kind."""
    return {
        one["name"]: Interval(one["stats"]["median"], *one["extra_info"]["interval"]) for one in document["benchmarks"]
    }


def pairs(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[Pair]:
    """The cells that both runs timed."""
    first, second = medians(one), medians(other)
    return [Pair(name, first[name], second[name]) for name in first if name in second]


def text(found: list[Pair], alone: int) -> str:
    """How many agree, and every cell that does not."""
    lines = [f"{sum(pair.agrees for pair in found)} of {len(found)} cells agree within their intervals"]
    lines += [f"{alone} cells are in one run only"] if alone else []
    return "\n".join(lines + [_line(pair) for pair in found if not pair.agrees])


def _line(pair: Pair) -> str:
    told = " and ".join(
        f"{1e3 * i.value:.4g} ms ({1e3 * i.low:.4g} to {1e3 * i.high:.4g})" for i in (pair.one, pair.other)
    )
    return f"{pair.name}: {told}, ratio {pair.other.value / pair.one.value:.3f}"


def options(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("one", type=Path, metavar="ONE.json")
    parser.add_argument("other", type=Path, metavar="OTHER.json")


def run(one: Path, other: Path) -> tuple[str, int]:
    """Compare two files of ``pytest bench --benchmark-json``."""
    documents = []
    for path in (one, other):
        try:
            documents.append(json.loads(path.read_text(encoding="utf-8")))
            medians(documents[-1])
        except (OSError, ValueError, KeyError, TypeError) as error:
            return f"{path} is no file of pytest bench: {type(error).__name__}: {error}", CANNOT_TELL
    first, second = documents
    found = pairs(first, second)
    if not found:
        return "no cell is in both runs", CANNOT_TELL
    alone = len(first["benchmarks"]) + len(second["benchmarks"]) - 2 * len(found)
    return text(found, alone), AGREE if all(pair.agrees for pair in found) else DISAGREE
