"""``benchmark``: times of functions that are right, and messages about those that are not."""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from attention_conformance import BenchmarkReport, Timing, benchmark
from attention_conformance.bench.validity import cheating
from attention_conformance.bench.validity.outcomes import Cell, Outcome, ProcessRun
from attention_conformance.bench.workloads.workload import Workload, WorkloadError
from attention_conformance.benchmarking import _ratios, _timing
from attention_conformance.conformance.targets import Target
from attention_conformance.impls.contract import Implementation, ImplementationError

pytestmark = pytest.mark.slow(4)

SHAPE = (1, 2, 128, 16)
QUICK: dict[str, Any] = {"shapes": SHAPE, "processes": 1, "seconds": 0.05}


def attention(power: float) -> Callable[..., np.ndarray]:
    """A closure: scores are divided by D to this power."""

    def scaled(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        s = q @ k.swapaxes(-1, -2) / np.float32(q.shape[-1] ** power)
        p = np.exp(s - s.max(-1, keepdims=True))
        return np.asarray(p / p.sum(-1, keepdims=True) @ v)

    return scaled


RIGHT, WRONG = attention(0.5), attention(1.0)


@pytest.fixture(autouse=True)
def _peak(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that the machine reaches 1 TFLOP/s, as measuring it takes seconds."""
    monkeypatch.setattr(cheating, "best_product", lambda *_, **__: 1e12)


def lies(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Set the stopwatch's clock back by the time that the call took, once, and restore it."""
    stopwatch: Any = importlib.import_module("attention_conformance.bench.sampling.stopwatch")
    real = stopwatch.perf_counter
    started = real()
    output = RIGHT(q, k, v)
    while real() < started + 0.0005:
        pass
    hidden = real() - started - 1e-4

    def fake() -> float:
        stopwatch.perf_counter = real
        return real() - hidden

    stopwatch.perf_counter = fake
    return output


@pytest.fixture(scope="module")
def report() -> BenchmarkReport:
    """The report on a closure, compared with a built-in by its name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cheating, "best_product", lambda *_, **__: 1e12)
        return benchmark(RIGHT, against="numpy-tiled", **QUICK)


def test_a_right_function_has_a_time(report: BenchmarkReport) -> None:
    """A right function has a median with its interval, the number of calls, and shares of peak and bound."""
    timing = report.timing
    assert report.ok
    assert (timing.name, timing.workload, timing.dtype) == ("scaled", "prefill-b1h2d16s128", "float32")
    assert timing.seconds is not None
    assert timing.interval is not None
    assert timing.interval[0] <= timing.seconds <= timing.interval[1]
    assert timing.calls == sum(map(len, timing.samples[0])) >= 9
    assert timing.flops_per_second is not None
    assert timing.flops_per_second == pytest.approx(4 * 2 * 128 * 128 * 16 / timing.seconds)
    assert timing.share_of_peak == pytest.approx(timing.flops_per_second / 1e12)
    assert timing.error_share is not None
    assert 0 < timing.error_share <= 1


def test_a_ratio_from_one_process_has_no_verdict(report: BenchmarkReport) -> None:
    """The ratio is the function's time ÷ the other one's; one process gives it no interval, and the report says why."""
    (ratio,) = report.ratios
    assert (ratio.name, ratio.against) == ("scaled", "numpy-tiled")
    assert (ratio.interval, ratio.verdict) == (None, "unclear")
    assert "unclear: fewer than 3 processes do not show how much processes differ: processes=3 gives" in repr(report)


def timed(name: str, *by_process: float) -> Timing:
    """A timing with two batches in each process."""
    samples = tuple(((one,), (one,)) for one in by_process)
    return Timing(name, "prefill-b1h2d16s128", "float32", "cpu", "timed", samples=samples)


def test_a_ratio_from_three_processes_has_a_verdict() -> None:
    """Three processes give an interval around the ratio, and a verdict without a reason."""
    (ratio,) = _ratios("new", [timed("new", 2.0, 2.02, 1.98), timed("old", 1.0, 1.0, 1.0)])
    assert ratio.interval is not None
    assert ratio.interval[0] <= ratio.ratio <= ratio.interval[1]
    assert (ratio.verdict, ratio.reason) == ("slower", "")


def test_a_report_is_data_and_text(report: BenchmarkReport) -> None:
    """A report can be JSON, text, HTML for a notebook, and a data frame."""
    assert json.loads(report.to_json())["timings"][0]["seconds"] == report.timing.seconds
    assert "÷ numpy-tiled" in repr(report)
    assert "<table>" in report._repr_html_()
    frame = report.to_pandas()
    assert list(frame["name"]) == ["scaled", "numpy-tiled"]


@pytest.mark.parametrize(
    ("function", "clause", "text"),
    [
        (WRONG, "SDPA-25", "checked elements are outside the bound"),
        (lies, "clock", "its clock and ours disagree"),
    ],
    ids=["wrong", "lies"],
)
def test_what_is_not_right_has_no_time_but_a_message(function: Any, clause: str, text: str) -> None:
    """A wrong or cheating function is invalid, by the clause or the rule that it breaks."""
    report = benchmark(function, **QUICK)
    timing = report.timing
    assert not report.ok
    assert (timing.outcome, timing.clause, timing.seconds) == ("invalid", clause, None)
    assert text in timing.reason
    assert timing.message in repr(report)


def test_a_time_beyond_the_peak_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A time beyond the peak of a (here very slow) machine is invalid."""
    monkeypatch.setattr(cheating, "best_product", lambda *_, **__: 1e3)
    timing = benchmark(RIGHT, **QUICK, isolated=False).timing
    assert (timing.outcome, timing.clause) == ("invalid", "peak")


def test_an_uncertain_median_says_what_ran_beside() -> None:
    """Calls that waited for a core for 5 % of their time or more are reported; the load, if waiting is unknown."""
    cell = Cell(Target(Implementation("it", "nowhere:f"), "cpu", "float32"), Workload(1, 2, 4, 8))
    outcome = Outcome(process_runs=tuple(ProcessRun(((one, 3 * one),), 0.5, 1.0, 2.0, 3) for one in (0.1, 0.3, 0.9)))
    told, quiet, unknown = (_timing(cell, outcome, 1, wait).unstable for wait in (0.31, 0.04, None))
    assert "; calls waited 31% of their time for a core; a larger seconds=" in told
    assert "%; a larger seconds=" in quiet
    assert "%; load average " in unknown


def test_what_a_function_lacks_is_skipped() -> None:
    """A causal workload, by its name or by the option, is skipped with the reason if the function has no is_causal."""
    for given in ({"shapes": "prefill-b1h2d16s128-causal"}, {"shapes": SHAPE, "is_causal": True}):
        timing = benchmark(RIGHT, processes=1, isolated=False, **given).timing  # type: ignore[arg-type]
        assert (timing.workload, timing.outcome) == ("prefill-b1h2d16s128-causal", "skipped")
        assert "no keyword is_causal" in timing.reason


def test_two_functions_of_one_name_are_told_apart() -> None:
    """The second function of a name gets a number."""
    report = benchmark(RIGHT, against=attention(0.5), **QUICK, isolated=False)
    assert [timing.name for timing in report.timings] == ["scaled", "scaled-2"]
    assert report.ratios[0].against == "scaled-2"


def test_a_shape_may_have_other_numbers_of_heads_and_keys() -> None:
    """Shapes may be given as in the gate, as a name, or as four numbers."""
    from attention_conformance.benchmarking import _workloads

    shapes: list[Any] = [(2, 4, 2, 8, 8, 16), (1, 4, 4, 8, 32, 16, 8), "model/gpt2", (1, 2, 8, 4)]
    assert [each.name for each in _workloads(shapes, is_causal=False)] == [
        "prefill-b2h4g2d16s8",
        "cross-b1h4d16v8s8k32",
        "prefill-b1h12d64s1024-causal",
        "prefill-b1h2d4s8",
    ]


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"shapes": (1, 2)}, WorkloadError, "a shape is"),
        ({"shapes": "prefill-b1"}, WorkloadError, "prefill-b1"),
        ({"shapes": (1, 3, 2, 8, 8, 8)}, WorkloadError, "do not divide"),
        ({"dtypes": ["float31"]}, ImplementationError, "did you mean float32"),
        ({"device": "tpu"}, ImplementationError, "tpu: unknown"),
        ({"threads": 4096}, ImplementationError, "threads is 4096"),
        ({"seconds": 0}, ImplementationError, "seconds is 0"),
        ({"against": "torch-sdpaa"}, ImplementationError, "torch-sdpaa"),
        ({"shapes": "mha-b1h2d16s128"}, ImplementationError, "is of mha"),
        ({"framework": "tensorflow"}, ImplementationError, "tensorflow"),
    ],
)
def test_what_cannot_be_used_is_one_sentence(changes: dict[str, Any], error: type[Exception], text: str) -> None:
    """An unusable argument is refused in one sentence, before anything is timed."""
    with pytest.raises(error, match=text) as raised:
        benchmark(RIGHT, **QUICK | {"isolated": False} | changes)
    assert "\n" not in str(raised.value)


def test_no_function_is_refused() -> None:
    """Something that is no function is refused, as by ``check``."""
    with pytest.raises(ImplementationError, match="expected a function, got int"):
        benchmark(3)  # type: ignore[arg-type]


def test_a_missing_package_of_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing package is named, with the command that installs it."""
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "rich" else found(name, *rest))
    with pytest.raises(ModuleNotFoundError, match=r"needs rich: pip install 'attention-conformance\[bench\]'"):
        benchmark(RIGHT, **QUICK)
