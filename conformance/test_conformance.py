"""``pytest conformance``: every case on every selected implementation, device and dtype."""

from __future__ import annotations

import pytest

from conformance import targets
from conformance.cases import Case
from conformance.judge import judge
from conformance.plugin import Recorder, report


def test_sdpa(
    target: targets.Target, case: Case, pool: targets.Pool, recorder: Recorder, request: pytest.FixtureRequest
) -> None:
    """The implementation computes what the spec says of the case."""
    recorder.start()
    config = request.config
    selection = targets.selection(config)
    result = judge(
        target,
        case,
        pool,
        selection.keywords[target.implementation.name],
        recorder.ledger,
        selection.versions,
        config.getoption("case_timeout"),
    )
    recorder.record(result)
    report(result)
