"""``pytest conformance``: kernels that are plugged in are asked for arrays whose elements lie 2³¹ and more apart."""

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
    """The result is that of the same numbers where they lie together."""
    keywords = targets.selection(pytestconfig).keywords[target.implementation.name]
    timeout = pytestconfig.getoption("case_timeout")
    result = offsets.judge(target, keywords, targets.pool(pytestconfig), timeout)
    recorder.record(result)
    if result.message:  # of an advisory, which pytest does not print
        with capsys.disabled():
            print(f"\n{result.message}")
    report(result)
