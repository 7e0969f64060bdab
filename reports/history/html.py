"""A history as one HTML page: the answers, tables and plots of its cells, and the data behind them."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from attention_conformance.bench.analysis.statistics import LEAST
from attention_conformance.reports.history import pages
from attention_conformance.reports.history.levels import Level
from attention_conformance.reports.history.series import History, Series
from attention_conformance.reports.html import document, files
from attention_conformance.reports.html.views import (
    Answer,
    Cell,
    Column,
    Group,
    Table,
    columns,
    extras,
    milliseconds,
    number,
)
from attention_conformance.reports.input.bench import Key
from attention_conformance.reports.text import digits, words

#: The scripts of the page in their order.
SCRIPTS = ("data.js", "tables.js", "plots.js", "trend.js")

#: Columns that identify a series.
SERIES = ["implementation", "device", "dtype", "workload", "machine"]

#: Number of changes that an answer names.
NAMED = 5

#: Sentence where nothing changed.
NOTHING = f"No cell changed by {100 * (LEAST - 1):.0f} % or more."

#: Outcomes that differ from the spec; each is also the look of its number.
BAD = ("failed", "known-deviation", "advisory")


def page(found: History) -> str:
    """The whole page."""
    with document.Bundle() as bundle:
        return document.rendered("history.html.j2", SCRIPTS, bundle, _template_variables(found))


def _template_variables(found: History) -> dict[str, Any]:
    """Variables of the template; sections without records are empty."""
    steps = pages.changes(found)
    shown = {
        "counts": pages.count_sentences(found),
        "questions": questions(found, steps),
        "nothing": NOTHING if found.series else "No cell was timed in these files.",
        "changes": change_table(steps) if len(steps) else None,
        "cells": cell_table(found) if found.series else None,
        "trends": _trends(found),
        "libraries": _libraries(found),
        "conformance": conformance_table(found) if found.tallies else None,
        "refused": refused_table(found) if found.refused else None,
        "files": files.table(found.sources),
    }
    return shown | {"data": document.packed(_frames(found), tables=extras(shown.values()))}


def _trends(found: History) -> list[dict[str, Any]]:
    """The figure of each series."""
    several = len({one.machine for one in found.series}) > 1
    return [
        {
            "at": at,
            "anchor": anchor(one.key, one.machine),
            "name": " ".join((*one.key, f"on {one.machine}") if several else one.key),
            "text": f"{described(one)}.",
        }
        for at, one in enumerate(found.series)
    ]


def _libraries(found: History) -> list[str]:
    """Libraries that occur in more than one version."""
    known: dict[str, set[str]] = {}
    for versions in found.versions.values():
        for name, version in versions.items():
            known.setdefault(name, set()).add(str(version))
    return sorted(name for name, versions in known.items() if len(versions) > 1)


def _frames(found: History) -> dict[str, pd.DataFrame]:
    """The data of the plots, in milliseconds, each row with the number of its series."""
    steps = pages.steps(found)
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
    of = [number[tuple(row)] for row in steps[SERIES].itertuples(index=False)]
    runs = points.set_index(["series", "file"])["run"]
    changes = steps.assign(
        series=of,
        run=[int(runs[place]) for place in zip(of, steps["file"], strict=True)],
        time=_milliseconds_of(steps["when"]),
        before=steps["before"] * 1e3,
        after=steps["after"] * 1e3,
        text=[f"{digits(ratio)}×" for ratio in steps["ratio"]],
    ).drop(columns=SERIES)
    frames = {"points": points, "levels": levels.reset_index(), "changes": changes}
    return frames | ({"conformance": _conformance_frame(found)} if found.tallies else {})


def _conformance_frame(found: History) -> pd.DataFrame:
    frame = pages.tallies(found)
    who = frame["implementation"] + " " + frame["device"]
    return frame.assign(who=who, time=_milliseconds_of(frame["when"]), run=frame.groupby(who).cumcount())


def _milliseconds_of(dates: pd.Series) -> pd.Series:
    """Milliseconds since 1970, as a plot needs them; missing where a date cannot be read."""
    known = pd.to_datetime(dates, errors="coerce", utc=True, format="ISO8601")
    return (known - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(milliseconds=1)


def anchor(key: Key, machine: str) -> str:
    """The fragment of a cell's trend: its names for the reader, and a digest of them so that no two are equal."""
    parts = (*key, machine)
    words = re.sub(r"[^a-z0-9]+", "-", " ".join(parts[:4]).lower()).strip("-")
    return f"trend-{words}-{hashlib.sha256(repr(parts).encode()).hexdigest()[:8]}"


def questions(found: History, steps: pd.DataFrame) -> list[Answer]:
    """Questions of the page: what changed last, what changed most, and which implementations fail now."""
    answers = [_newest(steps), _largest(steps)] if found.series else []
    return [*answers, _failing(pages.tallies(found))] if found.tallies else answers


def change_table(steps: pd.DataFrame) -> Table:
    """One row per change, in the order of their table: the newest first, within a run the highest level first."""
    rows = tuple(
        (
            _linked_name(row, what),
            _ratio(row),
            Cell(of, look="name"),
            Cell(row["device"]),
            Cell(row["dtype"]),
            number(row["before"] * 1e3),
            number(row["after"] * 1e3),
            Cell(row["when"], look="name"),
            Cell(row["versions"]),
            Cell(row["file"]),
            Cell(row["machine"]),
        )
        for row in steps.to_dict("records")
        for what, of in [pages.name_of(row)]
    )
    numbers = ("new ÷ old", "before, ms", "after, ms")
    titles = ("implementation", numbers[0], "workload", "device", "dtype", *numbers[1:], "first run")
    note = (
        f"Found by PELT after removing single outliers; changes by {digits(LEAST)}× or more, slower or faster."
        " Cells that changed together are one change; a cell listed beside it changed by more or by less."
    )
    heads = columns(*titles, "versions that changed", "file", "machine", numbers=numbers)
    return Table("steps", "Changes, newest first", heads, rows, note)


def cell_table(found: History) -> Table:
    """One row per cell and machine, with its trend."""
    rows = []
    for one in found.series:
        last = one.points[-1].median
        named = dict(zip(SERIES, (*one.key, one.machine), strict=True))
        count = len(one.steps)
        since = number(last / one.steps[-1].after if one.steps else None)
        rows.append(
            (
                _linked_name(named, one.key[0]),
                Cell(named["workload"], look="name"),
                Cell(named["device"]),
                Cell(named["dtype"]),
                Cell(str(len(one.points)), len(one.points)),
                number(last * 1e3),
                Cell(str(count), count),
                since,
                Cell(pages.trend(one), "", look="name", spoken=described(one)),
                Cell(named["machine"]),
            )
        )
    numbers = ("runs", "last, ms", "changes", "since the last change")
    heads = columns("implementation", "workload", "device", "dtype", *numbers, "trend", "machine", numbers=numbers)
    note = f"The trend has the oldest run left, and at most the last {pages.COLUMNS}; │ is a change."
    return Table("every-cell", "Cells", heads, tuple(rows), note)


def described(one: Series) -> str:
    """A trend in a sentence."""
    runs = len(one.points)
    text = f"{runs} {'run' if runs == 1 else 'runs'}, last {milliseconds(one.points[-1].median)};"
    said = [f"{digits(step.ratio)}× on {one.points[step.at].when or 'an unknown date'}" for step in one.steps]
    return f"{text} {', '.join(said) if said else 'no change'}"


def conformance_table(found: History) -> Table:
    """One row per implementation and device: its last run, and its failures and deviations over all runs."""
    frame = pages.tallies(found)
    rows = []
    for (name, device), runs in frame.groupby(["implementation", "device"], sort=False):
        first, last = runs.iloc[0], runs.iloc[-1]
        outcomes = [_outcome(first, last, each) for each in ("passed", *BAD, "unsupported")]
        went = Cell(pages.bars(runs["failed"].tolist()[-pages.COLUMNS :]), "", look="name", spoken="failures over time")
        head = (Cell(str(name), look="name"), Cell(str(device)), Cell(str(len(runs)), len(runs)))
        rows.append((*head, *outcomes, went, Cell(last["when"], look="name")))
    titles = tuple(map(words, ("passed", *BAD, "unsupported")))
    heads = columns("implementation", "device", "runs", *titles, numbers=("runs", *titles))
    note = "Numbers are of the last run, with the change since the first run in brackets."
    return Table("tallies", "Results by outcome", (*heads, Column("failures"), Column("last run")), tuple(rows), note)


def refused_table(found: History) -> Table:
    """One row per file that could not be read."""
    rows = tuple((Cell(name), Cell(why)) for name, why in found.refused.items())
    return Table("refused", "Refused files", columns("file", "reason"), rows)


def _linked_name(row: Mapping[Any, Any], text: str) -> Cell:
    """A name with a link to its trend, if it is the name of one cell."""
    parts = [row[name] for name in SERIES]
    alone = row.get("level", Level.CELL) == Level.CELL
    return Cell(text, look="name", link=f"#{anchor((*parts[:4],), parts[4])}" if alone else "")


def _ratio(row: Mapping[Any, Any]) -> Cell:
    mark, look = ("✗ slower", "failed") if row["ratio"] > 1 else ("✓ faster", "passed")
    return number(row["ratio"], f"{mark} {digits(row['ratio'])}×", look=look)


def _newest(steps: pd.DataFrame) -> Answer:
    question = "What changed last?"
    if steps.empty:
        return Answer("newest", question, NOTHING)
    last = steps[(steps["when"] == steps["when"][0]) & (steps["file"] == steps["file"][0])]
    slower = int((last["ratio"] > 1).sum())
    count = f"{len(last)} {'change' if len(last) == 1 else 'changes'}"
    lead = f"{count} at {last['when'][0] or last['file'][0]}: {slower} slower, {len(last) - slower} faster."
    versions = ", ".join(dict.fromkeys(text for text in last["versions"] if text))
    note = f"Versions that changed: {versions}." if versions else "No recorded version changed."
    return Answer("newest", question, lead, _groups(last), note, "changes")


def _largest(steps: pd.DataFrame) -> Answer:
    question = "What changed most?"
    if steps.empty:
        return Answer("largest", question, NOTHING)
    order = steps["ratio"].map(lambda ratio: abs(math.log(ratio))).sort_values(ascending=False, kind="stable").index
    slower = int((steps["ratio"] > 1).sum())
    all_of_them = f"{len(steps)} {'change' if len(steps) == 1 else 'changes'} in all"
    lead = f"{all_of_them}: {slower} slower, {len(steps) - slower} faster."
    return Answer("largest", question, lead, _groups(steps.loc[order]), more="changes")


def _groups(steps: pd.DataFrame) -> tuple[Group, ...]:
    groups = []
    for label, look, some in (
        ("Slower", "failed", steps[steps["ratio"] > 1]),
        ("Faster", "passed", steps[steps["ratio"] < 1]),
    ):
        items = tuple(
            Cell(
                " ".join(filter(None, (what, row["dtype"], of))) + f" {digits(row['ratio'])}×",
                tip=_place_of(row),
                link=_linked_name(row, what).link or "#changes",
            )
            for row in some.head(NAMED).to_dict("records")
            for what, of in [pages.name_of(row)]
        )
        more = (Cell(f"and {len(some) - NAMED} more", link="#changes"),) if len(some) > NAMED else ()
        groups += [Group(f"{label} ({len(some)})", look, items + more)] if items else []
    return tuple(groups)


def _place_of(change: Mapping[Any, Any]) -> str:
    times = "" if math.isnan(change["before"]) else " → ".join(milliseconds(change[at]) for at in ("before", "after"))
    return f"{times} at {change['when']}".strip()


def _failing(tallies: pd.DataFrame) -> Answer:
    last = tallies.groupby(["implementation", "device"], sort=False).last().reset_index()
    groups = []
    for outcome, label in (("failed", "Fails"), ("known-deviation", "Known deviations")):
        some = last[last[outcome] > 0].to_dict("records")
        items = tuple(Cell(f"{row['implementation']} {row['device']}: {row[outcome]}", link="#tallies") for row in some)
        groups += [Group(f"{label} ({len(items)})", outcome, items)] if items else []
    failing = int((last["failed"] > 0).sum())
    lead = f"{failing or 'None'} of {len(last)}, in the last run of each."
    return Answer("failing", "Which implementations fail now?", lead, tuple(groups), more="conformance")


def _outcome(first: pd.Series, last: pd.Series, name: str) -> Cell:
    count, moved = int(last[name]), int(last[name]) - int(first[name])
    look = name if name in BAD and count else ""
    return Cell(f"{count} ({moved:+d})" if moved else str(count), count, look=look)
