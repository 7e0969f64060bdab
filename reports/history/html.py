"""A history as one HTML page that needs nothing else: from series to tables, plots and the data behind them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from attention_conformance.reports.history import pages, shown
from attention_conformance.reports.history.series import History
from attention_conformance.reports.html import document, files, payload, trends
from attention_conformance.reports.html.bundle import Bundle
from attention_conformance.reports.markdown.text import digits

#: The scripts of the page in their order.
SCRIPTS = ("data.js", "tables.js", "plots.js", "trend.js")


def page(found: History) -> str:
    """The whole page."""
    with Bundle() as bundle:
        return document.rendered("history.html.j2", SCRIPTS, bundle, _shown(found))


def _shown(found: History) -> dict[str, Any]:
    """What the template fills in; sections without records are empty."""
    steps = pages.changes(found)
    return {
        "counts": pages.counted(found),
        "questions": shown.questions(found, steps),
        "nothing": shown.NOTHING if found.series else "No cell was timed in these files.",
        "changes": shown.changes(steps) if len(steps) else None,
        "cells": shown.cells(found) if found.series else None,
        "trends": _trends(found),
        "libraries": _libraries(found),
        "conformance": shown.conformance(found) if found.tallies else None,
        "refused": shown.refused(found) if found.refused else None,
        "files": files.table(found.sources),
        "data": payload.packed(_frames(found, steps), charts=trends.charts()),
    }


def _trends(found: History) -> list[dict[str, Any]]:
    """The figure of each series."""
    several = len({one.machine for one in found.series}) > 1
    return [
        {
            "at": at,
            "anchor": shown.anchor(one.key, one.machine),
            "name": " ".join((*one.key, f"on {one.machine}") if several else one.key),
            "text": f"{shown.described(one)}.",
        }
        for at, one in enumerate(found.series)
    ]


def _libraries(found: History) -> list[str]:
    """Those that were there in more than one version."""
    known: dict[str, set[str]] = {}
    for versions in found.versions.values():
        for name, version in versions.items():
            known.setdefault(name, set()).add(str(version))
    return sorted(name for name, versions in known.items() if len(versions) > 1)


def _frames(found: History, steps: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The data of the plots, in milliseconds, each row with the number of its series."""
    number = {(*one.key, one.machine): at for at, one in enumerate(found.series)}
    rows = pages.points(found)
    counts = [len(one.points) for one in found.series]
    versions = {file: ", ".join(f"{name} {one}" for name, one in of.items()) for file, of in found.versions.items()}
    points = pd.DataFrame(
        {
            "series": np.repeat(np.arange(len(counts)), counts),
            "run": [run for count in counts for run in range(count)],
            "when": rows["when"],
            "time": _milliseconds_of(rows["when"]),
            "file": rows["file"],
            "milliseconds": rows["median"] * 1e3,
            "low": rows["low"].astype(float) * 1e3,
            "high": rows["high"].astype(float) * 1e3,
            "segment": rows["segment"],
            "versions": rows["file"].map(versions),
        }
    )
    segments = points.groupby(["series", "segment"], sort=False)
    levels = pd.DataFrame({name: segments[name].first() for name in ("run", "time")})
    levels = levels.assign(run_end=segments["run"].last(), time_end=segments["time"].last())
    levels["milliseconds"] = segments["milliseconds"].median()
    of = [number[tuple(row)] for row in steps[shown.SERIES].itertuples(index=False)]
    runs = points.set_index(["series", "file"])["run"]
    changes = steps.assign(
        series=of,
        run=[int(runs[place]) for place in zip(of, steps["file"], strict=True)],
        time=_milliseconds_of(steps["when"]),
        before=steps["before"] * 1e3,
        after=steps["after"] * 1e3,
        text=[f"{digits(ratio)}×" for ratio in steps["ratio"]],
    ).drop(columns=shown.SERIES)
    frames = {"points": points, "levels": levels.reset_index(), "changes": changes}
    return frames | ({"conformance": _conformance(found)} if found.tallies else {})


def _conformance(found: History) -> pd.DataFrame:
    frame = pages.tallies(found)
    who = frame["implementation"] + " " + frame["device"]
    return frame.assign(who=who, time=_milliseconds_of(frame["when"]), run=frame.groupby(who).cumcount())


def _milliseconds_of(dates: pd.Series) -> pd.Series:
    """Since 1970, as a plot has it; missing where a date cannot be read."""
    known = pd.to_datetime(dates, errors="coerce", utc=True, format="ISO8601")
    return (known - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(milliseconds=1)
