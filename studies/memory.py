"""Memory of a call, by implementation and length, and as its library itself reports it."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from importlib import metadata
from typing import Any

from attention_conformance.bench.analysis import fits
from attention_conformance.bench.memory import peak
from attention_conformance.bench.workloads.workload import Workload, parse
from attention_conformance.impls.contract import Framework, Implementation
from attention_conformance.impls.operators import SDPA
from attention_conformance.impls.process import threads
from attention_conformance.impls.process.pool import Worker
from attention_conformance.impls.process.threads import usable_cores
from attention_conformance.impls.select import builtin
from studies.common import Measured, Study, markdown, sentence

#: Workloads that are called, and their lengths.
FAMILY, LENGTHS = "prefill-b1h8d64s*", (512, 1024, 2048, 4096)

#: The implementations whose libraries report their own memory, and the length.
ASKED = ("numpy-eager", "numpy-tiled", "torch-sdpa-math", "torch-sdpa-flash", "torch-eager", "jax-jit")
AT = 1024

#: Seconds that measuring one cell may take.
TIMEOUT = 600.0

MIB = 2**20


def workload(length: int) -> Workload:
    """The workload with this length."""
    return parse(FAMILY.replace("*", str(length)))


def by_tracemalloc(call: Callable[[], Any], _: Implementation) -> int:
    """The most bytes that Python's allocators gave out during a call; NumPy reports its arrays to them."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        kept = call()
        most = tracemalloc.get_traced_memory()[1] - before
        del kept
    finally:
        tracemalloc.stop()
    return most


def by_profiler(call: Callable[[], Any], _: Implementation) -> int:
    """The highest running sum of the bytes that torch's profiler saw allocated and freed."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        kept = call()
    del kept
    events: Any = profiled.profiler.kineto_results.events()  # type: ignore[union-attr]
    held = most = 0
    for event in sorted((one for one in events if one.name() == "[memory]"), key=lambda one: one.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


def by_plan(_: Callable[[], Any], implementation: Implementation) -> int:
    """Temporaries and result in the plan of the program that XLA compiles."""
    import jax

    from attention_conformance.impls.jax.prepare import compiled
    from attention_conformance.impls.loading import load_function

    shape = (1, 8, AT, 64)
    arrays = {name: jax.ShapeDtypeStruct(shape, "float32") for name in "qkv"}
    plan: Any = compiled(load_function(implementation)).lower(arrays, {}, static=()).compile().memory_analysis()
    return int(plan.temp_size_in_bytes + plan.output_size_in_bytes)


#: The report of each library on itself, and the function that reads it.
THERE: Mapping[Framework, tuple[str, Callable[[Callable[[], Any], Implementation], int]]] = {
    Framework.NUMPY: ("`tracemalloc`", by_tracemalloc),
    Framework.TORCH: ("`torch.profiler`, running sum", by_profiler),
    Framework.JAX: ("XLA's plan: temporaries + result", by_plan),
}


def told(implementation: Implementation) -> int:
    """Bytes of a second call, as its library reports them.  In a worker."""
    call = peak.call_of(implementation, workload(AT), "cpu", "float32")
    call()
    return THERE[implementation.framework][1](call, implementation)


def compared(names: Iterable[str], lengths: Iterable[int]) -> dict[str, Any]:
    """Bytes by implementation and length, by this bench; at one length also as libraries report them."""
    lengths = tuple(lengths)
    gauge = peak.Gauge()
    held = {}
    with closing(gauge):
        for name in names:
            found = [gauge.peak(builtin()[name], workload(s), "cpu", "float32", TIMEOUT) for s in lengths]
            if all(one.bytes is not None for one in found):
                held[name] = [one.bytes for one in found]
    asked = {}
    for name in (one for one in ASKED if one in held and AT in lengths):
        with closing(Worker(peak.ENVIRONMENT | threads.environment(usable_cores()))) as worker:
            asked[name] = worker.call("studies.memory:told", builtin()[name], timeout=TIMEOUT)
    return {"lengths": lengths, "held": held, "asked": asked}


def grown(found: Mapping[str, Any]) -> list[fits.Memory]:
    """Growth of the memory of each implementation, the least bytes first."""
    cell = {"device": "cpu", "dtype": "float32", "family": FAMILY}
    records = [
        {"implementation": name, "S": s, "B": 1, "H": 8, "memory_bytes": size, **cell}
        for name, sizes in found["held"].items()
        for s, size in zip(found["lengths"], sizes, strict=True)
    ]
    return sorted(fits.memories(records), key=lambda one: one.bytes)


def lengths_table(found: Measured) -> str:
    """Markdown: MiB by length, the exponent with its interval, and the growth in a word."""
    rows = []
    for one in grown(found):
        sizes = [f"{size / MIB:.1f}" for size in found["held"][one.implementation]]
        line = one.line
        fitted = [f"{line.exponent:.2f}", f"{line.low:.2f} … {line.high:.2f}"] if line else ["–", "–"]
        rows.append([one.implementation, *sizes, *fitted, one.growth])
    *shorter, longest = found["lengths"]
    heads = ["implementation", *map(str, shorter), f"{longest} MiB", "exponent", "interval", ""]
    return f"{markdown(heads, rows, left=(0, len(heads) - 2, len(heads) - 1))}\n\n{sentence(found)}"


def asked_table(found: Measured) -> str:
    """Markdown: MiB by the bench and by the library itself, at one length."""
    at, rows = found["lengths"].index(AT), []
    for name, size in found["asked"].items():
        sizes = (found["held"][name][at], size)
        rows.append([name, *(f"{one / MIB:.1f}" for one in sizes), THERE[builtin()[name].framework][0]])
    versions = ", ".join(f"{library} {version}" for library, version in found["machine"]["versions"].items())
    lines = markdown(["implementation", "MiB here", "MiB there", "there"], rows, left=(0, 3))
    return f"{lines}\n\n{sentence(found, versions)}"


def measure() -> dict[str, Any]:
    """The built-in implementations of attention that are installed."""
    names = [one.name for one in builtin().values() if one.operator == SDPA.name and not one.missing()]
    versions = {one: metadata.version(one) for one in ("numpy", "torch", "jax", "onnxruntime")}
    return compared(names, LENGTHS) | {"versions": versions}


STUDY = Study(
    "memory",
    "the memory of a call by length, here and as its library says",
    measure,
    {"bench/MEASURES.md#of itself": asked_table, "bench/MEASURES.md#by length": lengths_table},
)
