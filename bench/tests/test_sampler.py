"""Sampling in the worker: when it stops, over which inputs, and what it does with an implementation that refuses."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from bench import arguments, sampler
from bench.sampler import Plan
from bench.workloads import Workload
from impls.calls import Request
from impls.contract import Implementation

WORKLOAD = Workload(1, 1, 2, 3)

#: What the stand-ins below saw.
SEEN: list[Any] = []


def copy_of_v(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Remember the input and whether the garbage collector was on; right for one key only."""
    SEEN.append((float(q.flat[0]), gc.isenabled()))
    return v.copy()


def refuses(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Unsupported."""
    raise NotImplementedError("no such kernel")


def large(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """More than any machine has."""
    return np.ones(2**50)


def breaks(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Wrong from the second call on."""
    SEEN.append(None)
    if len(SEEN) > 1:
        raise ValueError("out of luck\nand more")
    return v


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    SEEN.clear()


def opened(function: Any, sets: int = 3) -> sampler.Opened:
    """Open a cell "it" of one of the stand-ins."""
    implementation = Implementation(function.__name__, f"{__name__}:{function.__name__}")
    requests = tuple(Request("cpu", *arguments.make(WORKLOAD, "float32", seed)) for seed in range(sets))
    return sampler.open_cell("it", implementation, requests)


def clock(*seconds: float) -> Any:
    """A stand-in for timing a call: the given times in turn, the last one for ever."""
    coming = list(seconds)

    def time_call(index: int) -> tuple[float, Any]:
        SEEN.append(index)
        return (coming.pop(0) if len(coming) > 1 else coming[0]), f"output of set {index}"

    return time_call


def test_the_least_number_of_rounds_is_kept_however_slow() -> None:
    """Slow calls are made as often as the plan says at least, and no more."""
    seconds, _, _ = sampler.rounds(clock(9.0), 1, Plan(rounds=5, seconds=0.5))
    assert seconds == [9.0] * 5


def test_sampling_stops_once_its_seconds_are_used_up() -> None:
    """Fast calls are made until their sum reaches the plan's seconds."""
    seconds, _, _ = sampler.rounds(clock(0.125), 1, Plan(rounds=5, seconds=2.0))
    assert len(seconds) == 16


def test_sampling_stops_at_the_greatest_number_of_calls() -> None:
    """Very fast calls do not fill the result file."""
    seconds, _, _ = sampler.rounds(clock(0.0), 1, Plan(rounds=5, seconds=1.0, most=40))
    assert len(seconds) == 40


def test_input_sets_are_rotated_and_the_last_is_not_the_first() -> None:
    """Calls go over the sets in turn, and end on a set whose output has not been seen before."""
    seconds, last, output = sampler.rounds(clock(1.0), 3, Plan(rounds=4, seconds=0.0))
    assert SEEN == [0, 1, 2, 0, 1]  # four would do, but the fourth is of set 0
    assert len(seconds) == 5
    assert (last, output) == (1, "output of set 1")


def test_a_cell_is_sampled_on_every_set_without_the_garbage_collector() -> None:
    """Each input set reaches the function, with gc on before and after and off in between."""
    assert opened(copy_of_v).status == "returned"
    SEEN.clear()
    samples = sampler.sample("it", Plan(rounds=6, seconds=0.0, limit=60))
    firsts = {float(arguments.make(WORKLOAD, "float32", seed)[0]["q"].flat[0]) for seed in range(3)}
    assert {first for first, _ in SEEN} == firsts
    assert not any(collecting for _, collecting in SEEN)
    assert gc.isenabled()
    assert np.array_equal(samples.results["output"], arguments.make(WORKLOAD, "float32", samples.last)[0]["v"])


def test_warm_calls_are_not_among_the_samples() -> None:
    """One call of each set is made before the first sample."""
    opened(copy_of_v)
    SEEN.clear()
    samples = sampler.sample("it", Plan(rounds=6, seconds=0.0, limit=60))
    assert len(SEEN) == 3 + len(samples.seconds)


def test_a_cell_over_the_limit_is_not_sampled() -> None:
    """If the warm calls predict more than the limit, there are no samples, only the prediction."""
    opened(copy_of_v)
    samples = sampler.sample("it", Plan(rounds=6, seconds=0.0, limit=0.0))
    assert samples.status == "over"
    assert samples.seconds == ()
    assert samples.predicted > 0


def test_a_refusal_is_unsupported_with_its_reason() -> None:
    """NotImplementedError is not a failure."""
    answer = opened(refuses)
    assert (answer.status, answer.text) == ("unsupported", "no such kernel")


def test_an_array_that_does_not_fit_is_no_wrong_result() -> None:
    """Running out of memory has a status of its own."""
    assert opened(large).status == "memory"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (MemoryError(), "memory"),
        (type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory."), "memory"),
        (RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes"), "memory"),
        (RuntimeError("the mask has no memory of its own"), "raised"),
    ],
)
def test_out_of_memory_is_known_by_what_libraries_raise(error: Exception, status: str) -> None:
    """NumPy, PyTorch and XLA each in their way; another error is the implementation's."""
    assert sampler._kind(error) == status


def test_an_exception_while_sampling_is_an_answer() -> None:
    """What an implementation raises is told in one line, and the worker goes on."""
    assert opened(breaks).status == "returned"
    samples = sampler.sample("it", Plan())
    assert (samples.status, samples.text) == ("raised", "ValueError: out of luck")


def test_preparation_and_the_first_call_are_timed_apart() -> None:
    """Both are reported, and neither is a sample."""
    answer = opened(copy_of_v)
    assert answer.prepare_seconds >= 0
    assert answer.first_call_seconds > 0


#: What the hoarder below keeps.
KEPT: list[Any] = []


def hoards(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Takes 64 MiB in the first call ever, and keeps them for later ones, as XLA does."""
    KEPT[:] = KEPT or [np.ones(2**23)]
    return v.copy()


def test_memory_that_an_earlier_call_left_is_counted() -> None:
    """The second cell grows by nothing, and holds what the first took."""
    KEPT.clear()
    first, second = opened(hoards), opened(hoards)
    if first.peak_bytes is None or second.peak_bytes is None:
        pytest.skip("this system does not tell")
    assert first.held_bytes is not None
    assert second.held_bytes is not None
    assert first.peak_bytes >= 2**26
    assert second.peak_bytes < 2**25
    assert second.held_bytes >= 2**26
