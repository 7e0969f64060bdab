"""The plots of a history as Vega-Lite specifications: a cell across dates, runs or versions, and conformance."""

from __future__ import annotations

from typing import Any

import altair as alt

#: Half that of a plot of many implementations: there is one for each cell.
HEIGHT = 200

#: Counts have no label between two whole numbers.
WHOLE = "datum.value % 1 ? '' : datum.label"

TIME = "Median of a call, ms"

#: What a trend goes across, by the field that has it.
ACROSS: dict[str, dict[str, Any]] = {
    "time": {"type": "temporal", "title": None, "axis": alt.Axis(labelOverlap=True, grid=False)},
    "run": {"type": "quantitative", "title": "run", "scale": alt.Scale(nice=False, zero=False)},
    "version": {"type": "nominal", "title": None, "sort": None, "axis": alt.Axis(labelAngle=0, labelOverlap=True)},
}

Plot = alt.Chart | alt.LayerChart | alt.FacetChart

_TIPS = [
    alt.Tooltip("milliseconds:Q", title="median, ms"),
    alt.Tooltip("low:Q", title="95 % from, ms"),
    alt.Tooltip("high:Q", title="95 % to, ms"),
    alt.Tooltip("when:N", title="date"),
    alt.Tooltip("file:N", title="file"),
    alt.Tooltip("versions:N", title="versions"),
]

_CHANGE = [
    alt.Tooltip("ratio:Q", title="new ÷ old", format=".3~g"),
    alt.Tooltip("before:Q", title="before, ms"),
    alt.Tooltip("after:Q", title="after, ms"),
    alt.Tooltip("when:N", title="date"),
    alt.Tooltip("file:N", title="first file"),
    alt.Tooltip("versions:N", title="versions that changed"),
]


def charts(*, validate: bool = False) -> dict[str, dict[str, Any]]:
    """Every specification by its name; a test validates them."""
    made: dict[str, Plot] = {"time": _trend("time"), "run": _trend("run"), "version": _by_version()}
    made |= {f"outcomes-{field}": _outcomes(field) for field in ("time", "run")}
    fit = alt.AutoSizeParams(type="fit-x", contains="padding")
    return {
        name: chart.properties(autosize=fit, width="container", height=HEIGHT)
        .configure_view(stroke=None)
        .to_dict(validate=validate)
        for name, chart in made.items()
    }


def _x(field: str) -> alt.X:
    return alt.X(field, **ACROSS[field])


def _y() -> alt.Y:
    return alt.Y("milliseconds:Q", title=TIME, scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=5))


def _trend(field: str) -> Plot:
    """Runs with their intervals, the level between two changes, and the changes with their ratio."""
    points = alt.Chart(alt.NamedData("points"))
    band = alt.Chart(alt.NamedData("intervals")).mark_area(opacity=0.2, color="var(--c0)")
    line = points.mark_line(strokeWidth=1, opacity=0.5, color="var(--c0)")
    marks = points.mark_point(filled=True, size=22, opacity=0.8, color="var(--c0)")
    levels = alt.Chart(alt.NamedData("levels")).mark_rule(strokeWidth=2, color="var(--ink)")
    changes = alt.Chart(alt.NamedData("changes")).encode(_x(field), tooltip=_CHANGE, color=_direction())
    ratios = changes.mark_text(align="left", baseline="top", dx=5, fontSize=12, fontWeight="bold")
    return alt.layer(
        band.encode(_x(field), alt.Y("low:Q"), alt.Y2("high:Q")),
        line.encode(_x(field), _y()),
        levels.encode(_x(field), alt.X2(f"{field}_end"), _y()),
        marks.encode(_x(field), _y(), tooltip=_TIPS),
        changes.mark_rule(strokeWidth=2, strokeDash=[5, 4]),
        ratios.encode(alt.Text("text:N"), y=alt.value(0)),
    )


def _direction() -> Any:
    return alt.condition("datum.ratio > 1", alt.value("var(--failed)"), alt.value("var(--passed)"))


def _by_version() -> Plot:
    """Runs by version, in the order in which versions came, with the median of each."""
    points = alt.Chart(alt.NamedData("points"))
    return alt.layer(
        points.mark_point(filled=True, size=22, opacity=0.4, color="var(--c0)").encode(
            _x("version"), _y(), tooltip=_TIPS
        ),
        points.mark_tick(thickness=2, color="var(--ink)").encode(
            _x("version"),
            alt.Y("milliseconds:Q", aggregate="median", title=TIME),
            tooltip=[
                alt.Tooltip("version:N"),
                alt.Tooltip("median(milliseconds):Q"),
                alt.Tooltip("count()", title="runs"),
            ],
        ),
    )


def _outcomes(field: str) -> Plot:
    """Results that are not as the spec has them, by run."""
    looks = {"failed": ("var(--failed)", "circle"), "known deviation": ("var(--known-deviation)", "square")}
    looks["advisory"] = ("var(--advisory)", "triangle-up")
    colours, shapes = ([look[at] for look in looks.values()] for at in (0, 1))
    legend = alt.Legend(title=None, orient="top", symbolOpacity=1)
    tips = [alt.Tooltip(f"{name}:N") for name in ("outcome", "count", "passed", "unsupported", "file")]
    return (
        alt.Chart(alt.NamedData("outcomes"))
        .mark_line(interpolate="step-after", point={"size": 30, "opacity": 1})
        .encode(
            _x(field),
            alt.Y("count:Q", title="Results", scale=alt.Scale(zero=True), axis=alt.Axis(labelExpr=WHOLE)),
            alt.Color("outcome:N", scale=alt.Scale(domain=list(looks), range=colours), legend=legend),
            shape=alt.Shape("outcome:N", scale=alt.Scale(domain=list(looks), range=shapes)),
            tooltip=[*tips, alt.Tooltip("when:N", title="date")],
        )
    )
