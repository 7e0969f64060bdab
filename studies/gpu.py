"""Time and memory of calls on a GPU: by this bench, and as the frameworks' own tools measure the same calls.

Needs a CUDA device, torch with Triton, and JAX.  Calls are of bfloat16, causal, ``prefill-b1h8d64s*``.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import closing
from importlib import metadata
from typing import Any

from attention_conformance.bench.machine import gpu
from attention_conformance.bench.memory import peak
from attention_conformance.bench.sampling.stopwatch import stopwatch
from attention_conformance.bench.workloads.workload import parse
from attention_conformance.impls.backend import backend
from attention_conformance.impls.contract import Framework, Implementation
from attention_conformance.impls.loading import load_function
from attention_conformance.impls.process import allocator
from attention_conformance.impls.process.pool import Worker
from attention_conformance.impls.select import builtin
from studies.common import Measured, Study, Unfit, markdown, sentence

DTYPE = "bfloat16"

#: What is timed: implementation and length; the last one has work in a stream that the call does not wait for.
CALLS = (("torch-sdpa-flash", 128), ("torch-sdpa-flash", 1024), ("torch-sdpa-flash", 8192), ("torch-eager", 1024))
STRAY = "torch-sdpa-flash, S = 1024, and a kernel of {ms:.1f} ms in another stream"

#: Cycles of that kernel, of which a GPU at 2 GHz has 2 million in a millisecond.
CYCLES = 20_000_000

#: Calls that are timed, after a tenth as many.
COUNT = 200

#: Whose memory is compared, and at which length.
HELD, AT = ("torch-eager", "torch-sdpa-math", "torch-sdpa-flash", "torch-sdpa-cudnn", "jax-jit"), 4096

#: Seconds for a worker's job.
TIMEOUT = 120.0

MIB = 2**20


def timed() -> list[dict[str, Any]]:
    """Job: median seconds of each call by events, the host's clock, torch's benchmark and Triton's.  In a worker."""
    import torch
    from torch.utils.benchmark import Timer
    from triton.testing import do_bench

    arrays = backend(Framework.TORCH)
    found = []

    def row(name: str, call: Callable[[], Any], with_tools: bool = True) -> None:
        watch = stopwatch(arrays, Framework.TORCH, "cuda", cold=False)
        for _ in range(COUNT // 10):
            watch.time(call, {})
        watch.host()
        by_events = [watch.time(call, {})[0] for _ in range(COUNT)]
        one: dict[str, Any] = {"name": name, "events": by_events, "host": watch.host()}
        if with_tools:
            one["torch"] = Timer("call()", globals={"call": call}).blocked_autorange(min_run_time=0.3).median
            one["triton"] = do_bench(call, rep=200, return_mode="median") / 1e3
        found.append(one)

    for name, length in CALLS:
        call = peak.call_of(builtin()[name], parse(f"prefill-b1h8d64s{length}-causal"), "cuda", DTYPE, waits=False)
        row(f"{name}, S = {length}", call)
    side = torch.cuda.Stream()

    def stray() -> Any:
        with torch.cuda.stream(side):
            torch.cuda._sleep(CYCLES)
        return call_at_1024()

    call_at_1024 = peak.call_of(
        builtin()["torch-sdpa-flash"], parse("prefill-b1h8d64s1024-causal"), "cuda", DTYPE, waits=False
    )
    first, second = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(CYCLES)
    first.record()
    torch.cuda._sleep(CYCLES)
    second.record()
    torch.cuda.synchronize()
    row(STRAY.format(ms=first.elapsed_time(second)), stray, with_tools=False)
    return found


def told(implementation: Implementation) -> int:
    """Bytes of a second call, by the framework: torch's peak since its reset, XLA's plan.  In a worker."""
    if implementation.framework is Framework.JAX:
        return _planned(implementation)
    import torch

    call = peak.call_of(implementation, parse(f"prefill-b1h8d64s{AT}-causal"), "cuda", DTYPE)
    kept = call()
    del kept
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    return torch.cuda.max_memory_allocated() - before


def _planned(implementation: Implementation) -> int:
    """Temporaries and result in the plan of the program that XLA compiles."""
    import jax

    from attention_conformance.impls.jax.prepare import compiled

    arrays = {name: jax.ShapeDtypeStruct((1, 8, AT, 64), DTYPE) for name in "qkv"}
    program = compiled(load_function(implementation)).lower(arrays, {}, static=(("is_causal", True),))
    plan: Any = program.compile().memory_analysis()
    return int(plan.temp_size_in_bytes + plan.output_size_in_bytes)


def measure() -> dict[str, Any]:
    """Measure in processes as those that time.  Raises Unfit without a CUDA device."""
    before = gpu.states()
    if not before:
        raise Unfit("no CUDA device: nvidia-smi finds none")
    with closing(Worker(allocator.environment())) as worker:
        calls = worker.call("studies.gpu:timed", timeout=TIMEOUT)
    gauge, memory = peak.Gauge(), {}
    with closing(gauge):
        for name in HELD:
            held = gauge.peak(builtin()[name], parse(f"prefill-b1h8d64s{AT}-causal"), "cuda", DTYPE, TIMEOUT)
            memory[name] = {"here": held.bytes, "reason": held.reason}
    for name in HELD:
        with closing(Worker(allocator.environment())) as worker:
            memory[name]["there"] = worker.call("studies.gpu:told", builtin()[name], timeout=TIMEOUT)
    versions = {name: metadata.version(name) for name in ("torch", "triton", "jax")}
    return {"calls": calls, "memory": memory, "gpu": before[0].name, "versions": versions}


def times(found: Measured) -> str:
    """Markdown: a line for each call, in microseconds."""
    rows = []
    for one in found["calls"]:
        by = [statistics.median(one["events"]), statistics.median(one["host"]), one.get("torch"), one.get("triton")]
        rows.append([one["name"], *("–" if seconds is None else f"{1e6 * seconds:.1f}" for seconds in by)])
    heads = ("call", "device events, µs", "host's clock, µs", "`torch.utils.benchmark`, µs", "Triton's `do_bench`, µs")
    return f"{markdown(heads, rows)}\n\n{_circumstances(found)}"


def memory(found: Measured) -> str:
    """Markdown: a line for each implementation, in MiB."""
    rows = [
        [name, "–" if one["here"] is None else f"{one['here'] / MIB:.1f}", f"{one['there'] / MIB:.1f}", _there(name)]
        for name, one in found["memory"].items()
    ]
    return f"{markdown(('implementation', 'MiB here', 'MiB there', 'there'), rows, (0, 3))}\n\n{_circumstances(found)}"


def _there(name: str) -> str:
    torch = builtin()[name].framework is Framework.TORCH
    return "`torch.cuda.max_memory_allocated`, reset before" if torch else "XLA's plan: temporaries + result"


def _circumstances(found: Measured) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in found["machine"]["versions"].items())
    return sentence(found, found["gpu"], versions)


STUDY = Study(
    "gpu",
    "time and memory of calls on a GPU, here and by the frameworks' tools",
    measure,
    {"bench/README.md#on a GPU": times, "bench/MEASURES.md#on a GPU": memory},
)
