"""The figures of two runs that agree."""

from __future__ import annotations

import json
from pathlib import Path

from attention_conformance.bench.analysis.statistics import Interval
from attention_conformance.reports.tests.test_agreement import run
from studies import agreement


def test_the_figures_say_how_long_the_runs_were(tmp_path: Path) -> None:
    """As a list of Markdown, from what is kept of both runs."""
    files = [Path(run(tmp_path, name, a=(10, 9, 11))) for name in ("one.json", "other.json")]
    found = json.loads(json.dumps(agreement.measure((files[0], files[1]))))
    (pair,) = agreement.cells(found)
    assert (pair.one, pair.agrees) == (Interval(0.01, 0.009, 0.011), True)
    assert agreement.table(found).splitlines() == [
        "- 1 of 1 cells agree within their intervals",
        "- half of the intervals are within 11.1% of their medians, nine of ten within 11.1%",
        "- half of the medians differ by at most 0.0% from one run to the other",
        "- first run: 123 s; load average 0.5; 2026-01-01T10:00:00+00:00",
        "- second run: 123 s; load average 0.5; 2026-01-01T10:00:00+00:00",
        "- a processor, 2 cores",
    ]
