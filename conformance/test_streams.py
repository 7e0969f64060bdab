"""``pytest conformance`` on CUDA: one call of every selected implementation with torch's arrays, in a held stream."""

from __future__ import annotations

import pytest

from attention_conformance.conformance import targets
from attention_conformance.conformance.cases.base import AnyCase
from attention_conformance.conformance.run import streams
from attention_conformance.conformance.run.recorder import Recorder, report


def test_streams(
    target: targets.Target, in_stream: tuple[AnyCase, ...], recorder: Recorder, pytestconfig: pytest.Config
) -> None:
    """A call runs after the work that its stream got before it, and before the work that the stream gets after it."""
    timeout = pytestconfig.getoption("case_timeout")
    result = streams.judge(target, in_stream, targets.pool(pytestconfig), timeout)
    result = recorder.against_ledger(result, in_stream[0])
    recorder.record(result)
    report(result)
