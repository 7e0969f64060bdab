"""The device's clock on a GPU: a call's time from idle and behind a held queue, next to a CUDA graph and do_bench.

The same call is timed in four ways.  From an idle GPU the time includes the launch.  Behind a held queue it does not,
nor in the replay of a graph of many such calls, where the next call uses what one call leaves idle.  Triton's
``do_bench`` clears the L2 before each call, which holds the queue for as long as that takes.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

from attention_conformance.bench.sampling import sampler
from attention_conformance.bench.workloads.workload import parse
from attention_conformance.impls.backend import backend
from attention_conformance.impls.contract import Framework
from attention_conformance.impls.process.pool import Worker
from attention_conformance.impls.select import builtin
from studies.common import Measured, Study, Unfit, markdown, sentence

WORKLOADS = (
    "prefill-b1h8d64s128-causal",
    "prefill-b1h8d64s1024-causal",
    "prefill-b1h8d64s4096-causal",
    "decode-b1h32g8d128s1k8191",
)
NAMES = ("torch-sdpa", "torch-sdpa-flash", "torch-sdpa-efficient", "torch-eager")
DTYPE = "bfloat16"

#: Batches of a cell, and the most seconds and calls of each.
BATCHES, SECONDS, CALLS = 7, 0.02, 60

#: Calls that are captured in a graph, and replays of it.
CAPTURED, REPLAYS = 30, 5


def timed(name: str, workload: str) -> dict[str, Any]:
    """Job: times of one cell as medians of batches, in seconds; those of ``do_bench`` as its own medians."""
    found: dict[str, Any] = {"name": name, "workload": workload}
    for kind, cold in (("held", False), ("cold", True)):
        opened = sampler.open_cell(kind, builtin()[name], parse(workload), DTYPE, "cuda", cold=cold)
        if opened.status != "returned":
            return {**found, "skipped": opened.text}
        sampler.warm(kind, 1.0)
        batches = [sampler.batch(kind, SECONDS, CALLS, each, lead=SECONDS / 2) for each in range(BATCHES)]
        found[kind] = [statistics.median(batch.seconds) for batch in batches]
        if not cold:
            found["share_held"] = statistics.mean(each for batch in batches for each in batch.held)
            found["host"] = [batch.host_seconds for batch in batches]
            cell = sampler._CELLS[kind]  # its stopwatch
            found["idle"] = [
                statistics.median(cell.time_call(cell.next_inputs(), idle=True)[0] for _ in range(CALLS))
                for _ in range(BATCHES)
            ]
            run, inputs = sampler.bare(kind)
            found["graph"] = _graph(run, inputs)
            found["do_bench"] = _do_bench(run, inputs[0])
        sampler.close_cell(kind)
    return found


def _do_bench(run: Callable[..., Any], given: Mapping[str, Any]) -> list[float]:
    from triton.testing import do_bench  # type: ignore[import-untyped,unused-ignore]

    return [1e-3 * do_bench(lambda: run(**given), return_mode="median") for _ in range(3)]


def _graph(run: Callable[..., Any], inputs: Sequence[Mapping[str, Any]]) -> list[float]:
    """Seconds of a call in replays of a graph of CAPTURED; none if it cannot be captured."""
    import torch

    try:
        with torch.cuda.stream(torch.cuda.Stream()):
            for given in inputs:
                run(**given)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for place in range(CAPTURED):
                run(**inputs[place % len(inputs)])
    except RuntimeError:
        return []
    found = []
    for _ in range(REPLAYS + 1):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        found.append(1e-3 * begin.elapsed_time(end) / CAPTURED)
    return found[1:]


def measure() -> dict[str, Any]:
    """All cells, each implementation in a process of its own.  Raises Unfit without a GPU."""
    arrays = backend(Framework.TORCH)
    if "cuda" not in arrays.devices():
        raise Unfit("torch finds no GPU here")
    cells = []
    for name in NAMES:
        with closing(Worker({})) as worker:
            cells += [worker.call("studies.device_clock:timed", name, workload) for workload in WORKLOADS]
    return {"cells": cells, "versions": arrays.versions()}


def _range(seconds: Sequence[float]) -> str:
    if not seconds:
        return "–"
    low, middle, high = (1e6 * each for each in (min(seconds), statistics.median(seconds), max(seconds)))
    return f"{middle:.1f} ({low:.1f} to {high:.1f})"


def table(found: Measured) -> str:
    """Markdown: a line for each cell, microseconds as medians with the least and the most of their batches."""
    cells = sorted(found["cells"], key=lambda cell: WORKLOADS.index(cell["workload"]))
    head = ["workload", "implementation", "from idle", "behind a held queue", "in a graph", "held, cold", "do_bench"]
    kinds = ("idle", "held", "graph", "cold", "do_bench")
    rows = [
        [f"`{cell['workload']}`", cell["name"], *(_range(cell[kind]) for kind in kinds)]
        for cell in cells
        if "skipped" not in cell
    ]
    share = statistics.mean(cell["share_held"] for cell in cells if "skipped" not in cell)
    about = f"Microseconds, {DTYPE}; {share:.1%} of the calls were submitted in time; {found['machine']['gpu']}"
    return f"{markdown(head, rows, left=range(7))}\n\n{sentence(found, about)}"


STUDY = Study("device_clock", "times on a GPU, by clocks", measure, {"bench/README.md#on a GPU": table})
