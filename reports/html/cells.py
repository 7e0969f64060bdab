"""The cells of the bench as the page needs them: one frame in which every column exists, whatever the file's format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from reports import tables
from reports.model import Model
from reports.records import Records

#: Numbers that not every format or cell has.  Seconds, bytes, shares.
NUMBERS = (
    "B",
    "H",
    "interval_low",
    "interval_high",
    "min",
    "max",
    "rounds",
    "visits",
    "memory_bytes",
    "peak_bytes",
    "flops",
    "gflops",
    "tokens_per_second",
    "intensity",
    "peak_share",
    "roof_share",
    "share",
    "prepare_seconds",
    "first_call_seconds",
)
TEXTS = ("bound_by", "profile", "memory_method", "stopped")

#: A column of times, and one of rates, are of cells that share these.
GROUP = ["family", "device", "dtype"]


def frame(model: Model) -> pd.DataFrame:
    """One row per cell.  ``memory`` is what a call held beyond its inputs, by the newest measure that the file has."""
    cells = model.cells
    if cells.empty:
        return cells
    later = {name: float("nan") for name in NUMBERS if name not in cells}
    cells = cells.assign(**later, **{name: "" for name in TEXTS if name not in cells})
    for name in (*NUMBERS, "median"):
        cells[name] = pd.to_numeric(cells[name], errors="coerce")
    for name in (*TEXTS, "clause", "reason"):
        cells[name] = cells[name].astype(object).where(cells[name].notna(), "")
    if "operator" not in cells:
        cells["operator"] = tables.SDPA
    cells["operator"] = cells["operator"].fillna(tables.SDPA)
    cells["memory"] = cells["memory_bytes"].fillna(cells["peak_bytes"])
    return cells.assign(optimal=_optimal(cells))


def timed(cells: pd.DataFrame) -> pd.DataFrame:
    """Those with a time."""
    return cells[(cells["outcome"] == "timed") & cells["median"].notna()] if not cells.empty else cells


def roofs(records: Records) -> list[Mapping[str, Any]]:
    """The measured limits of the machines, of files that have them."""
    texts, numbers = ("device", "dtype"), ("flops_per_second",)
    return [roof for run in records.runs for roof in run.roofs if _whole(roof, texts, numbers)]


def _whole(record: Mapping[str, Any], texts: Sequence[str], numbers: Sequence[str]) -> bool:
    """Whether nothing of it is missing, null or of another type."""
    return all(isinstance(record.get(name), str) for name in texts) and all(
        isinstance(record.get(name), (int, float)) for name in numbers
    )


def peaks(found: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], Mapping[str, Any]]:
    """The roof of each device and dtype; of several the one with the highest peak."""
    known: dict[tuple[str, str], Mapping[str, Any]] = {}
    for roof in found:
        key = (roof["device"], roof["dtype"])
        if roof["flops_per_second"] > known.get(key, {}).get("flops_per_second", 0):
            known[key] = roof
    return known


def _optimal(cells: pd.DataFrame) -> pd.Series:
    """Whether no other cell of the same workload, device and dtype is both faster and closer."""
    best = pd.Series(data=False, index=cells.index)
    what = ["workload", "device", "dtype"]
    ordered = timed(cells).dropna(subset=["share"]).sort_values([*what, "median", "share"])
    least = ordered.groupby(what, sort=False)["share"].cummin()
    best[ordered.index[(ordered["share"] == least) & ~ordered.duplicated([*what, "share"])]] = True
    return best
