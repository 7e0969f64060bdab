"""``pytest conformance --fuzz N``: every property on every selected implementation, device and dtype."""

from __future__ import annotations

from attention_conformance.conformance.properties.plugin import Fuzzing
from attention_conformance.conformance.properties.properties import Property
from attention_conformance.conformance.run.recorder import Recorder, report
from attention_conformance.conformance.targets import Target


def test_fuzz(target: Target, prop: Property, fuzzing: Fuzzing, recorder: Recorder) -> None:
    """The implementation has the property on every random problem."""
    result = fuzzing.result(target, prop)
    recorder.record(result)
    report(result)
