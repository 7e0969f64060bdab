"""Bytes that a call has to move at least, its arithmetic intensity, and which roof of the machine is the lower one.

    bytes      what has to be read once + the results written once
    intensity  floating-point operations (bench.flops) ÷ bytes
    roof       min(matmul peak, intensity · memory bandwidth)

What has to be read: of k and v the keys that at least one row sees, once for all query heads of their group; of q and
grad_output the rows that see at least one key; of a bias the pairs that are allowed in some sequence; lengths; of the
layers everything.  A call with a cache reads the past and writes it into the present that it returns, because that is
what the operator asks for: a cache that grows in place moves half of it.

A kernel whose arrays stay in a cache can be above the roof of the bandwidth, which is that of memory.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from bench import arguments
from bench.flops import flops, pairs
from bench.memory import result_bytes
from bench.roofs import Roof
from bench.workloads import Workload

#: Arrays of which some rows may not be needed: those of queries, and those of keys.
QUERIES, KEYS = ("q", "grad_output"), ("k", "v")

COMPUTE, BANDWIDTH = "compute", "bandwidth"


def least_bytes(w: Workload, dtype: str) -> int:
    """Bytes that a call of the workload has to move at least."""
    numbers = sum(_read(w, name, shape) for name, shape in arguments.shapes(w).items())
    lengths = sum(a.nbytes for a in arguments.options(w).values() if isinstance(a, np.ndarray))
    return numbers * np.dtype(dtype).itemsize + lengths + result_bytes(w, dtype)


def intensity(w: Workload, dtype: str) -> float:
    """Floating-point operations per byte."""
    return flops(w) / least_bytes(w, dtype)


def measures(w: Workload, dtype: str, seconds: float, roof: Roof | None) -> dict[str, Any]:
    """What a record says of a cell whose median is ``seconds``; without a roof its shares are None."""
    found: dict[str, Any] = {"bytes_least": least_bytes(w, dtype), "intensity": intensity(w, dtype)}
    peak = roof.flops_per_second if roof else None
    bandwidth = roof.bytes_per_second if roof else None
    speed = flops(w) / seconds
    found |= {"bound_by": None, "share_of_peak": speed / peak if peak else None, "share_of_limit": None}
    if peak and bandwidth:
        reachable = intensity(w, dtype) * bandwidth
        found["bound_by"] = COMPUTE if peak <= reachable else BANDWIDTH
        found["share_of_limit"] = speed / min(peak, reachable)
    return found


def _read(w: Workload, name: str, shape: tuple[int, ...]) -> int:
    """Numbers of one input that have to be read."""
    if w.kind in ("mha", "sublayer"):
        return math.prod(shape)  # every position is a query, and every row of the bias is in the gradients
    if name == "bias":
        return w.heads * pairs(dataclasses.replace(w, batch=1, is_padded=False))  # the first sequence is not padded
    if name in QUERIES:
        return _seen(w)[0] * shape[1] * shape[3]
    if name in KEYS and not w.past:
        return _seen(w)[1] * shape[1] * shape[3]
    return math.prod(shape)


def _seen(w: Workload) -> tuple[int, int]:
    """Rows that see a key, and keys that a row sees, in one head, summed over the sequences."""
    positions = np.arange(w.length) + w.past
    first = np.zeros_like(positions) if w.window is None else np.maximum(positions - w.window, 0)
    rows = keys = 0
    for valid in w.kv_lengths:
        last = np.minimum(positions, valid - 1) if w.is_causal else np.full_like(positions, valid - 1)
        some = first <= last
        rows += int(some.sum())
        # The first and the last key move by one from row to row, or stand still, so the seen keys have no gap.
        keys += int(last[some].max() - first[some].min() + 1) if some.any() else 0
    return rows, keys
