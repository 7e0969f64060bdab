"""Agreement of two runs of the quick preset, for the page: ``attention-conformance agree`` compares any two."""

from __future__ import annotations

from dataclasses import astuple
from datetime import datetime
from pathlib import Path
from typing import Any

from attention_conformance.bench.analysis.statistics import Interval
from attention_conformance.reports.compare.agreement import Pair, compared, text
from attention_conformance.reports.input.read import read
from studies.common import Measured, Study, Unfit


def measure(runs: tuple[Path, Path] | None) -> dict[str, Any]:
    """Both runs' cells, how long each run took, and where.  Raises Unfit without two runs that have cells in common."""
    if runs is None:
        raise Unfit("--runs: which two?")
    one, other = (read([path]) for path in runs)
    pairs, alone = compared(one, other)
    if not pairs:
        raise Unfit("no cell is in both runs")
    told = []
    for run in (one.runs[0], other.runs[0]):
        begun, ended = (datetime.fromisoformat(when) for when in (run.started, run.finished))
        facts = {"command": run.command, "started": run.started, "load_average": run.load_average}
        told.append(facts | {"seconds": (ended - begun).total_seconds(), "machine": run.fingerprint})
    cells = [{"cell": pair.name, "one": astuple(pair.one), "other": astuple(pair.other)} for pair in pairs]
    return {"runs": told, "cells": cells, "in_one_only": alone}


def cells(found: Measured) -> list[Pair]:
    """The cells of the figures."""
    return [Pair(each["cell"], Interval(*each["one"]), Interval(*each["other"])) for each in found["cells"]]


def table(found: Measured) -> str:
    """Markdown: what the command prints, and where and how long the runs were."""
    lines = text(cells(found), found["in_one_only"]).splitlines()
    for name, run in zip(("first", "second"), found["runs"], strict=True):
        load = "not told" if run["load_average"] is None else f"{run['load_average']:.1f}"
        lines.append(f"{name} run: {run['seconds']:.0f} s; load average {load}; {run['started']}")
    machine = found["runs"][0]["machine"]
    return "\n".join(f"- {line}" for line in [*lines, f"{machine['cpu']}, {machine['cores_usable']} cores"])


STUDY = Study(
    "agreement",
    "whether two runs of the quick preset agree within the intervals that they print",
    measure,
    {"bench/README.md": table},
    {"--runs": {"nargs": 2, "type": Path, "metavar": ("ONE.json", "OTHER.json"), "help": "of pytest bench"}},
)
