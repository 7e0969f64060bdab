"""``pytest conformance``: every case on every selected implementation, device and dtype."""

from __future__ import annotations

from attention_conformance.conformance.cases import AnyCase
from attention_conformance.conformance.run.recorder import Recorder, report
from attention_conformance.conformance.targets import Target


def test_sdpa(target: Target, case: AnyCase, recorder: Recorder) -> None:
    """The implementation computes what the spec says for the case."""
    result = recorder.result(target, case)
    recorder.record(result)
    report(result)
