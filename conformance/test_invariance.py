"""``pytest conformance --invariance``: the same rows in other calls, of every selected implementation and dtype."""

from __future__ import annotations

import pytest

from attention_conformance.conformance import targets
from attention_conformance.conformance.judging.outcomes import Outcome
from attention_conformance.conformance.run import invariance
from attention_conformance.conformance.run.recorder import Recorder, report


def test_invariance(
    target: targets.Target,
    question: str,
    recorder: Recorder,
    pytestconfig: pytest.Config,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A sequence and a row have the same bits in every call that has them."""
    keywords = targets.selection(pytestconfig).keywords[target.implementation.name]
    timeout = pytestconfig.getoption("case_timeout")
    result = invariance.judge(target, question, targets.pool(pytestconfig), keywords, timeout)
    recorder.record(result)
    if result.message and result.outcome is not Outcome.FAILED:  # pytest prints the message of a failure
        with capsys.disabled():
            print(f"\n{result.message}")
    report(result)
