"""Overhead of the timing: the measurement of ``bench.analysis.overhead`` in every run, here with more pairs."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_conformance.bench.analysis import overhead
from attention_conformance.bench.analysis.statistics import Interval
from studies.common import Measured, Study, markdown, ratio_with_interval, sentence


def measure(pairs: int, runs: int) -> dict[str, Any]:
    """Overheads of ``runs`` runs, one after the other."""
    found = [overhead.run(pairs=pairs) for _ in range(runs)]
    return {"runs": found, "versions": {"numpy": np.__version__}, "threads": 1}


def table(found: Measured) -> str:
    """Markdown: the runs one after the other."""
    rows = []
    for one in found["runs"]:
        times = [f"{1e6 * one[name]:.1f}" for name in ("loop_seconds", "call_seconds")]
        rows.append([*times, ratio_with_interval(Interval(one["ratio"], *one["interval"]), 4), one["pairs"]])
    lines = markdown(["bare loop, µs", "by the protocol, µs", "ratio", "pairs of batches"], rows, left=(2,))
    return f"{lines}\n\n{sentence(found)}"


STUDY = Study(
    "overhead",
    "time by the protocol ÷ time of a bare loop, of 100 µs",
    measure,
    {"bench/README.md": table},
    {
        "--pairs": {"type": int, "default": 200, "help": "pairs of batches (default: %(default)s)"},
        "--runs": {"type": int, "default": 3, "help": "one after the other (default: %(default)s)"},
    },
)
