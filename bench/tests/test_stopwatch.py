"""Timing of a call by the host's clock, or by a device's events, here with a stand-in for torch's CUDA."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from attention_conformance.bench.clocks import DEVICE, WALL
from attention_conformance.bench.sampling import cold_cache, sampler
from attention_conformance.bench.sampling.stopwatch import (
    BUSY,
    HELD_MOST,
    HIDDEN_SHARE,
    LEAST_IDLE,
    LONG_CALL,
    MISSES,
    ByEvents,
    Eviction,
    Wall,
    stopwatch,
)
from attention_conformance.bench.workloads.workload import Workload
from attention_conformance.impls.backend import backend
from attention_conformance.impls.contract import Framework, Implementation

torch = pytest.importorskip("torch")

WORKLOAD = Workload(1, 1, 2, 3)

#: Seconds that the host takes to wait for an idle device, that a stand-in's kernel takes, and that its launch takes
#: the host.
IDLE, KERNEL, LAUNCH = 1e-5, 1e-3, 2e-5

#: Cycles of the stand-in per second.
CYCLES = 10**9


@dataclass
class Gpu:
    """A device with queues and a clock: kernels run in order within a queue, and the host may wait for them."""

    now: float = 0.0
    #: The time when each queue has finished its work.
    free: dict[str, float] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)

    def submit(self, name: str, seconds: float, queue: str = "main") -> float:
        """Put work into a queue, without waiting; the time when it will be done."""
        self.log.append(name)
        self.free[queue] = max(self.now, self.free.get(queue, 0.0)) + seconds
        return self.free[queue]

    def synchronize(self, device: Any = None) -> None:
        """Let the host wait for every queue."""
        self.log.append("synchronize")
        self.now = max(self.now, *self.free.values(), 0.0) + IDLE


GPU = Gpu()


class Event:
    """A mark of the stand-in, like ``torch.cuda.Event``."""

    def __init__(self, enable_timing: bool = False) -> None:
        assert enable_timing
        self.at: float | None = None

    def record(self) -> None:
        """Record the mark: it is reached when the queue's earlier work is done."""
        self.at = GPU.submit("record", 0.0)

    def query(self) -> bool:
        """Whether the mark is reached now."""
        assert self.at is not None
        return self.at <= GPU.now

    def synchronize(self) -> None:
        """Let the host wait until the mark is reached."""
        assert self.at is not None
        GPU.log.append("wait for event")
        GPU.now = max(GPU.now, self.at) + IDLE

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds between two marks."""
        assert self.at is not None
        assert end.at is not None
        assert end.at <= GPU.now, "the end is not reached yet"
        return 1e3 * (end.at - self.at)


@pytest.fixture(autouse=True)
def _gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Torch's CUDA and both clocks are the stand-in's; its tensors are on the CPU."""
    arrays: Any = backend(Framework.TORCH)
    GPU.now, GPU.free, GPU.log = 0.0, {}, []
    properties = SimpleNamespace(L2_cache_size=2**20)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", GPU.synchronize)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: GPU.submit("hold", cycles / CYCLES))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(arrays, "_copy_to_device", lambda tensor, device: tensor)
    monkeypatch.setattr(arrays, "copy", lambda array: lambda: GPU.submit(f"copy {array.nbytes}", 5 * KERNEL))
    monkeypatch.setattr("attention_conformance.bench.sampling.stopwatch.perf_counter", lambda: GPU.now)
    cold_cache.buffer.cache_clear()
    yield
    cold_cache.buffer.cache_clear()


def kernel() -> None:
    """A kernel whose launch takes host time, and that runs after the host has continued."""
    GPU.now += LAUNCH
    GPU.submit("call", KERNEL)


def short() -> None:
    """A kernel that takes a tenth of its launch."""
    GPU.now += LAUNCH
    GPU.submit("call", LAUNCH / 10)


def watch(cold: bool = False) -> ByEvents:
    """The stopwatch of torch on CUDA; the log of its preparation is cleared."""
    made = stopwatch(backend(Framework.TORCH), Framework.TORCH, "cuda", cold)
    assert isinstance(made, ByEvents)
    GPU.log.clear()
    return made


def test_the_time_of_the_events_counts_and_not_the_hosts() -> None:
    """The host also waits 10 µs, twice, to learn that the device is done; its time is kept separately."""
    timing = watch()
    seconds, _ = timing.time_idle(kernel, {})
    assert seconds == pytest.approx(LAUNCH + KERNEL)  # the device waits for the launch
    assert timing.host() == pytest.approx([LAUNCH + KERNEL + 2 * IDLE])
    assert timing.host() == []


def test_behind_a_held_queue_the_time_is_that_of_the_device_alone() -> None:
    """The first call shows how long submitting takes; later calls have no launch in their times."""
    timing = watch()
    times = [timing.time(short, {})[0] for _ in range(4)]
    assert times == pytest.approx([LAUNCH * 1.1, *[LAUNCH / 10] * 3])
    assert timing.held() == [False, True, True, True]
    assert timing.held() == []


def test_a_call_that_is_submitted_late_is_held_longer_the_next_time() -> None:
    """If the system interrupts the host, the call is reported as not held, and the next one is held."""
    timing = watch()
    timing.time(short, {})

    def interrupted() -> None:
        GPU.now += 30 * LAUNCH
        short()

    assert timing.time(interrupted, {})[0] > LAUNCH
    assert timing.time(interrupted, {})[0] == pytest.approx(LAUNCH / 10)
    assert timing.held() == [False, False, True]


def test_a_call_that_waits_for_the_device_itself_is_not_held_any_more() -> None:
    """Such a call can never be submitted in time; it is timed on an idle device, with its launch."""

    def waits() -> None:
        short()
        GPU.synchronize()

    timing = watch()
    for _ in range(MISSES + 1):
        timing.time(waits, {})
    GPU.log.clear()
    assert timing.time(waits, {})[0] == pytest.approx(LAUNCH * 1.1 + IDLE)
    assert "hold" not in GPU.log
    assert not any(timing.held())


def test_a_long_call_is_not_held() -> None:
    """The launch of a long call is negligible."""

    def long() -> None:
        GPU.now += LAUNCH
        GPU.submit("call", 1.1 * LONG_CALL * LAUNCH)

    timing = watch()
    times = [timing.time(long, {})[0] for _ in range(2)]
    assert "hold" not in GPU.log
    assert times[1] == pytest.approx(LAUNCH * (1 + 1.1 * LONG_CALL))


def test_no_queue_is_held_for_long() -> None:
    """A long submission of the call before, such as a compilation, does not matter."""

    def compiles() -> None:
        GPU.now += 5.0
        short()

    timing = watch()
    timing.time(compiles, {})
    started = GPU.now
    timing.time(short, {})
    assert HELD_MOST < GPU.now - started < 1.2 * HELD_MOST


def test_without_a_kernel_that_waits_calls_are_timed_on_an_idle_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's waiting kernel is private, and may disappear."""
    monkeypatch.delattr(torch.cuda, "_sleep")
    timing = watch()
    times = [timing.time(kernel, {})[0] for _ in range(3)]
    assert times == pytest.approx([LAUNCH + KERNEL] * 3)
    assert not any(timing.held())


@pytest.mark.parametrize("seconds", [KERNEL, 0.5])
def test_work_in_another_queue_does_not_hide_behind_a_held_one(seconds: float) -> None:
    """After submitting it, the host waits longer for an idle device than the call takes between the marks."""

    def elsewhere() -> None:
        GPU.now += LAUNCH
        GPU.submit("call", seconds, queue="side")

    timing = watch()
    for _ in range(LEAST_IDLE):
        timing.time_idle(elsewhere, {})
    times = [timing.time(elsewhere, {})[0] for _ in range(2)]
    assert times == pytest.approx([seconds, seconds], rel=HIDDEN_SHARE)


def test_all_but_the_time_of_a_call_is_counted_as_other_work() -> None:
    """Holding, submitting and waiting count: calls and the time between them add up to the parent's waiting time."""
    timing = watch()
    started, counted = GPU.now, timing.eviction.seconds
    calls = sum(timing.time(short, {})[0] for _ in range(5))
    assert calls + timing.eviction.seconds - counted == pytest.approx(GPU.now - started)


def test_a_kernel_is_timed_by_its_end_and_not_by_the_return_of_the_call() -> None:
    """A call that returns at once has the time of the work that it submitted."""
    assert watch().time(lambda: GPU.submit("call", 0.5), {})[0] == pytest.approx(0.5)


def test_nothing_waits_between_the_events() -> None:
    """Earlier work ends, then come the hold, the mark, the call and the mark, and only then the host waits."""
    timing = watch()
    timing.time(kernel, {})
    assert GPU.log == ["synchronize", "record", "call", "record", "wait for event", "synchronize"]
    timing.time(kernel, {})
    GPU.log.clear()
    timing.time(kernel, {})
    assert GPU.log == ["synchronize", "hold", "record", "call", "record", "wait for event", "synchronize"]


def test_on_the_cpu_nothing_is_waited_for_before_a_call() -> None:
    """Work on the CPU is done when a call returns."""
    on_cpu = Wall(backend(Framework.TORCH), "cpu", Eviction())
    on_cpu.time(lambda: None, {})
    assert on_cpu.eviction.seconds == 0.0


def test_cold_caches_are_cleared_before_every_call_and_outside_of_its_time() -> None:
    """A copy of twice the L2 is done before the first mark."""
    timing = watch(cold=True)
    times = [timing.time_idle(kernel, {})[0] for _ in range(3)]
    assert times == pytest.approx([LAUNCH + KERNEL] * 3)
    assert [one for one in GPU.log if one not in ("synchronize", "wait for event")] == [
        *("copy 2097152", "record", "call", "record"),
    ] * 3
    GPU.log.clear()
    assert timing.time(kernel, {})[0] == pytest.approx(KERNEL)
    assert GPU.log.index("copy 2097152") < GPU.log.index("call")
    assert timing.eviction.size == 2**21


def test_warm_caches_are_left_alone() -> None:
    """Nothing is copied."""
    timing = watch()
    timing.time(kernel, {})
    assert not any(one.startswith("copy") for one in GPU.log)
    assert timing.eviction.size == 0


def test_work_in_another_queue_is_in_the_time() -> None:
    """The marks do not see it, so the device's work after the second mark is added."""

    def elsewhere() -> None:
        GPU.submit("call", 0.5, queue="side")

    assert watch().time(elsewhere, {})[0] == pytest.approx(0.5, rel=1e-3)


def test_a_wait_that_an_idle_device_may_take_is_not_added(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting up to BUSY times as long as before is not added."""
    timing = watch()
    seconds = []
    for times in (BUSY - 0.1, BUSY + 0.1):
        monkeypatch.setattr(f"{__name__}.IDLE", times * 1e-5)
        seconds.append(timing.time_idle(kernel, {})[0])
    assert seconds == pytest.approx([LAUNCH + KERNEL, LAUNCH + KERNEL + (BUSY + 0.1) * 1e-5])


def test_on_a_core_that_is_slow_for_a_while_waiting_is_not_added(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches are slower by the same factor as waiting."""
    timing = watch()
    for name, seconds in (("IDLE", 8 * IDLE), ("LAUNCH", 8 * LAUNCH)):
        monkeypatch.setattr(f"{__name__}.{name}", seconds)
    assert timing.time_idle(kernel, {})[0] == pytest.approx(LAUNCH + KERNEL)


def test_without_events_the_host_waits_and_its_clock_counts() -> None:
    """JAX, ONNX Runtime and everything on the CPU have no events."""
    for framework in (Framework.NUMPY, Framework.TORCH):
        made = stopwatch(backend(framework), framework, "cpu", cold=False)
        assert isinstance(made, Wall)
        assert made.clock == WALL
    jax: Any = pytest.importorskip("attention_conformance.impls.jax.arrays")
    assert jax.events("cuda") is None


def test_the_time_of_clearing_is_no_work_of_the_call() -> None:
    """It is in neither of the times from which threads are counted."""

    def copy() -> None:
        GPU.now += 1.0

    eviction = Eviction(cold_cache.Buffer(1, copy, lambda returned: None))
    before = eviction.now()[1]
    eviction()
    assert eviction.now()[1] == pytest.approx(before)


def submits(q: Any, k: Any, v: Any) -> Any:
    """Right for one key; the stand-in finishes it later."""
    kernel()
    return v.clone()


def test_a_cell_on_a_gpu_says_which_clock_its_times_are_by() -> None:
    """The cell has samples behind a held queue, the host's median on an idle device, and bytes copied before each."""
    implementation = Implementation("submits", f"{__name__}:submits", framework=Framework.TORCH)
    answer = sampler.open_cell("it", implementation, WORKLOAD, "float32", "cuda", cold=True)
    assert (answer.status, answer.clock, answer.evicted_bytes) == ("returned", DEVICE, 2**21)
    GPU.log.clear()
    batch = sampler.batch("it", 60.0, 6, 1)
    assert batch.seconds == pytest.approx([KERNEL] * 6)
    assert batch.held == (True,) * 6
    assert batch.host_seconds == pytest.approx(LAUNCH + KERNEL + 2 * IDLE)
    assert GPU.log.count("copy 2097152") == GPU.log.count("call") == 8
    sampler.close_cell("it")


def test_a_framework_that_cannot_copy_on_a_device_has_no_cold_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cell is skipped with the reason, as its times would be warm."""
    arrays: Any = pytest.importorskip("attention_conformance.impls.onnx.arrays")
    monkeypatch.setattr(arrays, "put", lambda array, device: array)
    with pytest.raises(NotImplementedError, match="no cold caches: onnxruntime has no copy on cuda"):
        stopwatch(arrays, Framework.ONNXRUNTIME, "cuda", cold=True)


def too_early(q: Any, k: Any, v: Any) -> Any:
    """Computes before the queue gets to it, and its work takes less time than its launch."""
    GPU.now += LAUNCH
    returned = v.clone()
    GPU.submit("call", LAUNCH / 10, queue="side")
    return returned


def test_a_call_that_does_not_wait_for_its_inputs_computes_others_where_its_results_are_checked() -> None:
    """The inputs are copied into place behind the hold: here at once, after the call has read them."""
    implementation = Implementation("early", f"{__name__}:too_early", framework=Framework.TORCH)
    assert sampler.open_cell("it", implementation, WORKLOAD, "float32", "cuda").status == "returned"
    events: Any = sampler._CELLS["it"].watch.events  # type: ignore[attr-defined]
    copies = []
    plain = type(events).late

    def late(self: Any, native: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        zeros, copy = plain(self, native)
        copies.append(copy)
        return zeros, lambda: GPU.submit("copies", 0.0)

    type(events).late = late
    try:
        batches = [sampler.batch("it", 60.0, 3, 1, last) for last in (False, True)]
    finally:
        type(events).late = plain
    assert [batch.text for batch in batches] == ["", ""]
    assert (batches[0].results, len(copies)) == ({}, 1)
    assert not batches[1].results["output"].any()
    sampler.close_cell("it")


def test_late_inputs_are_zero_until_the_copies_are_made() -> None:
    """Floating-point inputs are zero; others keep their values, as lengths of 0 would be another call."""
    events = watch().events
    given = {"q": torch.ones(2), "kv_lengths": torch.ones(2, dtype=torch.int64), "scale": 0.5}
    native, copy = events.late(given)
    assert (native["q"].tolist(), native["kv_lengths"].tolist(), native["scale"]) == ([0.0, 0.0], [1, 1], 0.5)
    copy()
    assert native["q"].tolist() == [1.0, 1.0]
    assert native["q"] is not given["q"]
