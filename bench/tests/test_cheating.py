"""Kernels that look fast and are not: each is exposed, and an honest one is not."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attention_conformance.bench.roofline.costs import flops
from attention_conformance.bench.sampling import sampler
from attention_conformance.bench.sampling.sampler import Batch
from attention_conformance.bench.tests.measured import cell, outcome
from attention_conformance.bench.timing.plan import Plan
from attention_conformance.bench.validity import cheating
from attention_conformance.bench.validity.checks import Invalid
from attention_conformance.bench.validity.outcomes import INVALID, TIMED, Outcome, ProcessRun
from attention_conformance.bench.workloads.arguments import SETS
from attention_conformance.impls.contract import Framework
from attention_conformance.impls.process.pool import Spent

#: About 200 µs a call: long against what remembering costs.
NAME = "prefill-b1h2d16s128"

#: Five batches of many calls.
PLAN = Plan(seconds=0.05, process_runs=1, noise=0.0, limit=60.0)


def honest(q: Any, k: Any, v: Any) -> np.ndarray:
    """Attention."""
    s = q @ k.swapaxes(-1, -2) / np.sqrt(np.float32(q.shape[-1]))
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True) @ v


#: What the two below remember.
BY_IDENTITY: dict[tuple, Any] = {}
BY_CONTENT: dict[bytes, Any] = {}


def remembers_arrays(q: Any, k: Any, v: Any) -> np.ndarray:
    """Returns what it computed for the same arrays, which it keeps."""
    key = (id(q), id(k), id(v))
    if key not in BY_IDENTITY:
        BY_IDENTITY[key] = (q, k, v, honest(q, k, v))
    return BY_IDENTITY[key][-1]


def remembers_numbers(q: Any, k: Any, v: Any) -> np.ndarray:
    """Returns what it computed for the same numbers, by some of them."""
    key = q[0, 0, 0].tobytes()
    if key not in BY_CONTENT:
        BY_CONTENT[key] = honest(q, k, v)
    return BY_CONTENT[key].copy()


def quick_once(q: Any, k: Any, v: Any, wrong: int = 1) -> np.ndarray:
    """Remembers, and returns zeros as fast the first time that inputs are new to it after those of the input sets."""
    started, key = time.perf_counter(), q[0, 0, 0].tobytes()
    if key not in BY_CONTENT:
        early = SETS <= len(BY_CONTENT) < SETS + wrong
        BY_CONTENT[key] = np.zeros_like(v) if early else honest(q, k, v)
    while time.perf_counter() < started + 5e-5:
        pass
    return BY_CONTENT[key].copy()


def quick_three_times(q: Any, k: Any, v: Any) -> np.ndarray:
    """The same the first three times: most of the least number of batches."""
    return quick_once(q, k, v, wrong=3)


def returns_early(q: Any, k: Any, v: Any) -> np.ndarray:
    """Returns at once; a thread computes the output, and is done after a while."""
    output = np.zeros_like(v)

    def compute() -> None:
        time.sleep(0.005)
        output[...] = honest(q, k, v)

    threading.Thread(target=compute, daemon=True).start()
    return output


def first_row_alone(q: Any, k: Any, v: Any) -> np.ndarray:
    """Wrong, and fast: every row gets the output of the first."""
    return np.broadcast_to(honest(q[:, :, :1], k, v), v.shape).copy()


@functools.cache
def lazy_tensor() -> Any:
    """A class of tensors that hold nothing until they are asked for their numbers."""
    import torch

    class Lazy(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
            if function is torch.Tensor.detach:
                q, k, v = arguments[0].inputs
                return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1) @ v
            return super().__torch_function__(function, types, arguments, keywords or {})

    return Lazy


def computes_when_read(q: Any, k: Any, v: Any) -> Any:
    """Returns a promise."""
    promise = q[0, 0, 0].as_subclass(lazy_tensor())
    promise.inputs = (q, k, v)
    return promise


def test_an_honest_kernel_is_timed() -> None:
    """Nothing of it is suspicious."""
    found = outcome(honest, NAME, PLAN)
    assert (found.kind, found.reason) == (TIMED, "")


@pytest.mark.parametrize("kernel", [remembers_arrays, remembers_numbers, quick_once, quick_three_times])
def test_a_kernel_that_returns_what_it_computed_before_is_invalid(kernel: Any) -> None:
    """What is checked of it is right, and on inputs that it never saw it is slow, unless it is wrong and unchecked."""
    BY_CONTENT.clear()
    found = outcome(kernel, NAME, PLAN)
    assert (found.kind, found.clause) == (INVALID, "cached result")
    assert "on inputs that it never saw a call takes" in found.reason


def test_what_an_earlier_run_kept_is_of_no_use_to_the_next() -> None:
    """As on a disk: every run draws its inputs from a seed of its own, so all are new to it."""
    BY_CONTENT.clear()
    for seed in (1, 2):
        found = outcome(remembers_numbers, NAME, replace(PLAN, seed=seed))
        assert (found.kind, found.clause) == (INVALID, "cached result")


def test_a_kernel_that_returns_before_it_is_done_is_invalid() -> None:
    """What it had returned when the clock stopped is not the result; here the first check sees it."""
    found = outcome(returns_early, NAME, PLAN)
    assert found.kind == INVALID
    assert found.clause in ("SDPA-25", "asynchronous return")


def test_a_kernel_that_is_fast_because_it_is_wrong_is_invalid() -> None:
    """By the clause that it breaks."""
    assert outcome(first_row_alone, NAME, PLAN).clause == "SDPA-25"


def test_a_kernel_that_computes_when_its_result_is_read_is_invalid() -> None:
    """Its results are right, and reading them takes as long as computing them."""
    pytest.importorskip("torch")
    name = "prefill-b1h2d16s512"  # some milliseconds, against some 10 µs of a promise
    found = outcome(computes_when_read, name, PLAN, framework=Framework.TORCH, requires=("torch",))
    assert (found.kind, found.clause) == (INVALID, "deferred")
    assert "it computes when its results are read" in found.reason


def batches(fresh: float, count: int = 5) -> list[tuple[float, ...]]:
    """Batches of calls of 1 ms, and a last one on fresh inputs."""
    return [(0.001, 0.001, 0.001, fresh)] * count


def test_fresh_inputs_may_take_a_little_longer() -> None:
    """The caches of a processor are no cache of results: up to twice as long is nothing, and beyond it is."""
    cheating.cached_result(batches(0.0019))
    with pytest.raises(Invalid, match=r"2\.1 times as long"):
        cheating.cached_result(batches(0.0021))


def again(*fresh: float) -> cheating.Checked:
    """Checked batches of calls of 1 ms whose last ones, on fresh inputs, take so long; no more than are asked for."""
    return lambda count: [Batch("returned", seconds=one) for each in fresh[:count] for one in batches(each, 1)]


def test_one_slow_call_is_no_evidence() -> None:
    """A machine that was busy does not make a cell invalid if a checked call is quick, nor do too few batches."""
    cheating.cached_result([*batches(0.001), (0.001, 0.001, 1.0)], checked=again(0.001))
    cheating.cached_result(batches(1.0, count=4))
    cheating.cached_result([*batches(0.003, count=9), *batches(0.001, count=1)], checked=again(1.0, 1.0, 0.001))
    with pytest.raises(Invalid, match="1e\\+03 times as long"):
        cheating.cached_result(batches(1.0))


@pytest.mark.parametrize("quick", [1, 3])
def test_quick_calls_that_nobody_checks_excuse_nothing(quick: int) -> None:
    """One among many, or most of a few: those that are checked are slow, and the last one was."""
    some = [*batches(0.001, count=quick), *batches(1.0, count=9 if quick == 1 else 2)]
    with pytest.raises(Invalid, match="1e\\+03 times as long"):
        cheating.cached_result(some, checked=again(*[1.0] * 20))


def test_checked_calls_are_made_only_where_cheating_is_suspected() -> None:
    """None where the checked call is like the others, and none where all are slow, of which cold caches decide."""
    never: cheating.Checked = lambda count: pytest.fail("asked")  # noqa: E731
    cheating.cached_result([*batches(1.0, count=1), *batches(0.001)], checked=never)
    cheating.cached_result(batches(1.0), lambda: [0.5] * 5, never)
    late, soon = (Batch("returned", seconds=(0.001,), readback_seconds=each) for each in (0.9, 0.0))
    cheating.deferred([late, *[soon] * 3], never)


@pytest.mark.parametrize(("seconds", "cheats"), [(0.5, False), (0.4, True), (0.001, True), (None, True)])
def test_calls_that_are_as_slow_from_cold_caches_remember_nothing(seconds: float | None, cheats: bool) -> None:
    """Known inputs have to be twice as fast then too; where the caches cannot be cleared it stays invalid."""

    def cold_calls() -> list[float]:
        return [] if seconds is None else [seconds] * 5

    with pytest.raises(Invalid, match="on inputs that it never saw") if cheats else contextlib.nullcontext():
        cheating.cached_result(batches(1.0), cold_calls)


def test_cold_caches_are_tried_only_where_cheating_is_suspected() -> None:
    """Nothing is called of a cell whose fresh calls are like the others."""
    cheating.cached_result(batches(0.001), lambda: pytest.fail("asked"))


#: Arrays that the kernel below saw since the caches were cleared.
NEAR: list[int] = []


def reads_from_memory(q: Any, k: Any, v: Any) -> np.ndarray:
    """Honest, and slow on arrays that are in no cache, as calls are that do little more than read them."""
    if id(k) not in NEAR:
        time.sleep(0.02)
        NEAR.append(id(k))
    return honest(q, k, v)


LARGE = "cross-b1h8d64s1k2048"  # 4 MiB of keys
MIDDLING = "cross-b1h8d64s1k128"  # 256 KiB of keys


@pytest.mark.slow(1)
@pytest.mark.parametrize("workload", [LARGE, MIDDLING])
@pytest.mark.parametrize(("kernel", "kind"), [(reads_from_memory, TIMED), (remembers_numbers, INVALID)])
def test_what_a_cache_of_the_processor_does_is_no_remembering(
    kernel: Any, kind: str, workload: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both take far longer on inputs never seen; from cold caches only one is as slow on those that it knows."""
    NEAR.clear()
    monkeypatch.setattr(sampler, "buffer", lambda *where: NEAR.clear)
    found = outcome(kernel, workload, PLAN)
    assert (found.kind, found.clause) == (kind, "" if kind == TIMED else "cached result")


def test_a_time_beyond_the_peak_is_invalid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within the noise of the product that was measured it is a time; there it is not measured again."""
    one = cell(honest, NAME)
    found = Outcome(process_runs=(ProcessRun(((0.001,),) * 5, 0.1),))
    speed = flops(one.workload) / 0.001
    monkeypatch.setattr(cheating, "best_product", lambda *_, **__: 0.0)
    assert cheating.within_peak(one, found, 1, known=speed / 3)[0] == found
    refused, share = cheating.within_peak(one, found, 1, known=speed / 5)
    assert (refused.kind, refused.clause) == (INVALID, "peak")
    assert share == pytest.approx(5)
    monkeypatch.setattr(cheating, "best_product", lambda *_, **__: speed)
    assert cheating.within_peak(one, found, 1, known=speed / 5) == (found, 1.0)


def test_batches_of_one_call_compare_nothing() -> None:
    """All their calls are on fresh inputs, so that one call that is known makes no slow one of them suspect."""
    cheating.cached_result([(1.0,)] * 9)
    cheating.cached_result([*[(1.0,)] * 9, *batches(1.0, count=4)])
    with pytest.raises(Invalid, match="cached result"):
        cheating.cached_result([*[(1.0,)] * 9, *batches(1.0)])


def test_reading_large_results_is_not_computing_them() -> None:
    """What plain arrays take to be read is not counted, nor is what happened once."""
    slow = Batch("returned", seconds=(0.001,), readback_seconds=0.9, plain_seconds=0.9)
    once = Batch("returned", seconds=(0.001,), readback_seconds=0.9, plain_seconds=0.0)
    cheating.deferred([slow] * 5)
    cheating.deferred([*[once] * 4, slow])
    with pytest.raises(Invalid, match="deferred"):
        cheating.deferred([once] * 5)


@pytest.mark.parametrize("early", [1, 3])
def test_results_that_nobody_checks_and_that_are_read_early_excuse_nothing(early: int) -> None:
    """Reading the checked ones decides: always late, it is deferred; early once, it is not."""
    late, soon = (Batch("returned", seconds=(0.001,), readback_seconds=each) for each in (0.9, 0.0))
    some = [*[soon] * early, *[late] * 2]
    cheating.deferred(some, lambda count: [late, soon, late][:count])
    with pytest.raises(Invalid, match="deferred"):
        cheating.deferred(some if early > 2 else [*some, late], lambda count: [late] * count)


def test_a_job_that_waits_for_a_core_says_nothing_of_clocks() -> None:
    """What the worker or its parent waited for a core is no part of what a job took; what else it took is."""
    batch = Batch("returned", seconds=(0.004,) * 3, made=3, call_seconds=0.012)
    waits = cheating.job(batch, Spent(0.012, 0.030, 0.0, queued=0.017), 2)
    assert waits.untold == pytest.approx(0.001)
    cheating.disagreeing_clocks([waits] * 5)
    with pytest.raises(Invalid, match="18 ms more by its parent's"):
        cheating.disagreeing_clocks([cheating.job(batch, Spent(0.012, 0.030, 0.0), 2)] * 5)


def test_threads_that_spin_while_the_first_waits_for_a_core_hide_no_work() -> None:
    """Figures of a decoding call whose two threads woke on one core; the same without a wait would be hidden work."""
    batch = Batch("returned", seconds=(0.000339,) * 39, made=40, call_seconds=0.02429, other_seconds=0.0032)
    spins = cheating.job(batch, Spent(0.028, 0.02842, 0.04417, queued=0.00401), 2)
    cheating.disagreeing_clocks([spins] * 5)
    with pytest.raises(Invalid, match=r"10\.7 ms more of processor time"):
        cheating.disagreeing_clocks([cheating.job(batch, Spent(0.028, 0.02842, 0.04417), 2)] * 5)


def test_clocks_that_agree_in_longer_batches_are_believed() -> None:
    """What a pause costs is the same however long a batch is; what is hidden in each call grows with it."""
    seems = [cheating.Job(0.0424, 0.0, 0.0217, each=0.0031)] * 5
    cheating.agreeing_clocks(seems, lambda: [cheating.Job(0.26, 0.0, 0.0217, each=0.0031)] * 3)
    with pytest.raises(Invalid, match="174 ms more of processor time"):
        cheating.agreeing_clocks(seems, lambda: [cheating.Job(0.26, 0.0, 0.174, each=0.0031)] * 3)


def test_longer_batches_whose_calls_are_longer_are_no_excuse() -> None:
    """What tells the truth in them alone told it nowhere else."""
    seems = [cheating.Job(0.0424, 0.0, 0.0217, each=0.0031)] * 5
    with pytest.raises(Invalid, match=r"in longer batches its calls take 4\.2 ms, not 3\.1"):
        cheating.agreeing_clocks(seems, lambda: [cheating.Job(0.26, 0.0, 0.0217, each=0.0042)] * 3)


def test_clocks_that_agree_are_not_asked_again() -> None:
    """Longer batches take time."""
    cheating.agreeing_clocks([cheating.Job(0.04, 0.0, 0.0)] * 5, lambda: pytest.fail("asked again"))
