"""Sampling in the worker: when it stops, on which inputs, and what it does if an implementation refuses."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attention_conformance.bench.sampling import sampler
from attention_conformance.bench.sampling.sampler import Opened, kind
from attention_conformance.bench.workloads import arguments
from attention_conformance.bench.workloads.workload import Workload
from attention_conformance.impls.contract import Implementation
from attention_conformance.impls.process import allocator
from attention_conformance.impls.process.pool import Worker
from attention_conformance.impls.select import builtin

pytestmark = pytest.mark.slow

WORKLOAD = Workload(1, 1, 2, 3)

#: Observations of the stand-ins below.
SEEN: list[Any] = []


def copy_of_v(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Record the input and whether the garbage collector was on; right for one key only."""
    SEEN.append((float(q.flat[0]), gc.isenabled()))
    return v.copy()


def layer(x_q: np.ndarray, w_q: np.ndarray, w_k: np.ndarray, w_v: np.ndarray, **keywords: Any) -> np.ndarray:
    """Record the input and the identities of the weights."""
    SEEN.append((float(x_q.flat[0]), id(w_q), id(keywords["w_o"]), id(keywords["b_v"])))
    return x_q.copy()


def refuses(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Refuses the call."""
    raise NotImplementedError("no such kernel")


def sleeps(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Waits."""
    time.sleep(0.05)
    return v.copy()


def works(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Computes, on one core."""
    end = time.process_time() + 0.05
    while time.process_time() < end:
        pass
    return v.copy()


def large(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Needs more memory than any machine has."""
    return np.ones(2**50)


def breaks(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Raises from the second call on."""
    SEEN.append(None)
    if len(SEEN) > 1:
        raise ValueError("out of luck\nand more")
    return v


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    SEEN.clear()


def opened(function: Any) -> Opened:
    """Open a cell "it" with one of the stand-ins."""
    implementation = Implementation(function.__name__, f"{__name__}:{function.__name__}")
    return sampler.open_cell("it", implementation, WORKLOAD, "float32", "cpu")


def firsts(*seeds: int) -> set[float]:
    """The first number of q in each of the input sets."""
    first = arguments.make(WORKLOAD, "float32", 0)
    return {float(arguments.fresh(WORKLOAD, *first, -1 - seed)[0]["q"].flat[0]) for seed in seeds}


def test_input_sets_have_the_numbers_of_the_first_at_other_places() -> None:
    """The first set is the drawn one, whose results are known."""
    opened(copy_of_v)
    first, second, third = (given["q"].ravel() for given in sampler.bare("it")[1])
    assert np.array_equal(first, arguments.make(WORKLOAD, "float32", 0)[0]["q"].ravel())
    assert np.array_equal(np.sort(first), np.sort(second))
    assert np.array_equal(np.sort(first), np.sort(third))
    assert len({each.tobytes() for each in (first, second, third)}) == 3


def test_a_batch_is_over_once_its_seconds_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls are made until their sum reaches the seconds of a batch, and one more on fresh inputs."""
    opened(copy_of_v)
    monkeypatch.setattr(sampler._Cell, "time_call", lambda self, native, **how: (0.125, self.run(**native)))
    assert sampler.batch("it", 1.0, 100, 1).seconds == (0.125,) * 9


def test_a_batch_is_over_at_its_most_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Very fast calls do not inflate the result file."""
    opened(copy_of_v)
    monkeypatch.setattr(sampler._Cell, "time_call", lambda self, native, **how: (0.0, self.run(**native)))
    assert len(sampler.batch("it", 1.0, 40, 1).seconds) == 40


def test_a_batch_of_one_call_is_on_fresh_inputs_alone() -> None:
    """A call that is longer than a batch never sees the same inputs twice."""
    opened(copy_of_v)
    SEEN.clear()
    assert len(sampler.batch("it", 1.0, 1, 1).seconds) == 1
    assert not {first for first, _ in SEEN} & firsts(0, 1, 2)
    SEEN.clear()
    assert len(sampler.batch("it", 1.0, 1, 2, lead=1e-12).seconds) == 1
    assert [first in firsts(0, 1, 2) for first, _ in SEEN] == [True, False]


def test_input_sets_are_rotated_and_the_last_call_has_inputs_never_seen() -> None:
    """Each set reaches the function, over the batches, and every batch ends with numbers that no other call had."""
    opened(copy_of_v)
    ends = []
    for number in (0, 1, 2):
        SEEN.clear()
        sampler.batch("it", 60.0, 6, number)
        assert {first for first, _ in SEEN[:-1]} == firsts(0, 1, 2)
        ends.append(SEEN[-1][0])
    assert len({*ends, *firsts(0, 1, 2)}) == 6


def test_a_layer_that_has_seen_its_parameters_sees_them_again() -> None:
    """Preparing parameters, as torch's modules do, is no part of a call; the input is still new."""
    one = Implementation("layer", f"{__name__}:layer", operator="mha")
    sampler.open_cell("it", one, Workload(1, 2, 8, 16, kind="mha"), "float32", "cpu")
    sampler.batch("it", 60.0, 6, 0)
    known = SEEN[:-1]
    assert SEEN[-1][0] not in {first for first, *_ in known}
    assert SEEN[-1][1:] in {tuple(parameters) for _, *parameters in known}


def test_a_batch_is_taken_without_the_garbage_collector() -> None:
    """The collector is on before and after, and off in between."""
    opened(copy_of_v)
    SEEN.clear()
    sampler.batch("it", 60.0, 6, 1)
    assert not any(collecting for _, collecting in SEEN)
    assert gc.isenabled()


def test_the_last_batch_sends_the_results_of_its_fresh_call() -> None:
    """The results can be checked, as fresh inputs can be regenerated from their number; other batches send none."""
    opened(copy_of_v)
    first = arguments.make(WORKLOAD, "float32", 0)
    arrays, _ = arguments.fresh(WORKLOAD, *first, 0)
    last = sampler.batch("it", 0.01, 6, 0, True)
    assert np.array_equal(last.results["output"], arrays["v"])
    assert not sampler.batch("it", 0.01, 6, 1).results


def test_calls_that_follow_something_else_are_not_among_the_samples() -> None:
    """These are the first call of a batch, and the one after small results were read."""
    opened(copy_of_v)
    SEEN.clear()
    assert len(sampler.batch("it", 60.0, 6, 1).seconds) == 6
    assert len(SEEN) == 8


def test_calls_before_the_samples_fill_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight calls of an eighth of a second lead in; with no lead time there is one."""
    opened(copy_of_v)
    monkeypatch.setattr(sampler._Cell, "time_call", lambda self, native, **how: (0.125, self.run(**native)))
    for lead, calls in ((1.0, 8), (0.0, 1)):
        SEEN.clear()
        assert len(sampler.batch("it", 60.0, 6, 1, lead=lead).seconds) == 6
        assert len(SEEN) == 7 + calls


def test_cores_at_work_are_measured() -> None:
    """A call that sleeps uses no core, one that computes uses one."""
    for function, low, high in ((sleeps, 0.0, 0.05), (works, 0.05, 1.1)):
        opened(function)
        assert low <= sampler.batch("it", 60.0, 6, 1).cores <= high


def test_warm_calls_end_once_they_took_long_enough() -> None:
    """There is one call on each set, or a single one of a slow implementation."""
    opened(copy_of_v)
    assert len(sampler.warm("it", 60.0).seconds) == 3
    assert len(sampler.warm("it", 1e-12).seconds) == 1


def test_a_cell_that_is_not_open_is_lost() -> None:
    """A process that died between two jobs has lost its cells."""
    assert sampler.batch("another", 1.0, 6, 1).status == "lost"


def writes_later(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Returns at once; a thread fills the output a little later."""
    output = np.zeros_like(v)
    threading.Timer(0.005, lambda: output.__setitem__(..., v)).start()
    return output


def test_results_that_change_after_the_call_are_seen() -> None:
    """Copies made right after the call count, and changed results are named."""
    opened(writes_later)
    last = sampler.batch("it", 0.001, 3, 0, True)
    assert last.unsettled == ("output",)
    assert not last.results["output"].any()


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
    """NumPy, PyTorch and XLA each have their own; another error is the implementation's."""
    assert kind(error) == status


def test_an_exception_while_sampling_is_an_answer() -> None:
    """The exception is reported in one line, and the worker continues."""
    assert opened(breaks).status == "returned"
    batch = sampler.batch("it", 1.0, 6, 1)
    assert (batch.status, batch.text) == ("raised", "ValueError: out of luck")


def test_preparation_and_the_first_call_are_timed_apart() -> None:
    """Both are reported, and neither is a sample."""
    answer = opened(copy_of_v)
    assert answer.prepare_seconds >= 0
    assert answer.first_call_seconds > 0


#: The rest of 64 MiB if this process frees a little earlier memory, as pytest's may be.
LEAST = 2**26 - 2**22

#: Memory that the hoarder below keeps.
KEPT: list[Any] = []


def hoards(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Takes 64 MiB in the first call ever, and keeps it for later ones, as XLA does."""
    KEPT[:] = KEPT or [np.ones(2**23)]
    return v.copy()


def test_memory_that_an_earlier_call_left_is_counted() -> None:
    """The second cell grows by nothing, and holds what the first took."""
    KEPT.clear()
    first, second = opened(hoards), opened(hoards)
    if first.peak_rss_bytes is None or second.peak_rss_bytes is None:
        pytest.skip("this system does not tell")
    assert first.held_rss_bytes is not None
    assert second.held_rss_bytes is not None
    assert first.peak_rss_bytes >= LEAST
    assert second.peak_rss_bytes < 2**25
    assert second.held_rss_bytes >= LEAST


def held_when_closed(name: str, lengths: list[int]) -> list[float]:
    """MiB that this process holds after each of these lengths was opened, called and closed in turn."""
    implementation, found = builtin()[name], []
    for length in lengths:
        answer = sampler.open_cell("it", implementation, Workload(1, 8, 64, length), "float32", "cpu")
        assert answer.status == "returned", answer.text
        sampler.warm("it", 1e-9)
        sampler.close_cell("it")
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        found.append(pages * os.sysconf("SC_PAGE_SIZE") / 2**20)
    return found


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
@pytest.mark.parametrize(
    "name",
    [
        "numpy-eager",
        "torch-eager",
        pytest.param("jax-jit", marks=pytest.mark.xfail(strict=True, reason="heaps of XLA's threads stay in glibc")),
        "onnx-attention23",
    ],
)
def test_a_closed_cell_leaves_no_memory_behind(name: str) -> None:
    """Calls with 32 MiB of scores and more leave nothing in the process, though it keeps freed memory."""
    if builtin()[name].missing():
        pytest.skip("not installed")
    with closing(Worker(allocator.environment())) as worker:
        job = "attention_conformance.bench.tests.test_sampler:held_when_closed"
        small, *large = worker.call(job, name, [64, 1024, 1088, 1152], timeout=120)
    assert max(large) < small + 32
