"""The page's tables of speed: what was timed, by sequence length, and what was not."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from attention_conformance.bench.workloads.titles import title
from attention_conformance.reports.input.read import Source
from attention_conformance.reports.model import tables
from attention_conformance.reports.text import NONE, code, digits, inert, shortened, table, words

#: Signs before the clause that a cell without a time breaks.
SIGNS = {"invalid": "✗", "unstable": "✗", "known-deviation": "≠"}

#: Part of the name of a family whose open length is the number of past keys.
PAST = "k*"


def speed(cells: pd.DataFrame, sources: tuple[Source, ...]) -> list[str]:
    """Times and rates by family, device and dtype, then the cost of preparation and the cells without a timing."""
    parts = []
    for (family, device, dtype), rows in cells.groupby(["family", "device", "dtype"], sort=False):
        parts.append(f"### {inert(title(family))} ({code(family)}), {inert(device)}, {inert(dtype)}")
        invalid = {
            (row.implementation, row.S): f"{SIGNS[str(row.outcome)]} {row.clause}"
            for row in rows[rows["outcome"].isin(SIGNS)].itertuples()
        }
        decodes = PAST in str(family)
        parts.append(
            f"Median milliseconds per call by {'past keys k' if decodes else 'sequence length S'}; the fastest is bold."
        )
        letter = "k" if decodes else "S"
        parts.append(_lengths(rows, "median_ms", invalid, min, letter))
        formulas = " or ".join(_formulas(sources, rows))
        counted = f"operations are counted as {inert(formulas)}; " if formulas else ""
        parts.append(f"GFLOP/s, by the median; {counted}the highest is bold.")
        parts.append(_lengths(rows, "gflops", invalid, max, letter))
        if decodes and "tokens_per_second" in rows:
            parts.append("Tokens per second, by the median; the highest is bold.")
            parts.append(_lengths(rows, "tokens_per_second", invalid, max, letter))
    parts.append(
        "✗ invalid: the result breaks this clause, so it has no time (one that was right when it was run again has it"
        " below, apart) · ≠ known deviation: it breaks this clause as the ledger says, so it has no time either ·"
        " – skipped, for the reason given below."
    )
    parts += [_preparation(cells), _untimed(cells)]
    return parts


def _formulas(sources: tuple[Source, ...], rows: pd.DataFrame) -> list[str]:
    """Formulas that count the operations of a family; none from a file that does not have them."""
    operator = rows["operator"].iloc[0]
    known = (source.environment.get("flops") for source in sources if source.kind == "benchmark")
    found = [each.get(operator, "") for each in known if isinstance(each, Mapping)]
    return [text for text in dict.fromkeys(found) if text]


def _lengths(
    rows: pd.DataFrame, value: str, invalid: Mapping[Any, str], best: Callable[[Any], float], letter: str
) -> str:
    frame = tables.by_length(rows, value)
    texts = pd.DataFrame(index=frame.index)
    for length, column in frame.items():
        timed = column.dropna()
        top = best(timed) if len(timed) > 1 else None  # a single one is no winner
        texts[f"{letter}={length}"] = [
            _cell(number, invalid.get((name, length), NONE), bold=number == top) for name, number in column.items()
        ]
    texts.index = texts.index.map(inert)
    return table(texts.reset_index(names="implementation"), left=1, ready=True)


def _cell(number: float, otherwise: str, bold: bool) -> str:
    if math.isnan(number):
        return inert(otherwise)
    return f"**{digits(number)}**" if bold else digits(number)


def _preparation(cells: pd.DataFrame) -> str:
    timed = cells[cells["outcome"] == "timed"]
    if timed.empty:
        return ""
    paid = timed.groupby(["implementation", "device", "dtype"], sort=False)[["prepare_seconds", "first_call_seconds"]]
    frame = paid.agg(["median", "max"])
    frame.columns = pd.Index(["prepare, median", "prepare, longest", "first call, median", "first call, longest"])
    frame = frame.map("{:.3f}".format).reset_index()
    text = "### Before the first timed call\n\nSeconds per workload; the times above do not include them.\n\n"
    return text + table(frame, left=3)


def _untimed(cells: pd.DataFrame) -> str:
    frame = tables.untimed(cells)
    if frame.empty:
        return ""
    return "### Cells without a timing\n\n" + table(
        frame.assign(reason=frame["reason"].map(shortened), outcome=frame["outcome"].map(words))
    )
