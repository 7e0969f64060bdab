"""Roofline: the machine's own limits, measured in the same run: the best matrix product, and memory bandwidth.

    flops per second   2·n³ ÷ the least time of a product of two n × n matrices, per device and dtype
    bytes per second   2 · bytes ÷ the least time of copying an array that no cache holds (read and written)

Each framework measures in its own process, where its calls are timed; the peak is the best of all of them, with its
name.  A peak is what the best kernel reaches, so the least time counts, not the median.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import ml_dtypes  # noqa: F401  (registers bfloat16 with NumPy)
import numpy as np

from attention_conformance.bench.processes import Jobs
from attention_conformance.bench.records import Roofline, Sample
from attention_conformance.conformance.targets import Target
from attention_conformance.impls.backend import Backend, backend
from attention_conformance.impls.contract import Framework, Implementation, Profile
from attention_conformance.impls.process import threads
from attention_conformance.impls.process.pool import Crashed, Pool, TimedOut

#: Seconds for one roofline in one framework, and the fewest calls, after one to warm up.
SECONDS, CALLS = 0.3, 3

#: The least side of a product, which doubles while the next one's calls are predicted to take less than MOST seconds (a
#: product in half precision in NumPy takes 0.08 s at the least side), and the largest side by device.  At n = 2048 a
#: product has 17 GFLOP, and its 48 MiB in float32 are beyond the inner caches.
LEAST_SIDE, MOST = 256, 1.0
LARGEST_SIDE = {"cpu": 2048, "cuda": 8192}

#: Bytes of the array that is copied, by device.  With its copy 512 MiB, which is more than the last-level cache of all
#: but a few servers, and on a GPU 4 GiB, so that the start of a kernel is negligible in its time.
COPIED = {"cpu": 2**28, "cuda": 2**31}

#: Numbers that are drawn for an array; a larger one repeats them.
DRAWN = 2**20

#: Seconds after which a framework has no roofline.
TIMEOUT = 60.0


def rooflines(pool: Jobs, targets: Iterable[Target], seconds: float = SECONDS) -> list[Roofline]:
    """The rooflines of every device and dtype of the targets, each measured by every framework among them."""
    wanted: dict[tuple[str, str], dict[Framework, Implementation]] = {}
    for target in targets:
        frameworks = wanted.setdefault((target.device, target.dtype), {})
        frameworks.setdefault(target.implementation.framework, target.implementation)
    copies: dict[tuple[str, Framework], list[Sample]] = {}
    found = []
    for (device, dtype), frameworks in wanted.items():
        samples = []
        for framework, implementation in frameworks.items():
            samples += _ask(pool, implementation, "product", framework, device, dtype, seconds)
            if (device, framework) not in copies:
                copies[device, framework] = _ask(pool, implementation, "bandwidth", framework, device, seconds)
            samples += copies[device, framework]
        found.append(roofline(device, dtype, samples))
    return found


def roofline(device: str, dtype: str, samples: Iterable[Sample]) -> Roofline:
    """The best of the samples."""
    taken = tuple(samples)
    best: dict[str, Any] = {"samples": taken}
    for quantity in ("flops", "bytes"):
        of_it = [sample for sample in taken if sample.quantity == quantity]
        if of_it:
            most = max(of_it, key=lambda sample: sample.per_second)
            best |= {f"{quantity}_per_second": most.per_second, f"{quantity}_by": most.framework}
    return Roofline(device, dtype, **best)


def product(framework: Framework, device: str, dtype: str, seconds: float) -> list[Sample]:
    """Best matrix product in this dtype, in the framework's process; nothing where it has none.

    On a busy machine a large product waits for other work many times, and the best of the small ones never, so the
    smallest gets half of the time.
    """
    arrays = backend(framework)
    side: int = LEAST_SIDE
    rates: dict[int, float] = {}
    try:
        while True:
            a, b = (arrays.put(_numbers((side, side), dtype), device) for _ in range(2))
            multiply = arrays.matmul(a, b)
            last = 2 * side > LARGEST_SIDE[device]
            least = _fastest(arrays, device, multiply, seconds / 2 if last or side == LEAST_SIDE else 0.0)
            rates[side] = 2 * side**3 / least
            if last:
                break
            if 8 * least * (CALLS + 1) > MOST:
                rates[side] = max(rates[side], 2 * side**3 / _fastest(arrays, device, multiply, seconds / 2))
                break
            side *= 2
    except Exception:  # libraries without a product of this dtype raise different exceptions
        return []
    best = max(rates, key=lambda side: rates[side])
    return [Sample(str(framework), "flops", rates[best], best)]


def bandwidth(framework: Framework, device: str, seconds: float) -> list[Sample]:
    """Fastest copy, in the framework's process; nothing where it cannot copy."""
    arrays = backend(framework)
    try:
        copy = arrays.copy(arrays.put(_numbers((COPIED[device] // 4,), "float32"), device))
    except NotImplementedError:
        return []
    least = _fastest(arrays, device, copy, seconds)
    return [Sample(str(framework), "bytes", 2 * COPIED[device] / least, COPIED[device])]


#: Matrix products seen so far, in operations per second: a peak is the most that the machine ever did.
_SEEN: dict[tuple[Framework, str, tuple[str, ...], int], float] = {}


def product_dtypes(dtype: str, device: str, profile: Profile) -> tuple[str, ...]:
    """Dtypes whose matrix products a kernel may use: its own, and float32, which a half-precision kernel may use too.

    A kernel that rounds float32 to TF32 on a GPU uses units whose own product frameworks make only on request; their
    product in bfloat16 is as fast, or twice as fast.

    Parameters
    ----------
    dtype, device
        Dtype and device of the call.
    profile
        Precision profile of the kernel in this dtype.

    Returns
    -------
    tuple[str, ...]
        Names of dtypes, each once.
    """
    rounded = ("bfloat16",) if device == "cuda" and profile is Profile.TF32 else ()
    return tuple(dict.fromkeys((dtype, "float32", *rounded)))


def best_product(target: Target, seconds: float, count: int) -> float:
    """Operations per second of the framework's best matrix product that was seen, in processes without foreign code.

    The best in the dtypes of ``product_dtypes``; 0 where the framework has none.

    Parameters
    ----------
    seconds
        Seconds of measuring; with 0 nothing is measured.
    count
        Threads of the framework.
    """
    plain = replace(target.implementation, folder="", worker="peak")
    dtypes = product_dtypes(target.dtype, target.device, target.profile)
    key = (plain.framework, target.device, dtypes, count)
    if seconds:
        pool = Pool(environment=threads.environment(count), cores=count, always=False)
        try:
            for dtype in dtypes:
                for sample in _ask(pool, plain, "product", plain.framework, target.device, dtype, seconds):
                    _SEEN[key] = max(_SEEN.get(key, 0.0), sample.per_second)
        finally:
            pool.close()
    return _SEEN.get(key, 0.0)


def _fastest(arrays: Backend, device: str, call: Callable[[], Any], seconds: float) -> float:
    """The least seconds of a call, among at least CALLS, and more while ``seconds`` last."""
    least, total, made = math.inf, 0.0, -1
    while made < CALLS or total < seconds:
        arrays.synchronize(device)
        started = time.perf_counter()
        returned = call()  # kept until it is done
        arrays.synchronize(device)
        elapsed = time.perf_counter() - started
        del returned
        made += 1
        if made:  # the first call is warm-up
            least, total = min(least, elapsed), total + elapsed
    return least


def _numbers(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Numbers around 0.5: some devices multiply zeros with less power, and so at a higher clock.

    They repeat after DRAWN, as drawing an array that is only copied takes longer than copying it.
    """
    drawn = np.random.default_rng(0).random(min(DRAWN, math.prod(shape)), np.float32).astype(np.dtype(dtype))
    return np.resize(drawn, shape)


def _ask(pool: Jobs, implementation: Implementation, question: str, *arguments: Any) -> list[Sample]:
    """Ask the framework's process; a process that dies or hangs has no roofline."""
    try:
        return list(pool.call(implementation, f"{__name__}:{question}", *arguments, timeout=TIMEOUT))
    except (Crashed, TimedOut):
        return []
