"""Growth of memory in the cells of a report; ``bench.analysis.fits`` decides what is quadratic, for every view."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from attention_conformance.bench.analysis.fits import BETWEEN, LEAST_PER_SCORE, SQUARED, Growth, Memory
from attention_conformance.bench.analysis.fits import memories as _memories
from attention_conformance.reports.text import inert, table

#: The rule in a sentence, for a reader.
RULE = (
    f"Quadratic: at the longest length a call holds at least {LEAST_PER_SCORE:.0f} byte for each of the B·H·S² scores,"
    f" and the 95 % interval of the exponent of S lies above {BETWEEN}; or, where that interval contains {BETWEEN}, at"
    f" least {100 * SQUARED:.0f} % of the bytes grow as S², by the parabola through the three longest lengths."
    " Unclear: neither rule decides, or there is no exponent because fewer than three lengths take 1 MiB, or the"
    " longest call has fewer than 2²⁴ scores, which memory that the process already has, or the blocks of a kernel, may"
    " hide."
)


def memories(cells: Iterable[Mapping[str, Any]]) -> list[Memory]:
    """Memory of each series of timed cells that has the bytes of two lengths, by the newest measure that a file has."""
    return _memories(
        {**cell, "memory_bytes": _held_bytes(cell)} for cell in cells if cell["outcome"] == "timed" and cell["S"] > 0
    )


def frame(found: Iterable[Memory]) -> pd.DataFrame:
    """One row for each series."""
    rows = [
        {
            **{name: getattr(one, name) for name in ("implementation", "device", "dtype", "family")},
            "growth": one.growth.value,
            "exponent": one.line.exponent if one.line else math.nan,
            "exponent low": one.line.low if one.line else math.nan,
            "exponent high": one.line.high if one.line else math.nan,
            "bytes": one.bytes,
            "scores": one.scores,
            "longest": one.longest,
        }
        for one in found
    ]
    return pd.DataFrame(rows)


def by_growth(found: Iterable[Memory]) -> str:
    """A Markdown table: the implementations by growth in each family, with the exponents."""
    groups: dict[tuple[str, str, str], dict[Growth, list[str]]] = {}
    for one in found:
        growths = groups.setdefault((one.family, one.device, one.dtype), {growth: [] for growth in Growth})
        growths[one.growth].append(f"{one.implementation} {one.line.exponent:.2f}" if one.line else one.implementation)
    rows = [(*key, *(", ".join(names) for names in growths.values())) for key, growths in sorted(groups.items())]
    columns = ["family", "device", "dtype", *(growth.value for growth in Growth)]
    return table(pd.DataFrame(rows, columns=columns), left=len(columns)) + f"\n\n{inert(RULE)}"


def _held_bytes(cell: Mapping[str, Any]) -> float | None:
    newest: float | None = cell.get("memory_bytes")
    return cell.get("peak_rss_bytes") if newest is None else newest
