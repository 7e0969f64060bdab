"""Speed of the built-in implementations: each against the best call of its library, in turns.

Each implementation of SPEED.md is compared with the same computation called by hand (studies.by_hand): in one process,
or in two by turns where that is another library's.  A pair is timed only if both give the same result.

The memory layout of a process is good or bad for its lifetime.  So each pair is measured in PROCESSES fresh ones, and
the interval of its ratio spans both the interval of the median of all batches and the medians of the processes.
"""

from __future__ import annotations

import fnmatch
import itertools
import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from attention_conformance.impls import calls
from attention_conformance.impls.backend import backend
from attention_conformance.impls.calls import Request
from attention_conformance.impls.contract import Implementation
from attention_conformance.impls.loading import load, load_function
from attention_conformance.impls.process import allocator, threads
from attention_conformance.impls.process.pool import Worker
from attention_conformance.impls.select import builtin
from studies.common import Measured, Study, Unfit, calls_for, libraries, markdown, median_interval, sentence

#: Fresh processes, and fewest batches in each: the whole range of six ratios is a 97 % interval of the median; fewer
#: ratios have no 95 % interval.
PROCESSES, LEAST = 3, 2

#: Seconds of a batch: 50 times the handover, and less than the occasional work of an idle machine.
BATCH_SECONDS = 0.02

#: Most distance of two equal results, as a share of the length of a row of the output.  Correct results in float32
#: differ by up to 1e-5; with another scale (√65 for √64) they differ by 3e-3, and with another mask by more.
CLOSE = 1e-4

#: Seconds that a job may take: an export or a compilation needs some.
TIMEOUT = 300.0

#: B, H and D of every problem.
BATCH, HEADS, WIDTH = 1, 8, 64

#: Calls before the first batch.  A session of ONNX Runtime takes the memory of all its intermediate results in its
#: second call, page by page, which at S = 2048 takes several times as long as a call (its memory pattern).
WARM = 3

#: Lengths: for a call of microseconds, one of milliseconds, and one whose scores fit into no cache.
USUAL, JAX = (32, 512, 2048), (32, 512, 1024)

#: Implementation, call by hand, lengths, and the process of the call by hand where it is of another library.
COMPARED = (
    ("numpy-tiled", "torch_flash", (512, 1024, 2048, 4096, 8192), "torch"),
    ("torch-sdpa", "torch_sdpa", USUAL, ""),
    ("torch-sdpa-flash", "torch_flash", USUAL, ""),
    ("jax-jit", "jax_plain", JAX, ""),
    ("jax-tiled", "jax_plain", JAX, ""),
    ("jax-nn", "jax_nn", JAX, ""),
    ("onnx-attention23", "onnx_attention", USUAL, ""),
    ("ort-mha", "ort_multi_head", USUAL, ""),
    ("onnx-export23-torch-sdpa", "onnx_attention", USUAL, ""),
    ("onnx-export18-torch-eager", "onnx_plain", USUAL, ""),
    ("onnx-export18-torch-sdpa", "onnx_plain", USUAL, ""),
)

#: The calls that are open in this process, by side.
_OPEN: dict[str, Callable[[], Any]] = {}


class Differs(Unfit):
    """Two calls that do not compute the same, so that their times cannot be compared."""


@dataclass(frozen=True)
class Pair:
    """An implementation and the call by hand, on one problem; ``apart`` is the latter's own process."""

    implementation: str
    by_hand: str
    length: int
    causal: bool = False
    apart: str = ""

    @property
    def record(self) -> Implementation:
        """The implementation."""
        return builtin()[self.implementation]


PAIRS = tuple(
    Pair(name, f"studies.by_hand:{function}", length, causal, apart)
    for name, function, lengths, apart in COMPARED
    for length in lengths
    for causal in (False, True)
)


def ratio(milliseconds: Measured) -> tuple[float, float, float]:
    """The median of ours ÷ by hand over all pairs of batches, and the ends of its interval."""
    sides = zip(milliseconds["ours"], milliseconds["by_hand"], strict=True)
    by_process = [[a / b for a, b in zip(*each, strict=True)] for each in sides]
    middle, *ends = median_interval([*itertools.chain(*by_process)])
    ends += map(statistics.median, by_process)
    return middle, min(ends), max(ends)


def compared(pairs: Sequence[Pair], seconds: float, count: int = 1, processes: int = PROCESSES) -> dict[str, Any]:
    """Every batch of every pair, with threads and versions.  Raises Differs for two calls that are not the same."""
    started = time.perf_counter()
    versions: dict[str, str] = {}
    found: list[dict[str, Any]] = [{**asdict(pair), "milliseconds": {"ours": [], "by_hand": []}} for pair in pairs]
    for number in range(processes):
        with ExitStack() as stack:
            names = {name for pair in pairs for name in (pair.record.process, pair.apart) if name}
            environment = threads.environment(count) | allocator.environment()
            workers = {name: stack.enter_context(closing(Worker(environment))) for name in names}
            for pair, one in zip(pairs, found, strict=True):
                ours = workers[pair.record.process]
                sides = {"ours": ours, "by_hand": workers[pair.apart] if pair.apart else ours}
                for side, taken in _batches(sides, pair, seconds / processes).items():
                    one["milliseconds"][side].append(taken)
                versions |= ours.call("attention_conformance.impls.calls:versions", pair.record)
        print(f"processes {number + 1} of {processes}, {time.perf_counter() - started:.0f} s", file=sys.stderr)
    return {"threads": count, "versions": versions, "pairs": found}


def _batches(sides: Mapping[str, Worker], pair: Pair, seconds: float) -> dict[str, list[float]]:
    """Milliseconds of the batches of both sides, which begin by turns."""
    given = {"ours": pair.record, "by_hand": pair.by_hand}
    one, other = (
        worker.call("studies.speed:open_call", side, given[side], pair.length, pair.causal, timeout=TIMEOUT)
        for side, worker in sides.items()
    )
    apart = distance(one, other)
    if not apart <= CLOSE:  # NaN as well
        raise Differs(f"{pair.implementation} and {pair.by_hand} at S = {pair.length}: rows differ by {apart:.1g}")
    taken: dict[str, list[float]] = {side: [] for side in sides}
    started = time.perf_counter()
    while (number := len(taken["ours"])) < LEAST or time.perf_counter() - started < 2 * seconds:
        for side in sorted(sides, reverse=bool(number % 2)):
            taken[side].append(sides[side].call("studies.speed:batch", side, BATCH_SECONDS, number, timeout=TIMEOUT))
    for side, worker in sides.items():
        worker.call("studies.speed:close", side)
    return taken


def distance(one: np.ndarray, other: np.ndarray) -> float:
    """The largest distance of two rows, as a share of the length of the second one."""
    if one.shape != other.shape:
        return math.inf
    apart = np.linalg.norm(one.astype(np.float64) - other, axis=-1)
    return float(np.max(apart / np.linalg.norm(other.astype(np.float64), axis=-1)))


def open_call(side: str, of: Implementation | str, length: int, causal: bool) -> np.ndarray:
    """Job: keep and warm a call, an implementation's own or that of a ``module:function`` as in studies.by_hand.

    Returns its result (B, H, S, D).  The inputs are the same in every process.
    """
    problem = np.random.default_rng(0).standard_normal((3, BATCH, HEADS, length, WIDTH), dtype=np.float32)
    if isinstance(of, str):
        run, read = load(of)(*problem, causal)
    else:
        arrays = backend(of.framework)
        request = Request.qkv("cpu", *problem, keywords={"is_causal": True} if causal else {})
        _, native, specification = calls.arguments(of, request)
        prepared = calls.prepared(of, load_function(of), specification)

        def run() -> Any:
            returned = prepared(**native)
            arrays.wait(returned)
            return returned

        def read(returned: Any) -> Any:
            return calls.collect(returned, specification, of.layout, arrays)["output"]

    _OPEN[side] = run
    for _ in range(WARM - 1):
        run()
    return np.array(read(run()))


def batch(side: str, seconds: float, number: int) -> float:
    """Job: milliseconds of a call over ``seconds``, which begin on core ``number`` (impls.process.threads)."""
    threads.begin_on(number)
    return 1e3 * statistics.median(calls_for(_OPEN[side], seconds))


def close(side: str) -> None:
    """Job: release a call and its arrays."""
    del _OPEN[side]


def table(document: Measured) -> str:
    """The figures as Markdown: a row for each length, causal next to not causal."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for each in document["pairs"]:
        value, low, high = ratio(each["milliseconds"])
        key = (f"`{each['implementation']}`", f"`{each['by_hand'].partition(':')[2]}`", str(each["length"]))
        ours = statistics.median(itertools.chain(*each["milliseconds"]["ours"]))
        rows.setdefault(key, []).extend((f"{float(f'{ours:.3g}'):g}", f"{value:.2f} ({low:.2f}–{high:.2f})"))
    heads = ("implementation", "by hand", "S", "ms", "ratio", "causal, ms", "ratio")
    lines = markdown(heads, [(*key, *figures) for key, figures in rows.items()], left=(0, 1))
    said = f"B = {BATCH}, H = {HEADS}, D = {WIDTH}, float32, forward"
    return f"{lines}\n\n{sentence(document, said, libraries(document))}"


def selected(only: str) -> list[Pair]:
    """The pairs of the implementations that match and are installed."""
    return [pair for pair in PAIRS if fnmatch.fnmatch(pair.implementation, only) and not pair.record.missing()]


def measure(only: str, seconds: float, threads: int) -> dict[str, Any]:
    """The times of matching implementations.  Raises Unfit where there is none, Differs as ``compared``."""
    if not (pairs := selected(only)):
        raise Unfit(f"--only {only}: nothing that is compared here and installed has such a name")
    return compared(pairs, seconds, threads)


def whole(only: str, **_: Any) -> None:
    """Refuses a part of the table."""
    if selected(only) != list(PAIRS):
        raise Unfit("--page needs all pairs: no --only, and all frameworks installed")


STUDY = Study(
    "speed",
    "whether an implementation is the best call of its library",
    measure,
    {"impls/SPEED.md": table},
    {
        "--only": {"default": "*", "metavar": "PATTERN", "help": "implementations whose names match"},
        "--seconds": {"type": float, "default": 0.6, "help": "of each side of a pair (default: %(default)s)"},
        "--threads": {"type": int, "default": 1, "help": "of every library (default: %(default)s)"},
    },
    whole,
)
