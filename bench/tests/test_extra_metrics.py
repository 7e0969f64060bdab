"""Measurements in addition to times: what a record and the run say about them, and how they reveal an S×S array."""

from __future__ import annotations

import numpy as np
import pytest

from attention_conformance.bench.analysis.fits import Growth
from attention_conformance.bench.memory.peak import Peak
from attention_conformance.bench.output import extra_metrics
from attention_conformance.bench.output.extra_metrics import ExtraMetrics
from attention_conformance.bench.processes import Processes
from attention_conformance.bench.records import Roofline
from attention_conformance.bench.tests.measured import cell, outcomes


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """All scores at once."""
    s = q @ k.swapaxes(-1, -2) * np.float32(q.shape[-1] ** -0.5)
    p = np.exp(s - s.max(-1, keepdims=True))
    result: np.ndarray = p / p.sum(-1, keepdims=True) @ v
    return result


def by_rows(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """The scores of sixteen rows at once."""
    parts = [attention(q[:, :, at : at + 16], k, v) for at in range(0, q.shape[2], 16)]
    return np.concatenate(parts, axis=2)


LENGTHS = (512, 1024, 2048)


@pytest.fixture(scope="module")
def measured() -> tuple[ExtraMetrics, dict]:
    """Both functions at three lengths, measured in separate processes."""
    cells = [cell(f, f"prefill-b1h4d16s{s}", worker=f.__name__) for f in (attention, by_rows) for s in LENGTHS]
    timed = outcomes(*cells)
    with pytest.MonkeyPatch.context() as patch:  # rooflines take seconds, and this test does not use them
        patch.setattr(extra_metrics, "rooflines", lambda *_: [])
        patch.setattr("attention_conformance.bench.analysis.overhead.run", lambda *_: {})
        return extra_metrics.measure(timed, Processes(1), 1, memory=True, notify=lambda text: None), timed


@pytest.mark.slow
def test_an_array_of_all_scores_is_exposed_by_its_exponent(measured: tuple[ExtraMetrics, dict]) -> None:
    """The memory of all scores at once grows with the square of the length; that of a few rows does not."""
    found, timed = measured
    growths = {one.implementation: one.growth for one in found.memories(timed)}
    assert growths == {"attention": Growth.QUADRATIC, "by_rows": Growth.LESS}


@pytest.mark.slow
def test_the_bytes_are_those_of_the_scores(measured: tuple[ExtraMetrics, dict]) -> None:
    """At S = 2048 all scores are 64 MiB, and a call holds at least two of them; sixteen rows are not a hundredth."""
    found, _ = measured
    longest = {one.target.implementation.name: peak.bytes for one, peak in found.peaks.items() if "2048" in one.id}
    whole, rows = longest["attention"], longest["by_rows"]
    assert whole is not None
    assert rows is not None
    assert 2 * 2**26 <= whole < 5 * 2**26
    assert rows < 2**24


def test_a_record_has_its_share_of_the_rooflines() -> None:
    """A record has its share of the measured peak, and the roofline that binds at its intensity."""
    one = cell(attention, "prefill-b1h1d16s512")
    found = ExtraMetrics({one: Peak(4096, "resident set")}, (Roofline("cpu", "float32", 1e11, "numpy", 1e10, "numpy"),))
    info = found.info(one, seconds=1e-3)
    flops = 4 * 512 * 512 * 16
    assert info["share_of_peak"] == pytest.approx(flops / 1e-3 / 1e11)
    assert info["bytes_least"] == 4 * 512 * 16 * 4
    assert info["bound_by"] == "compute"
    assert (info["memory_bytes"], info["memory_method"]) == (4096, "resident set")


def test_what_was_not_measured_is_none() -> None:
    """Without rooflines and memory there are no shares and no bytes, and the reason is given."""
    info = ExtraMetrics().info(cell(attention, "prefill-b1h1d16s512"), seconds=1e-3)
    assert [info[name] for name in ("share_of_peak", "bound_by", "memory_bytes")] == [None, None, None]
    assert info["memory_method"] == "not requested"


def test_a_run_that_timed_nothing_measures_nothing() -> None:
    """Rooflines would be of no use without a timed cell."""
    assert extra_metrics.measure({}, Processes(1), 1, memory=True, notify=lambda text: None) == ExtraMetrics()
