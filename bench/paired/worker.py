"""Worker of a paired comparison: opens cells, measures batches of their calls, and returns results.

Batches are those of ``pytest bench`` (bench.sampling.sampler).  Everything that crosses the process border is plain
(strings, numbers, NumPy arrays), and its form has a number, so that a revision can be compared with an older one whose
own classes differ.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import time
from typing import Any

import numpy as np

from attention_conformance.bench.roofline import peaks as roofline
from attention_conformance.bench.sampling import device_clock, sampler
from attention_conformance.bench.workloads.workload import parse
from attention_conformance.conformance.targets import Selection, choose
from attention_conformance.impls.backend import Backend, backend
from attention_conformance.impls.contract import Framework, Function
from attention_conformance.impls.interpreters import interpreted
from attention_conformance.impls.process.pool import Pool

#: Increased by one when the data that cross the process border change, or the inputs that a batch's number means.
FORM = 7

#: Keyword arguments of one call, as NumPy arrays and plain values: those with a position, and the others.
Inputs = tuple[dict[str, np.ndarray], dict[str, Any]]


def form() -> int:
    """The number of this suite's form."""
    return FORM


def load(what: str, device: str, dtype: str) -> None:
    """Import what the implementation named ``what`` needs, so that both workers can do so at the same time."""
    _chosen((what,), device, dtype)


def offer(patterns: list[str], device: str, dtype: str) -> dict[str, Any]:
    """Offer of this worker: ``versions`` and, by implementation, operator, keywords, process, and so on."""
    found = _chosen(tuple(patterns), device, dtype)
    implementations = {
        target.implementation.name: {
            "operator": target.implementation.operator,
            "keywords": sorted(found.keywords[target.implementation.name]),
            "process": target.implementation.process,
            "profile": target.profile.value,
            "framework": target.implementation.framework.value,
            "interpreted": interpreted(target.implementation, device),
        }
        for target in found.targets
    }
    missing = {name: list(packages) for name, packages in found.not_installed.items()}
    return {"implementations": implementations, "versions": found.versions, "not_installed": missing}


def begin(
    key: str, what: str, workload: str, device: str, dtype: str, inputs: list[Inputs], slowdown: float = 0.0
) -> dict[str, Any]:
    """Open a cell: prepare the implementation named ``what``, call it once, and then once on each input set.

    Returns ``status`` (as bench.sampling.sampler.Opened), ``text``, ``results`` of the first set, and ``seconds`` of
    the fastest of the later calls.  With ``slowdown`` every call after the first takes longer by that share of its
    time, waiting.
    """
    target = next(t for t in _chosen((what,), device, dtype).targets if t.implementation.name == what)
    opened = sampler.open_cell(
        key, target.implementation, parse(workload), dtype, device, make=lambda seed: _copied(inputs[seed])
    )
    if opened.status != "returned":
        return {"status": opened.status, "text": opened.text}
    if slowdown:
        arrays = backend(target.implementation.framework)
        sampler.change(key, lambda run: _slowed(run, slowdown, arrays))
    warm = sampler.warm(key, float("inf"))
    seconds = min(warm.seconds, default=0.0)
    return {"status": warm.status, "text": warm.text, "results": opened.results, "seconds": seconds}


def batch(key: str, seconds: float, most: int, number: int, last: bool) -> dict[str, Any]:
    """A batch of calls; arguments and result as of bench.sampling.sampler.batch."""
    return dict(vars(sampler.batch(key, seconds, most, number, last)))


def again(key: str, number: int) -> dict[str, Any]:
    """One more call; arguments and result as of bench.sampling.sampler.again."""
    return dict(vars(sampler.again(key, number)))


def cold_calls(key: str, count: int) -> dict[str, Any]:
    """Calls with cold caches; arguments and result as of bench.sampling.sampler.cold_calls."""
    return dict(vars(sampler.cold_calls(key, count)))


def peak(framework: str, device: str, dtype: str, seconds: float) -> float:
    """Operations per second of the framework's best matrix product in this dtype and in float32; 0 without one."""
    products = [roofline.product(Framework(framework), device, each, seconds) for each in {dtype, "float32"}]
    return max((sample.per_second for found in products for sample in found), default=0.0)


def end(key: str) -> None:
    """Close a cell."""
    sampler.close_cell(key)


def _copied(given: Inputs) -> Inputs:
    """A copy of an input set: an implementation may change its arguments, and the first set is still needed."""
    first, rest = ({n: np.array(v) if isinstance(v, np.ndarray) else v for n, v in each.items()} for each in given)
    return first, rest


def _slowed(run: Function, share: float, arrays: Backend) -> Function:
    def slowed(**native: Any) -> Any:
        started = time.perf_counter()
        returned = run(**native)
        arrays.wait(returned)
        elapsed = time.perf_counter() - started
        while time.perf_counter() - started < elapsed * (1 + share):
            pass
        return returned

    return slowed


@functools.cache
def _chosen(patterns: tuple[str, ...], device: str, dtype: str) -> Selection:
    if device == "cuda" and importlib.util.find_spec("torch"):
        importlib.import_module("torch")  # its clock must be known before foreign code is loaded
        device_clock.bind()
    return choose(patterns, [device], [dtype], Pool(in_process=True))
