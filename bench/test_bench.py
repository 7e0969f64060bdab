"""``pytest bench``: every workload on every selected implementation, device and dtype.

All cells are measured together when the first test needs it (bench/timing/session.py); a test reports the outcome of
its own.  pytest-benchmark owns the statistics and the JSON; the samples come from the workers (see
bench/timing/virtual_clock.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from attention_conformance.bench.output.document import extra_info, reason_of, record
from attention_conformance.bench.timing.virtual_clock import CLOCK, play
from attention_conformance.bench.validity.outcomes import INVALID, KNOWN_DEVIATION, SKIPPED, UNSTABLE, Cell, Outcome


@pytest.mark.benchmark(timer=CLOCK.read)
def test_forward(
    benchmark: Any, cell: Cell, bench: Any, outcomes: Mapping[Cell, Outcome], versions: dict[str, str]
) -> None:
    """The results are right before and after the call is timed; wrong ones are not timed, unstable ones shown apart.

    Not only forward passes are timed; the name stays, as pytest-benchmark compares runs by it.
    """
    outcome = outcomes[cell]
    bench.record(cell, outcome)
    if outcome.kind == UNSTABLE:
        benchmark.skipped = True
        pytest.fail(f"unstable: {outcome.clause}: {reason_of(record(cell, outcome))}", pytrace=False)
    if outcome.kind == INVALID:
        benchmark.skipped = True  # or pytest-benchmark warns that its fixture was not used
        pytest.fail(f"invalid: {outcome.clause}: {outcome.reason}", pytrace=False)
    if outcome.kind == KNOWN_DEVIATION:
        benchmark.skipped = True
        pytest.xfail(f"known deviation: {outcome.clause}: {outcome.reason}")
    if outcome.kind == SKIPPED:
        pytest.skip(outcome.reason)
    benchmark.group = cell.workload.name
    benchmark.extra_info.update(extra_info(cell, outcome, bench.extra), versions=versions)
    play(benchmark, outcome.seconds)
