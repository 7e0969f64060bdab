"""From frames to a Markdown page: a verdict first, then what it rests on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from conformance.clauses import Clause
from reports import divergence, faults, tables
from reports.reading import Records, Source, incomplete

#: What stands for a number that does not exist.
NONE = "–"

#: Significant digits of times and rates: the third already differs between two runs.
DIGITS = 3

#: Characters of a reason: about two lines of a table cell.
WIDEST = 140


def page(records: Records, clauses: Mapping[str, Clause]) -> str:
    """The whole report."""
    sections = ["# Attention: conformance and speed"]
    frame = tables.conformance(records.results)
    cells = tables.bench(records.cells)
    sections += [verdict(records, frame, cells)]
    if not frame.empty:
        sections += ["## How libraries answer", _answers(frame)]
        sections += ["## Conformance", _implementations(frame), _matrix(frame, clauses), _differences(frame, clauses)]
    if not cells.empty:
        sections += ["## Speed", *_speed(cells, records.sources)]
    if records.faults:
        sections += ["## What the suite catches", *_faults(records)]
    sections += ["## What this was made from", *_sources(records.sources)]
    return "\n\n".join(section for section in sections if section) + "\n"


def verdict(records: Records, frame: pd.DataFrame, cells: pd.DataFrame) -> str:
    """The first lines: who fails, how much was executed, what was timed, and whether a run was cut off."""
    lines = []
    cut = incomplete(records.sources)
    if cut:
        names = ", ".join(f"`{name}`" for name in cut)
        lines.append(f"**Incomplete run**: {names} ends without a footer; what follows is what was written.")
    if not frame.empty:
        lines.append(_conformance_verdict(frame))
    if not cells.empty:
        counts = cells["outcome"].value_counts()
        struck = cells.loc[cells["outcome"] == "struck out", "implementation"].unique()
        line = f"**Speed**: {_many(counts.get('timed', 0), 'cell')} timed, {counts.get('not timed', 0)} left out"
        line += f", {counts.get('struck out', 0)} struck out for a wrong result"
        lines.append(line + (f" ({_names(struck)})." if len(struck) else "."))
    if records.faults:
        lines.append(faults.verdict(records.faults, records.cases))
    return "\n\n".join(lines) or "**Nothing was recorded.**"


def _conformance_verdict(frame: pd.DataFrame) -> str:
    counts = frame["outcome"].value_counts()
    executed = int(sum(counts.get(outcome, 0) for outcome in tables.OUTCOMES if outcome != "unsupported"))
    everyone = frame["implementation"].unique()
    failing = frame.loc[frame["outcome"] == "failed", "implementation"].unique()
    if not executed:
        return "**Conformance: nothing was executed, so nothing is known.**"
    if len(failing):
        start = (
            f"**Conformance: {len(failing)} of {_many(len(everyone), 'implementation')} failed**: {_names(failing)}."
        )
    elif counts.get("deviates", 0):
        deviating = frame.loc[frame["outcome"] == "deviates", "implementation"].unique()
        start = (
            f"**Conformance: no new failure in {_many(len(everyone), 'implementation')}**;"
            f" {len(deviating)} deviate as recorded: {_names(deviating)}."
        )
    else:
        start = f"**Conformance: {_many(len(everyone), 'implementation')}, no failure.**"
    numbers = ", ".join(f"{counts.get(outcome, 0)} {outcome}" for outcome in tables.OUTCOMES)
    return f"{start} {_many(len(frame), 'result')}: {numbers}."


def _answers(frame: pd.DataFrame) -> str:
    table = divergence.answers(frame)
    if table.empty:
        return "None of the questions was asked."
    devices = table.index.get_level_values("device").nunique() > 1
    names = [f"{name} {device}" if devices else name for name, device in table.index]
    table = table.set_axis(names, axis="index").T.rename_axis("question", axis="index").reset_index()
    note = (
        f"In {divergence.DTYPE}; the question is asked by one case each (`conformance/questions.py`)."
        " Bold is not what the spec says."
    )
    return f"{markdown(table)}\n\n{note}"


def _implementations(frame: pd.DataFrame) -> str:
    table = tables.implementations(frame)
    table["worst share"] = table["worst share"].map(share)
    table["profiles met"] = table["profiles met"].fillna(NONE)
    note = (
        "*Worst share*: the largest error, as a share of its bound, over the cases that passed."
        " *Profiles met*: the strictest precision profile whose bounds all of them keep, by dtype."
    )
    return f"{markdown(table)}\n\n{note}"


def _matrix(frame: pd.DataFrame, clauses: Mapping[str, Clause]) -> str:
    long = tables.matrix(frame, clauses)
    devices = long["device"].nunique() > 1
    name = long["implementation"] + (" " + long["device"] if devices else "")
    parts = ["### Clause by clause", "Rows are implementations, columns the numbers of the clauses."]
    prefixes = long["clause"].str.rpartition("-")[0]
    for prefix in prefixes.unique():
        rows = long.assign(row=name, number=long["clause"].str.rpartition("-")[2])[prefixes == prefix]
        wide = rows.pivot(index="row", columns="number", values="cell")
        wide = wide.reindex(index=rows["row"].unique(), columns=rows["number"].unique()).fillna(tables.NOT_RUN)
        wide = wide[(wide != tables.NOT_RUN).any(axis=1)]  # the others are of another operator
        if wide.empty:
            continue
        parts.append(markdown(wide.rename_axis(f"{prefix}-", axis="columns").reset_index(names=f"{prefix}-"), left=1))
        named = rows.drop_duplicates("clause")
        titles = (f"{row.number} {row.title}{_should(row.level)}" for row in named.itertuples())
        parts.append(f"{prefix}: " + " · ".join(titles) + ".")
    symbols = tables.SYMBOLS
    parts.append(
        f"{symbols['passed']} every executed case passed · {symbols['failed']}k/n k of n executed cases failed ·"
        f" {symbols['deviates']}k/n deviate as recorded · {symbols['advised']}k/n do not follow a SHOULD ·"
        f" {symbols['unsupported']} unsupported · empty: not run."
        " A case that fails counts at the clause it broke; the counts of all are in `matrix.csv`."
    )
    return "\n\n".join(parts)


def _should(level: str) -> str:
    return "" if level in ("MUST", "") else f" ({level})"


def _differences(frame: pd.DataFrame, clauses: Mapping[str, Clause]) -> str:
    table = tables.differences(frame)
    if table.empty:
        return "### How they differ\n\nNo failure, no deviation, no advice."
    titles = [clauses[name].title if name in clauses else "" for name in table["clause"]]
    table["clause"] = [f"{name} {title}".strip() for name, title in zip(table["clause"], titles, strict=True)]
    table["outcome"] = [f"{o}: {k}" if k else o for o, k in zip(table["outcome"], table["kind"], strict=True)]
    table["what it does"] = table["what it does"].map(shortened)
    if table["device"].nunique() == 1:
        table = table.drop(columns="device")
    return "### How they differ\n\n" + markdown(table.drop(columns="kind"))


def _speed(cells: pd.DataFrame, sources: tuple[Source, ...]) -> list[str]:
    parts = []
    formulas = dict.fromkeys(source.environment["flops"] for source in sources if source.kind == "benchmark")
    for (family, device, dtype), rows in cells.groupby(["family", "device", "dtype"], sort=False):
        parts.append(f"### `{family}`, {device}, {dtype}")
        struck = {
            (row.implementation, row.S): f"✗ {row.clause}" for row in rows[rows["outcome"] == "struck out"].itertuples()
        }
        parts.append("Median milliseconds per call by sequence length S; the least is bold.")
        parts.append(_lengths(rows, "median_ms", struck, best=min))
        parts.append(f"GFLOP/s, by the median; operations are counted as {' or '.join(formulas)}; the most is bold.")
        parts.append(_lengths(rows, "gflops", struck, best=max))
    parts.append(
        "✗ struck out: the result breaks this clause, so it has no timing · – left out, for a reason given below."
    )
    parts += [_preparation(cells), _left_out(cells)]
    return parts


def _lengths(rows: pd.DataFrame, value: str, struck: Mapping[Any, str], best: Callable[[Any], float]) -> str:
    table = tables.by_length(rows, value)
    texts = pd.DataFrame(index=table.index)
    for length, column in table.items():
        timed = column.dropna()
        top = best(timed) if len(timed) > 1 else None  # alone it is no winner
        texts[f"S={length}"] = [
            _cell(number, struck.get((name, length), NONE), bold=number == top) for name, number in column.items()
        ]
    return markdown(texts.reset_index(names="implementation"), left=1)


def _cell(number: float, otherwise: str, bold: bool) -> str:
    if math.isnan(number):
        return otherwise
    return f"**{digits(number)}**" if bold else digits(number)


def _faults(records: Records) -> list[str]:
    return [
        "Each fault is a few lines over a correct attention, plugged in as a user's function is"
        " (`conformance/faults`). *Cases*: how many of the ordinary cases it fails; *smallest*: the smallest of them."
        ' Every case of every fault is in `faults.csv`; "cf." marks a thread about the same mechanism elsewhere.',
        markdown(faults.groups(records.faults), left=2),
        "<details><summary>All faults</summary>",
        markdown(faults.table(records.faults)),
        "</details>",
    ]


def _preparation(cells: pd.DataFrame) -> str:
    timed = cells[cells["outcome"] == "timed"]
    if timed.empty:
        return ""
    paid = timed.groupby(["implementation", "device", "dtype"], sort=False)[["prepare_seconds", "first_call_seconds"]]
    table = paid.agg(["median", "max"])
    table.columns = pd.Index(["prepare, median", "prepare, most", "first call, median", "first call, most"])
    table = table.map("{:.3f}".format).reset_index()
    text = "### Before the first timed call\n\nSeconds per workload, none of them in the timings.\n\n"
    return text + markdown(table, left=3)


def _left_out(cells: pd.DataFrame) -> str:
    table = tables.left_out(cells)
    if table.empty:
        return ""
    return "### Cells without a timing\n\n" + markdown(table.assign(reason=table["reason"].map(shortened)))


def _sources(sources: tuple[Source, ...]) -> list[str]:
    counts = pd.DataFrame(
        {
            "file": [source.path.name for source in sources],
            "kind": [source.kind for source in sources],
            "complete": ["yes" if source.complete else "**no: cut off**" for source in sources],
            "read": [source.read for source in sources],
            "used": [source.used for source in sources],
            "refused": [sum(source.refused.values()) for source in sources],
            "why refused": ["; ".join(f"{n} {why}" for why, n in source.refused.items()) for source in sources],
        }
    )
    parts = ["Records by file:", markdown(counts), "Environments:"]
    environments = [f"* `{source.path.name}`: {_environment(source)}" for source in sources]
    missing = sorted({name for source in sources for name in source.not_installed})
    parts.append("\n".join(environments))
    return [*parts, f"Not installed, so not run: {', '.join(missing)}."] if missing else parts


def _environment(source: Source) -> str:
    known = {name: value for name, value in source.environment.items() if value not in ("", {}, None)}
    return "; ".join(_setting(name, value) for name, value in known.items())


def _setting(name: str, value: Any) -> str:
    if isinstance(value, Mapping):
        value = ", ".join(f"{key} {one}" for key, one in value.items())
    elif isinstance(value, float):
        value = digits(value)
    return f"{name.replace('_', ' ')} {value}"


def markdown(table: pd.DataFrame, left: int | None = None) -> str:
    """A Markdown table of text; ``left`` columns are aligned left and the rest right, None: numbers right."""
    numeric = [pd.api.types.is_numeric_dtype(kind) for kind in table.dtypes]
    align = ["right" if (number if left is None else at >= left) else "left" for at, number in enumerate(numeric)]
    texts = table.astype(object).map(escape)
    return str(texts.to_markdown(index=False, disable_numparse=True, colalign=align))


def escape(value: Any) -> str:
    """A value as the text of a Markdown table's cell."""
    return " ".join(str(value).split()).replace("|", "\\|").replace("<", "&lt;")


def shortened(text: str) -> str:
    """A reason that leaves the table readable; the whole of it is in the CSV."""
    return text if len(text) <= WIDEST else text[: WIDEST - 1].rstrip() + "…"


def digits(number: float) -> str:
    """A number to DIGITS significant digits, without an exponent where that is short."""
    if not math.isfinite(number) or number == 0:
        return f"{number:g}"
    places = DIGITS - 1 - math.floor(math.log10(abs(number)))
    if places > 5:
        return f"{number:.1e}"
    return f"{number:.{max(places, 0)}f}"


def share(number: float) -> str:
    """A share of the bound, "–" where nothing was compared."""
    if math.isnan(number):
        return NONE
    return "∞" if math.isinf(number) else f"{number:.2f}"


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _names(names: Any) -> str:
    return ", ".join(f"`{name}`" for name in names)
