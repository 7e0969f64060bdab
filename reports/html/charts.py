"""The plots as Vega-Lite specifications; the page fills in the data and the colours, which follow its theme."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from attention_conformance.reports.html.speed import GROUP, timed

#: Colours are variables of the style sheet, so that dark, light and print share one drawing; shapes tell apart what
#: shares a colour.
COLOURS = [f"var(--c{number})" for number in range(10)]
SHAPES = ["circle", "square", "triangle-up", "diamond", "cross", "triangle-down"]

#: A reference line stands this factor beyond the outermost measured point, so that it covers none.
APART = 1.6

HEIGHT = 380
ROW = 18

#: The line above the measured ones.
STEEP = "slope of S²"

GUIDES = [*GROUP, "quantity", "name", "S", "value"]


def charts(*, validate: bool = False) -> dict[str, dict[str, Any]]:
    """Every specification by its name; a test validates them, which takes half a second."""
    made: Mapping[str, Callable[[], alt.LayerChart | alt.FacetChart]] = {
        "time": lambda: _against_length("milliseconds", "Median of a call, ms", intervals=True),
        "memory": lambda: _against_length("memory", "Memory of a call beyond its inputs, bytes", format_="~s"),
        "frontier": _frontier,
        "accuracy": _accuracy,
    }
    fit = alt.AutoSizeParams(type="fit-x", contains="padding")
    return {
        name: make().properties(autosize=fit).configure_view(stroke=None).to_dict(validate=validate)
        for name, make in made.items()
    }


def guides(cells: pd.DataFrame, peaks: Mapping[tuple[str, str], float]) -> pd.DataFrame:
    """The lines that are drawn beside the measured ones: S², S, and the time at the measured peak."""
    rows: list[tuple[Any, ...]] = []
    for key, group in timed(cells).groupby(GROUP, sort=False) if not cells.empty else ():
        lengths = sorted(group["S"].unique())
        ends = (lengths[0], lengths[-1])
        for quantity, values in (("milliseconds", group["median"] * 1e3), ("memory", group["memory"])):
            last = values[(group["S"] == ends[1]) & (values > 0)]
            if len(lengths) > 1 and len(last):
                top = last.max() * APART
                rows += [(*key, quantity, STEEP, S, top * (S / ends[1]) ** 2) for S in ends]
                if quantity == "memory":
                    rows += [(*key, quantity, "slope of S", S, last.min() / APART * S / ends[1]) for S in ends]
        peak = peaks.get((str(key[1]), str(key[2])))
        if peak is not None:
            work = group.dropna(subset=["flops"]).drop_duplicates("S").sort_values("S")
            times = work["flops"] / peak * 1e3
            rows += [
                (*key, "milliseconds", "at the measured peak", S, time)
                for S, time in zip(work["S"], times, strict=True)
            ]
    found = pd.DataFrame(rows, columns=GUIDES)
    by_line = found.groupby([*GROUP, "quantity", "name"])["S"]
    steep, left, right = found["name"] == STEEP, by_line.transform("min"), by_line.transform("max")
    label = pd.Series("", index=found.index)
    label[steep & (found["S"] == right)] = "right"
    label[~steep & (found["S"] == left)] = "left"
    return found.assign(label=label)


def drawn(cells: pd.DataFrame) -> pd.DataFrame:
    """The cells that have a point, with what its tip says."""
    rows = timed(cells)
    if rows.empty:
        return rows
    low, high = rows["interval_low"].fillna(rows["median"]), rows["interval_high"].fillna(rows["median"])
    rows = rows.assign(milliseconds=rows["median"] * 1e3, low=low * 1e3, high=high * 1e3)
    return rows.assign(memory=rows["memory"].where(rows["memory"] > 0, np.nan))


def _logarithmic(**more: Any) -> alt.Axis:
    """An axis on which the powers of ten stand out."""
    power = "abs(log(datum.value) / LN10 - round(log(datum.value) / LN10)) < 1e-6"
    return alt.Axis(gridOpacity=alt.condition(power, alt.value(1), alt.value(0.25)), labelSeparation=4, **more)


def _focus() -> alt.Parameter:
    """The implementations that the reader picked in the legend; the others fade."""
    return alt.param(name="focus", value=[])


def _faded(full: float) -> Any:
    focused = "length(focus) == 0 || indexof(focus, datum.implementation) >= 0"
    return alt.condition(focused, alt.value(full), alt.value(0.08))


def _colour() -> alt.Color:
    return alt.Color("implementation:N", scale=alt.Scale(range=COLOURS), legend=None)


def _shape() -> alt.Shape:
    return alt.Shape("implementation:N", scale=alt.Scale(range=SHAPES), legend=None)


def _tips(*fields: tuple[str, str, str]) -> list[alt.Tooltip]:
    return [alt.Tooltip(f"{name}:{kind}", title=title) for name, kind, title in fields]


_WHO = (("implementation", "N", "implementation"), ("workload", "N", "workload"), ("dtype", "N", "dtype"))
_TIME = (("milliseconds", "Q", "median, ms"), ("low", "Q", "95 % from, ms"), ("high", "Q", "95 % to, ms"))
_MORE = (("gflops", "Q", "GFLOP/s"), ("memory", "Q", "memory, bytes"), ("share", "Q", "share of bound"))


def _against_length(
    field: str, title: str, *, intervals: bool = False, format_: str = "~g"
) -> alt.LayerChart | alt.FacetChart:
    lengths = alt.X(
        "S:Q", title="Sequence length S", scale=alt.Scale(type="log", base=2, nice=False), axis=alt.Axis(format="d")
    )
    values = alt.Y(f"{field}:Q", title=title, scale=alt.Scale(type="log"), axis=_logarithmic(format=format_))
    cells = alt.Chart(alt.NamedData("cells"))
    lines = cells.mark_line(strokeWidth=1.5).encode(lengths, values, _colour(), opacity=_faded(0.9))
    points = cells.mark_point(filled=True, size=45).encode(
        lengths, values, _colour(), _shape(), opacity=_faded(1), tooltip=_tips(*_WHO, *_TIME, *_MORE)
    )
    layers: list[Any] = [_guide_lines(), _guide_names(), lines, points]
    if intervals:
        rule = cells.mark_rule(strokeWidth=2).encode(lengths, alt.Y("low:Q"), alt.Y2("high:Q"), _colour())
        layers.insert(-1, rule.encode(opacity=_faded(0.7)))
    return alt.layer(*layers).properties(width="container", height=HEIGHT).add_params(_focus())


def _guide_lines() -> alt.Chart:
    return (
        alt.Chart(alt.NamedData("guides"))
        .mark_line(strokeDash=[5, 4], strokeWidth=1.5, color="var(--guide)")
        .encode(alt.X("S:Q"), alt.Y("value:Q"), alt.Detail("name:N"))
    )


def _guide_names() -> alt.Chart:
    """The names of the lines, each at the end of it where the measured lines leave room."""
    left = "datum.label == 'left'"
    side, aside = alt.expr(f"{left} ? 'left' : 'right'"), alt.expr(f"{left} ? 8 : -8")
    return (
        alt.Chart(alt.NamedData("guides"))
        .transform_calculate(text="datum.label ? datum.name : ''")
        .mark_text(align=side, baseline="bottom", dx=aside, dy=-4, fontSize=11, color="var(--soft)")
        .encode(alt.X("S:Q"), alt.Y("value:Q"), alt.Text("text:N"))
    )


def _frontier() -> alt.LayerChart | alt.FacetChart:
    time = alt.X(
        "milliseconds:Q",
        title="Median of a call, ms",
        scale=alt.Scale(type="log", nice=False, padding=30),
        axis=_logarithmic(format="~g"),
    )
    error = alt.Y(
        "share:Q",
        title="Worst error, share of its bound",
        scale=alt.Scale(type="log", nice=False, padding=30),
        axis=_logarithmic(format="~g"),
    )
    cells = alt.Chart(alt.NamedData("cells"))
    frontier = cells.transform_filter("datum.optimal == 'True'").mark_line(
        interpolate="step-after", strokeDash=[5, 4], color="var(--guide)"
    )
    points = cells.mark_point(filled=True, size=90).encode(
        time, error, _colour(), _shape(), opacity=_faded(1), tooltip=_tips(*_WHO, *_TIME, *_MORE)
    )
    names = (
        cells.transform_filter("datum.optimal == 'True'")
        .mark_text(align="left", dx=8, dy=-8, fontSize=11, color="var(--ink)")
        .encode(time, error, alt.Text("implementation:N"))
    )
    layers = alt.layer(frontier.encode(time, error), points, names)
    return layers.properties(width="container", height=HEIGHT).add_params(_focus())


def _accuracy() -> alt.LayerChart | alt.FacetChart:
    shares = alt.X(
        "low_at:Q", title="Error as a share of its bound", scale=alt.Scale(type="log"), axis=_logarithmic(format="~g")
    )
    names = alt.Y(
        "implementation:N",
        title=None,
        sort=alt.EncodingSortField("worst", order="descending"),
        axis=alt.Axis(labelLimit=150),
    )
    profiles = alt.Scale(domain=["wide", "fused", "storage"], range=COLOURS[:3])
    profile = alt.Color(
        "profile:N", scale=profiles, legend=alt.Legend(title="declared profile", orient="top", symbolOpacity=1)
    )
    shape = alt.Shape("profile:N", scale=alt.Scale(domain=["wide", "fused", "storage"], range=SHAPES[:3]))
    tips = _tips(
        *_WHO[:1], *_WHO[2:], ("profile", "N", "profile"), ("cases", "Q", "cases"), ("low", "Q", "lower quartile")
    )
    tips += _tips(("median", "Q", "median"), ("worst", "Q", "worst"), ("case", "N", "worst case"))
    rows = alt.Chart(alt.NamedData("accuracy")).encode(names)
    bars = rows.mark_rule(strokeWidth=3, opacity=0.45).encode(shares, alt.X2("worst_at:Q"), profile, tooltip=tips)
    middles = rows.mark_tick(thickness=2, size=11).encode(alt.X("median_at:Q"), profile, tooltip=tips)
    worst = rows.mark_point(filled=True, size=55, opacity=1).encode(alt.X("worst_at:Q"), profile, shape, tooltip=tips)
    bound = alt.Chart(alt.NamedData("one")).mark_rule(strokeDash=[5, 4], color="var(--guide)").encode(alt.X("value:Q"))
    return alt.layer(bound, bars, middles, worst).properties(width="container", height=alt.Step(ROW))
