"""The virtual clock: pytest-benchmark's statistics are those of the samples, bit for bit."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

pytest_plugins = ["pytester"]

#: Samples whose running sum rounds, so a clock that is not rewound gives other differences.
SAMPLES = [0.1, 0.2, 1e-9, 0.30000000000000004, 7.7, 1 / 3]


def test_statistics_are_those_of_the_samples_exactly(pytester: pytest.Pytester) -> None:
    """Minimum, maximum, mean, median and the raw data in the JSON equal the played samples."""
    pytester.makepyfile(f"""
        import pytest
        from attention_conformance.bench.timing.virtual_clock import CLOCK, play

        @pytest.mark.benchmark(timer=CLOCK.read)
        def test_it(benchmark):
            play(benchmark, {SAMPLES!r})
    """)
    path = Path(pytester.path, "out.json")
    result = pytester.runpytest_subprocess("--benchmark-json", str(path))
    result.assert_outcomes(passed=1)
    stats = json.loads(path.read_text())["benchmarks"][0]["stats"]
    assert stats["data"] == SAMPLES
    assert stats["min"] == min(SAMPLES)
    assert stats["max"] == max(SAMPLES)
    assert stats["mean"] == statistics.mean(SAMPLES)
    assert stats["median"] == statistics.median(SAMPLES)
    assert stats["rounds"] == len(SAMPLES)
    assert stats["iterations"] == 1
