"""The matrix as a small picture: implementations across, clause groups down, a colour for the worst outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from attention_conformance.reports.html.conformance import RANK, WORDS
from attention_conformance.reports.html.views import link, rows_of, short_names
from attention_conformance.reports.model import groups, tables

#: Units of the picture: a column of the upper and of the lower block, a row, the gap between two cells, and the labels
#: at the left.
WIDE, NARROW, HIGH, GAP, LABELS = 20, 12, 14, 1, 140

#: Names below the upper block: the most letters of one, the height of a letter (5.5 units on a slope of 60 degrees),
#: and the empty space above and below them.
LETTERS, LETTER, AROUND = 19, 4.8, 15

#: Least width of a picture, in units, so that one of few implementations is not drawn large.
LEAST = 620

#: The group of plain attention whose clauses are also named by cases of the other operators.
SHARED = "Call consistency"


@dataclass(frozen=True)
class Picture:
    """Picture that the template draws, in its own units: plain attention above, the other operators below.

    Above, each implementation is a column with its name; below, each row has its own implementations.
    """

    width: float
    height: float
    #: The area of each outcome as one path, by its CSS class.
    paths: Mapping[str, str]
    #: Labels: text, x and y.
    rows: tuple[tuple[str, float, float], ...]
    columns: tuple[tuple[str, float, float], ...]
    #: For the script: each row's upper edge, its column width, and the text and link of its cells.
    cells: Mapping[str, Any]


def picture(results: pd.DataFrame) -> Picture:
    """The picture of all results: a cell shows the worst outcome of its cases, and is empty if none was run."""
    counts = {(row["group"], row["implementation"], row["device"]): row for row in rows_of(groups.by_group(results))}
    who = list(dict.fromkeys(zip(results["implementation"], results["device"], strict=True)))
    several = results["device"].nunique() > 1
    names = {each: " ".join(each) if several else each[0] for each in who}
    short = short_names(name for name, _ in who)
    below_columns = {each: _shortened(f"{short[each[0]]} {each[1]}" if several else short[each[0]]) for each in who}
    found = groups.ordered(name for name, *_ in counts)
    above = [name for name in found if name in groups.SDPA]
    plain = [each for each in who if any((name, *each) in counts for name in above if name != SHARED)]
    areas: dict[str, str] = {}
    rows: list[tuple[str, float, float]] = []
    cells: list[dict[str, Any]] = []
    longest = max((len(below_columns[each]) for each in plain), default=0)
    below = len(above) * HIGH + (round(longest * LETTER + AROUND) if above else 0)
    for at, name in enumerate([*above, *(each for each in found if each not in above)]):
        is_above = at < len(above)
        wide = WIDE if is_above else NARROW
        y = at * HIGH if is_above else below + (at - len(above)) * HIGH
        columns = plain if is_above else [each for each in who if (name, *each) in counts]
        said = []
        for x, each in enumerate(columns):
            row = counts.get((name, *each))
            if row is None:
                said.append((names[each], "not run", ""))
                continue
            worst = next((outcome for outcome in RANK if row[outcome]), "unsupported")
            path = f"M{LABELS + x * wide} {y}h{wide - GAP}v{HIGH - GAP}h{GAP - wide}z"
            areas[worst] = areas.get(worst, "") + path
            words = WORDS[worst].format(row[worst], sum(row[outcome] for outcome in tables.EXECUTED))
            said.append((names[each], words, link("group", name, *each)))
        rows.append((name, LABELS - 6, y + HIGH / 2))
        cells.append({"name": name, "y": y, "wide": wide, "cells": said})
    high = len(above) * HIGH + 5
    labels = tuple((below_columns[each], LABELS + (x + 0.5) * WIDE, high) for x, each in enumerate(plain))
    width = max(LEAST, LABELS + len(plain) * WIDE, *(LABELS + len(row["cells"]) * NARROW for row in cells))
    height = below + (len(rows) - len(above)) * HIGH
    return Picture(width, height, areas, tuple(rows), labels, {"left": LABELS, "high": HIGH, "rows": cells})


def _shortened(name: str) -> str:
    return name if len(name) <= LETTERS else f"{name[: LETTERS - 1]}…"
