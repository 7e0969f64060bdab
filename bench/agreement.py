"""Whether two runs of the bench agree: each cell's interval of one run has to overlap that of the other.

Both intervals are 95 % intervals of the same median, so even of two perfect runs about one cell in 170 does not
overlap: independent normal errors of equal size differ by more than 2 · 1.96 of them with probability 0.6 %.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from bench import figures
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


def compared(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Both runs' cells, how long each run took, and where; what the figures of the page are made of."""
    found = pairs(one, other)
    alone = len(one["benchmarks"]) + len(other["benchmarks"]) - 2 * len(found)
    cells = [{"cell": pair.name, "one": astuple(pair.one), "other": astuple(pair.other)} for pair in found]
    return {"runs": [about(one), about(other)], "cells": cells, "in_one_only": alone}


def about(document: Mapping[str, Any]) -> dict[str, Any]:
    """When, where and how long a run was; KeyError, TypeError or ValueError for a file of another kind."""
    said = document["attention_conformance"]
    begun, ended = (datetime.fromisoformat(said[when]) for when in ("started", "finished"))
    facts = {name: said[name] for name in ("command", "started", "load_average")}
    return facts | {"seconds": (ended - begun).total_seconds(), "machine": said["fingerprint"]}


def cells(found: Mapping[str, Any]) -> list[Pair]:
    """The cells of the figures."""
    return [Pair(each["cell"], Interval(*each["one"]), Interval(*each["other"])) for each in found["cells"]]


def text(found: Mapping[str, Any]) -> str:
    """How many agree, how wide the intervals are, and every cell that does not agree."""
    both = cells(found)
    lines = [f"{sum(pair.agrees for pair in both)} of {len(both)} cells agree within their intervals"]
    if alone := found["in_one_only"]:
        lines += [f"{alone} cells are in one run only"]
    half, most = np.quantile([each.spread for pair in both for each in (pair.one, pair.other)], (0.5, 0.9))
    apart = np.median([abs(math.log(pair.other.value / pair.one.value)) for pair in both])
    lines += [f"half of the intervals are within {half:.1%} of their medians, nine of ten within {most:.1%}"]
    lines += [f"half of the medians differ by at most {math.expm1(apart):.1%} from one run to the other"]
    return "\n".join(lines + [_line(pair) for pair in both if not pair.agrees])


def table(found: Mapping[str, Any]) -> str:
    """Markdown: the same, and where and how long the runs were."""
    lines = [f"- {line}" for line in text(found).splitlines()]
    for name, run in zip(("first", "second"), found["runs"], strict=True):
        load = "not told" if run["load_average"] is None else f"{run['load_average']:.1f}"
        lines.append(f"- {name} run: {run['seconds']:.0f} s; load average {load}; {run['started']}")
    machine = found["runs"][0]["machine"]
    return "\n".join([*lines, f"- {machine['cpu']}, {machine['cores_usable']} cores"])


FIGURES = figures.figures("agree --page", table)


def _line(pair: Pair) -> str:
    told = " and ".join(
        f"{1e3 * i.value:.4g} ms ({1e3 * i.low:.4g} to {1e3 * i.high:.4g})" for i in (pair.one, pair.other)
    )
    return f"{pair.name}: {told}, ratio {pair.other.value / pair.one.value:.3f}"


def options(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("one", type=Path, metavar="ONE.json")
    parser.add_argument("other", type=Path, metavar="OTHER.json")
    figures.option(parser)


def run(one: Path, other: Path, page: bool = False) -> tuple[str, int]:
    """Compare two files of ``pytest bench --benchmark-json``."""
    documents = []
    for path in (one, other):
        try:
            documents.append(json.loads(path.read_text(encoding="utf-8")))
            medians(documents[-1])
            about(documents[-1])
        except (OSError, ValueError, KeyError, TypeError) as error:
            return f"{path} is no file of pytest bench: {type(error).__name__}: {error}", CANNOT_TELL
    first, second = documents
    found = compared(first, second)
    if not found["cells"]:
        return "no cell is in both runs", CANNOT_TELL
    if page:
        FIGURES.keep(found)
    return text(found), AGREE if all(pair.agrees for pair in pairs(first, second)) else DISAGREE
