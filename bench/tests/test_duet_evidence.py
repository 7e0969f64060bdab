"""The figures about a duet: what is counted, and what must not be left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.duet import evidence
from bench.duet.measure import Plan
from bench.duet.sides import SideError


def comparison(slowdown: float, ratio: float) -> dict[str, Any]:
    """Turns of which every pair has this ratio."""
    given = {"implementation": "mine", "slowdown": slowdown, "seconds": 1.0}
    return given | {"base_ms": [1.0, 2.0, 3.0], "new_ms": [ratio, 2 * ratio, 3 * ratio]}


#: Of each slowdown four comparisons: a false alarm, two slowdowns that are missed, none.
FOUND = [
    *(comparison(0.0, ratio) for ratio in (1.0, 1.0, 1.01, 1.08)),
    *(comparison(0.05, ratio) for ratio in (1.0, 1.02, 1.05, 1.06)),
    *(comparison(0.10, ratio) for ratio in (1.09, 1.10, 1.11, 1.12)),
]
WHOLE = {"comparisons": FOUND, "load_average": [0.1, 1.0], "written": "2026-01-01"}


def test_false_alarms_and_missed_changes_are_counted() -> None:
    """Table rows for each slowdown, of all and of each implementation: comparisons, and the shares of the verdicts."""
    rows = [line.split(" | ")[:4] for line in evidence.table(WHOLE).splitlines()[2:8]]
    told = (("| 0%", "25.0%"), ("| 5%", "50.0%"), ("| 10%", "100.0%"))
    assert rows == [[injected, of, "4", slower] for injected, slower in told for of in ("all", "mine")]


def test_a_cell_that_was_not_timed_ends_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    """Left out, it would count as no false alarm and as no missed change."""
    monkeypatch.setattr(evidence, "CELLS", (("numpy-eager", "prefill-b1h2d16s128"),))
    with pytest.raises(SideError, match="numpy-eager prefill-b1h2d16s128: not timed: over the time budget"):
        evidence.measure(1, Plan(limit=1e-6))


def test_another_file_leaves_the_page_alone(tmp_path: Path) -> None:
    """Only the evidence of the repository is printed on its page."""
    before = evidence.PAGE.read_text(encoding="utf-8")
    other = tmp_path / "other.json"
    other.write_text(json.dumps(WHOLE))
    assert evidence.run(1, other, page=True) == (evidence.table(WHOLE), 0)
    assert evidence.PAGE.read_text(encoding="utf-8") == before


def test_the_page_has_the_figures_of_the_evidence() -> None:
    """Its table is made from the raw medians in the repository."""
    figures = evidence.table(json.loads(evidence.EVIDENCE.read_text(encoding="utf-8")))
    assert f"{evidence.BEGIN}{figures}\n{evidence.END}" in evidence.PAGE.read_text(encoding="utf-8")
