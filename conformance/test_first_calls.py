"""``pytest conformance --fresh N``: the first call of N fresh processes of every selected implementation and dtype."""

from __future__ import annotations

import pytest

from attention_conformance.conformance import targets
from attention_conformance.conformance.judging.outcomes import Outcome
from attention_conformance.conformance.run import first_calls
from attention_conformance.conformance.run.recorder import Recorder, report


def test_first_calls(
    target: targets.Target,
    fresh: int,
    recorder: Recorder,
    pytestconfig: pytest.Config,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The first call gives what every later call gives."""
    result = first_calls.judge(target, fresh, targets.selection(pytestconfig).versions)
    recorder.record(result)
    if result.message and result.outcome is not Outcome.FAILED:  # pytest prints the message of a failure
        with capsys.disabled():
            print(f"\n{result.message}")
    report(result)
