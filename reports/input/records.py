"""Everything that a report is made from, whichever files it came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from attention_conformance.conformance.judging.outcomes import Result
from attention_conformance.reports.input.bench import BenchRun, Samples
from attention_conformance.reports.input.source import Source


@dataclass(frozen=True)
class Records:
    """Everything that a report is made from.  A cell is a timed or untimed workload, as a flat dictionary."""

    sources: tuple[Source, ...]
    results: tuple[Result, ...]
    cells: tuple[dict[str, Any], ...]
    #: The kill table, and the number of cases that it is about.
    faults: tuple[dict[str, Any], ...] = ()
    cases: int = 0
    #: What each file of the bench says of its run, and the samples of each timed cell.
    runs: tuple[BenchRun, ...] = ()
    samples: Mapping[tuple, Samples] = field(default_factory=dict)
