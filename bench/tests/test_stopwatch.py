"""How a call is timed: by the host's clock, or by events of a device, here a stand-in for torch's CUDA."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from attention_conformance.bench.sampling import cold_cache, sampler
from attention_conformance.bench.sampling.stopwatch import BUSY, DEVICE, WALL, ByEvents, Eviction, Wall, stopwatch
from attention_conformance.bench.workloads.workload import Workload
from attention_conformance.impls.backend import backend
from attention_conformance.impls.contract import Framework, Implementation

torch = pytest.importorskip("torch")

WORKLOAD = Workload(1, 1, 2, 3)

#: Seconds that the host takes to wait for an idle device, and that a kernel of the stand-in takes.
IDLE, KERNEL = 1e-5, 1e-3


@dataclass
class Gpu:
    """A device with queues and a clock: kernels run in order within a queue, and the host waits for them or not."""

    now: float = 0.0
    #: When each queue has done what was submitted to it.
    free: dict[str, float] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)

    def submit(self, name: str, seconds: float, queue: str = "main") -> float:
        """Put work into a queue, which the host does not wait for; gives when it will be done."""
        self.log.append(name)
        self.free[queue] = max(self.now, self.free.get(queue, 0.0)) + seconds
        return self.free[queue]

    def synchronize(self, device: Any = None) -> None:
        """The host waits for every queue."""
        self.log.append("synchronize")
        self.now = max(self.now, *self.free.values(), 0.0) + IDLE


GPU = Gpu()


class Event:
    """A mark of the stand-in, as ``torch.cuda.Event``."""

    def __init__(self, enable_timing: bool = False) -> None:
        assert enable_timing
        self.at: float | None = None

    def record(self) -> None:
        """Reached when the queue has done what comes before."""
        self.at = GPU.submit("record", 0.0)

    def synchronize(self) -> None:
        """The host waits until it is reached."""
        assert self.at is not None
        GPU.log.append("wait for event")
        GPU.now = max(GPU.now, self.at) + IDLE

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds."""
        assert self.at is not None
        assert end.at is not None
        assert end.at <= GPU.now, "the end is not reached yet"
        return 1e3 * (end.at - self.at)


@pytest.fixture(autouse=True)
def _gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Torch's CUDA is the stand-in, whose tensors lie on the CPU, and so are both clocks."""
    arrays: Any = backend(Framework.TORCH)
    GPU.now, GPU.free, GPU.log = 0.0, {}, []
    properties = SimpleNamespace(L2_cache_size=2**20)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", GPU.synchronize)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(arrays, "_copy_to_device", lambda tensor, device: tensor)
    monkeypatch.setattr(arrays, "copy", lambda array: lambda: GPU.submit(f"copy {array.nbytes}", 5 * KERNEL))
    monkeypatch.setattr("attention_conformance.bench.sampling.stopwatch.perf_counter", lambda: GPU.now)
    cold_cache.buffer.cache_clear()
    yield
    cold_cache.buffer.cache_clear()


def kernel() -> None:
    """Launched in 20 µs of the host's time, and run after the host went on."""
    GPU.now += 2e-5
    GPU.submit("call", KERNEL)


def watch(cold: bool = False) -> ByEvents:
    """The stopwatch of torch on CUDA; what it did to get ready is forgotten."""
    made = stopwatch(backend(Framework.TORCH), Framework.TORCH, "cuda", cold)
    assert isinstance(made, ByEvents)
    GPU.log.clear()
    return made


def test_the_time_of_the_events_counts_and_not_the_hosts() -> None:
    """The host also waits 10 µs to hear that the device is done, twice; its time is kept beside."""
    timing = watch()
    seconds, _ = timing.time(kernel, {})
    assert seconds == pytest.approx(2e-5 + KERNEL)  # the device waits for the launch
    assert timing.host() == pytest.approx([2e-5 + KERNEL + 2 * IDLE])
    assert timing.host() == []


def test_a_kernel_is_timed_by_its_end_and_not_by_the_return_of_the_call() -> None:
    """A call that returns at once has the time of what it submitted."""
    assert watch().time(lambda: GPU.submit("call", 0.5), {})[0] == pytest.approx(0.5)


def test_nothing_waits_between_the_events() -> None:
    """Everything earlier is done, the mark, the call, the mark, and only then the host waits."""
    watch().time(kernel, {})
    assert GPU.log == ["synchronize", "record", "call", "record", "wait for event", "synchronize"]


def test_waiting_for_an_idle_device_before_a_call_is_counted() -> None:
    """So that calls and what is between them come to what the parent waits for; the CPU is not waited for."""
    timing = watch()
    before = timing.eviction.seconds
    for _ in range(3):
        timing.time(kernel, {})
    assert timing.eviction.seconds - before == pytest.approx(3 * IDLE)
    on_cpu = Wall(backend(Framework.TORCH), "cpu", Eviction())
    on_cpu.time(lambda: None, {})
    assert on_cpu.eviction.seconds == 0.0


def test_cold_caches_are_cleared_before_every_call_and_outside_of_its_time() -> None:
    """By a copy of twice the L2, which is over before the first mark."""
    timing = watch(cold=True)
    times = [timing.time(kernel, {})[0] for _ in range(3)]
    assert times == pytest.approx([2e-5 + KERNEL] * 3)
    assert [one for one in GPU.log if one not in ("synchronize", "wait for event")] == [
        *("copy 2097152", "record", "call", "record"),
    ] * 3
    assert timing.eviction.size == 2**21


def test_warm_caches_are_left_alone() -> None:
    """Nothing is copied."""
    timing = watch()
    timing.time(kernel, {})
    assert not any(one.startswith("copy") for one in GPU.log)
    assert timing.eviction.size == 0


def test_work_in_another_queue_is_in_the_time() -> None:
    """The marks do not see it; what the device still does after the second is added."""

    def elsewhere() -> None:
        GPU.submit("call", 0.5, queue="side")

    assert watch().time(elsewhere, {})[0] == pytest.approx(0.5, rel=1e-3)


def test_a_wait_that_an_idle_device_may_take_is_not_added(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to BUSY times what it took before."""
    timing = watch()
    seconds = []
    for times in (BUSY - 0.1, BUSY + 0.1):
        monkeypatch.setattr(f"{__name__}.IDLE", times * 1e-5)
        seconds.append(timing.time(kernel, {})[0])
    assert seconds == pytest.approx([2e-5 + KERNEL, 2e-5 + KERNEL + (BUSY + 0.1) * 1e-5])


def test_without_events_the_host_waits_and_its_clock_counts() -> None:
    """As of JAX and ONNX Runtime, and of everything on the CPU."""
    for framework in (Framework.NUMPY, Framework.TORCH):
        made = stopwatch(backend(framework), framework, "cpu", cold=False)
        assert isinstance(made, Wall)
        assert made.clock == WALL
    jax: Any = pytest.importorskip("attention_conformance.impls.jax.arrays")
    assert jax.events("cuda") is None


def test_the_time_of_clearing_is_no_work_of_the_call() -> None:
    """It is in neither of the times by which threads are counted."""

    def copy() -> None:
        GPU.now += 1.0

    eviction = Eviction(cold_cache.Buffer(1, copy, lambda returned: None))
    before = eviction.now()[1]
    eviction()
    assert eviction.now()[1] == pytest.approx(before)


def submits(q: Any, k: Any, v: Any) -> Any:
    """Right for one key, and done by the stand-in later."""
    kernel()
    return v.clone()


def test_a_cell_on_a_gpu_says_which_clock_its_times_are_by() -> None:
    """Samples by events, the host's median beside them, and how much was copied before each call."""
    implementation = Implementation("submits", f"{__name__}:submits", framework=Framework.TORCH)
    answer = sampler.open_cell("it", implementation, WORKLOAD, "float32", "cuda", cold=True)
    assert (answer.status, answer.clock, answer.evicted_bytes) == ("returned", DEVICE, 2**21)
    GPU.log.clear()
    batch = sampler.batch("it", 60.0, 6, 1)
    assert batch.seconds == pytest.approx([2e-5 + KERNEL] * 6)
    assert batch.host_seconds == pytest.approx(2e-5 + KERNEL + 2 * IDLE)
    assert GPU.log.count("copy 2097152") == GPU.log.count("call") == 8
    sampler.close_cell("it")


def test_a_framework_that_cannot_copy_on_a_device_has_no_cold_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cell is skipped with the reason, as its times would be warm."""
    arrays: Any = pytest.importorskip("attention_conformance.impls.onnx.arrays")
    monkeypatch.setattr(arrays, "put", lambda array, device: array)
    with pytest.raises(NotImplementedError, match="no cold caches: onnxruntime has no copy on cuda"):
        stopwatch(arrays, Framework.ONNXRUNTIME, "cuda", cold=True)
