"""The cells of the bench as the page needs them: one frame in which every column exists, whatever the file has."""

from __future__ import annotations

import pandas as pd

from attention_conformance.reports.input.records import Records
from attention_conformance.reports.model.model import Model

#: Numbers that not every cell has.  Seconds, bytes, shares.
NUMBERS = (
    "B",
    "H",
    "interval_low",
    "interval_high",
    "min",
    "max",
    "rounds",
    "process_runs",
    "memory_bytes",
    "peak_rss_bytes",
    "flops",
    "gflops",
    "tokens_per_second",
    "intensity",
    "share_of_peak",
    "share_of_limit",
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
    cells["memory"] = cells["memory_bytes"].fillna(cells["peak_rss_bytes"])
    return cells.assign(optimal=_optimal(cells))


def timed(cells: pd.DataFrame) -> pd.DataFrame:
    """Those with a time."""
    return cells[(cells["outcome"] == "timed") & cells["median"].notna()] if not cells.empty else cells


def peaks(records: Records) -> dict[tuple[str, str], float]:
    """The measured peak of each device and dtype, in FLOP/s; of several the highest one."""
    found: dict[tuple[str, str], float] = {}
    for peak in (peak for run in records.runs for peak in run.peaks if peak.flops_per_second is not None):
        key = (peak.device, peak.dtype)
        found[key] = max(found.get(key, 0.0), peak.flops_per_second or 0.0)
    return found


def _optimal(cells: pd.DataFrame) -> pd.Series:
    """Whether no other cell of the same workload, device and dtype is both faster and closer."""
    best = pd.Series(data=False, index=cells.index)
    what = ["workload", "device", "dtype"]
    ordered = timed(cells).dropna(subset=["share"]).sort_values([*what, "median", "share"])
    least = ordered.groupby(what, sort=False)["share"].cummin()
    best[ordered.index[(ordered["share"] == least) & ~ordered.duplicated([*what, "share"])]] = True
    return best
