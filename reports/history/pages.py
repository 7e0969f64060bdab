"""A history as tables and as Markdown."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pandas as pd

from attention_conformance.reports.history.levels import Level
from attention_conformance.reports.history.series import History, Series, changed_versions
from attention_conformance.reports.input.bench import CELL
from attention_conformance.reports.schemas import Step
from attention_conformance.reports.text import NONE, code, digits, fold, inert, table, words

#: Columns of a trend, and the eighths of a line that it is drawn with; the newest runs are shown.
COLUMNS = 40
BARS = "▁▂▃▄▅▆▇█"

#: Rows of the table of changes that are not folded: the newest.
SHOWN = 20


def points(found: History) -> pd.DataFrame:
    """One row per run of a cell: seconds, and the number of its segment."""
    rows = []
    for one in found.series:
        segment = 0
        for at, point in enumerate(one.points):
            segment += any(step.at == at for step in one.steps)
            rows.append((*one.key, one.machine, *msgspec.structs.astuple(point), segment))
    names = ["implementation", "device", "dtype", "workload", "machine", "when", "file", "median", "low", "high"]
    return pd.DataFrame(rows, columns=[*names, "segment"])


def changes(found: History) -> pd.DataFrame:
    """One row per change: what changed, when, by how much, and which versions changed with it.

    The newest come first; within a run the highest level, and within a level the largest.
    """
    names = ["when", "file", "level", *CELL, "machine", "before", "after", "ratio", "cells", "of", "versions"]
    levels = [*Level][::-1]
    size = [(one.when, one.file, levels.index(Level(one.level)), abs(math.log(one.ratio))) for one in found.changes]
    order = sorted(range(len(size)), key=size.__getitem__, reverse=True)
    rows = [[getattr(found.changes[at], name) for name in names] for at in order]
    return pd.DataFrame(rows, columns=names).astype(dict.fromkeys(("before", "after", "ratio"), float))


def steps(found: History) -> pd.DataFrame:
    """One row per change of a cell, alone or with others, for its plot."""
    rows = [
        (*_place(one, step), *one.key, one.machine, step.before, step.after, step.ratio, _versions(found, one, step))
        for one in found.series
        for step in one.steps
    ]
    names = ["when", "file", *CELL, "machine", "before", "after", "ratio", "versions"]
    return pd.DataFrame(rows, columns=names)


def name_of(change: Mapping[Any, Any]) -> tuple[str, str]:
    """Name of what changed: an implementation, and its cells.

    Parameters
    ----------
    change
        A row of ``changes``.

    Returns
    -------
    tuple of str
        Words for both.
    """
    count = f"all {change['of']}" if change["cells"] == change["of"] else f"{change['cells']} of {change['of']}"
    return {
        Level.EVERYTHING: ("everything", f"{count} cells"),
        Level.WORKLOAD: (f"{count} implementations", change["workload"]),
        Level.IMPLEMENTATION: (change["implementation"], f"{count} cells"),
        Level.CELL: (change["implementation"], change["workload"]),
    }[Level(change["level"])]


def tallies(found: History) -> pd.DataFrame:
    """One row per implementation, device and run: results by outcome."""
    rows = [
        {"when": one.when, "file": one.file, "implementation": one.implementation, "device": one.device, **one.counts}
        for one in found.tallies
    ]
    return pd.DataFrame(rows)


def page(found: History) -> str:
    """Page of a history: what changed first, then every cell with its trend."""
    steps = changes(found)
    slower = int((steps["ratio"] > 1).sum())
    parts = [
        "# Attention: history",
        f"**{len(steps)} {'change' if len(steps) == 1 else 'changes'} in {len(found.series)} cells over {found.files}"
        f" files**: {slower} slower, {len(steps) - slower} faster, by 5 % or more. {count_sentences(found)}",
    ]
    if len(steps):
        times = {name: (steps[name] * 1e3).map(digits, na_action="ignore").fillna(NONE) for name in ("before", "after")}
        shown = steps.assign(**times)
        shown[["implementation", "workload"]] = [name_of(row) for row in steps.to_dict("records")]
        shown["ratio"] = steps["ratio"].map(digits)
        shown = shown.drop(columns=["level", "cells", "of"])
        shown = shown.rename(columns={"before": "before, ms", "after": "after, ms"})
        parts.append(table(shown.head(SHOWN)))
        parts += [fold(f"All {len(shown)}", table(shown))] if len(shown) > SHOWN else []
    if found.series:
        parts += [
            "## Cells",
            f"Oldest run on the left, at most the last {COLUMNS} runs; │ marks a change.",
            table(_trends(found)),
        ]
    if found.tallies:
        last = tallies(found).groupby(["implementation", "device"], sort=False).last().reset_index()
        parts += ["## Conformance in the last run of each implementation", table(last.rename(columns=words))]
    if found.refused:
        reasons = (f"* {code(name)}: {inert(reason)}" for name, reason in found.refused.items())
        parts.append(fold("Refused files", "\n".join(reasons)))
    return "\n\n".join(parts) + "\n"


def count_sentences(found: History) -> str:
    """Sentences about what was read, used and refused."""
    counts = totals(found)
    return (
        f"{found.files} files were found, {found.files - len(found.refused)} used, {len(found.refused)} refused."
        f" Records: {counts['read']} read, {counts['used']} used, {counts['refused']} refused."
    )


def _trends(found: History) -> pd.DataFrame:
    rows = []
    for one in found.series:
        last = one.points[-1].median
        rows.append(
            {
                **dict(zip(CELL, one.key, strict=True)),
                "runs": len(one.points),
                "last, ms": digits(last * 1e3),
                "since the last change": digits(last / one.steps[-1].after) if one.steps else NONE,
                "trend": trend(one),
            }
        )
    return pd.DataFrame(rows)


def trend(series: Series) -> str:
    """The newest times as a line of bars, scaled from the least to the most, with a stroke before each change."""
    start = max(0, len(series.points) - COLUMNS)
    places = {step.at for step in series.steps}
    drawn = bars([point.median for point in series.points[start:]])
    return "".join(("│" if at in places else "") + bar for at, bar in enumerate(drawn, start))


def bars(values: Sequence[float]) -> str:
    """A line of bars, scaled from the least to the most of the values."""
    low, high = min(values), max(values)
    return "".join(BARS[round((v - low) / (high - low) * (len(BARS) - 1)) if high > low else 0] for v in values)


def _place(series: Series, step: Step) -> tuple[str, str]:
    return series.points[step.at].when, series.points[step.at].file


def _versions(found: History, series: Series, step: Step) -> str:
    return changed_versions(*(found.versions[series.points[at].file] for at in (step.at - 1, step.at)))


def totals(found: History) -> dict[str, int]:
    """Records that were read, used and refused."""
    read, used = (sum(getattr(source, name) for source in found.sources) for name in ("read", "used"))
    return {"read": read, "used": used, "refused": read - used}
