"""A small history for the tests of its page: every number in it is known."""

from __future__ import annotations

import datetime
from pathlib import Path

from attention_conformance.conformance.judging.outcomes import Outcome
from attention_conformance.reports.tests.files import (
    bench_run,
    conformance_file,
    failed,
    fingerprint,
    result,
    steady,
    timed,
)
from attention_conformance.reports.tests.pages import HOSTILE

#: Runs, the first that is slow, and how slow: new ÷ old of the only change.
RUNS, SLOW_FROM, RATIO = 30, 18, 1.3


def folder(path: Path, *, slow: bool = True) -> Path:
    """A run of two cells each day, one with a hostile name; the other is slower from one day on, with a version."""
    path.mkdir(parents=True, exist_ok=True)
    for day in range(RUNS):
        later = slow and day >= SLOW_FROM
        cells = [
            timed("quick", 128, steady(1e-3 * (RATIO if later else 1.0), day)),
            timed(HOSTILE, 128, steady(2e-3, 100 + day)),
        ]
        of = fingerprint(versions={"torch": "2.13" if later else "2.12", "numpy": "2.0"})
        when = (datetime.datetime(2026, 1, 1) + datetime.timedelta(days=day)).isoformat()
        bench_run(path / f"{day:02}.json", *cells, started=when, fingerprint=of)
        if day % 10 == 0:
            second = failed("quick", "d") if day else result("quick", "d", Outcome.KNOWN_DEVIATION)
            conformance_file(path / f"{day:02}.jsonl", result("quick", "c"), second, started=when)
    (path / "bad.json").write_text("{")
    return path
