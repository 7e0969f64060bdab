"""Steps of ``numpy-tiled``: the time of each on a tile, on one thread.

A tile has as many rows and keys as the implementation's tiles, so the time of a step for a score is the same at every
length.  The steps take turns, each on a refilled tile, in a process that keeps freed memory; and once more in a process
whose OpenBLAS is set to other kernels than it chooses for the processor.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import numpy as np

from attention_conformance.bench.options import Renamed
from attention_conformance.impls.numpy.tiled import ROWS, TILE
from attention_conformance.impls.process import allocator, threads
from attention_conformance.impls.process.pool import Worker
from attention_conformance.impls.process.threads import blas
from studies.common import Measured, Study, libraries, markdown, median_interval, sentence
from studies.speed import WIDTH

#: The variable that OpenBLAS reads its kernels from, and the kernels that are compared with its choice: for AVX2.
CHOICE, OTHER = "OPENBLAS_CORETYPE", "Haswell"

#: Fillings of a tile where numbers matter: 2^x of them is zero and subnormal in float32.
HIDDEN, SUBNORMAL = -math.inf, -140.0

#: Most rows of a piece of a product: with a tile's keys and WIDTH it has fewer than a million multiply-adds.
LINES = 32

#: Texts of the table, by step.
TEXTS = {
    "scores": "q · k",
    "output": "weights · v",
    "turn": "a transposed copy of k",
    "scores in pieces": f"q · k from the copy, in pieces of {LINES} rows",
    "output in pieces": f"weights · v, in pieces of {LINES} rows",
    "exp": "e^x",
    "exp2": "2^x",
    "exp2 hidden": "2^x of −∞",
    "exp2 subnormal": "2^x with subnormal results",
    "hide": "hiding the keys above a diagonal",
    "maximum": "maximum of a row",
    "subtract": "subtracting it",
    "sum": "sum of a row, by `sum`",
    "ones": "sum of a row, by a product with ones",
}


def times(count: int, rows: int, keys: int) -> dict[str, list[float]]:
    """Job of a worker: nanoseconds for each score, by step, in ``count`` rounds after one that does not count."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((lines, WIDTH), dtype=np.float32) for lines in (rows, keys, keys))
    usual, tile = rng.standard_normal((2, rows, keys), dtype=np.float32)
    turned, piece = np.ascontiguousarray(k.T), math.gcd(rows, LINES)
    pieces, output = tile.reshape(-1, piece, keys), np.empty((rows // piece, piece, WIDTH), np.float32)
    top, ones = usual.max(axis=1, keepdims=True), np.ones(keys, np.float32)
    above = ~np.tri(rows, keys, dtype=bool)
    hidden, subnormal = (np.full_like(tile, number) for number in (HIDDEN, SUBNORMAL))
    steps: dict[str, tuple[np.ndarray, Callable[[], Any]]] = {
        "scores": (usual, lambda: np.matmul(q, k.T, out=tile)),
        "output": (usual, lambda: np.matmul(tile, v, out=output.reshape(rows, WIDTH))),
        "turn": (usual, lambda: np.copyto(turned, k.T)),
        "scores in pieces": (usual, lambda: np.matmul(q.reshape(-1, piece, WIDTH), turned, out=pieces)),
        "output in pieces": (usual, lambda: np.matmul(pieces, v, out=output)),
        "exp": (usual, lambda: np.exp(tile, out=tile)),
        "exp2": (usual, lambda: np.exp2(tile, out=tile)),
        "exp2 hidden": (hidden, lambda: np.exp2(tile, out=tile)),
        "exp2 subnormal": (subnormal, lambda: np.exp2(tile, out=tile)),
        "hide": (usual, lambda: np.copyto(tile, 0, where=above)),
        "maximum": (usual, lambda: tile.max(axis=1, keepdims=True)),
        "subtract": (usual, lambda: np.subtract(tile, top, out=tile)),
        "sum": (usual, lambda: tile.sum(axis=1)),
        "ones": (usual, lambda: tile @ ones),
    }
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(count + 1):
        for name, (filling, step) in steps.items():
            tile[:] = filling
            started = time.perf_counter()
            step()
            seconds = time.perf_counter() - started
            if number:
                taken[name].append(1e9 * seconds / tile.size)
    return taken


def kernels() -> str:
    """Job of a worker: the kernels that NumPy's BLAS has chosen for this processor."""
    found = [f"{each['internal_api']} {each['version']} for {each.get('architecture', '?')}" for each in blas().info()]
    return ", ".join(found) or "a BLAS that threadpoolctl does not know"


def measure(rounds: int, rows: int = ROWS, keys: int = TILE // ROWS) -> dict[str, Any]:
    """Every round of every step, with both kernels."""
    found = [_with_kernels(told, rounds, rows, keys) for told in ({}, {CHOICE: OTHER})]
    return {"kernels": found, "tile": [rows, keys], "threads": 1, "versions": {"numpy": np.__version__}}


def _with_kernels(told: dict[str, str], count: int, rows: int, keys: int) -> dict[str, Any]:
    with closing(Worker(threads.environment(1) | allocator.environment() | told)) as worker:
        taken = worker.call("studies.steps:times", count, rows, keys)
        chosen = worker.call("studies.steps:kernels")
    times = {name: [float(f"{each:.4g}") for each in found] for name, found in taken.items()}
    return {"told": told, "blas": chosen, "nanoseconds": times}


def table(document: Measured) -> str:
    """The figures as Markdown: a row for each step, and a sentence about their circumstances."""
    chosen, other = (each["nanoseconds"] for each in document["kernels"])
    rows = [(TEXTS[name], _interval(times), _interval(other[name])) for name, times in chosen.items()]
    tile = f"A tile of {' x '.join(map(str, document['tile']))} scores, D = {WIDTH}, float32"
    kernels = " and ".join(each["blas"] for each in document["kernels"])
    lines = markdown(("step", "ns for each score", f"{CHOICE}={OTHER}"), rows)
    return f"{lines}\n\n{sentence(document, tile, libraries(document), kernels)}"


def _interval(times: Sequence[float]) -> str:
    """The median, and its 95 % interval."""
    middle, low, high = (f"{each:.2g}" for each in median_interval(times))
    return f"{middle} ({low}–{high})"


STUDY = Study(
    "steps",
    "what each step of numpy-tiled takes",
    measure,
    {"impls/SPEED.md": table},
    {
        "--rounds": {"type": int, "default": 200, "help": "of each step (default: %(default)s)"},
        "--turns": {"action": Renamed, "now": "--rounds"},
    },
)
