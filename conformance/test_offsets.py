"""``pytest conformance``: plugged-in kernels are tested with arrays whose elements lie 2³¹ or more apart."""

from __future__ import annotations

import pytest

from attention_conformance.conformance import targets
from attention_conformance.conformance.run import offsets
from attention_conformance.conformance.run.recorder import Recorder, report


def test_offsets(
    target: targets.Target,
    far: str,
    recorder: Recorder,
    pytestconfig: pytest.Config,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The result equals that of the same numbers lying together."""
    keywords = targets.selection(pytestconfig).keywords[target.implementation.name]
    timeout = pytestconfig.getoption("case_timeout")
    result = offsets.judge(target, keywords, targets.pool(pytestconfig), timeout)
    recorder.record(result)
    if result.message:  # an advisory's message, which pytest does not print
        with capsys.disabled():
            print(f"\n{result.message}")
    report(result)
