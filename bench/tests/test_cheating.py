"""Kernels that look fast and are not: each is exposed; an honest kernel is not."""

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

#: About 200 µs a call: long compared with the cost of remembering.
NAME = "prefill-b1h2d16s128"

#: Five batches of many calls.
PLAN = Plan(seconds=0.05, process_runs=1, noise=0.0, limit=60.0)


def honest(q: Any, k: Any, v: Any) -> np.ndarray:
    """Attention."""
    s = q @ k.swapaxes(-1, -2) / np.sqrt(np.float32(q.shape[-1]))
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True) @ v


#: The results that the next two functions remember.
BY_IDENTITY: dict[tuple, Any] = {}
BY_CONTENT: dict[bytes, Any] = {}


def remembers_arrays(q: Any, k: Any, v: Any) -> np.ndarray:
    """Returns what it computed for the same arrays, which it keeps alive."""
    key = (id(q), id(k), id(v))
    if key not in BY_IDENTITY:
        BY_IDENTITY[key] = (q, k, v, honest(q, k, v))
    return BY_IDENTITY[key][-1]


def remembers_numbers(q: Any, k: Any, v: Any) -> np.ndarray:
    """Returns what it computed for the same numbers, recognised by some of them."""
    key = q[0, 0, 0].tobytes()
    if key not in BY_CONTENT:
        BY_CONTENT[key] = honest(q, k, v)
    return BY_CONTENT[key].copy()


def quick_once(q: Any, k: Any, v: Any, wrong: int = 1) -> np.ndarray:
    """Remembers results; for the first new inputs after the input sets it returns zeros, as fast."""
    started, key = time.perf_counter(), q[0, 0, 0].tobytes()
    if key not in BY_CONTENT:
        early = SETS <= len(BY_CONTENT) < SETS + wrong
        BY_CONTENT[key] = np.zeros_like(v) if early else honest(q, k, v)
    while time.perf_counter() < started + 5e-5:
        pass
    return BY_CONTENT[key].copy()


def quick_three_times(q: Any, k: Any, v: Any) -> np.ndarray:
    """Returns zeros for the first three new inputs: most of the least number of batches."""
    return quick_once(q, k, v, wrong=3)


def returns_early(q: Any, k: Any, v: Any) -> np.ndarray:
    """Returns at once; a thread finishes the output after a while."""
    output = np.zeros_like(v)

    def compute() -> None:
        time.sleep(0.005)
        output[...] = honest(q, k, v)

    threading.Thread(target=compute, daemon=True).start()
    return output


def first_row_alone(q: Any, k: Any, v: Any) -> np.ndarray:
    """Wrong and fast: every row gets the output of the first row."""
    return np.broadcast_to(honest(q[:, :, :1], k, v), v.shape).copy()


@functools.cache
def lazy_tensor() -> Any:
    """A class of tensors that are empty until their numbers are read."""
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
    """Returns a lazy tensor."""
    promise = q[0, 0, 0].as_subclass(lazy_tensor())
    promise.inputs = (q, k, v)
    return promise


def test_an_honest_kernel_is_timed() -> None:
    """Nothing about an honest kernel is suspicious."""
    found = outcome(honest, NAME, PLAN)
    assert (found.kind, found.reason) == (TIMED, "")


@pytest.mark.parametrize("kernel", [remembers_arrays, remembers_numbers, quick_once, quick_three_times])
def test_a_kernel_that_returns_what_it_computed_before_is_invalid(kernel: Any) -> None:
    """The checked results are right, and new inputs take longer, unless their results are wrong and unchecked."""
    BY_CONTENT.clear()
    found = outcome(kernel, NAME, PLAN)
    assert (found.kind, found.clause) == (INVALID, "cached result")
    assert "on inputs that it never saw a call takes" in found.reason


def test_what_an_earlier_run_kept_is_of_no_use_to_the_next() -> None:
    """Every run draws its inputs from a seed of its own, so a cache, as on a disk, has none of them."""
    BY_CONTENT.clear()
    for seed in (1, 2):
        found = outcome(remembers_numbers, NAME, replace(PLAN, seed=seed))
        assert (found.kind, found.clause) == (INVALID, "cached result")


def test_a_kernel_that_returns_before_it_is_done_is_invalid() -> None:
    """The output when the clock stopped is not the result; here the first check already finds that."""
    found = outcome(returns_early, NAME, PLAN)
    assert found.kind == INVALID
    assert found.clause in ("SDPA-25", "asynchronous return")


def test_a_kernel_that_is_fast_because_it_is_wrong_is_invalid() -> None:
    """It is invalid by the clause that it breaks."""
    assert outcome(first_row_alone, NAME, PLAN).clause == "SDPA-25"


def test_a_kernel_that_computes_when_its_result_is_read_is_invalid() -> None:
    """The results are right, but reading them takes as long as computing them."""
    pytest.importorskip("torch")
    name = "prefill-b1h2d16s512"  # some milliseconds, compared with some 10 µs for a lazy tensor
    found = outcome(computes_when_read, name, PLAN, framework=Framework.TORCH, requires=("torch",))
    assert (found.kind, found.clause) == (INVALID, "deferred")
    assert "it computes when its results are read" in found.reason


def batches(fresh: float, count: int = 5) -> list[tuple[float, ...]]:
    """Batches of calls of 1 ms, each with a last call on fresh inputs."""
    return [(0.001, 0.001, 0.001, fresh)] * count


def test_fresh_inputs_may_take_a_little_longer() -> None:
    """A processor's caches do not remember results: up to twice the time is allowed, and more is not."""
    cheating.cached_result(batches(0.0019))
    with pytest.raises(Invalid, match=r"2\.1 times as long"):
        cheating.cached_result(batches(0.0021))


def again(*fresh: float) -> cheating.Checked:
    """Checked batches of 1 ms calls, with last calls, on fresh inputs, of these times; at most as many as requested."""
    return lambda count: [Batch("returned", seconds=one) for each in fresh[:count] for one in batches(each, 1)]


def test_one_slow_call_is_no_evidence() -> None:
    """A busy machine does not make a cell invalid if a checked call is quick, nor do too few batches."""
    cheating.cached_result([*batches(0.001), (0.001, 0.001, 1.0)], checked=again(0.001))
    cheating.cached_result(batches(1.0, count=4))
    cheating.cached_result([*batches(0.003, count=9), *batches(0.001, count=1)], checked=again(1.0, 1.0, 0.001))
    with pytest.raises(Invalid, match="1e\\+03 times as long"):
        cheating.cached_result(batches(1.0))


@pytest.mark.parametrize("quick", [1, 3])
def test_quick_calls_that_nobody_checks_excuse_nothing(quick: int) -> None:
    """One quick call among many, or most of a few, is no excuse: the checked ones are slow, and so was the last one."""
    some = [*batches(0.001, count=quick), *batches(1.0, count=9 if quick == 1 else 2)]
    with pytest.raises(Invalid, match="1e\\+03 times as long"):
        cheating.cached_result(some, checked=again(*[1.0] * 20))


def test_checked_calls_are_made_only_where_cheating_is_suspected() -> None:
    """There are none if the checked call is like the others, or if all are slow: then cold caches decide."""
    never: cheating.Checked = lambda count: pytest.fail("asked")  # noqa: E731
    cheating.cached_result([*batches(1.0, count=1), *batches(0.001)], checked=never)
    cheating.cached_result(batches(1.0), lambda: [0.5] * 5, never)
    late, soon = (Batch("returned", seconds=(0.001,), readback_seconds=each) for each in (0.9, 0.0))
    cheating.deferred([late, *[soon] * 3], never)


@pytest.mark.parametrize(("seconds", "cheats"), [(0.5, False), (0.4, True), (0.001, True), (None, True)])
def test_calls_that_are_as_slow_from_cold_caches_remember_nothing(seconds: float | None, cheats: bool) -> None:
    """Known inputs must also be twice as fast with cold caches; if caches cannot be cleared, the cell stays invalid."""

    def cold_calls() -> list[float]:
        return [] if seconds is None else [seconds] * 5

    with pytest.raises(Invalid, match="on inputs that it never saw") if cheats else contextlib.nullcontext():
        cheating.cached_result(batches(1.0), cold_calls)


def test_cold_caches_are_tried_only_where_cheating_is_suspected() -> None:
    """A cell whose fresh calls are like the others is not called again."""
    cheating.cached_result(batches(0.001), lambda: pytest.fail("asked"))


#: Arrays that the kernel below has seen since the caches were cleared.
NEAR: list[int] = []


def reads_from_memory(q: Any, k: Any, v: Any) -> np.ndarray:
    """Honest, but slow on arrays that are in no cache, like calls that do little more than read them."""
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
    """Both kernels take far longer on new inputs; with cold caches only the honest one is also slow on known inputs."""
    NEAR.clear()
    monkeypatch.setattr(sampler, "buffer", lambda *where: NEAR.clear)
    found = outcome(kernel, workload, PLAN)
    assert (found.kind, found.clause) == (kind, "" if kind == TIMED else "cached result")


def test_a_time_beyond_the_peak_is_invalid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to the noise of the measured product it is a valid time; beyond it the product is measured again."""
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
    """All calls of such batches are on fresh inputs, so one known call does not make the slow ones suspect."""
    cheating.cached_result([(1.0,)] * 9)
    cheating.cached_result([*[(1.0,)] * 9, *batches(1.0, count=4)])
    with pytest.raises(Invalid, match="cached result"):
        cheating.cached_result([*[(1.0,)] * 9, *batches(1.0)])


def test_reading_large_results_is_not_computing_them() -> None:
    """The time that plain arrays need to be read is not counted, nor is a single occurrence."""
    slow = Batch("returned", seconds=(0.001,), readback_seconds=0.9, plain_seconds=0.9)
    once = Batch("returned", seconds=(0.001,), readback_seconds=0.9, plain_seconds=0.0)
    cheating.deferred([slow] * 5)
    cheating.deferred([*[once] * 4, slow])
    with pytest.raises(Invalid, match="deferred"):
        cheating.deferred([once] * 5)


@pytest.mark.parametrize("early", [1, 3])
def test_results_that_nobody_checks_and_that_are_read_early_excuse_nothing(early: int) -> None:
    """The checked results decide: always read late, they are deferred; read early once, they are not."""
    late, soon = (Batch("returned", seconds=(0.001,), readback_seconds=each) for each in (0.9, 0.0))
    some = [*[soon] * early, *[late] * 2]
    cheating.deferred(some, lambda count: [late, soon, late][:count])
    with pytest.raises(Invalid, match="deferred"):
        cheating.deferred(some if early > 2 else [*some, late], lambda count: [late] * count)


def test_a_job_that_waits_for_a_core_says_nothing_of_clocks() -> None:
    """The time that the worker or its parent waited for a core is subtracted from a job's time; other time is not."""
    batch = Batch("returned", seconds=(0.004,) * 3, made=3, call_seconds=0.012)
    waits = cheating.job(batch, Spent(0.012, 0.030, 0.0, queued=0.017), 2)
    assert waits.untold == pytest.approx(0.001)
    cheating.disagreeing_clocks([waits] * 5)
    with pytest.raises(Invalid, match="18 ms more by its parent's"):
        cheating.disagreeing_clocks([cheating.job(batch, Spent(0.012, 0.030, 0.0), 2)] * 5)


def test_threads_that_spin_while_the_first_waits_for_a_core_hide_no_work() -> None:
    """Figures of a decoding call whose two threads woke on one core; without the wait the same would be hidden work."""
    batch = Batch("returned", seconds=(0.000339,) * 39, made=40, call_seconds=0.02429, other_seconds=0.0032)
    spins = cheating.job(batch, Spent(0.028, 0.02842, 0.04417, queued=0.00401), 2)
    cheating.disagreeing_clocks([spins] * 5)
    with pytest.raises(Invalid, match=r"10\.7 ms more of processor time"):
        cheating.disagreeing_clocks([cheating.job(batch, Spent(0.028, 0.02842, 0.04417), 2)] * 5)


def test_clocks_that_agree_in_longer_batches_are_believed() -> None:
    """A pause costs the same however long a batch is; work hidden in each call grows with the batch."""
    seems = [cheating.Job(0.0424, 0.0, 0.0217, each=0.0031)] * 5
    cheating.agreeing_clocks(seems, lambda: [cheating.Job(0.26, 0.0, 0.0217, each=0.0031)] * 3)
    with pytest.raises(Invalid, match="174 ms more of processor time"):
        cheating.agreeing_clocks(seems, lambda: [cheating.Job(0.26, 0.0, 0.174, each=0.0031)] * 3)


def test_longer_batches_whose_calls_are_longer_are_no_excuse() -> None:
    """A kernel that is honest only in longer batches was not honest in the others."""
    seems = [cheating.Job(0.0424, 0.0, 0.0217, each=0.0031)] * 5
    with pytest.raises(Invalid, match=r"in longer batches its calls take 4\.2 ms, not 3\.1"):
        cheating.agreeing_clocks(seems, lambda: [cheating.Job(0.26, 0.0, 0.0217, each=0.0042)] * 3)


def test_clocks_that_agree_are_not_asked_again() -> None:
    """Longer batches are made only if needed, as they take time."""
    cheating.agreeing_clocks([cheating.Job(0.04, 0.0, 0.0)] * 5, lambda: pytest.fail("asked again"))
