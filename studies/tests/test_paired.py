"""The figures about paired comparisons: what is counted, and what must not be skipped."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from attention_conformance.bench.analysis.statistics import Verdict
from attention_conformance.bench.paired.measure import Plan
from attention_conformance.bench.paired.revisions import RevisionError
from studies import paired


def comparison(slowdown: float, ratio: float) -> dict[str, Any]:
    """Three pairs of processes with two batches each; every pair of batches has this ratio."""
    given = {"implementation": "mine", "slowdown": slowdown, "seconds": 1.0}
    base = [[1.0, 2.0], [2.0, 3.0], [3.0, 1.0]]
    return given | {"base_ms": base, "new_ms": [[ratio * batch for batch in pair] for pair in base]}


#: Four comparisons for each slowdown: with a false alarm, with two missed slowdowns, with none missed.
FOUND = [
    *(comparison(0.0, ratio) for ratio in (1.0, 1.0, 1.01, 1.08)),
    *(comparison(0.05, ratio) for ratio in (1.0, 1.02, 1.05, 1.06)),
    *(comparison(0.10, ratio) for ratio in (1.09, 1.10, 1.11, 1.12)),
]
WHOLE = {"comparisons": FOUND, "load_average": [0.1, 1.0], "written": "2026-01-01"}


def test_false_alarms_and_missed_changes_are_counted() -> None:
    """Each slowdown has rows for all and for each implementation: comparisons, and the shares of the verdicts."""
    rows = [line.split(" | ")[:4] for line in paired.table(WHOLE).splitlines()[2:8]]
    told = (("| 0%", "25.0%"), ("| 5%", "50.0%"), ("| 10%", "100.0%"))
    assert rows == [[injected, of, "4", slower] for injected, slower in told for of in ("all", "mine")]


@pytest.mark.slow(2)
def test_a_cell_that_was_not_timed_ends_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    """If skipped, it would count as no false alarm and as no missed change."""
    monkeypatch.setattr(paired, "CELLS", (("numpy-eager", "prefill-b1h2d16s128"),))
    with pytest.raises(RevisionError, match="numpy-eager prefill-b1h2d16s128: skipped: over the time budget"):
        paired.measure(1, Plan(limit=1e-6))


def test_there_are_two_hundred_comparisons_of_what_is_the_same() -> None:
    """The usual number of rounds gives them, and as many with a slowdown, half of them with each."""
    rounds = paired.STUDY.options["--rounds"]["default"]
    counts = Counter(task.slowdown for number in range(rounds) for task in paired.tasks_of(number))
    assert counts == {0.0: 200, 0.05: 100, 0.10: 100}


def test_another_file_leaves_the_page_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The table is only printed; --page would write it."""
    before = [(path, path.read_bytes()) for path in (paired.STUDY.file, paired.STUDY.blocks()[0][0])]
    other = tmp_path / "other.json"
    other.write_text(json.dumps(WHOLE))
    assert paired.STUDY.main(["--of", str(other)]) == 0
    assert capsys.readouterr().out == paired.table(WHOLE) + "\n"
    assert all(path.read_bytes() == kept for path, kept in before)


def test_the_figures_are_what_is_promised() -> None:
    """At most 1 % of 200 comparisons of equal code are alarms; 5 % is found in 80 % and 10 % in 95 % of comparisons."""
    found = paired.STUDY.kept()["comparisons"]
    rates = {s: paired.rates([paired.ratio(c) for c in found if c["slowdown"] == s]) for s in paired.SLOWDOWNS}
    assert sum(one["slowdown"] == 0 for one in found) >= 200
    assert rates[0.0][Verdict.SLOWER] + rates[0.0][Verdict.FASTER] <= 0.01
    assert rates[0.05][Verdict.SLOWER] >= 0.80
    assert rates[0.10][Verdict.SLOWER] >= 0.95
